"""paho, MQTT 5."""

from __future__ import annotations

import base64
import threading
import uuid
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from mainstem.testing.broker import Endpoints
from tests.crossing.message import EXACT, HEAR_S_MAX, MAPPED, CannotSay, Ear, Heard, Message

FILTERS_PER_PACKET = 100
TEXT_BYTES_MAX = 65_535
STREAM_META = ("ms-offset", "ms-append-ts")
CLOUD_EVENT = ("id", "source", "specversion", "type", "subject", "time", "dataschema")
Pairs = list[tuple[str, str]]


def marked(name: str, value: bytes | None) -> tuple[str, str]:
    """A header as MQTT can write it: text, with a mark where it is not."""
    if value is None:
        return f"{name};null", ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{name};b64", base64.b64encode(value).decode()
    if "\0" in text or name.endswith((";b64", ";null")):
        return f"{name};b64", base64.b64encode(value).decode()
    return name, text


def unmarked(name: str, text: str) -> tuple[str, bytes | None, str]:
    if name.endswith(";null"):
        return name[:-5], None, MAPPED
    if name.endswith(";b64"):
        return name[:-4], base64.b64decode(text), MAPPED
    return name, text.encode(), EXACT


class MqttSpeaker:
    name = "mqtt"

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._client = self._connect("speaker")

    def close(self) -> None:
        _stop(self._client)

    def _connect(self, role: str) -> paho.Client:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"{role}-{uuid.uuid4().hex[:12]}", protocol=paho.MQTTv5)
        client.max_inflight_messages_set(1000)
        client.connect(self._endpoints.host, self._endpoints.mqtt_port)
        client.loop_start()
        return client

    # -- saying

    def say(self, message: Message) -> None:
        if message.value is None:
            raise CannotSay("a null payload")
        if message.typed:
            raise CannotSay("typed headers")
        properties, pairs = self._properties(message)
        if any(len(text.encode()) > TEXT_BYTES_MAX for pair in pairs for text in pair):
            raise CannotSay("a user property of that size")
        info = self._client.publish(
            message.topic,
            message.value,
            qos=0 if message.transient else 1,
            retain=bool(message.retain),
            properties=properties,
        )
        info.wait_for_publish(HEAR_S_MAX)
        assert info.is_published()

    def _properties(self, message: Message) -> tuple[Properties, Pairs]:
        properties = Properties(PacketTypes.PUBLISH)
        if message.content_type is not None:
            properties.ContentType = message.content_type
        if message.reply_to is not None:
            properties.ResponseTopic = message.reply_to
        if message.correlation is not None:
            properties.CorrelationData = message.correlation
        if message.expires_s is not None:
            properties.MessageExpiryInterval = message.expires_s
        if message.is_text:
            properties.PayloadFormatIndicator = 1
        pairs = self._pairs(message)
        if pairs:
            properties.UserProperty = pairs
        return properties, pairs

    def _pairs(self, message: Message) -> Pairs:
        pairs = [marked(name, value) for name, value in message.headers]
        pairs += message.cloud_event.items()
        pairs += ((f"amqp-{name.replace('_', '-')}", value) for name, value in message.amqp.items())
        if message.key is not None:
            pairs.append(marked("ms-key", message.key))
        if message.content_encoding is not None:
            pairs.append(("content-encoding", message.content_encoding))
        if message.message_id is not None:
            pairs.append(("message-id", message.message_id))
        if message.priority is not None:
            pairs.append(("priority", str(message.priority)))
        if message.deliver_at_ms is not None:
            pairs.append(("ms-deliver-at", str(message.deliver_at_ms)))
        if message.event_time_us is not None:
            pairs.append(("ms-ts", str(message.event_time_us)))
        return pairs

    def raw_of(self, message: Message) -> Any:
        properties, pairs = self._properties(message)
        return _raw(
            message.topic, message.value, bool(message.retain), 0 if message.transient else 1, properties, pairs
        )

    # -- hearing

    def listen(self, *topics: str) -> Ear:
        return self._subscribed(topics, None)

    def history(self, *topics: str) -> Ear:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.UserProperty = ("stream-offset", "earliest")
        return self._subscribed([f"$stream/{topic}" for topic in topics], properties)

    def _subscribed(self, filters: Any, properties: Properties | None) -> Ear:
        client = self._connect("ear")
        ear = Ear(lambda: _stop(client))
        answers: list[Any] = []
        answered = threading.Semaphore(0)

        def on_subscribe(_client: Any, _data: Any, _id: int, codes: list[Any], _properties: Any) -> None:
            answers.extend(codes)
            answered.release()

        client.on_message = lambda _client, _data, got: ear.put(self.read(got))
        client.on_subscribe = on_subscribe
        options = SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=2)
        for start in range(0, len(filters), FILTERS_PER_PACKET):
            asked = [(topic_filter, options) for topic_filter in filters[start : start + FILTERS_PER_PACKET]]
            client.subscribe(asked, properties=properties)
            assert answered.acquire(timeout=HEAR_S_MAX)
        assert not any(code.is_failure for code in answers), answers
        return ear

    def read(self, got: paho.MQTTMessage) -> Heard:
        properties = got.properties
        pairs: Pairs = [pair for pair in getattr(properties, "UserProperty", []) if pair[0] not in STREAM_META]
        heard = Heard(Message(got.topic, got.payload), None, handle=got)
        heard.raw = _raw(got.topic, got.payload, got.retain, got.qos, properties, pairs)
        heard.meta = {name: int(text) for name, text in getattr(properties, "UserProperty", []) if name in STREAM_META}
        for name, attribute in (
            ("content_type", "ContentType"),
            ("reply_to", "ResponseTopic"),
            ("correlation", "CorrelationData"),
            ("expires_s", "MessageExpiryInterval"),
        ):
            if hasattr(properties, attribute):
                heard.found(name, getattr(properties, attribute), EXACT)
        if getattr(properties, "PayloadFormatIndicator", 0):
            heard.found("is_text", True, EXACT)
        if got.retain:
            heard.found("retain", True, EXACT)
        if got.qos == 0:
            heard.found("transient", True, EXACT)
        is_event = any(name == "specversion" for name, _ in pairs)
        for name, text in pairs:
            if is_event and name in CLOUD_EVENT:
                heard.message.cloud_event[name] = text
                heard.places["cloud_event"] = EXACT
            else:
                _read_pair(heard, *unmarked(name, text), text)
        return heard


def _read_pair(heard: Heard, name: str, value: bytes | None, place: str, text: str) -> None:
    numbers = {"priority": "priority", "ms-deliver-at": "deliver_at_ms", "ms-ts": "event_time_us"}
    if name == "ms-key":
        heard.found("key", value, MAPPED)
    elif name == "ms-null":
        heard.found("value", None, MAPPED)
    elif name in ("content-encoding", "message-id"):
        heard.found(name.replace("-", "_"), text, MAPPED)
    elif name in numbers and text.isdigit():
        heard.found(numbers[name], int(text), MAPPED)
    elif name.startswith("amqp-"):
        heard.message.amqp[name.removeprefix("amqp-").replace("-", "_")] = text
        heard.places["amqp"] = MAPPED
    elif name == "ms-origin":
        heard.origin = text
    elif name == "ms-left-out":
        heard.left_out.append(text)
    elif name == "ms-amqp-headers":
        heard.amqp_headers = value
    else:
        heard.add_header(name, value, place)


def _raw(topic: str, value: bytes | None, retain: bool, qos: int, properties: Any, pairs: Pairs) -> Any:
    """Everything but the expiry, which counts down."""
    names = ("PayloadFormatIndicator", "ContentType", "ResponseTopic", "CorrelationData")
    told = {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    return topic, value, bool(retain), qos, told, pairs, hasattr(properties, "MessageExpiryInterval")


def _stop(client: paho.Client) -> None:
    client.disconnect()
    client.loop_stop()
