"""pika, AMQP 0-9-1."""

from __future__ import annotations

import threading
from typing import Any

import pika

from mainstem.model.topic import amqp_key, topic_of_amqp
from mainstem.testing.broker import Endpoints
from tests.crossing.message import EXACT, MAPPED, CannotSay, Ear, Heard, Message

PREFETCH = 1_000
NAME_BYTES_MAX = 255
PLAIN = ("content_type", "content_encoding", "message_id", "priority")
OWN = ("type", "app_id", "user_id", "cluster_id")
NUMBERS = {"timestamp_in_ms": "event_time_us", "ms-ts": "event_time_us", "ms-deliver-at": "deliver_at_ms"}
FLAGS = {"ms-format": "is_text", "ms-retain": "retain"}
EVENT = "cloudEvents:"


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

    # -- saying

    def say(self, message: Message) -> None:
        if message.value is None:
            raise CannotSay("a null body")
        for name in ("is_text", "retain"):
            if getattr(message, name):
                raise CannotSay(name)
        properties = self._properties(message)
        self._channel.basic_publish("amq.topic", key_of(message.topic), message.value, properties)

    def _properties(self, message: Message) -> pika.BasicProperties:
        properties = pika.BasicProperties(delivery_mode=1 if message.transient else 2)
        for name in PLAIN:
            setattr(properties, name, getattr(message, name))
        for name, value in message.amqp.items():
            setattr(properties, name, value)
        if message.reply_to is not None:
            properties.reply_to = key_of(message.reply_to)
        if message.expires_s is not None:
            properties.expiration = str(message.expires_s * 1000)
        if message.event_time_us is not None:
            properties.timestamp = message.event_time_us // 1_000_000
        headers = self._headers(message, properties)
        properties.headers = headers or None
        return properties

    def _headers(self, message: Message, properties: pika.BasicProperties) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        for name, value in message.headers:
            if name in headers:
                raise CannotSay("a name that stands twice in a table")
            if len(name.encode()) > NAME_BYTES_MAX:
                raise CannotSay("a name of that size")
            headers[name] = _told(value)
        headers |= message.typed
        headers |= {f"{EVENT}{name}": value for name, value in message.cloud_event.items()}
        if message.key is not None:
            headers["ms-key"] = _told(message.key)
        if message.deliver_at_ms is not None:
            headers["ms-deliver-at"] = str(message.deliver_at_ms)
        if message.event_time_us is not None and message.event_time_us % 1_000_000:
            headers["timestamp_in_ms"] = message.event_time_us // 1000
        if message.event_time_us is not None and message.event_time_us % 1000:
            headers["ms-ts"] = str(message.event_time_us)
        told = _told(message.correlation)
        if isinstance(told, str) and len(told) < 256:
            properties.correlation_id = told
        elif told is not None:
            headers["x-correlation-id"] = told
        return headers

    def raw_of(self, message: Message) -> Any:
        return _raw("amq.topic", key_of(message.topic), message.value, self._properties(message))

    # -- hearing

    def listen(self, *topics: str) -> Ear:
        """One queue, bound to each topic."""
        connection = self._connect()
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for topic in topics:
            channel.queue_bind(queue, "amq.topic", key_of(topic))
        return self._consumed(connection, channel, [queue], None)

    def history(self, *topics: str) -> Ear:
        """Each topic's own name as a stream queue."""
        connection = self._connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        return self._consumed(connection, channel, [key_of(topic) for topic in topics], {"x-stream-offset": "first"})

    def _consumed(self, connection: Any, channel: Any, queues: list[str], arguments: Any) -> Ear:
        stop = threading.Event()

        def close() -> None:
            stop.set()
            thread.join()

        ear = Ear(close)

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            ear.put(self.read(method, properties, body))
            channel.basic_ack(method.delivery_tag)

        for queue in queues:
            channel.basic_consume(queue, on_message, arguments=arguments)

        def run() -> None:
            try:
                while not stop.is_set():
                    connection.process_data_events(time_limit=0.05)
                connection.close()
            except Exception as failure:
                ear.fail(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return ear

    def read(self, method: Any, properties: Any, body: bytes) -> Heard:
        heard = Heard(Message(topic_of_amqp(method.routing_key.encode()).decode(), body), None)
        heard.handle = (method, properties, body)
        headers: dict[str, Any] = dict(properties.headers or {})
        heard.meta = {name: headers.pop(name) for name in ("x-stream-offset",) if name in headers}
        heard.raw = _raw(method.exchange, method.routing_key, body, properties)
        for name in PLAIN:
            if getattr(properties, name) is not None:
                heard.found(name, getattr(properties, name), EXACT)
        heard.message.amqp = {name: getattr(properties, name) for name in OWN if getattr(properties, name) is not None}
        if heard.message.amqp:
            heard.places["amqp"] = EXACT
        if properties.delivery_mode == 1:
            heard.found("transient", True, EXACT)
        if properties.reply_to is not None:
            heard.found("reply_to", topic_of_amqp(properties.reply_to.encode()).decode(), EXACT)
        if properties.correlation_id is not None:
            heard.found("correlation", properties.correlation_id.encode(), EXACT)
        if properties.expiration is not None:
            heard.found("expires_s", -(-int(properties.expiration) // 1000), EXACT)
        if properties.timestamp is not None:
            heard.found("event_time_us", properties.timestamp * 1_000_000, EXACT)
        for name, value in headers.items():
            _read_header(heard, name, value)
        return heard


def _read_header(heard: Heard, name: str, value: Any) -> None:
    if name in NUMBERS and str(value).isdigit():
        number = int(value) * 1000 if name == "timestamp_in_ms" else int(value)
        heard.found(NUMBERS[name], number, MAPPED)
    elif name in FLAGS:
        heard.found(FLAGS[name], True, MAPPED)
    elif name == "ms-key":
        heard.found("key", _bytes(value), MAPPED)
    elif name == "ms-null":
        heard.found("value", None, MAPPED)
    elif name == "x-correlation-id":
        heard.found("correlation", _bytes(value), MAPPED)
    elif name.startswith("amqp-"):
        heard.message.amqp[name.removeprefix("amqp-").replace("-", "_")] = value
        heard.places["amqp"] = MAPPED
    elif name.startswith(EVENT):
        heard.message.cloud_event[name.removeprefix(EVENT)] = value
        heard.places["cloud_event"] = EXACT
    elif name == "ms-origin":
        heard.origin = value
    elif name == "ms-topic":
        heard.full_topic = value
    elif name == "ms-left-out":
        heard.left_out += value if isinstance(value, list) else [value]
    elif value is None or isinstance(value, str | bytes):
        heard.add_header(name, _bytes(value))
    elif isinstance(value, list) and all(one is None or isinstance(one, str | bytes) for one in value):
        for one in value:
            heard.add_header(name, _bytes(one), MAPPED)
        heard.message.typed[name] = value
    else:
        heard.message.typed[name] = value
        heard.places["typed"] = EXACT


def key_of(topic: str) -> str:
    return amqp_key(topic.encode()).decode()


def _told(value: bytes | None) -> Any:
    """Text as text, other bytes as a byte array."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _raw(exchange: str, key: str, body: bytes | None, properties: pika.BasicProperties) -> Any:
    names = (*PLAIN, *OWN, "delivery_mode", "reply_to", "correlation_id", "expiration", "timestamp")
    told = {name: getattr(properties, name) for name in names if getattr(properties, name) is not None}
    headers = {name: value for name, value in (properties.headers or {}).items() if name != "x-stream-offset"}
    return exchange, key, body, told, headers
