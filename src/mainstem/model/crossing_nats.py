"""NATS's words: header lines with marks for what is not text, and a reply subject. See `crossing.py`.

ms-nats header:        the header block as sent: `NATS/1.0` CR LF, `name: value` CR LF ..., CR LF
ms-nats-reply header:  the reply subject as sent
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter

from mainstem.model import cloud_events
from mainstem.model.crossing_kafka import ORIGINS
from mainstem.model.crossing_message import CLIENT_NAMES, Message, elsewhere, start, take_client_field, text_name
from mainstem.model.crossing_mqtt import unmarked
from mainstem.model.errors import InvalidName
from mainstem.model.record import Header, Record
from mainstem.model.topic import nats_subject, topic_of_nats

VERSION = b"NATS/1.0"
LINE = b"\r\n"
_FIELDS = {
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"correlation-id": "correlation",
    b"nats-msg-id": "message_id",
}
_UNITS_US = {b"": 1_000_000, b"s": 1_000_000, b"m": 60_000_000, b"h": 3_600_000_000, b"ms": 1_000}


def header_lines(block: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of a header block, in order; a line without a colon is left out."""
    found = []
    for line in block.split(LINE)[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            found.append((name, value.strip(b" \t")))
    return found


def read(record: Record) -> Message:
    """A field's header counts if it stands once; otherwise it stays a header like any other."""
    message = start(record)
    lines = [unmarked(name, text) for name, text in header_lines(record.header(b"ms-nats") or b"")]
    counts = Counter(name.lower() for name, _ in lines)
    headers: list[Header] = []
    for name, value in lines:
        if value is None or counts[name.lower()] > 1 or not _take(message, record, name.lower(), value):
            headers.append((elsewhere(name), value))
    message.headers = cloud_events.from_prefixed(headers, message.content_type, cloud_events.NATS_PREFIXES)
    reply = record.header(b"ms-nats-reply")
    if reply is not None:
        try:
            message.reply_to = topic_of_nats(reply)
        except InvalidName:
            message.headers.append((b"reply-to", reply))
    return message


def _take(message: Message, record: Record, name: bytes, text: bytes) -> bool:
    if name in _FIELDS:
        setattr(message, _FIELDS[name], text)
    elif name == b"nats-ttl" and (left_us := _duration_us(text)) is not None:
        message.expires_at_us = record.stamp // 1000 + left_us
    elif name in CLIENT_NAMES:
        return take_client_field(message, name, text)
    else:
        return False
    return True


def _duration_us(text: bytes) -> int | None:
    number = text.rstrip(b"smh")
    unit = _UNITS_US.get(text[len(number) :])
    return int(number) * unit if number.isdigit() and len(number) < 12 and unit is not None else None


def write(message: Message, now_ns: int) -> tuple[bytes, bytes]:
    """Header block and reply subject of a message that another protocol wrote."""
    headers = cloud_events.to_prefixed(message.headers, cloud_events.NATS_PREFIXES[0])
    lines = [_line(name, value) for name, value in [*headers, *_fields(message, now_ns)]]
    reply = nats_subject(message.reply_to) if message.reply_to is not None else b""
    return LINE.join([VERSION, *lines, b"", b""]), reply


def _fields(message: Message, now_ns: int) -> list[Header]:
    found: list[Header] = []
    for name, attribute in (
        (b"Content-Type", "content_type"),
        (b"Content-Encoding", "content_encoding"),
        (b"Correlation-Id", "correlation"),
        (b"Nats-Msg-Id", "message_id"),
    ):
        if getattr(message, attribute) is not None:
            found.append((name, getattr(message, attribute)))
    if message.expires_at_us is not None:
        left_s = -(-(message.expires_at_us * 1000 - now_ns) // 1_000_000_000)
        found.append((b"Nats-TTL", b"%d" % max(left_s, 0)))
    if message.key is not None and message.key != message.topic:
        found.append((b"Ms-Key", message.key))
    if message.value is None:
        found.append((b"Ms-Null", b"1"))
    if message.deliver_at_us is not None:
        found.append((b"Ms-Deliver-At", b"%d" % (message.deliver_at_us // 1000)))
    if message.priority is not None:
        found.append((b"Ms-Priority", b"%d" % message.priority))
    if message.event_time_us is not None:
        found.append((b"Ms-Ts", b"%d" % message.event_time_us))
    if message.format_utf8:
        found.append((b"Ms-Format", b"utf8"))
    if message.retain:
        found.append((b"Ms-Retain", b"1"))
    if message.amqp_headers is not None:
        found.append((b"Ms-Amqp-Headers", message.amqp_headers))
    found.append((b"Ms-Origin", ORIGINS[message.origin]))
    return found


def _line(name: bytes, value: bytes | None) -> bytes:
    """A header as a line: text as it is, anything that a line cannot hold with a mark."""
    name = text_name(name).replace(b"\r", b"%0D").replace(b"\n", b"%0A").replace(b":", b"%3A")
    if value is None:
        return name + b";null: "
    if not _is_line(value) or name.endswith((b";b64", b";null")):
        return name + b";b64: " + b64encode(value)
    return name + b": " + value


def _is_line(value: bytes) -> bool:
    """Text that a line carries as it is."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return value == value.strip() and not any(byte < 32 or byte == 127 for byte in value)


def client_fields(block: bytes) -> tuple[bytes | None, int | None]:
    """What a client says of the record itself: its key, and its event time in ms."""
    key: bytes | None = None
    time_ms: int | None = None
    for name, text in header_lines(block):
        plain, value = unmarked(name.lower(), text)
        if plain == b"ms-key":
            key = value
        elif plain == b"ms-ts" and value is not None and value.isdigit() and len(value) <= 18:
            time_ms = int(value) // 1000
    return key, time_ms
