"""A stream: a log of its own for its subjects, with sequence = offset + 1, and the limits that remove from it.

    published by anyone ──▶ the stream's log ──written──▶ `_Tap` counts it ──stable──▶ limits remove, consumers are told

What limits, purges and deletions remove is hidden from every protocol at once: at the front by moving the log's start,
anywhere else by a bit (`log/removed.py`). A removal that a newer record causes is journaled once that record is durable:
a crash may bring a removed record back, never lose both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.streams.contents import StreamContents
from mainstem.broker.streams.expiry import NS_PER_S, Expiring, ttl_of
from mainstem.broker.streams.republishing import Republishing
from mainstem.broker.streams.schedules import Schedules
from mainstem.broker.streams.settings import StreamSettings
from mainstem.broker.streams.sourcing import Granted, Sourcing
from mainstem.broker.streams.stream_entries import Counted
from mainstem.broker.streams.tap import OVERHEAD_BYTES, Tap
from mainstem.broker.streams.waits import ITS_OWN_WORDS, Waits
from mainstem.log.away import bring
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.model.times import duration_text
from mainstem.model.topic_filter import matches
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.streams.consumer import Consumer
    from mainstem.broker.streams.mirror import Mirror
    from mainstem.broker.streams.registry import StreamService
    from mainstem.log.gather import Ticket
    from mainstem.log.log import Log

SUBJECTS_KNOWN_MAX = 100_000  # whose visible records are remembered
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: %b\r\nNats-Rollup: sub\r\n\r\n"


class Stream(StreamContents):
    def __init__(
        self, service: StreamService, namespace: Namespace, name: str, log: Log, config: dict[str, Any], created_ns: int
    ) -> None:
        super().__init__(service, namespace, name, log, config, created_ns)
        self.consumers: dict[str, Consumer] = {}
        self.deleted = False
        self.counters: dict[bytes, int] = {}  # the last sum of a topic, written or not
        self.duplicates: OrderedDict[bytes, tuple[int, Ticket | None, int]] = (
            OrderedDict()
        )  # id → (stamp, ticket, index)
        self.watchers: list[Callable[[], None]] = []  # who waits for something new
        self._bringing = False  # old messages that lie elsewhere, to see how old they are
        self._fresh: deque[tuple[int, bytes]] = deque()  # written, not yet stable: offset, topic
        self._subjects: OrderedDict[bytes, deque[int]] = OrderedDict()
        self._unjournaled: list[int] = []  # removed,
        self._unjournaled_bytes = 0  # and how many bytes those had of them that are counted
        self._unwanted: list[int] = []
        self.expiring = Expiring()
        self.schedules = Schedules(self)
        self.waits = Waits(self)
        self.counted = Counted()  # as the journal has it
        self.republishing = Republishing.of(self)
        self.mirrors: list[Mirror] = []
        self.granted: Granted = {}
        self.sourcing = Sourcing(self, service.of(namespace))
        self._tap = Tap(self, log, namespace)
        self._weigh()

    # -- its life --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """From now on it hears of what is written."""
        self.log.stable_listeners.append(self._on_stable)
        for topic_filter in self.settings.captured:
            self.namespace.subscribe(topic_filter, self._tap, True)

    def detach(self) -> None:
        for topic_filter in self.settings.captured:
            self.namespace.unsubscribe(topic_filter, self._tap)
        if self._on_stable in self.log.stable_listeners:
            self.log.stable_listeners.remove(self._on_stable)

    def change(self, config: dict[str, Any]) -> None:
        self.detach()
        self.config, self.settings = config, StreamSettings.of(config)
        self.copies = self._copies()
        self._subjects.clear()
        self.republishing = Republishing.of(self)
        self._weigh()
        self.attach()
        self.enforce(all_subjects=True)

    def _weigh(self) -> None:
        """What the configuration asks of each message: mostly nothing but to be counted and appended."""
        config, settings = self.config, self.settings
        self.counts_only = (
            self.republishing is None
            and not self.copies
            and settings.max_msgs_per_subject <= 0
            and settings.retention != "interest"
            and not config.get("allow_msg_ttl")
            and not config.get("allow_msg_schedules")
        )
        self.takes_plain = not (
            config.get("sealed")
            or config.get("no_ack")
            or config.get("allow_msg_counter")
            or settings.copying
            or config.get("discard") == "new"
        )

    # -- what comes ------------------------------------------------------------------------------------------------

    def on_written(self, record: RecordRef) -> None:
        """By the tap, where a message is not just counted."""
        block = record.header(b"ms-nats")
        size = OVERHEAD_BYTES + len(self.plain(record.topic)) + record.value_size + (4 + len(block) if block else 0)
        self.note_written(record.offset, record.stamp, size)
        if block:
            self.note_headers(record.offset, record.topic, record.stamp, block)
        if self.republishing is not None:
            self.republishing.note(record, block or b"")
        self._fresh.append((record.offset, record.topic))

    def note_headers(self, offset: int, topic: bytes, stamp: int, block: bytes) -> None:
        """What a message asks of the future: to end, to be published again."""
        if self.config.get("allow_msg_ttl") and (left_ns := ttl_of(block)):
            self.expiring.add(offset, stamp + left_ns)
            self.waits.note(offset, stamp + left_ns)
            self.service.arm(self)
        if self.config.get("allow_msg_schedules") and b"\r\nNats-Schedule" in block:
            self.schedules.note(offset, topic, stamp, block)
            self.waits.note(offset, ITS_OWN_WORDS)
            self.service.arm(self)

    def _on_stable(self, log: Log) -> None:
        fresh, stable = self._fresh, log.stable
        per_subject = self.settings.max_msgs_per_subject
        unwanted, self._unwanted = self._unwanted, []
        while fresh and fresh[0][0] < stable:
            offset, topic = fresh.popleft()
            if per_subject > 0:
                unwanted += self._beyond(topic, offset, per_subject)
            if self.settings.retention == "interest" and not self.wanted(topic):
                unwanted.append(offset)
        if unwanted:
            self.remove(unwanted)
        self.enforce()
        self.flush_removed()
        if self.republishing is not None:
            self.republishing.publish(stable)
        self.tell()

    def tell(self) -> None:
        """Whoever waits for messages looks again."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()
        for mirror in self.mirrors:
            mirror.tell()

    def readers(self) -> Iterator[Consumer]:
        """Consumers of what it holds, its mirrors' too."""
        yield from self.consumers.values()
        for mirror in self.mirrors:
            yield from mirror.readers()

    def wanted(self, topic: bytes) -> bool:
        """Whether any consumer takes the topic."""
        topic = self.plain(topic)
        return any(
            not c.settings.filters or any(matches(f, topic) for f in c.settings.filters)
            for c in self.consumers.values()
        )

    def _beyond(self, topic: bytes, offset: int, keep: int) -> list[int]:
        """The topic's records that are too many now that it has one more."""
        known = self._subjects.get(topic)
        if known is None:
            try:
                known = deque(self.last_offsets(topic, keep + 1, offset + 1))
            except CorruptFrame:  # which are its oldest is not known: it has too many rather than too few
                return []
            self._subjects[topic] = known
            if len(self._subjects) > SUBJECTS_KNOWN_MAX:
                self._subjects.popitem(last=False)
        elif not known or known[-1] < offset:
            known.append(offset)
        return [known.popleft() for _ in range(len(known) - keep)]

    # -- what goes -------------------------------------------------------------------------------------------------

    def remove(self, offsets: Iterable[int]) -> int:
        """Hide records for good; how many there were. `flush_removed` journals it."""
        added = self.removed.add(offset for offset in offsets if offset >= self.first)
        for offset in added:
            self._forget_size(offset)
        self._unjournaled += added
        if added:
            self.counters.clear()
            self._advance()
            for consumer in self.readers():
                consumer.on_removed(added)
        return len(added)

    def remove_later(self, offset: int) -> None:
        """Once what was written so far is durable."""
        self._unwanted.append(offset)

    def roll_up(self, topic: bytes, offset: int) -> None:
        """A durable message stands for all before it of its subject; a wildcard in it means what it does in a filter."""
        found, _ = self.index.find_many(self.bitmap((topic,)), self.first, offset)
        self.remove(self.removed.visible(found))
        self.flush_removed()

    def _forget_size(self, offset: int) -> None:
        size = self.sizes.pop(offset) or (self.stored_bytes // self.messages if self.messages else 0)
        self.messages -= 1
        self.stored_bytes = max(0, self.stored_bytes - size) if self.messages else 0
        if offset < self.counted.end:
            self._unjournaled_bytes += size

    def _advance(self) -> None:
        """The first record may be another one now."""
        if self.first not in self.removed and self.messages:
            return
        self.first = self.next_visible(self.first)
        self.log.move_start(self.first)
        self.log.low_mark = max(self.log.low_mark, min(self.first, self.log.stable))
        self.removed.forget_before(self.first)

    def remove_front(self, end: int) -> int:
        """Everything below an offset; how many there were."""
        end = min(end, self.written)
        if end <= self.first:
            return 0
        gone = self.count((), self.first, end)
        known, size = self.sizes.pop_below(end)
        average = self.stored_bytes // self.messages if self.messages else 0
        self.messages -= gone
        self.stored_bytes = max(0, self.stored_bytes - size - average * max(0, gone - known)) if self.messages else 0
        self.counters.clear()
        first = self.first
        self.first = end
        self.first = self.next_visible(end)
        self.removed.forget_before(self.first)
        self.log.move_start(self.first)
        self.log.low_mark = max(self.log.low_mark, min(self.first, self.log.stable))
        self.service.journal_state(self)
        for consumer in self.readers():
            consumer.on_removed_range(first, self.first)
        return gone

    def enforce(self, *, all_subjects: bool = False) -> None:
        """What the limits say must go, goes from the front."""
        settings = self.settings
        if all_subjects and settings.max_msgs_per_subject > 0:
            for topic in self.topics_of(()):
                found = self.last_offsets(topic, 1 << 30)
                self.remove(found[: -settings.max_msgs_per_subject])
        over = self.messages - settings.max_msgs if settings.max_msgs > 0 else 0
        if over > 0:
            self._remove_first(over)
        while settings.max_bytes > 0 and self.stored_bytes > settings.max_bytes and self.messages:
            size = self.sizes.get(self.first) or self.stored_bytes // self.messages
            many = max(1, (self.stored_bytes - settings.max_bytes) // max(1, 2 * size))
            self._remove_first(many)
        if settings.max_age_ns > 0:
            self.expire()
        self.flush_removed()

    def _remove_first(self, count: int) -> None:
        self.remove_front(self.offset_after(count, self.end))

    def expire(self) -> None:
        """Messages older than max_age go."""
        if not self.messages:
            return
        oldest = self.service.now_ns() - self.settings.max_age_ns
        marked = self.settings.marker_ttl_ns > 0
        if self.log.last_stamp and self.last_stamp < oldest and not marked:
            self.remove_front(self.end)
            return
        old: dict[bytes, Record] = {}
        young = self.first
        try:
            for record in self.walk((), self.first, self.end):
                young = record.offset
                if record.stamp >= oldest:
                    break
                young += 1
                if marked:
                    old[record.topic] = record
            else:
                young = self.end
        except NotLocal as missing:
            self._expire_more(missing)
        except CorruptFrame:  # an object is damaged or missing; who reads it is told
            young = self._end_of_old(young, oldest)
        self.remove_front(young)
        self._mark(old)

    def _end_of_old(self, offset: int, oldest: int) -> int:
        """Of a part that cannot be read, all messages are old if its last one is; else they stay."""
        part = next((part for part in self.log.engine.stat().parts if part.end_offset > offset), None)
        return part.end_offset if part is not None and part.sealed and part.last_stamp < oldest else offset

    def _expire_more(self, missing: NotLocal) -> None:
        """Once what comes next is here."""

        def again() -> None:
            self._bringing = False
            if not self.deleted:
                self.expire()
                self.flush_removed()

        if not self._bringing:
            self._bringing = True
            bring(missing, again)

    def expire_single(self) -> None:
        """Messages whose own time to live is over go."""
        due = self.expiring.due(self.service.now_ns(), self.end) if len(self.expiring) else []
        old: dict[bytes, Record] = {}
        if self.settings.marker_ttl_ns:
            try:
                found = [record for offset in due if (record := self.read_one(offset)) is not None]
            except NotLocal as missing:
                for offset in due:
                    self.expiring.add(offset, 0)
                bring(missing, lambda: None if self.deleted else self.expire_single())
                return
            old = {record.topic: record for record in found}
        if due and self.remove(due):
            self.flush_removed()
            self._mark(old)

    def _mark(self, old: dict[bytes, Record]) -> None:
        """A subject whose last message expired gets a marker that says so, unless that was one."""
        ttl_s = self.settings.marker_ttl_ns // NS_PER_S
        for topic, record in old.items():
            block = record.header(b"ms-nats") or b""
            if b"\r\nNats-Marker-Reason:" in block or b"\r\nKV-Operation: PURGE" in block or self.last_of(topic):
                continue
            marker = MARKER % duration_text(ttl_s * NS_PER_S).encode()
            self.namespace.publish(topic, b"", headers=[(b"ms-nats", marker)], origin=Origin.NATS)

    def run_schedules(self) -> None:
        self.schedules.run(self.service.now_ns())

    def next_due_ns(self) -> int | None:
        """When a message ends or is to be published."""
        return min((due for due in (self.expiring.next_due_ns(), self.schedules.next_due_ns()) if due), default=None)

    def flush_removed(self) -> Ticket | None:
        """Journal what was removed; the ticket is released when that is durable."""
        return self.service.journal_removed(self) if self._unjournaled else None

    def take_removed(self) -> tuple[list[int], int]:
        """For the journal: offsets, and the bytes of those that it counts."""
        removed, size = sorted(self._unjournaled), self._unjournaled_bytes
        self._unjournaled, self._unjournaled_bytes = [], 0
        return removed, size

    # -- duplicates ------------------------------------------------------------------------------------------------

    def duplicate_of(self, message_id: bytes, now_ns: int) -> tuple[Ticket | None, int] | None:
        """Where a message with this id was stored within the window: its ticket and index, or None and its sequence."""
        window = self.settings.duplicate_window_ns
        known = self.duplicates
        while known:
            stamp = next(iter(known.values()))[0]
            if stamp >= now_ns - window:
                break
            known.popitem(last=False)
        found = known.get(message_id)
        return (found[1], found[2]) if found is not None else None

    def note_id(self, message_id: bytes, now_ns: int, ticket: Ticket | None, index: int) -> None:
        if self.settings.duplicate_window_ns > 0:
            self.duplicates[message_id] = (now_ns, ticket, index)
