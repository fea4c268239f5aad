"""A pull request, read: empty for one message, a number, or a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.model.whole_numbers import whole_number
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.waiting import Pull
from mainstem.protocols.nats.jetstream.words import document, flag, number, string

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection

BATCH_MAX = 1_000_000
_KNOWN = frozenset(
    [
        "batch",
        "expires",
        "no_wait",
        "max_bytes",
        "idle_heartbeat",
        "group",
        "min_pending",
        "min_ack_pending",
        "id",
        "priority",
    ]
)


def pull_of(connection: NatsConnection, reply: bytes, payload: bytes) -> Pull | None:
    """None where it says nothing that can be understood."""
    if not payload:
        return Pull(reply, connection)
    if payload.isdigit():
        many = whole_number(payload)
        return Pull(reply, connection, batch=BATCH_MAX if many is None else min(max(1, many), BATCH_MAX))
    try:
        given = document(payload, _KNOWN)
        bytes_max = number(given, "max_bytes")
        return Pull(
            reply,
            connection,
            batch=min(max(1, number(given, "batch", 1)), BATCH_MAX),
            expires_ns=max(0, number(given, "expires")),
            no_wait=flag(given, "no_wait"),
            bytes_left=bytes_max,
            has_limit=bytes_max > 0,
            heartbeat_ns=max(0, number(given, "idle_heartbeat")),
            group=string(given, "group"),
            min_pending=number(given, "min_pending"),
            min_ack_pending=number(given, "min_ack_pending"),
            pin=string(given, "id"),
            priority=number(given, "priority"),
            spoken=True,
        )
    except JsError:
        return None
