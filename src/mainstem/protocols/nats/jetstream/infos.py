"""What JetStream tells of streams and consumers."""

from __future__ import annotations

from typing import Any

from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.mirror import Mirror
from mainstem.broker.streams.sourcing import Source
from mainstem.broker.streams.stream import Stream
from mainstem.model.errors import CorruptFrame
from mainstem.model.record import Record
from mainstem.protocols.nats.jetstream.pace import pause_end_ns
from mainstem.protocols.nats.jetstream.waiting import Waiting
from mainstem.protocols.nats.jetstream.words import NO_TIME, time_text

API_LEVEL = 4
_LEVEL_4 = ("allow_batched",)
_LEVEL_2 = ("allow_msg_counter", "allow_atomic", "allow_msg_schedules", "persist_mode")
_LEVEL_1 = ("allow_msg_ttl", "subject_delete_marker_ttl", "pause_until", "priority_policy", "priority_groups")
SUBJECTS_MAX = 100_000  # of one answer
DELETED_MAX = 100_000  # sequences of one answer
VERSION = "2.14.5"


def with_level(config: dict[str, Any]) -> dict[str, Any]:
    levels = ((4, _LEVEL_4), (2, _LEVEL_2), (1, _LEVEL_1))
    needed = next((level for level, keys in levels if any(config.get(key) for key in keys)), 0)
    level = {"_nats.level": str(API_LEVEL), "_nats.req.level": str(needed), "_nats.ver": VERSION}
    return {**config, "metadata": {**config.get("metadata", {}), **level}}


def stream_info(stream: Stream, now_ns: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "config": with_level(stream.config),
        "created": time_text(stream.created_ns),
        "state": stream_state(stream),
    }
    if isinstance(stream, Mirror):
        info["mirror"] = {**_origin(stream.config["mirror"]), "lag": 0, "active": 0}
    if stream.sourcing.sources:
        info["sources"] = [{**_origin(one.given), **_copied(one)} for one in stream.sourcing.sources]
    return {**info, "ts": time_text(now_ns)}


def _copied(source: Source) -> dict[str, Any]:
    return {"lag": source.lag, "active": 0, **({"seq": source.copied} if source.copied else {})}


def _origin(given: dict[str, Any]) -> dict[str, Any]:
    return {key: given[key] for key in ("name", "filter_subject", "subject_transforms") if key in given}


def stream_state(stream: Stream) -> dict[str, Any]:
    try:
        first = stream.next_of((), stream.first) if stream.messages else None
    except CorruptFrame:  # it is there, and cannot be read: who asks for it is told
        first = None
    state: dict[str, Any] = {
        "messages": stream.messages,
        "bytes": stream.stored_bytes,
        "first_seq": stream.first_seq,
        "first_ts": time_text(first.stamp) if first is not None else NO_TIME,
        "last_seq": stream.last_seq,
        "last_ts": time_text(stream.last_stamp),
    }
    subjects = count_subjects(stream)
    if subjects:
        state["num_subjects"] = subjects
    deleted = stream.removed.count(stream.first, stream.last_seq)
    if deleted:
        state["num_deleted"] = deleted
    state["consumer_count"] = len(stream.consumers)
    return state


def count_subjects(stream: Stream) -> int:
    if not stream.messages:
        return 0
    if not len(stream.removed):
        return stream.index.count_topics(stream.first)
    return sum(1 for topic in stream.topics_of(()) if stream.last_of(topic))


def subjects_of(stream: Stream, filters: list[bytes], offset: int) -> tuple[dict[str, int], int]:
    """A page of subjects with how many messages each has, and how many subjects there are."""
    found = [topic for topic in stream.topics_of(filters) if stream.last_of(topic)]
    page = found[offset : offset + SUBJECTS_MAX]
    return {stream.subject(topic).decode(errors="replace"): stream.count_topic(topic) for topic in page}, len(found)


def consumer_info(consumer: Consumer, now_ns: int, *, pulls: Waiting, bound: bool) -> dict[str, Any]:
    floor_consumer, floor_stream = consumer.ack_floor
    info: dict[str, Any] = {
        "stream_name": consumer.stream.name,
        "name": consumer.name,
        "created": time_text(consumer.created_ns),
        "config": with_level(consumer.config),
        "delivered": _place(
            consumer.consumer_seq,
            consumer.delivered if consumer.consumer_seq else _start(consumer),
            consumer.delivered_ns,
        ),
        "ack_floor": _place(floor_consumer, floor_stream if floor_consumer else _start(consumer), consumer.acked_ns),
        "num_ack_pending": consumer.ack_pending if consumer.explicit else 0,
        "num_redelivered": consumer.redelivered,
        "num_waiting": len(pulls),
        "num_pending": consumer.pending + consumer.first_owed,
        "ts": time_text(now_ns),
    }
    if bound:
        info["push_bound"] = True
    remaining = pause_end_ns(consumer.config) - now_ns
    if remaining > 0:
        info["paused"], info["pause_remaining"] = True, remaining
    if groups := consumer.config.get("priority_groups"):
        state: dict[str, Any] = {"group": groups[0], "pinned_ts": time_text(pulls.pinned_ns)}
        if pulls.pin:
            state["pinned_client_id"] = pulls.pin
        info["priority_groups"] = [state]
    return info


def _start(consumer: Consumer) -> int:
    """Before anything was delivered: the sequence before its start."""
    return consumer.floor_seq if consumer.config["deliver_policy"] != "all" or consumer.began_again else 0


def _place(consumer_seq: int, stream_seq: int, active_ns: int) -> dict[str, Any]:
    place: dict[str, Any] = {"consumer_seq": consumer_seq, "stream_seq": stream_seq}
    if active_ns:
        place["last_active"] = time_text(active_ns)
    return place


def record_lines(stream: Stream, record: Record, subject: str) -> list[tuple[str, object]]:
    """What a direct get appends to a message's own headers."""
    return [
        ("Nats-Stream", stream.name),
        ("Nats-Subject", subject),
        ("Nats-Sequence", record.offset + 1),
        ("Nats-Time-Stamp", time_text(record.stamp)),
    ]
