"""What a stream holds: its messages by offset, subject and number. Reading only; `Stream` (stream.py) adds and removes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.settings import StreamSettings
from mainstem.broker.streams.tap import Handed, StreamCounts
from mainstem.broker.topics.reading import Chosen
from mainstem.log.damaged import pass_over
from mainstem.log.removed import RemovedOffsets
from mainstem.model.errors import CorruptFrame
from mainstem.model.record import Record
from mainstem.model.topic import nats_subject
from mainstem.model.topic_filter import matches

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.streams.registry import StreamService
    from mainstem.log.log import Log

SIZES_MAX = 1 << 20  # a power of two: records whose size is remembered; of older ones the average counts
READ_BYTES = 1 << 20
WALK_RECORDS = 1_000
_SEARCH_FIRST = 1 << 12


class StreamContents(StreamCounts):
    def __init__(
        self, service: StreamService, namespace: Namespace, name: str, log: Log, config: dict[str, Any], created_ns: int
    ) -> None:
        assert log.index is not None and log.low_marks is not None
        super().__init__(log.next_offset, SIZES_MAX)
        self.service = service
        self.namespace = namespace
        self.name = name
        self.log = log
        self.index, self.bitmaps = log.index, log.bitmaps
        self.config = config
        self.settings = StreamSettings.of(config)
        self.copies = self._copies()
        self.created_ns = created_ns
        self.removed = log.low_marks.removed = RemovedOffsets()
        self.former: tuple[bytes, ...] = ()  # filters of subjects it had before: their messages may still be in it

    # -- subjects: its own are topics; others, which sources and transforms bring, lie under a beginning of their own ---

    def _copies(self) -> bytes:
        prefix = self.settings.copies
        return prefix if self.settings.copying or self.index.topics.match(prefix + b">") else b""

    def plain(self, topic: bytes) -> bytes:
        """The topic that a stored one stands for."""
        return topic[len(self.copies) :] if self.copies and topic.startswith(self.copies) else topic

    def subject(self, topic: bytes) -> bytes:
        """As NATS spells a stored topic."""
        return nats_subject(self.plain(topic))

    def place(self, topic: bytes) -> bytes:
        """Where messages of a topic are stored."""
        if not self.copies or any(matches(one, topic) for one in self.settings.filters):
            return topic
        return self.copies + topic

    def meant(self, filters: Sequence[bytes]) -> Sequence[bytes]:
        """Filters over subjects, as filters over stored topics."""
        return [*filters, *(self.copies + one for one in filters)] if self.copies else filters

    @property
    def rights(self) -> tuple[bytes, ...]:
        """Who may do something with the whole stream may do it with all of these."""
        own = (*self.settings.filters, *self.former)
        return (*own, self.settings.copies + b">") if self.copies else own

    def rights_on(self, filters: Sequence[bytes]) -> tuple[bytes, ...]:
        """The same for a part of it."""
        return tuple(self.meant(filters)) or self.rights

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def first_seq(self) -> int:
        if not self.messages and self.first == self.last_seq == 0:
            return 0
        return self.first + 1

    @property
    def end(self) -> int:
        """Consumers read up to here. After an unclean stop the log itself goes on further: there is nothing between."""
        return min(self.log.stable, self.index.covered_end)

    @property
    def written(self) -> int:
        """What is stored ends here."""
        return min(self.log.written, self.index.covered_end)

    def all_topics(self) -> bytes:
        """A bit for every topic of the log."""
        return b"\xfe" + b"\xff" * (self.index.topics.numbers_end // 8)

    def bitmap(self, filters: Sequence[bytes]) -> bytes | bytearray:
        if not filters:
            return self.all_topics()
        assert self.bitmaps is not None
        return self.bitmaps.of_any(self.meant(filters))

    def count(self, filters: Sequence[bytes], start: int, end: int) -> int:
        """What the index does not know (`TopicIndex.unknown`) is not counted: a limit must not remove messages for it."""
        start = max(start, self.first)
        if start >= end:
            return 0
        bitmap = self.bitmap(filters)
        return sum(self._count_known(filters, bitmap, *one) for one in self.index.known(start, end))

    def _count_known(self, filters: Sequence[bytes], bitmap: bytes | bytearray, start: int, end: int) -> int:
        if not filters:
            return self.index.count(bitmap, start, end) - self.removed.count(start, end)
        assert self.log.low_marks is not None
        return self.index.count(bitmap, start, end) - self.log.low_marks.hidden_count(bitmap, start, end)

    def read(
        self, filters: Sequence[bytes], start: int, end: int, *, count_max: int, bytes_max: int = READ_BYTES
    ) -> tuple[list[Record], int]:
        """Records from an offset on, and how far the log was looked through."""
        chosen = Chosen(self.log, self.namespace.topic_of, bitmap=self.bitmap(filters))
        return chosen.records(max(start, self.first), end, bytes_max, count_max=count_max)

    def replay(self, filters: Sequence[bytes], start: int, sink: Handed, count_max: int) -> array[int]:
        """Offer stable records from an offset on to a sink; their offsets."""
        chosen = Chosen(self.log, self.namespace.topic_of, bitmap=self.bitmap(filters))
        dispatcher = self.service.broker.dispatcher
        return chosen.replay(
            dispatcher, sink, max(start, self.first), self.end, count_max=count_max, expect=sink.expect
        )

    def walk(self, filters: Sequence[bytes], start: int, end: int) -> Iterator[Record]:
        """All of them, a piece at a time."""
        while start < end:
            records, after = self.read(filters, start, end, count_max=WALK_RECORDS)
            yield from records
            if after <= start:
                return
            start = after

    def walk_readable(self, start: int, end: int, unknown: str) -> Iterator[Record]:
        """For a start: all of them but those in objects that are damaged or missing, of which the log says what is
        `unknown` then."""
        while start < end:
            try:
                records, after = self.read((), start, end, count_max=WALK_RECORDS)
            except CorruptFrame as error:
                records, after = [], pass_over(self.log, start, error, unknown)
            yield from records
            if after <= start:
                return
            start = after

    def read_one(self, offset: int) -> Record | None:
        if not self.first <= offset < self.written or offset in self.removed:
            return None
        records, _ = self.read((), offset, offset + 1, count_max=1)
        return records[0] if records else None

    def next_of(self, filters: Sequence[bytes], start: int) -> Record | None:
        """The first record from an offset on."""
        return next(self.walk(filters, max(start, self.first), self.written), None)

    def last_offsets(self, topic: bytes, count: int, before: int | None = None) -> list[int]:
        """The newest visible records of one topic, ascending: searched backwards, so that cost follows what is found.
        CorruptFrame where a stretch of which nothing is known may hold a newer one."""
        number = self.index.topics.find(topic)
        if not number:
            return []
        end = self.index.last_offset(number) + 1
        if before is not None:
            end = min(end, before)
        found: list[int] = []
        span = _SEARCH_FIRST
        while end > self.first and len(found) < count:
            start = self.index.known_start(max(self.first, end - span), end)
            some = self.removed.visible(self.index.find_one(number, start, end))
            found[:0] = some[-(count - len(found)) :]
            end, span = start, span * 4
        return found

    def last_of(self, topic: bytes) -> int:
        """The sequence of the topic's last message, 0 if there is none."""
        found = self.last_offsets(topic, 1)
        return found[0] + 1 if found else 0

    def topics_of(self, filters: Sequence[bytes]) -> list[bytes]:
        """Topics with a message, by name."""
        topics = self.index.topics
        meant = self.meant(filters)
        numbers = {n for f in meant for n in topics.match(f)} if filters else range(1, topics.numbers_end)
        found = []
        for number in numbers:
            try:
                name = topics.name(number)
            except Exception:  # a number that is free
                continue
            found.append(name)
        return sorted(found)

    def count_topic(self, topic: bytes) -> int:
        number = self.index.topics.find(topic)
        if not number:
            return 0
        start, end = self.first, self.written
        if not self.removed.touches(start, max(end, start + 1)):
            return sum(self.index.count_one(number, *one) for one in self.index.known(start, end))
        known = self.index.known(start, end)
        return sum(len(self.removed.visible(self.index.find_one(number, *one))) for one in known)

    def next_visible(self, offset: int) -> int:
        """Of the first record from there on; where the next will be written if there is none."""
        if not self.messages:
            return self.last_seq
        written, everything, count = self.written, self.all_topics(), 4
        while offset < written:
            unknown = self.index.unknown_end(offset)
            if unknown is not None:  # whatever it holds was not removed
                visible = next((one for one in range(offset, unknown) if one not in self.removed), None)
                if visible is not None:
                    return visible
                offset = unknown
                continue
            found, scanned = self.index.find_many(everything, offset, written, count)
            count = min(4 * count, 4096)  # the next one is near, mostly
            seen = self.removed.visible(found)
            if seen:
                return seen[0]
            if scanned <= offset:
                break
            offset = scanned
        return self.last_seq

    def offset_after(self, count: int, end: int) -> int:
        """The offset behind the first `count` messages, or `end`; cost follows the count."""
        at, everything = self.first, self.all_topics()
        while at < end:
            at = self.index.unknown_end(at) or at
            found, scanned = self.index.find_many(everything, at, end, count + 1)
            visible = self.removed.visible(found)
            if len(visible) > count:
                return visible[count]
            if scanned <= at:
                break
            count, at = count - len(visible), scanned
        return end
