"""What a queue must know of a record whoever wrote it: when it expires, and its priority."""

from __future__ import annotations

from mainstem.model.amqp_content import Content
from mainstem.model.origin import Origin
from mainstem.model.record import Record

NS_PER_MS = 1_000_000
_MQTT_MESSAGE_EXPIRY = 0x02
# Sizes of MQTT 5's PUBLISH properties: a number of bytes, "s" = string or binary with a u16 length, "p" = a pair of them.
_MQTT_SIZES: dict[int, int | str] = {0x01: 1, 0x02: 4, 0x03: "s", 0x08: "s", 0x09: "s", 0x23: 2, 0x26: "p"}


def expires_at_ms(record: Record) -> int | None:
    """Wall time at which the record itself asks to expire; None: never."""
    if record.origin == Origin.AMQP:
        properties = record.header(b"ms-amqp")
        expiration = Content.parse(properties).text("expiration") if properties else None
        if expiration is None or not expiration.isdigit():
            return None
        return record.stamp // NS_PER_MS + int(expiration)
    if record.origin == Origin.MQTT:
        seconds = _mqtt_expiry_s(record.header(b"ms-mqtt") or b"")
        if seconds is not None:
            return record.stamp // NS_PER_MS + seconds * 1000
    at = record.header(b"ms-expires-at")
    return int(at) if at is not None and at.isdigit() else None


def priority_of(record: Record) -> int | None:
    if record.origin == Origin.AMQP:
        properties = record.header(b"ms-amqp")
        return Content.parse(properties).number("priority") if properties else None
    text = record.header(b"ms-priority") or record.header(b"priority")
    return int(text) if text is not None and text.isdigit() else None


def _mqtt_expiry_s(properties: bytes) -> int | None:
    at = 0
    while at < len(properties):
        kind = properties[at]
        at += 1
        if kind == _MQTT_MESSAGE_EXPIRY:
            return int.from_bytes(properties[at : at + 4], "big")
        size = _MQTT_SIZES.get(kind)
        if isinstance(size, int):
            at += size
        elif size is not None:
            for _ in range(2 if size == "p" else 1):
                at += 2 + int.from_bytes(properties[at : at + 2], "big")
        else:  # a subscription identifier, or something we do not know: nothing more can be read
            return None
    return None
