"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import confluent_kafka

from mainstem.model.topic import kafka_name, topic_of_kafka
from mainstem.testing.broker import Endpoints
from tests.crossing.message import EXACT, HEAR_S_MAX, MAPPED, CannotSay, Ear, Heard, Message

TEXTS = {"content-type": "content_type", "content-encoding": "content_encoding", "message-id": "message_id"}
NUMBERS = {"ms-priority": "priority", "ms-deliver-at": "deliver_at_ms"}
FLAGS = {"ms-format": "is_text", "ms-retain": "retain"}


class KafkaSpeaker:
    name = "kafka"

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": endpoints.bootstrap_servers, "linger.ms": 0, "log_level": 0}
        )

    def close(self) -> None:
        self._producer.flush(HEAR_S_MAX)

    # -- saying

    def say(self, message: Message) -> None:
        for name in ("is_text", "retain", "transient", "typed"):
            if getattr(message, name):
                raise CannotSay(name)
        failures: list[Any] = []
        self._producer.produce(
            kafka_name(message.topic.encode()),
            message.value,
            message.key,
            headers=self._headers(message),
            timestamp=(message.event_time_us or 0) // 1000,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert self._producer.flush(HEAR_S_MAX) == 0
        assert not failures, failures

    def _headers(self, message: Message) -> list[tuple[str, Any]]:
        headers: list[tuple[str, Any]] = list(message.headers)
        headers += ((f"ce_{name}", value) for name, value in message.cloud_event.items())
        headers += ((f"amqp-{name.replace('_', '-')}", value) for name, value in message.amqp.items())
        for name, attribute in (TEXTS | NUMBERS).items():
            value = getattr(message, attribute)
            if value is not None:
                headers.append((name, str(value)))
        if message.reply_to is not None:
            headers.append(("reply-to", kafka_name(message.reply_to.encode())))
        if message.correlation is not None:
            headers.append(("correlation-id", message.correlation))
        if message.expires_s is not None:
            headers.append(("ms-expires-at", str(int((time.time() + message.expires_s) * 1000))))
        if message.event_time_us is not None and message.event_time_us % 1000:
            headers.append(("ms-ts", str(message.event_time_us)))
        return headers

    def raw_of(self, message: Message) -> Any:
        headers = [
            (name, value.encode() if isinstance(value, str) else value) for name, value in self._headers(message)
        ]
        return _raw(message.key, message.value, headers)

    # -- hearing

    def listen(self, *topics: str) -> Ear:
        return self._assigned(topics, live=True)

    def history(self, *topics: str) -> Ear:
        return self._assigned(topics, live=False)

    def _assigned(self, topics: tuple[str, ...], *, live: bool) -> Ear:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._endpoints.bootstrap_servers,
                "group.id": f"ear-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "allow.auto.create.topics": True,
                "log_level": 0,
            }
        )
        wanted = [confluent_kafka.TopicPartition(kafka_name(topic.encode()), 0, 0) for topic in topics]
        for one in wanted:
            if live:  # resolved before anything is said: later would be too late
                _, one.offset = consumer.get_watermark_offsets(one, HEAR_S_MAX)
            else:
                one.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(wanted)
        return polled(consumer, self.read)

    def read(self, got: confluent_kafka.Message) -> Heard:
        topic = topic_of_kafka(got.topic()).decode()
        heard = Heard(Message(topic, got.value(), got.key()), None, handle=got)
        if got.key() is not None:
            heard.places["key"] = EXACT
        if got.value() is None:
            heard.places["value"] = EXACT
        kind, time_ms = got.timestamp()
        if kind == confluent_kafka.TIMESTAMP_CREATE_TIME:
            heard.found("event_time_us", time_ms * 1000, EXACT)
        headers: list[tuple[str, bytes | None]] = list(got.headers() or [])
        heard.raw = _raw(got.key(), got.value(), headers)
        heard.meta = {"offset": got.offset(), "partition": got.partition()}
        counts = [name for name, _ in headers]
        for name, value in headers:
            if value is None or counts.count(name) > 1 or not _read_field(heard, name, value):
                heard.add_header(name, value)
        return heard


def _read_field(heard: Heard, name: str, value: bytes) -> bool:
    text = value.decode(errors="replace")
    if name in TEXTS:
        heard.found(TEXTS[name], text, MAPPED)
    elif name in NUMBERS:
        heard.found(NUMBERS[name], int(text), MAPPED)
    elif name in FLAGS:
        heard.found(FLAGS[name], True, MAPPED)
    elif name == "reply-to":
        heard.found("reply_to", topic_of_kafka(text).decode(), MAPPED)
    elif name == "correlation-id":
        heard.found("correlation", value, MAPPED)
    elif name == "ms-expires-at":
        heard.found("expires_s", round(int(text) / 1000 - time.time()), MAPPED)
    elif name == "ms-ts":
        heard.found("event_time_us", int(text), MAPPED)
    elif name.startswith("ce_"):
        heard.message.cloud_event[name.removeprefix("ce_")] = text
        heard.places["cloud_event"] = EXACT
    elif name.startswith("amqp-"):
        heard.message.amqp[name.removeprefix("amqp-").replace("-", "_")] = text
        heard.places["amqp"] = MAPPED
    elif name == "ms-origin":
        heard.origin = text
    elif name == "ms-topic":
        heard.full_topic = text
    elif name == "ms-amqp-headers":
        heard.amqp_headers = value
    else:
        return False
    return True


def polled(consumer: confluent_kafka.Consumer, read: Any) -> Ear:
    """An ear that a thread of its own fills."""
    stop = threading.Event()

    def close() -> None:
        stop.set()
        thread.join()

    ear = Ear(close)

    def poll() -> None:
        while not stop.is_set():
            got = consumer.poll(0.05)
            if got is None:
                continue
            if got.error() is None:
                ear.put(read(got))
            elif got.error().fatal() or not got.error().retriable():
                ear.fail(AssertionError(str(got.error())))
        consumer.close()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    return ear


def _raw(key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> Any:
    """Everything but the expiry, which the test computes from its own clock."""
    return key, value, [pair for pair in headers if pair[0] != "ms-expires-at"]
