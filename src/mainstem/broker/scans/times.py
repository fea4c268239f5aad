"""The first record at or after a time, by the time it carries. Runs in a thread: the decoder works without the GIL.

Times may run in any order, so a part (segment) can be passed over only by the newest time in it. That is found by
decoding it once, and remembered for sealed parts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from mainstem.broker.scans.selection import ScanPartition, Selection
from mainstem.codec.columns import Column, ColumnDecoder, TopicRow
from mainstem.codec.compression import inflate
from mainstem.log.log import Log
from mainstem.model.topic_filter import matches
from mainstem.storage.engine import Part

NEWEST_MAX = 100_000  # parts whose newest time is remembered
READ_BYTES = 4 << 20
BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20
INFLATED_BYTES_MAX = 64 << 20
OFFSET_MAX = (1 << 63) - 1

_PartKey = tuple[int, str, int]
_ITS_TOPIC = b"\0"  # of a log that holds one topic only, which need not be named


class TimeFinder:
    def __init__(self) -> None:
        self._newest_us: dict[_PartKey, int] = {}

    def find(self, selection: Selection, partition: ScanPartition, time_ms: int) -> int | None:
        """The offset of the partition's first record at or after `time_ms`; None when all are older."""
        for log, first, end in partition.spans:
            for part in log.engine.stat().parts:
                start, stop = max(part.base_offset, first, partition.start), min(part.end_offset, end)
                if start >= stop or self._is_older(log, part, time_ms * 1000):
                    continue
                for times, offsets in _columns(log, start, stop, _Wanted(selection, partition)):
                    for row, time_us in enumerate(times):
                        if time_us >= time_ms * 1000:
                            return offsets[row]
        return None

    def _is_older(self, log: Log, part: Part, time_us: int) -> bool:
        if not part.sealed:
            return False
        key = (log.id, part.name, part.generation)
        newest = self._newest_us.get(key)
        if newest is None:
            walked = (max(times) for times, _ in _columns(log, part.base_offset, part.end_offset, _anything) if times)
            newest = max(walked, default=-1)
            if len(self._newest_us) >= NEWEST_MAX:
                self._newest_us.clear()
            self._newest_us[key] = newest
        return newest < time_us


def _anything(topic: bytes | int) -> TopicRow | None:
    return b"", b"", (), 0, 0, OFFSET_MAX


class _Wanted:
    """Which records of a shared log are the partition's."""

    def __init__(self, selection: Selection, partition: ScanPartition) -> None:
        self._selection, self._partition = selection, partition

    def __call__(self, topic: bytes | int) -> TopicRow | None:
        name = self._selection.ids.get(topic) if isinstance(topic, int) else topic
        if name is None:
            return None
        if name == _ITS_TOPIC:
            return _anything(name)
        if self._partition.canonical is not None:
            return _anything(name) if name == self._partition.canonical else None
        wanted = self._selection.filter is None or matches(self._selection.filter, name)
        wanted = wanted and self._selection.reader.may(name)
        return _anything(name) if wanted else None


def _columns(
    log: Log, start: int, end: int, resolve: Callable[[bytes | int], TopicRow | None]
) -> Iterator[tuple[array[int], array[int]]]:
    """(times in µs, offsets) of the records in [start, end)."""
    decoder = ColumnDecoder(
        Column.TIMESTAMP | Column.OFFSET,
        resolve,
        lambda method, data: inflate(method, data, INFLATED_BYTES_MAX),
        start=start,
        end=end,
        topic=None if log.index is not None else _ITS_TOPIC,
        log_id=log.id,
    )
    while decoder.position < end and (piece := log.read_in_thread(decoder.position, READ_BYTES, end)) is not None:
        decoder.feed(piece.data)
        more = True
        while more:
            more = decoder.decode(BATCH_ROWS, BATCH_BYTES)
            if decoder.rows:
                taken = decoder.take()
                yield array("q", bytes(taken[Column.TIMESTAMP][0])), array("q", bytes(taken[Column.OFFSET][0]))
