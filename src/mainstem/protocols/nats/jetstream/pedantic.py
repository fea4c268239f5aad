"""`pedantic` of a request: whatever would be completed or corrected in a configuration is refused instead."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.errors import stream_config as refused
from mainstem.protocols.nats.jetstream.words import flag, number, numbers, string

DUPLICATE_WINDOW_NS = 120_000_000_000
_UNLIMITED = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")
_CONSUMER_UNSIGNED = (
    "max_batch",
    "max_expires",
    "max_bytes",
    "idle_heartbeat",
    "inactive_threshold",
    "priority_timeout",
)


def fault(what: str) -> JsError:
    return JsError(400, 10157, f"pedantic mode: {what}")


def check_stream(given: dict[str, Any]) -> None:
    for key in _UNLIMITED:
        if number(given, key) < -1:
            raise fault(f"{key} must be set to -1")
    if (
        not (given.get("mirror") or given.get("sources") or number(given, "duplicate_window"))
        and 0 < number(given, "max_age") < DUPLICATE_WINDOW_NS
    ):
        raise fault("duplicate window cannot be bigger than max age")
    rollup = flag(given, "allow_rollup_hdrs")
    if number(given, "subject_delete_marker_ttl") > 0:
        if not flag(given, "allow_msg_ttl"):
            raise refused("subject delete marker cannot be set if message TTLs are disabled")
        if not rollup:
            raise refused("subject delete marker cannot be set if roll-ups are disabled")
    if flag(given, "allow_msg_schedules") and not rollup:
        raise refused("message scheduling cannot be set if roll-ups are disabled")
    again = given.get("republish")
    if isinstance(again, dict) and not string(again, "src"):
        raise fault("republish source can not be empty")


def check_consumer(given: dict[str, Any], limits: dict[str, Any]) -> None:
    """`limits` are the stream's for its consumers."""
    if number(given, "max_deliver") < -1:
        raise fault("max_deliver must be set to -1")
    if number(given, "max_waiting") < 0:
        raise fault("max_waiting must not be negative")
    if number(given, "max_ack_pending") < -1:
        raise fault("max_ack_pending must be set to -1")
    for key in _CONSUMER_UNSIGNED:
        if number(given, key) < 0:
            raise fault(f"{key} must not be negative")
    backoff = numbers(given, "backoff")
    if backoff and number(given, "ack_wait") != backoff[0]:
        raise fault("first backoff value has to equal batch AckWait")
    for key in ("max_ack_pending", "inactive_threshold"):
        if not number(given, key) and limits.get(key, 0) > 0:
            raise fault(f"{key} must be set if it's configured in stream limits")
