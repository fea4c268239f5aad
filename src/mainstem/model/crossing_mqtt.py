"""MQTT 5's words: properties, and user properties with marks for what is not text. See `crossing.py`.

ms-mqtt header:  property*   property = identifier (u8), value by its type; as in the PUBLISH, without topic alias
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator

from mainstem.model import cloud_events
from mainstem.model.crossing_kafka import ORIGINS
from mainstem.model.crossing_message import (
    CLIENT_NAMES,
    Message,
    elsewhere,
    left_out,
    start,
    take_client_field,
    text_name,
)
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record
from mainstem.model.whole_numbers import whole_number

FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER = 1, 2, 3, 8, 9, 38
TEXT_MAX = 65_535
_NAMED = {b"content-encoding": "content_encoding", b"message-id": "message_id"}


def properties(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(identifier, value, and for user properties the pair's second text) of a stored property list."""
    at = 0
    while at < len(data):
        kind = data[at]
        if kind == FORMAT:
            yield kind, data[at + 1 : at + 2], b""
            at += 2
        elif kind == EXPIRY:
            yield kind, data[at + 1 : at + 5], b""
            at += 5
        else:
            first, at = _text(data, at + 1)
            second, at = _text(data, at) if kind == USER else (b"", at)
            yield kind, first, second


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end], end


def read(record: Record) -> Message:
    message = start(record)
    headers: list[Header] = []
    for kind, value, second in properties(record.header(b"ms-mqtt") or b""):
        if kind == FORMAT:
            message.format_utf8 = value == b"\1"
        elif kind == EXPIRY:
            message.expires_at_us = record.stamp // 1000 + int.from_bytes(value, "big") * 1_000_000
        elif kind == CONTENT_TYPE:
            message.content_type = value
        elif kind == RESPONSE_TOPIC:
            message.reply_to = value
        elif kind == CORRELATION:
            message.correlation = value
        elif kind == USER:
            _read_user_property(message, headers, value, second)
    message.headers = cloud_events.from_mqtt(headers, message.content_type)
    return message


def _read_user_property(message: Message, headers: list[Header], name: bytes, text: bytes) -> None:
    plain, value = unmarked(name, text)
    if plain in CLIENT_NAMES and value is not None and take_client_field(message, plain, value):
        return
    if plain in _NAMED and value is not None and getattr(message, _NAMED[plain]) is None:
        setattr(message, _NAMED[plain], value)
    elif plain == b"priority" and message.priority is None and (number := whole_number(text)) in range(256):
        message.priority = number
    else:
        headers.append((elsewhere(plain), value))


def unmarked(name: bytes, text: bytes) -> tuple[bytes, bytes | None]:
    if name.endswith(b";null"):
        return name[:-5], None
    if name.endswith(b";b64"):
        try:
            return name[:-4], b64decode(text, validate=True)
        except binascii.Error:
            return name, text  # a client's own name that only looks like a mark
    return name, text


def marked(name: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    """A header as a user property: text as it is, anything else with a mark."""
    name = text_name(name)
    if value is None:
        return name + b";null", b""
    if not _is_text(value) or name.endswith((b";b64", b";null")):
        return name + b";b64", b64encode(value)
    return name, value


def _is_text(value: bytes) -> bool:
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


def write(message: Message, now_ns: int) -> bytes:
    """The PUBLISH properties of a message that another protocol wrote."""
    parts: list[bytes] = []
    pairs = [marked(name, value) for name, value in cloud_events.to_mqtt(message.headers)]
    if message.format_utf8:
        parts.append(b"\1\1")
    if message.expires_at_us is not None:
        left_s = -(-(message.expires_at_us * 1000 - now_ns) // 1_000_000_000)
        parts.append(bytes((EXPIRY,)) + min(max(left_s, 0), 0xFFFFFFFF).to_bytes(4, "big"))
    if message.content_type is not None and _is_text(message.content_type) and len(message.content_type) <= TEXT_MAX:
        parts.append(_property(CONTENT_TYPE, message.content_type))
    elif message.content_type is not None:
        pairs.append(marked(b"content-type", message.content_type))
    if message.reply_to is not None and _is_text(message.reply_to):
        parts.append(_property(RESPONSE_TOPIC, message.reply_to))
    if message.correlation is not None and len(message.correlation) <= TEXT_MAX:
        parts.append(_property(CORRELATION, message.correlation))
    elif message.correlation is not None:
        pairs.append((b"ms-left-out", b"correlation-id"))
    pairs += _named_pairs(message)
    pairs = [pair if _fits(pair) else (b"ms-left-out", left_out(pair[0].removesuffix(b";b64"))) for pair in pairs]
    parts += (_property(USER, name) + _property(USER, value)[1:] for name, value in pairs)
    return b"".join(parts)


def _named_pairs(message: Message) -> list[tuple[bytes, bytes]]:
    pairs: list[tuple[bytes, bytes]] = []
    if message.key is not None and message.key != message.topic:
        pairs.append(marked(b"ms-key", message.key))
    if message.value is None:
        pairs.append((b"ms-null", b"1"))
    if message.content_encoding is not None:
        pairs.append(marked(b"content-encoding", message.content_encoding))
    if message.message_id is not None:
        pairs.append(marked(b"message-id", message.message_id))
    if message.priority is not None:
        pairs.append((b"priority", b"%d" % message.priority))
    if message.deliver_at_us is not None:
        pairs.append((b"ms-deliver-at", b"%d" % (message.deliver_at_us // 1000)))
    if message.event_time_us is not None and message.origin != Origin.MQTT:
        pairs.append((b"ms-ts", b"%d" % message.event_time_us))
    if message.amqp_headers is not None:
        pairs.append(marked(b"ms-amqp-headers", message.amqp_headers))
    pairs.append((b"ms-origin", ORIGINS[message.origin]))
    return pairs


def _property(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def _fits(pair: tuple[bytes, bytes]) -> bool:
    return len(pair[0]) <= TEXT_MAX and len(pair[1]) <= TEXT_MAX
