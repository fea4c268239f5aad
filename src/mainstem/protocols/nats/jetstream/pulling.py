"""A pull request, read: empty for one message, a number, or a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.protocols.nats.jetstream.delivery import Pull
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.words import document, flag, number

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
        return Pull(reply, connection, batch=min(max(1, int(payload)), BATCH_MAX))
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
        )
    except JsError:
        return None


def fault_of(pull: Pull, config: dict[str, int]) -> tuple[int, str] | None:
    """Why it is refused: a status."""
    if pull.heartbeat_ns and (not pull.expires_ns or pull.heartbeat_ns * 2 > pull.expires_ns):
        return 400, "Bad Request - heartbeat value too large"
    if 0 < config.get("max_batch", 0) < pull.batch:
        return 409, f"Exceeded MaxRequestBatch of {config['max_batch']}"
    if 0 < config.get("max_expires", 0) < pull.expires_ns:
        return 409, f"Exceeded MaxRequestExpires of {config['max_expires'] / 1e9:g}s"
    if 0 < config.get("max_bytes", 0) < pull.bytes_left:
        return 409, f"Exceeded MaxRequestMaxBytes of {config['max_bytes']}"
    return None
