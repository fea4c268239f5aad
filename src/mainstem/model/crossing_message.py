"""The neutral form between two protocols' words, and what all of them read and write alike. See `crossing.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstem.model.origin import QOS_MASK, Origin, RecordFlag
from mainstem.model.record import Header, Record
from mainstem.model.whole_numbers import whole_number

CLIENT_NAMES = (b"ms-key", b"ms-ts", b"ms-expires-at", b"ms-deliver-at", b"ms-priority")
AMQP_NAMES = {
    "type": b"amqp-type",
    "app_id": b"amqp-app-id",
    "user_id": b"amqp-user-id",
    "cluster_id": b"amqp-cluster-id",
}
PRIORITY_MAX = 255


@dataclass(slots=True)
class Message:
    """What was meant, whoever said it. Times are µs since 1970."""

    topic: bytes
    value: bytes | None
    key: bytes | None = None  # None: the protocol's default, or a Kafka record without one
    headers: list[Header] = field(default_factory=list)
    content_type: bytes | None = None
    content_encoding: bytes | None = None
    reply_to: bytes | None = None  # a canonical topic
    correlation: bytes | None = None
    message_id: bytes | None = None
    expires_at_us: int | None = None
    deliver_at_us: int | None = None
    priority: int | None = None
    event_time_us: int | None = None
    format_utf8: bool = False
    retain: bool = False
    qos: int = 1
    origin: Origin = Origin.BROKER
    amqp_headers: bytes | None = None  # the table as sent, where text alone would lose its types

    def expired(self, now_ns: int) -> bool:
        return self.expires_at_us is not None and self.expires_at_us * 1000 <= now_ns


def start(record: Record) -> Message:
    """What every broker-encoded record says in the same way."""
    key = None if record.flags & RecordFlag.KEY_IS_TOPIC else record.key
    return Message(
        record.topic,
        record.value,
        key,
        retain=bool(record.flags & RecordFlag.RETAIN),
        qos=record.flags & QOS_MASK,
        event_time_us=record.time_ms * 1000,
    )


def take_client_field(message: Message, name: bytes, value: bytes) -> bool:
    """A field that a client may set under an `ms-` name; False where the value makes no sense there."""
    if name == b"ms-key":
        return True  # it became the key when it was published
    number = whole_number(value)
    if number is None:
        return False
    if name == b"ms-ts":
        message.event_time_us = number
    elif name == b"ms-expires-at":
        message.expires_at_us = number * 1000
    elif name == b"ms-deliver-at":
        message.deliver_at_us = number * 1000
    elif number <= PRIORITY_MAX:
        message.priority = number
    else:
        return False
    return True


def left_out(name: bytes) -> bytes:
    """How `ms-left-out` names a header that the reader's protocol cannot carry: whole or not at all, never cut."""
    return text_name(name)[:200].decode(errors="ignore").encode()


def text_name(name: bytes) -> bytes:
    """A header's name where it must be text: bytes that are not, as %XX."""
    text = name.decode(errors="surrogateescape").replace("\0", "%00")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in text).encode()


def elsewhere(name: bytes) -> bytes:
    """What a client's own header is called in other protocols: `ms-` names are the broker's there."""
    return b"client." + name if name.startswith(b"ms-") else name
