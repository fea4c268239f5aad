"""AMQP 0-9-1's words: the content header's properties and its typed headers table. See `crossing.py`."""

from __future__ import annotations

import json
from typing import Any

from mainstem.model import cloud_events
from mainstem.model.amqp_content import Content, Value, decode_value, encode_value, join_table
from mainstem.model.crossing_kafka import ORIGINS
from mainstem.model.crossing_message import (
    AMQP_NAMES,
    CLIENT_NAMES,
    Message,
    elsewhere,
    left_out,
    start,
    take_client_field,
    text_name,
)
from mainstem.model.cut_names import is_cut
from mainstem.model.errors import InvalidName
from mainstem.model.record import Header, Record
from mainstem.model.topic import amqp_key, topic_of_amqp
from mainstem.model.whole_numbers import MS_DIGITS_MAX, whole_number

SECONDS_MAX = (1 << 63) // 1_000_000
SHORT_MAX = 255
PERSISTENT, TRANSIENT = 2, 1
_TEXTS = {"content_type": "content_type", "content_encoding": "content_encoding", "message_id": "message_id"}
# The broker vouches for user_id: it is the publisher's login. What another protocol's client says stays a header.
_NAMES_BACK = {name: key for key, name in AMQP_NAMES.items() if key != "user_id"}


def read(record: Record) -> Message:
    message = start(record)
    content = Content.parse(record.header(b"ms-amqp") or b"")
    for attribute in _TEXTS:
        value = content.fields.get(attribute)
        if value is not None:
            setattr(message, attribute, value[1:])
    headers: list[Header] = []
    for name, raw in content.headers:
        _read_header(message, headers, name.encode("utf-8", "surrogateescape"), raw)
    _read_properties(message, content, record)
    message.headers += cloud_events.from_prefixed(headers, message.content_type, cloud_events.AMQP_PREFIXES)
    message.headers += ((name, content.fields[key][1:]) for key, name in AMQP_NAMES.items() if key in content.fields)
    if any(raw[:1] not in b"SxV" for _, raw in content.headers):
        message.amqp_headers = join_table(content.headers)
    return message


def _read_properties(message: Message, content: Content, record: Record) -> None:
    message.priority = content.number("priority") if "priority" in content.fields else message.priority
    if "correlation_id" in content.fields:
        message.correlation = content.fields["correlation_id"][1:]
    if "reply_to" in content.fields:
        _read_reply_to(message, content.fields["reply_to"][1:])
    expires_ms = whole_number(content.text("expiration") or "", MS_DIGITS_MAX)
    if expires_ms is not None:
        message.expires_at_us = record.stamp // 1000 + expires_ms * 1000
    seconds = content.number("timestamp")
    # One that no signed number of milliseconds holds is for readers by AMQP alone, who get it as it was sent.
    if seconds is not None and (message.event_time_us or 0) // 1_000_000 != seconds <= SECONDS_MAX:
        message.event_time_us = seconds * 1_000_000


def _read_reply_to(message: Message, key: bytes) -> None:
    try:
        message.reply_to = topic_of_amqp(key)
    except InvalidName:  # a short form of nobody's name: an address of the sender's own
        message.headers.append((b"reply-to", key))


def _read_header(message: Message, headers: list[Header], name: bytes, raw: bytes) -> None:
    value = _as_bytes(raw)
    if name == b"timestamp_in_ms" and (time_ms := whole_number(value or b"", MS_DIGITS_MAX)) is not None:
        message.event_time_us = time_ms * 1000
    elif name == b"x-correlation-id" and value is not None:
        message.correlation = value
    elif name not in CLIENT_NAMES or value is None or not take_client_field(message, name, value):
        headers.append((elsewhere(name), value))


def asked_by_client(content: Content) -> Message:
    """What a publisher asks of the broker with headers: key, event time, expiry, delivery time."""
    message = Message(b"", None)
    for name, raw in content.headers:
        value = _as_bytes(raw) if name.startswith(("ms-", "timestamp_in_ms")) else None
        if value is None:
            continue
        if name == "ms-key":
            message.key = value
        elif name == "timestamp_in_ms" and message.event_time_us is None:
            time_ms = whole_number(value, MS_DIGITS_MAX)
            message.event_time_us = None if time_ms is None else time_ms * 1000
        elif name.encode() in CLIENT_NAMES:
            take_client_field(message, name.encode(), value)
    return message


def _as_bytes(raw: bytes) -> bytes | None:
    """A typed value as other protocols see it: numbers decimal, true or false, times in seconds, the rest JSON."""
    kind = raw[:1]
    if kind in b"Sx":
        return raw[5:]
    value = decode_value(raw)[0]
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return str(value).encode()
    return json.dumps(value, default=_json_bytes, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _json_bytes(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def write(message: Message, now_ns: int) -> bytes:
    """The content header of a message that another protocol wrote."""
    content = Content()
    content.fields["delivery_mode"] = bytes((PERSISTENT if message.qos else TRANSIENT,))
    for attribute in _TEXTS:
        value = getattr(message, attribute)
        if value is not None and len(value) <= SHORT_MAX:
            content.fields[attribute] = bytes((len(value),)) + value
        elif value is not None:
            content.headers.append((attribute.replace("_", "-"), _typed(value)))
    if message.priority is not None:
        content.fields["priority"] = bytes((message.priority,))
    if message.reply_to is not None:
        key = amqp_key(message.reply_to)
        content.fields["reply_to"] = bytes((len(key),)) + key
    if message.expires_at_us is not None:
        left_ms = max(0, (message.expires_at_us * 1000 - now_ns) // 1_000_000)
        content.set_text("expiration", str(left_ms))
    _write_headers(message, content)
    return content.encode()


def _write_headers(message: Message, content: Content) -> None:
    grouped: dict[bytes, list[bytes | None]] = {}
    for name, value in cloud_events.to_prefixed(message.headers, cloud_events.AMQP_PREFIXES[0]):
        fits = len(text_name(name)) <= SHORT_MAX
        grouped.setdefault(text_name(name) if fits else b"ms-left-out", []).append(value if fits else left_out(name))
    for name, values in grouped.items():
        back = _NAMES_BACK.get(name)
        if back is not None and len(values) == 1 and values[0] is not None and len(values[0]) <= SHORT_MAX:
            content.fields[back] = bytes((len(values[0]),)) + values[0]
            continue
        typed = _typed(values[0]) if len(values) == 1 else _array(values)
        content.headers.append((name.decode("utf-8", "surrogateescape"), typed))
    if message.correlation is not None:
        if len(message.correlation) <= SHORT_MAX and b"\0" not in message.correlation and _is_utf8(message.correlation):
            content.fields["correlation_id"] = bytes((len(message.correlation),)) + message.correlation
        else:
            content.headers.append(("x-correlation-id", _typed(message.correlation)))
    if message.event_time_us is not None:
        if message.event_time_us >= 0:  # Kafka's -1 is no time; AMQP has none before 1970
            content.fields["timestamp"] = (message.event_time_us // 1_000_000).to_bytes(8, "big")
        content.set_header("timestamp_in_ms", message.event_time_us // 1000)
        if message.event_time_us % 1000:
            content.set_header("ms-ts", str(message.event_time_us))
    if is_cut(amqp_key(message.topic)):
        content.headers.append(("ms-topic", _typed(message.topic)))
    if message.key is not None and message.key != message.topic:
        content.headers.append(("ms-key", _typed(message.key)))
    if message.value is None:
        content.set_header("ms-null", "1")
    if message.deliver_at_us is not None:
        content.set_header("ms-deliver-at", str(message.deliver_at_us // 1000))
    if message.format_utf8:
        content.set_header("ms-format", "utf8")
    if message.retain:
        content.set_header("ms-retain", "1")
    content.set_header("ms-origin", ORIGINS[message.origin].decode())


def _typed(value: bytes | None) -> bytes:
    """A long string if it is text, a byte array if not, void if it is null."""
    if value is None:
        return b"V"
    return (b"S" if _is_utf8(value) else b"x") + len(value).to_bytes(4, "big") + value


def _array(values: list[bytes | None]) -> bytes:
    items: list[Value] = [value if value is None or not _is_utf8(value) else value.decode() for value in values]
    return encode_value(items)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
