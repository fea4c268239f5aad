"""Three real clients that say and hear the same message, each in its own protocol's words.

`Message` is the neutral form: what was meant. A speaker writes it the way a user of its protocol would, and reads it back
from what the library delivers. What a protocol cannot say is left out by `sayable`.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from queue import Empty, Queue
from typing import Any, Protocol

import confluent_kafka
import paho.mqtt.client as paho
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mainstem.model.topic import amqp_key, topic_of_kafka, kafka_name, topic_of_amqp
from mainstem.testing.broker import Endpoints

HEAR_S_MAX = 20.0

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Message:
    topic: str  # canonical
    value: bytes | None = b""
    key: bytes | None = None  # None: the protocol's default
    headers: Headers = field(default_factory=list)
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None  # canonical topic
    correlation: bytes | None = None
    message_id: str | None = None
    expires_s: int | None = None  # rounded to seconds: it counts down
    priority: int | None = None
    event_time_ms: int | None = None


FIELDS = [f.name for f in fields(Message)]


class Speaker(Protocol):
    name: str

    def sayable(self, message: Message) -> Message: ...
    def say(self, message: Message) -> None: ...
    def listen(self, topic: str) -> contextlib.AbstractContextManager[Ear]: ...
    def history(self, topic: str) -> contextlib.AbstractContextManager[Ear]: ...


class Ear:
    """What one subscription heard, in order; `raw` keeps what the library gave."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[Message, Any]] = Queue()
        self.raw: Any = None

    def put(self, message: Message, raw: Any) -> None:
        self._queue.put((message, raw))

    def hear(self, timeout_s: float = HEAR_S_MAX) -> Message:
        try:
            message, self.raw = self._queue.get(timeout=timeout_s)
        except Empty:
            raise AssertionError(f"nothing was heard within {timeout_s:.0f} s") from None
        return message


def _marked(name: str, value: bytes | None) -> tuple[str, str]:
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


def _unmarked(name: str, text: str) -> tuple[str, bytes | None]:
    if name.endswith(";null"):
        return name[:-5], None
    if name.endswith(";b64"):
        return name[:-4], base64.b64decode(text)
    return name, text.encode()


def _seconds_left(at_ms: float) -> int:
    return round(at_ms / 1000 - time.time())


# -- MQTT ---------------------------------------------------------------------------------------------------------------


class MqttSpeaker:
    name = "mqtt"

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._client = self._connect()
        self._lock = threading.Lock()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connect(self) -> paho.Client:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"speaker-{uuid.uuid4().hex[:8]}", protocol=paho.MQTTv5)
        client.connect(self._endpoints.host, self._endpoints.mqtt_port)
        client.loop_start()
        return client

    def sayable(self, message: Message) -> Message:
        return replace(message, value=message.value or b"")

    def say(self, message: Message) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        pairs = [_marked(name, value) for name, value in message.headers]
        if message.content_type is not None:
            properties.ContentType = message.content_type
        if message.reply_to is not None:
            properties.ResponseTopic = message.reply_to
        if message.correlation is not None:
            properties.CorrelationData = message.correlation
        if message.expires_s is not None:
            properties.MessageExpiryInterval = message.expires_s
        if message.key is not None:
            pairs.append(_marked("ms-key", message.key))
        if message.content_encoding is not None:
            pairs.append(("content-encoding", message.content_encoding))
        if message.message_id is not None:
            pairs.append(("message-id", message.message_id))
        if message.priority is not None:
            pairs.append(("priority", str(message.priority)))
        if message.event_time_ms is not None:
            pairs.append(("ms-ts", str(message.event_time_ms * 1000)))
        if pairs:
            properties.UserProperty = pairs
        info = self._client.publish(message.topic, message.value, qos=1, properties=properties)
        info.wait_for_publish(HEAR_S_MAX)
        assert info.is_published()

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[Ear]:
        with self._subscribed(topic, None) as ear:
            yield ear

    @contextlib.contextmanager
    def history(self, topic: str) -> Iterator[Ear]:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.UserProperty = ("stream-offset", "earliest")
        with self._subscribed(f"$stream/{topic}", properties) as ear:
            yield ear

    @contextlib.contextmanager
    def _subscribed(self, topic_filter: str, properties: Properties | None) -> Iterator[Ear]:
        ear, ready = Ear(), threading.Event()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"ear-{uuid.uuid4().hex[:8]}", protocol=paho.MQTTv5)
        client.on_message = lambda _client, _data, got: ear.put(self.read(got), got)
        client.on_subscribe = lambda *_: ready.set()
        client.connect(self._endpoints.host, self._endpoints.mqtt_port)
        client.loop_start()
        client.subscribe(topic_filter, options=paho.SubscribeOptions(qos=1), properties=properties)
        assert ready.wait(HEAR_S_MAX)
        try:
            yield ear
        finally:
            client.disconnect()
            client.loop_stop()

    def read(self, got: paho.MQTTMessage) -> Message:
        properties = got.properties
        message = Message(got.topic, got.payload)
        message.content_type = getattr(properties, "ContentType", None)
        message.reply_to = getattr(properties, "ResponseTopic", None)
        message.correlation = getattr(properties, "CorrelationData", None)
        message.expires_s = getattr(properties, "MessageExpiryInterval", None)
        for name, text in getattr(properties, "UserProperty", []):
            plain, value = _unmarked(name, text)
            if plain == "ms-key":
                message.key = value
            elif plain == "ms-null":
                message.value = None
            elif plain == "content-encoding":
                message.content_encoding = text
            elif plain == "message-id":
                message.message_id = text
            elif plain == "priority":
                message.priority = int(text)
            elif plain == "ms-ts":
                message.event_time_ms = int(text) // 1000
            elif not plain.startswith("ms-"):
                message.headers.append((plain, value))
        return message


# -- Kafka --------------------------------------------------------------------------------------------------------------


class KafkaSpeaker:
    name = "kafka"

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._producer = confluent_kafka.Producer({"bootstrap.servers": endpoints.bootstrap_servers})

    def close(self) -> None:
        self._producer.flush(HEAR_S_MAX)

    def sayable(self, message: Message) -> Message:
        return message

    def say(self, message: Message) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(message.headers)
        if message.content_type is not None:
            headers.append(("content-type", message.content_type))
        if message.content_encoding is not None:
            headers.append(("content-encoding", message.content_encoding))
        if message.reply_to is not None:
            headers.append(("reply-to", kafka_name(message.reply_to.encode())))
        if message.correlation is not None:
            headers.append(("correlation-id", message.correlation))
        if message.message_id is not None:
            headers.append(("message-id", message.message_id))
        if message.expires_s is not None:
            headers.append(("ms-expires-at", str(int((time.time() + message.expires_s) * 1000))))
        if message.priority is not None:
            headers.append(("ms-priority", str(message.priority)))
        failures: list[Any] = []
        self._producer.produce(
            kafka_name(message.topic.encode()),
            message.value,
            message.key,
            headers=headers,
            timestamp=message.event_time_ms or 0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert self._producer.flush(HEAR_S_MAX) == 0
        assert not failures, failures

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[Ear]:
        with self._assigned(topic, confluent_kafka.OFFSET_END) as ear:
            yield ear

    @contextlib.contextmanager
    def history(self, topic: str) -> Iterator[Ear]:
        with self._assigned(topic, confluent_kafka.OFFSET_BEGINNING) as ear:
            yield ear

    @contextlib.contextmanager
    def _assigned(self, topic: str, offset: int) -> Iterator[Ear]:
        name = kafka_name(topic.encode())
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._endpoints.bootstrap_servers,
                "group.id": f"ear-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        if offset == confluent_kafka.OFFSET_END:  # resolved before anything is said: later would be too late
            _, offset = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(name, 0), HEAR_S_MAX)
        consumer.assign([confluent_kafka.TopicPartition(name, 0, offset)])
        ear, stop = Ear(), threading.Event()

        def poll() -> None:
            while not stop.is_set():
                got = consumer.poll(0.05)
                if got is not None and got.error() is None:
                    ear.put(self.read(got), got)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield ear
        finally:
            stop.set()
            thread.join()
            consumer.close()

    def read(self, got: confluent_kafka.Message) -> Message:
        topic = topic_of_kafka(got.topic()).decode()
        message = Message(topic, got.value(), got.key())
        kind, time_ms = got.timestamp()
        if kind == confluent_kafka.TIMESTAMP_CREATE_TIME:
            message.event_time_ms = time_ms
        for name, value in got.headers() or []:
            text = (value or b"").decode(errors="replace")
            if name == "content-type":
                message.content_type = text
            elif name == "content-encoding":
                message.content_encoding = text
            elif name == "reply-to":
                message.reply_to = topic_of_kafka(text).decode()
            elif name == "correlation-id":
                message.correlation = value
            elif name == "message-id":
                message.message_id = text
            elif name == "ms-expires-at":
                message.expires_s = _seconds_left(int(text))
            elif name == "ms-priority":
                message.priority = int(text)
            elif not name.startswith("ms-"):
                message.headers.append((name, value))
        return message


# -- AMQP ---------------------------------------------------------------------------------------------------------------


class AmqpSpeaker:
    name = "amqp"

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._connection = self._connect()
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(self._endpoints.host, self._endpoints.amqp_port, heartbeat=0)
        )

    def sayable(self, message: Message) -> Message:
        """A body is never null, and a name stands once in a table (duplicates would be an array)."""
        return replace(message, value=message.value or b"")

    def say(self, message: Message) -> None:
        headers: dict[str, Any] = {}
        for name, value in message.headers:
            told: Any = value
            if value is not None:
                with contextlib.suppress(UnicodeDecodeError):
                    told = value.decode()
            if name in headers:
                first = headers[name]
                headers[name] = [*first, told] if isinstance(first, list) else [first, told]
            else:
                headers[name] = told
        if message.key is not None:
            headers["ms-key"] = message.key
        if message.event_time_ms is not None:
            headers["timestamp_in_ms"] = message.event_time_ms
        correlation = None
        if message.correlation is not None:
            try:
                correlation = message.correlation.decode()
            except UnicodeDecodeError:
                headers["x-correlation-id"] = message.correlation
        properties = pika.BasicProperties(
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=headers or None,
            delivery_mode=2,
            priority=message.priority,
            correlation_id=correlation,
            reply_to=amqp_key(message.reply_to.encode()).decode() if message.reply_to is not None else None,
            expiration=str(message.expires_s * 1000) if message.expires_s is not None else None,
            message_id=message.message_id,
            timestamp=message.event_time_ms // 1000 if message.event_time_ms is not None else None,
        )
        key = amqp_key(message.topic.encode()).decode()
        self._channel.basic_publish("amq.topic", key, message.value or b"", properties)

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[Ear]:
        connection = self._connect()
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", amqp_key(topic.encode()).decode())
        with self._consumed(connection, channel, queue, None) as ear:
            yield ear

    @contextlib.contextmanager
    def history(self, topic: str) -> Iterator[Ear]:
        """The topic's own name as a stream queue."""
        connection = self._connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        name = amqp_key(topic.encode()).decode()
        with self._consumed(connection, channel, name, {"x-stream-offset": "first"}) as ear:
            yield ear

    @contextlib.contextmanager
    def _consumed(self, connection: Any, channel: Any, queue: str, arguments: Any) -> Iterator[Ear]:
        ear, stop = Ear(), threading.Event()

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            ear.put(self.read(method, properties, body), (method, properties, body))
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue, on_message, arguments=arguments)

        def run() -> None:
            while not stop.is_set():
                connection.process_data_events(time_limit=0.05)
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield ear
        finally:
            stop.set()
            thread.join()

    def read(self, method: Any, properties: Any, body: bytes) -> Message:
        topic = topic_of_amqp(method.routing_key.encode()).decode()
        message = Message(topic, body)
        message.content_type = properties.content_type
        message.content_encoding = properties.content_encoding
        message.priority = properties.priority
        message.message_id = properties.message_id
        if properties.reply_to is not None:
            message.reply_to = topic_of_amqp(properties.reply_to.encode()).decode()
        if properties.correlation_id is not None:
            message.correlation = properties.correlation_id.encode()
        if properties.expiration is not None:
            message.expires_s = round(int(properties.expiration) / 1000)
        if properties.timestamp is not None:
            message.event_time_ms = properties.timestamp * 1000
        for name, value in (properties.headers or {}).items():
            self._read_header(message, name, value)
        return message

    def _read_header(self, message: Message, name: str, value: Any) -> None:
        if name == "ms-key":
            message.key = value if isinstance(value, bytes) else str(value).encode()
        elif name == "ms-null":
            message.value = None
        elif name == "timestamp_in_ms":
            message.event_time_ms = int(value)
        elif name == "x-correlation-id":
            message.correlation = value if isinstance(value, bytes) else str(value).encode()
        elif not name.startswith(("ms-", "x-")):
            for one in value if isinstance(value, list) else [value]:
                message.headers.append((name, one if one is None or isinstance(one, bytes) else str(one).encode()))


SPEAKERS = {speaker.name: speaker for speaker in (MqttSpeaker, KafkaSpeaker, AmqpSpeaker)}
