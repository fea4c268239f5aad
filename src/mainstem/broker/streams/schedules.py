"""Messages of a stream that say when they are to be published: `Nats-Schedule`, and where to: `Nats-Schedule-Target`.

    a message on subject S with a schedule ──stored──▶ the schedule of S, in place of an older one
        due ──▶ its payload (or that of the last message of `Nats-Schedule-Source`) is published to the target,
                with `Nats-Scheduler: S` and `Nats-Schedule-Next: purge | time`
        `purge` ──▶ the schedule is removed: it fired for the last time

What was fired is known by the message that says so: a broker that was killed between the two reads it when it starts.
"""

from __future__ import annotations

from datetime import tzinfo
from heapq import heappop, heappush
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from mainstem.log.away import bring
from mainstem.model.cron import next_fire
from mainstem.model.errors import InvalidArgument, InvalidName
from mainstem.model.nats_headers import header_value, with_lines, without
from mainstem.model.origin import Origin
from mainstem.model.times import time_text
from mainstem.model.topic import topic_of_nats
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.log.gather import Ticket

SCHEDULES_MAX = 1_000_000  # of one stream
_OWN = (b"Nats-Schedule", b"Nats-Expected-")  # beginnings of names that a fired message does not keep
_NOT_KEPT = (b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup")


def zone_of(block: bytes) -> tzinfo | None:
    """InvalidArgument where there is no such time zone."""
    name = header_value(block, b"Nats-Schedule-Time-Zone")
    if not name:
        return None
    try:
        return ZoneInfo(name.decode())
    except (ValueError, OSError, KeyError) as error:
        raise InvalidArgument(f"there is no time zone {name[:60]!r}") from error


class Schedules:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._by_topic: dict[bytes, tuple[int, int]] = {}  # offset, due
        self._heap: list[tuple[int, bytes, int]] = []  # due, topic, offset

    def __len__(self) -> int:
        return len(self._by_topic)

    def offsets(self) -> list[int]:
        return [offset for offset, _ in self._by_topic.values()]

    @property
    def full(self) -> bool:
        return len(self._by_topic) >= SCHEDULES_MAX

    def next_due_ns(self) -> int:
        """0: none."""
        while self._heap and self._by_topic.get(self._heap[0][1]) != (self._heap[0][2], self._heap[0][0]):
            heappop(self._heap)  # replaced or gone since
        return self._heap[0][0] if self._heap else 0

    def note(self, offset: int, topic: bytes, stamp: int, block: bytes) -> None:
        """A message with headers of schedules was stored."""
        pattern = header_value(block, b"Nats-Schedule")
        if pattern:
            try:
                fire = next_fire(pattern.decode(), stamp, self._stream.service.now_ns(), zone_of(block))
            except (InvalidArgument, ValueError):
                return
            self._set(topic, offset, fire.due_ns)
        elif header_value(block, b"Nats-Schedule-Next") == b"purge":
            scheduler = header_value(block, b"Nats-Scheduler")
            if scheduler:
                self._purge(self._stream.place(topic_of_nats(scheduler)), offset)

    def _set(self, topic: bytes, offset: int, due_ns: int) -> None:
        self._by_topic[topic] = (offset, due_ns)
        heappush(self._heap, (due_ns, topic, offset))

    def _purge(self, topic: bytes, before: int) -> None:
        known = self._by_topic.get(topic)
        if known is not None and known[0] < before:
            del self._by_topic[topic]
            self._stream.remove_later(known[0])

    def run(self, now_ns: int) -> None:
        """Publish what is due."""
        while (due := self.next_due_ns()) and due <= now_ns:
            due_ns, topic, offset = self._heap[0]
            if offset >= self._stream.end:
                return  # not durable yet
            heappop(self._heap)
            try:
                self._fire(topic, offset, due_ns, now_ns)
            except NotLocal as missing:  # it reads first
                heappush(self._heap, (due_ns, topic, offset))
                bring(missing, self._stream.run_schedules)
                return

    def _fire(self, topic: bytes, offset: int, due_ns: int, now_ns: int) -> None:
        stream = self._stream
        record = stream.read_one(offset)
        block = record.header(b"ms-nats") if record is not None else None
        target = header_value(block, b"Nats-Schedule-Target") if block else None
        if record is None or not block or not target:
            self._by_topic.pop(topic, None)
            return
        fire = next_fire((header_value(block, b"Nats-Schedule") or b"").decode(), due_ns, now_ns, zone_of(block))
        taken = record
        if source := header_value(block, b"Nats-Schedule-Source"):
            found = stream.last_offsets(stream.place(topic_of_nats(source)), 1, stream.end)
            taken = (stream.read_one(found[0]) if found else None) or record
        kept = without(taken.header(b"ms-nats") or b"", _OWN, _NOT_KEPT)
        lines: list[tuple[str, object]] = [
            ("Nats-Scheduler", stream.subject(topic).decode(errors="replace")),
            ("Nats-Schedule-Next", time_text(fire.due_ns) if fire.repeats else "purge"),
        ]
        for name, asked in (("Nats-TTL", b"Nats-Schedule-TTL"), ("Nats-Rollup", b"Nats-Schedule-Rollup")):
            if value := header_value(block, asked):
                lines.append((name, value.decode(errors="replace")))
        headers = with_lines(kept, lines)
        if fire.repeats:
            self._set(topic, offset, fire.due_ns)
        self._publish(target, taken.value or b"", headers)

    def _publish(self, target: bytes, value: bytes, headers: bytes) -> None:
        stream = self._stream
        try:
            topic = stream.place(topic_of_nats(target))
        except InvalidName:
            return
        ticket, index = stream.namespace.publish_at(topic, value, headers=[(b"ms-nats", headers)], origin=Origin.NATS)
        if header_value(headers, b"Nats-Rollup") == b"sub":
            ticket.wait(_RolledUp(stream, topic, index))


class _RolledUp:
    """Once the fired message is durable, older ones of its subject go."""

    __slots__ = ("_index", "_stream", "_topic")

    def __init__(self, stream: Stream, topic: bytes, index: int) -> None:
        self._stream, self._topic, self._index = stream, topic, index

    def released(self, ticket: Ticket, /) -> None:
        if ticket.error is None and not self._stream.deleted:
            self._stream.roll_up(self._topic, ticket.base_offset + self._index)
