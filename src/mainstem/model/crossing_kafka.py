"""Kafka's words: headers carry what the record has no place for. See `crossing.py`."""

from __future__ import annotations

from collections import Counter

from mainstem.model.crossing_message import CLIENT_NAMES, Message, elsewhere, take_client_field
from mainstem.model.cut_names import is_cut
from mainstem.model.errors import InvalidName
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record
from mainstem.model.topic import kafka_name, topic_of_kafka
from mainstem.model.whole_numbers import whole_number

TEXT_FIELDS = {
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"correlation-id": "correlation",
    b"message-id": "message_id",
}
ORIGINS = {origin: origin.name.lower().encode() for origin in Origin}


def read(record: Record) -> Message:
    """A field's header counts if it stands once and has a value; otherwise it stays a header like any other."""
    message = Message(record.topic, record.value, record.key, event_time_us=record.time_ms * 1000)
    headers = record.headers
    if record.origin != Origin.KAFKA and headers and headers[0] == (b"ms-topic", record.topic):
        headers = headers[1:]  # the broker's own, beside a key
    counts = Counter(name for name, _ in headers)
    for name, value in headers:
        if value is None or counts[name] > 1 or not _take(message, name, value):
            message.headers.append((elsewhere(name), value))
    return message


def _take(message: Message, name: bytes, value: bytes) -> bool:
    if name in TEXT_FIELDS:
        setattr(message, TEXT_FIELDS[name], value)
    elif name == b"reply-to":
        try:
            message.reply_to = topic_of_kafka(value.decode())
        except (UnicodeDecodeError, InvalidName):
            return False  # an address of the sender's own, not one of our topics
    elif name == b"ms-ts" and (whole_number(value) or 0) // 1000 != (message.event_time_us or 0) // 1000:
        return False  # it refines the record's own time, or it is not one of ours
    elif name in CLIENT_NAMES and name != b"ms-key":
        return take_client_field(message, name, value)
    else:
        return False
    return True


def own(record: Record, *, through_view: bool) -> Record:
    """Kafka's own record, as it was sent; a view also tells which topic it came from."""
    headers = [*record.headers, (b"ms-topic", record.topic)] if through_view else record.headers
    return _shown(record, headers, record.time_ms)


def write(message: Message, record: Record, *, through_view: bool) -> Record:
    """Another protocol's record in Kafka's words."""
    time_us = message.event_time_us if message.event_time_us is not None else record.time_ms * 1000
    headers = list(message.headers)
    _write_fields(message, headers)
    if time_us % 1000:
        headers.append((b"ms-ts", b"%d" % time_us))
    headers.append((b"ms-origin", ORIGINS[record.origin]))
    if through_view or is_cut(kafka_name(record.topic).encode()):
        headers.append((b"ms-topic", record.topic))
    return _shown(record, headers, time_us // 1000)


def _shown(record: Record, headers: list[Header], time_ms: int) -> Record:
    return Record(
        record.value, record.key, headers, time_ms, 0, record.offset, record.stamp, record.origin, record.topic
    )


def _write_fields(message: Message, headers: list[Header]) -> None:
    for name, attribute in TEXT_FIELDS.items():
        value = getattr(message, attribute)
        if value is not None:
            headers.append((name, value))
    if message.reply_to is not None:
        headers.append((b"reply-to", kafka_name(message.reply_to).encode()))
    if message.expires_at_us is not None:
        headers.append((b"ms-expires-at", b"%d" % (message.expires_at_us // 1000)))
    if message.deliver_at_us is not None:
        headers.append((b"ms-deliver-at", b"%d" % (message.deliver_at_us // 1000)))
    if message.priority is not None:
        headers.append((b"ms-priority", b"%d" % message.priority))
    if message.format_utf8:
        headers.append((b"ms-format", b"utf8"))
    if message.retain:
        headers.append((b"ms-retain", b"1"))
    if message.amqp_headers is not None:
        headers.append((b"ms-amqp-headers", message.amqp_headers))
