"""A publish that is a schedule, or that ends one: what nats-server refuses, in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.rights.access import Action
from mainstem.broker.streams.expiry import ttl_ns
from mainstem.broker.streams.schedules import SCHEDULES_MAX, zone_of
from mainstem.model.cron import next_fire
from mainstem.model.errors import InvalidArgument, InvalidName
from mainstem.model.nats_headers import with_lines
from mainstem.model.topic import topic_of_nats
from mainstem.model.topic_filter import matches
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.words import header_value

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.protocols.nats.adapter import NatsConnection
    from mainstem.protocols.nats.jetstream.messages import Message


def may_schedule(connection: NatsConnection, headers: bytes) -> bool:
    """Whoever has a message published later needs the rights for that: to its target, and of what it is taken from."""
    if b"\r\nNats-Schedule" not in headers:
        return True
    for name, action in (
        (b"Nats-Schedule-Target", Action.PUBLISH),
        (b"Nats-Schedule-Source", Action.CONSUME),
        (b"Nats-Scheduler", Action.PUBLISH),
    ):
        subject = header_value(headers, name)
        try:
            if subject and not connection.may(action, topic_of_nats(subject)):
                return False
        except InvalidName:
            continue  # refused in nats-server's words
    return True


def check(stream: Stream, message: Message) -> None:
    pattern = message.value(b"Nats-Schedule")
    if pattern:
        _check_schedule(stream, message, pattern)
    _check_end(stream, message)


def _check_schedule(stream: Stream, message: Message, pattern: bytes) -> None:
    headers, config = message.headers, stream.config
    if not config.get("allow_msg_schedules"):
        raise errors.SCHEDULES_DISABLED
    try:
        zone = zone_of(headers)
    except InvalidArgument:
        raise errors.SCHEDULE_ZONE from None
    now_ns = stream.service.now_ns()
    try:
        next_fire(pattern.decode(errors="replace"), now_ns, now_ns, zone)
    except InvalidArgument:
        raise errors.SCHEDULE_PATTERN from None
    ttl = header_value(headers, b"Nats-Schedule-TTL")
    if ttl and ttl_ns(ttl) is None:
        raise errors.SCHEDULE_TTL
    if header_value(headers, b"Nats-Schedule-Rollup") not in (None, b"", b"sub"):
        raise errors.SCHEDULE_ROLLUP
    if ttl and not config.get("allow_msg_ttl"):
        raise errors.TTL_DISABLED
    target = header_value(headers, b"Nats-Schedule-Target") or b""
    own = stream.plain(message.topic)
    if not _captured(stream, target) or topic_of_nats(target) == own:
        raise errors.SCHEDULE_TARGET
    source = header_value(headers, b"Nats-Schedule-Source")
    if source and (source == target or not _captured(stream, source) or topic_of_nats(source) == own):
        raise errors.SCHEDULE_SOURCE
    rollup = header_value(headers, b"Nats-Rollup")
    if rollup not in (None, b"", b"sub"):
        raise errors.SCHEDULE_ROLLUP
    if stream.schedules.full:
        raise errors.insufficient(f"the stream has {SCHEDULES_MAX} schedules")
    if not rollup:  # a subject has one schedule
        message.give_headers(with_lines(headers, [("Nats-Rollup", "sub")]))


def _captured(stream: Stream, subject: bytes) -> bool:
    """Whether it is one literal subject of the stream."""
    if not subject or any(token in (b"*", b">") for token in subject.split(b".")):
        return False
    try:
        topic = topic_of_nats(subject)
    except InvalidName:
        return False
    return any(matches(one, topic) for one in stream.settings.filters)


def _check_end(stream: Stream, message: Message) -> None:
    """`Nats-Schedule-Next: purge` with the schedule's subject as `Nats-Scheduler` ends a schedule."""
    following = message.value(b"Nats-Schedule-Next")
    scheduler = message.value(b"Nats-Scheduler")
    if following is None:
        if scheduler:
            raise errors.SCHEDULER
        return
    if following != b"purge" or not scheduler:
        raise errors.SCHEDULER
    try:
        topic = stream.place(topic_of_nats(scheduler))
    except InvalidName:
        raise errors.SCHEDULER from None
    if topic == message.topic:
        raise errors.SCHEDULER
    if not stream.config.get("allow_msg_schedules"):
        raise errors.SCHEDULES_DISABLED
    found = stream.last_offsets(topic, 1)
    record = stream.read_one(found[0]) if found else None
    if record is not None and not header_value(record.header(b"ms-nats") or b"", b"Nats-Schedule"):
        raise errors.SCHEDULER
