"""The offsets of a declared stream queue: its records counted from zero, whatever lies between them in the log.

Records do not carry their numbers: a stream holds what its bindings mean, and a record may be in many. So some of the
numbers are marked, (stamp, number): all records below the stamp have numbers below that one. Any other number is found by
counting the records of the log up to the next mark. Counting backwards from a mark stays right when retention or a limit
has taken what lies before it.

    marks      ──┬───────────┬───────────┬──── latest      at most MARKS_MAX; then every second one is given up
    numbers      0          64         128      150        and the distance doubles

    journal kind "queue-stream": key = u32 queue id; value = (stamp, number, whether it is a mark), in a snapshot the whole
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.broker.queues.levels import stored_records

if TYPE_CHECKING:
    from mainstem.broker.queues.queue import Queue

MARKS_MAX = 16_384
DISTANCE_MIN = 64
JOURNAL_KIND = "queue-stream"


class StreamNumbers:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stamps, self._numbers = array("q"), array("q")
        self._distance = DISTANCE_MIN
        self.stamp, self.next = queue.created, 0  # the latest mark: what comes has this number
        self._told = (-1, -1)

    # -- counting

    def advance(self, count: int, head: int) -> None:
        """So many records entered, all below `head`."""
        if count > 0:
            self.next, self.stamp = self.next + count, max(self.stamp, head)

    def changes(self) -> Iterator[bytes]:
        """What the journal must know since the last call."""
        if (self.stamp, self.next) == self._told:
            return
        self._told = self.stamp, self.next
        kept = self.next - (self._numbers[-1] if self._numbers else 0) >= self._distance
        if kept:
            self._mark(self.stamp, self.next)
        yield msgspec.msgpack.encode((self.stamp, self.next, kept))

    def _mark(self, stamp: int, number: int) -> None:
        self._stamps.append(stamp)
        self._numbers.append(number)
        if len(self._stamps) > MARKS_MAX:
            self._stamps, self._numbers = self._stamps[1::2], self._numbers[1::2]
            self._distance *= 2

    # -- finding

    def number_at(self, stamp: int) -> int:
        """Of the first record at or beyond a stamp."""
        self._queue.apply_events()
        at = bisect_left(self._stamps, stamp)
        end, number = self._mark_at(at)
        return max(0, number - sum(1 for _ in stored_records(self._queue, stamp, end)))

    def stamp_of(self, number: int, first: int) -> int:
        """Of the record with that number; the first that is left where it is gone, the head where it is still to come."""
        self._queue.apply_events()
        if number >= self.next:
            return self._queue.head_stamp
        at = bisect_right(self._numbers, number)
        end, end_number = self._mark_at(at)
        begin = max(first, self._stamps[at - 1] if at else 0)
        stamps = [record.stamp for record in stored_records(self._queue, begin, end)]
        index = len(stamps) - (end_number - number)
        return stamps[index] if 0 <= index < len(stamps) else first

    def _mark_at(self, at: int) -> tuple[int, int]:
        if at < len(self._stamps):
            return self._stamps[at], self._numbers[at]
        return max(self.stamp, self._queue.head_stamp), self.next

    # -- journal

    def apply(self, value: bytes) -> None:
        told: list[Any] = msgspec.msgpack.decode(value)
        if len(told) == 5:  # the whole of it
            stamps, numbers, self._distance, self.stamp, self.next = told
            self._stamps, self._numbers = array("q", stamps), array("q", numbers)
        else:
            self.stamp, self.next, kept = told
            if kept:
                self._mark(self.stamp, self.next)
        self._told = self.stamp, self.next

    def snapshot(self) -> bytes:
        whole = (self._stamps.tolist(), self._numbers.tolist(), self._distance, self.stamp, self.next)
        return msgspec.msgpack.encode(whole)

    def recover(self) -> None:
        """After the journal was applied: what entered since it was last told is counted."""
        news = [record.stamp for record in stored_records(self._queue, self.stamp, self._queue.head_stamp)]
        if news:
            self.advance(len(news), news[-1] + 1)


class StreamJournal:
    """The numbers of all streams, as the journal sees them."""

    def __init__(self, by_id: dict[int, Queue]) -> None:
        self._by_id = by_id

    def put(self, queue: Queue, put: Callable[[str, bytes, bytes], object]) -> None:
        if queue.numbers is not None:
            for change in queue.numbers.changes():
                put(JOURNAL_KIND, queue.id.to_bytes(4, "big"), change)

    def apply(self, key: bytes, value: bytes | None) -> None:
        queue = self._by_id.get(int.from_bytes(key, "big"))
        if queue is not None and queue.numbers is not None and value is not None:
            queue.numbers.apply(value)

    def dump(self) -> Iterator[tuple[bytes, bytes]]:
        for queue in list(self._by_id.values()):
            if queue.numbers is not None and not queue.deleted:
                yield queue.id.to_bytes(4, "big"), queue.numbers.snapshot()
