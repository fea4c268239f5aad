"""Reading by offset: a topic-partition, a shared topic or a view's slot, as Kafka batches or as records.

Whatever carries offsets away ends at `stable`. A read at an offset that is not there returns the next one that is; the
caller always learns how far the log was looked through (`next_offset`), also where nothing matched.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mainstem.broker.delivery.live import OFFERED, Dispatcher, Sink
from mainstem.broker.topics.time_search import (
    find_time_stored,
    fulfils,
    newest_of,
    newest_stored,
    parts_by_newest,
    parts_since,
)
from mainstem.broker.topics.topic import Partition, Span
from mainstem.codec.batch import (
    KIND_DATA,
    decode_chosen,
    decode_frames,
    frame_heads,
    read_batch_head,
    rebuild_batches,
    record_count,
    sent_batches,
)
from mainstem.log.inflating import inflate_soon
from mainstem.log.log import Log
from mainstem.log.topic_index import TopicIndex
from mainstem.model.condition import Condition
from mainstem.model.crossing import kafka_records
from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.model.origin import Origin
from mainstem.model.record import Record
from mainstem.storage.engine import Buffer, NotLocal, Slice

INFLATED_BYTES_MAX = 64 << 20
SCAN_OFFSETS_MAX = 1 << 20  # how far one call looks for matches
RECORDS_MAX = 10_000
FRAME_HEAD_SIZE = 48
READ_BYTES_MIN, READ_BYTES_MAX = 4096, 1 << 20
STEP_RECORDS = 64  # decoded between two looks at the clock, by a reader that has only a slice of time
STEP_BYTES = 64 << 10
SLICE_RECORDS_MAX = 2_048  # that such a reader looks for: it decodes no more in its time
STAMP_MAX = (1 << 63) - 1


@dataclass(slots=True)
class Fetched:
    """Whole batches for the Kafka wire, in order; `next_offset` is where to go on."""

    parts: list[Buffer] = field(default_factory=list)
    next_offset: int = 0
    size: int = 0
    records: int = 0  # as the batches count them

    def add(self, part: Buffer) -> None:
        self.parts.append(part)
        self.size += len(part)
        self.records += record_count(part)

    def add_records(self, records: list[Record], log: Log, last_offset: int, *, through_view: bool = False) -> None:
        """Records in Kafka's words, as one batch up to `last_offset`; what has expired is left out."""
        mapped = kafka_records(records, log.now_ms(), through_view=through_view)
        if mapped:
            self.add(rebuild_batches(mapped, last_offset=last_offset, leader_epoch=log.epoch))


class PartitionReader:
    """One topic-partition through all its spans."""

    def __init__(self, partition: Partition, topic_of: dict[int, bytes]) -> None:
        self._partition = partition
        self._topic_of = topic_of

    @property
    def start_offset(self) -> int:
        return self._partition.start_offset

    @property
    def stable_offset(self) -> int:
        return self._partition.stable_offset

    def read(self, offset: int, bytes_max: int, end: int | None = None, *, until_ns: int = 0) -> Fetched:
        """Batches from `offset`, none beyond `end`; Kafka's own as they were sent, the others in Kafka's words. With
        `until_ns` it ends about then (monotonic), and tells as always where to go on."""
        offset = max(offset, self.start_offset)
        span = self._span_at(offset)
        last = span.end_offset if end is None else min(end, span.end_offset)
        offset = max(offset, span.first)
        if offset >= last:
            return Fetched(next_offset=offset)
        if span.shared:
            chosen = Chosen(span.log, self._topic_of, number=self._number(span.log))
            return chosen.batches(offset, last, bytes_max, until_ns=until_ns)
        return _stored_batches(span.log, offset, last, bytes_max, self._topic_of, until_ns)

    def records(
        self, offset: int, bytes_max: int, *, count_max: int = RECORDS_MAX, until_ns: int = 0
    ) -> tuple[list[Record], int]:
        """Records as stored, and where to go on."""
        start = max(offset, self.start_offset)
        span = self._span_at(start)
        start = max(start, span.first)
        if start >= span.end_offset:
            return [], start
        if span.shared:
            chosen = Chosen(span.log, self._topic_of, number=self._number(span.log))
            return chosen.records(start, span.end_offset, bytes_max, count_max=count_max, until_ns=until_ns)
        bytes_max = min(bytes_max, STEP_BYTES) if until_ns else bytes_max
        records, after = _stored_records(span.log, start, span.end_offset, bytes_max, self._topic_of)
        for record in records:
            record.topic = self._partition.topic.name
        return (
            (records[:count_max], records[count_max - 1].offset + 1) if len(records) > count_max else (records, after)
        )

    def count(self, start: int, end: int) -> int:
        """Records in [start, end): offsets that an unclean stop left unused are none, and what lies in a lost object is left
        out where nobody knows its topics."""
        total, start = 0, max(start, self.start_offset)
        for span in self._partition.spans:
            first, last = max(start, span.first), min(end, span.end_offset)
            if first >= last:
                continue
            if span.log.index is not None:
                number, index = self._number(span.log), span.log.index
                total += sum(index.count_one(number, *one) for one in index.known(first, last))
            else:
                total += span.log.count(first, last)
        return total

    def find_time(self, time_ms: int) -> tuple[int, int] | None:
        """The first record at or after that (event) time: (offset, its time); None when all are older."""
        for span in self._partition.spans:
            start, end = max(span.first, self.start_offset), span.end_offset
            if span.shared:
                found = Chosen(span.log, self._topic_of, number=self._number(span.log)).find_time(time_ms, start, end)
            else:
                found = find_time_stored(span.log, time_ms, start, end)
            if found is not None:
                return found
        return None

    def newest(self) -> tuple[int, int] | None:
        """The first of the records with the highest (event) time: (offset, its time)."""
        best: tuple[int, int] | None = None
        for span in self._partition.spans:
            start, end = max(span.first, self.start_offset), span.end_offset
            if span.shared:
                found = Chosen(span.log, self._topic_of, number=self._number(span.log)).newest(start, end)
            else:
                found = newest_stored(span.log, start, end)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        return best

    def _number(self, log: Log) -> int:
        assert log.index is not None
        return log.index.topics.find(self._partition.topic.name)

    def _span_at(self, offset: int) -> Span:
        return next(span for span in self._partition.spans if offset < span.limit)


class Chosen:
    """The records of one log that a filter chooses: by one topic's number, or by a bitmap of many."""

    def __init__(
        self,
        log: Log,
        topic_of: dict[int, bytes],
        *,
        number: int = 0,
        bitmap: bytes | bytearray | None = None,
        condition: Condition | None = None,
        name_topic: bool = False,
    ) -> None:
        self._log = log
        self._topic_of = topic_of
        self._number = number
        self._bitmap = bitmap
        self._condition = condition
        self._name_topic = name_topic
        self._undecodable: list[tuple[int, MainstemError]] = []  # batches of clients that cannot be read: passed over

    def batches(self, offset: int, end: int, bytes_max: int, *, until_ns: int = 0) -> Fetched:
        records, after = self.records(offset, end, bytes_max, until_ns=until_ns)
        fetched = Fetched(next_offset=after)
        if records:
            fetched.add_records(records, self._log, after - 1, through_view=self._name_topic)
        return fetched

    def records(
        self, offset: int, end: int, bytes_max: int, *, count_max: int = RECORDS_MAX, until_ns: int = 0
    ) -> tuple[list[Record], int]:
        """Matching records from `offset` in order, and the offset up to which the log was looked through. Those before a
        damaged one are returned; CorruptFrame where it is the first."""
        found: list[Record] = []
        size = 0
        at = max(offset, self._log.start_offset)
        count_max = min(count_max, SLICE_RECORDS_MAX) if until_ns else count_max
        offsets, scanned = self._find(at, min(end, at + SCAN_OFFSETS_MAX), count_max)
        taken = 0
        step_bytes = min(bytes_max, STEP_BYTES) if until_ns else bytes_max
        for piece, inside in _until_damaged(pieces_of(self._log, offsets, scanned, step_bytes)):
            if piece is None:
                return found, offsets[taken]
            while taken < inside:
                step = min(inside, taken + STEP_RECORDS) if until_ns else inside
                kept = self._decode(piece, offsets[taken:step])
                found += kept
                size += sum(len(record.value or b"") + len(record.key or b"") + 64 for record in kept)
                taken = step
                if until_ns and taken < len(offsets) and time.monotonic_ns() >= until_ns:
                    return found, offsets[taken]
            if size >= bytes_max and taken < len(offsets):
                return found, offsets[taken]
        return found, scanned

    def replay(
        self,
        dispatcher: Dispatcher,
        sink: Sink,
        offset: int,
        end: int,
        *,
        count_max: int,
        expect: Callable[[array[int]], None],
    ) -> array[int]:
        """Offer matching records to a sink until it takes no more, or the next lie elsewhere or are damaged; their offsets,
        which `expect` is told before."""
        at = max(offset, self._log.start_offset)
        offsets, scanned = self._find(at, min(end, at + SCAN_OFFSETS_MAX), count_max)
        expect(offsets)
        taken = 0
        try:
            for piece, inside in pieces_of(self._log, offsets, scanned, READ_BYTES_MAX):
                wanted = offsets[taken:inside]
                if dispatcher.replay(sink, self._log, piece, wanted, 0, STAMP_MAX, self._topic_of) != OFFERED:
                    break
                taken = inside
        except (NotLocal, CorruptFrame):
            if not taken:  # else what the sink has counts first
                raise
        return offsets

    def _decode(self, piece: memoryview, chosen: array[int]) -> list[Record]:
        records = decode_chosen(
            piece,
            self._log.id,
            chosen,
            inflated_bytes_max=INFLATED_BYTES_MAX,
            inflate=inflate_soon,
            topic_of=self._topic_of,
            bad=self._undecodable,
        )
        return [record for record in records if self._holds(record)]

    def count(self, start: int, end: int) -> int:
        index = self._log.index
        assert index is not None
        if self._condition is not None:
            return sum(1 for _ in self._walk(start, end))
        return sum(self._count_known(index, first, last) for first, last in index.known(start, end))

    def _count_known(self, index: TopicIndex, start: int, end: int) -> int:
        if self._bitmap is None:
            return index.count_one(self._number, start, end)
        hidden = self._log.low_marks.hidden_count(self._bitmap, start, end) if self._log.low_marks is not None else 0
        return index.count(self._bitmap, start, end) - hidden

    def find_time(self, time_ms: int, start: int, end: int) -> tuple[int, int] | None:
        """The first matching record at or after that time: (offset, its time). Parts that are older are passed over."""
        for first, last in parts_since(self._log, time_ms, start, end):
            for record in self._walk(first, last):
                if record.time_ms >= time_ms:
                    return record.offset, record.time_ms
        return None

    def newest(self, start: int, end: int) -> tuple[int, int] | None:
        """The first of the matching records with the highest time: (offset, its time)."""
        best: tuple[int, int] | None = None
        for bound, first, last in parts_by_newest(self._log, start, end):
            if best is not None and bound < best[1]:
                break
            best = newest_of(self._walk(first, last), best)
        return best

    def _walk(self, start: int, end: int) -> Iterator[Record]:
        while start < end:
            records, start = self.records(start, end, 1 << 20)
            yield from records

    def _find(self, start: int, end: int, limit: int) -> tuple[array[int], int]:
        index = self._log.index
        assert index is not None
        if self._bitmap is not None:
            offsets, scanned = index.find_many(self._bitmap, start, end, limit)
            return (self._log.low_marks.visible(offsets) if self._log.low_marks is not None else offsets), scanned
        if not self._number:
            return array("q"), index.known_end(start, end)
        end = index.known_end(start, end)
        offsets = index.find_one(self._number, start, end, limit)
        scanned = offsets[-1] + 1 if len(offsets) >= limit else end
        removed = self._log.low_marks.removed if self._log.low_marks is not None else None
        return (offsets if removed is None else removed.visible(offsets)), scanned

    def _holds(self, record: Record) -> bool:
        return fulfils(self._condition, record)


def _until_damaged(pieces: Iterator[tuple[memoryview, int]]) -> Iterator[tuple[memoryview | None, int]]:
    """Up to the first that cannot be read, which is None; CorruptFrame where there was none before it."""
    inside = 0
    try:
        for piece, inside in pieces:
            yield piece, inside
    except CorruptFrame:
        if not inside:
            raise
        yield None, inside


def pieces_of(log: Log, offsets: array[int], end: int, bytes_max: int) -> Iterator[tuple[memoryview, int]]:
    """The stored frames that hold the offsets, a read at a time, each with the number of offsets dealt with so far.

    A match that lies alone costs a small read. Where the next one lies close behind what was read, reads grow: one
    large read is cheaper than many small ones, also if a part of it is not wanted.
    """
    at, size, size_max = 0, READ_BYTES_MIN, max(READ_BYTES_MIN, min(bytes_max, READ_BYTES_MAX))
    while at < len(offsets):
        piece = log.read_anywhere(offsets[at], size, end)
        if piece is None:
            return
        at = bisect_left(offsets, piece.end_offset, at)
        yield piece.data, at
        near = at < len(offsets) and offsets[at] - piece.end_offset <= piece.end_offset - piece.base_offset
        size = min(2 * max(size, len(piece.data)), size_max) if near else READ_BYTES_MIN


def _stored_batches(
    log: Log, offset: int, end: int, bytes_max: int, topic_of: dict[int, bytes], until_ns: int = 0
) -> Fetched:
    piece = log.read_anywhere(offset, bytes_max + FRAME_HEAD_SIZE, end)
    if piece is None:
        return Fetched(next_offset=max(offset, end))
    fetched = Fetched(next_offset=piece.end_offset)
    sent = sent_batches(piece.data, log.id, offset, bytes_max)
    if sent is not None:
        fetched.parts, fetched.size, fetched.records = sent
        return fetched
    at = 0
    for head in frame_heads(piece.data, log.id):
        frame = piece.data[at : at + head.size]
        at += head.size
        if head.kind != KIND_DATA or head.base_offset + head.count <= offset:
            continue
        if head.origin == Origin.KAFKA or not head.payload_size:
            fetched.add(frame[FRAME_HEAD_SIZE:])
        else:
            records = decode_frames(
                frame, log.id, inflated_bytes_max=INFLATED_BYTES_MAX, inflate=inflate_soon, topic_of=topic_of
            )
            last = head.base_offset + head.count - 1
            fetched.add_records(records, log, last)
            if until_ns and time.monotonic_ns() >= until_ns:
                fetched.next_offset = last + 1
                break
    return fetched


def _stored_records(
    log: Log, offset: int, end: int, bytes_max: int, topic_of: dict[int, bytes]
) -> tuple[list[Record], int]:
    """Of a log of one topic, committed records only, as every reader that is not a Kafka client of the topic itself."""
    if log.hidden is not None:
        end = min(end, log.hidden.stable_end(end))
    piece = log.read_anywhere(offset, bytes_max, end)
    if piece is None:
        return [], max(offset, end)
    records: list[Record] = []
    for data in _committed(log, piece):
        records += decode_frames(
            data,
            log.id,
            start_offset=offset,
            end_offset=end,
            inflated_bytes_max=INFLATED_BYTES_MAX,
            inflate=inflate_soon,
            topic_of=topic_of,
            bad=[],  # a client's batch that cannot be read keeps nobody from those after it
        )
    return records, min(piece.end_offset, end)


def _committed(log: Log, piece: Slice) -> list[memoryview]:
    """The frames of a read without those of aborted transactions."""
    hidden = log.hidden
    if hidden is None or not hidden.aborted_in(piece.base_offset, piece.end_offset):
        return [piece.data]
    kept: list[memoryview] = []
    for head in frame_heads(piece.data, log.id):
        if head.kind == KIND_DATA and head.origin == Origin.KAFKA:
            batch = read_batch_head(piece.data, head.pos + FRAME_HEAD_SIZE)
            if batch.transactional and hidden.is_aborted(batch.producer_id, head.base_offset):
                continue
        kept.append(piece.data[head.pos : head.pos + head.size])
    return kept


def stored_records_of(
    log: Log,
    offset: int,
    bytes_max: int,
    topic_of: dict[int, bytes],
    topic: bytes,
    condition: Condition | None,
    *,
    count_max: int = RECORDS_MAX,
    until_ns: int = 0,
) -> tuple[list[Record], int]:
    """A dedicated log through a view: the records that fulfil its condition."""
    bytes_max = min(bytes_max, STEP_BYTES) if until_ns else bytes_max
    records, after = _stored_records(log, offset, log.stable, bytes_max, topic_of)
    chosen: list[Record] = []
    for record in records:
        record.topic = topic
        if fulfils(condition, record):
            if len(chosen) == count_max:
                return chosen, record.offset
            chosen.append(record)
    return chosen, after


def stored_batches_of(
    log: Log,
    offset: int,
    bytes_max: int,
    topic_of: dict[int, bytes],
    topic: bytes,
    condition: Condition | None,
    *,
    until_ns: int = 0,
) -> Fetched:
    """The same in Kafka's words; each record tells the topic it came from."""
    records, after = stored_records_of(log, offset, bytes_max, topic_of, topic, condition, until_ns=until_ns)
    return batches_of(records, after, log)


def batches_of(records: list[Record], after: int, log: Log) -> Fetched:
    """A view's records in Kafka's words, the last batch covering all that was looked through."""
    fetched = Fetched(next_offset=after)
    if records:
        fetched.add_records(records, log, after - 1, through_view=True)
    return fetched
