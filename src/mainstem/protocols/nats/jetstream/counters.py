"""Counters: in a stream that allows them a publish says what to add (`Nats-Incr`), and the sum is what is stored.

    Nats-Incr: +5, no payload  ──▶  stored {"val":"12"}  ──▶  PubAck {…,"val":"12"}

Sums may be of any size. The last one of a subject is remembered, so that publishes in a row need not wait for each other.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from mainstem.protocols.nats.jetstream import errors

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.protocols.nats.jetstream.messages import Message

COUNTERS_KNOWN_MAX = 100_000  # subjects of one stream whose sum is remembered
_INCREMENT = re.compile(rb"[+-]?[0-9]{1,1000}")
_NOT_WITH = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)


def check(stream: Stream, message: Message) -> None:
    increment = message.value(b"Nats-Incr")
    if increment is None:
        return
    if not _INCREMENT.fullmatch(increment):
        raise errors.INCREMENT_INVALID
    if not stream.config.get("allow_msg_counter"):
        raise errors.COUNTERS_DISABLED
    if message.payload:
        raise errors.INCREMENT_PAYLOAD
    if any(message.value(name) for name in _NOT_WITH):
        raise errors.INCREMENT_INVALID


def count(stream: Stream, message: Message) -> bytes:
    """Add it up: the sum is the message's payload from now on, and part of its ack."""
    increment = message.value(b"Nats-Incr")
    if increment is None:
        raise errors.INCREMENT_MISSING
    known = stream.counters.get(message.topic)
    value = (known if known is not None else _last(stream, message.topic)) + int(increment)
    if len(stream.counters) >= COUNTERS_KNOWN_MAX:
        stream.counters.clear()
    stream.counters[message.topic] = value
    message.payload = b'{"val":"%d"}' % value
    return b',"val":"%d"' % value


def _last(stream: Stream, topic: bytes) -> int:
    if topic in stream.gathered_topics:
        stream.service.broker.ticker.write_now()
    found = stream.last_offsets(topic, 1)
    record = stream.read_one(found[0]) if found else None
    if record is None:
        return 0
    try:
        return int(json.loads(record.value or b"")["val"])
    except (ValueError, KeyError, TypeError):
        raise errors.COUNTER_BROKEN from None
