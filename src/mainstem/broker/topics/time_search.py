"""Finding records by the time they carry, without decoding what cannot be meant.

Times come in any order. A part of a log is passed over by its newest time (`log/part_times.py` keeps it), a batch by the
newest time its head names; only what is left is decoded. Runs in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainstem.codec.batch import FRAME_HEAD_SIZE, decode_frames
from mainstem.log.inflating import inflate_soon
from mainstem.log.log import Log
from mainstem.log.part_times import NO_TIME, frames_newer, newest_in
from mainstem.model.condition import Condition
from mainstem.model.crossing import headers_for_conditions
from mainstem.model.record import Record

INFLATED_BYTES_MAX = 64 << 20


def parts_since(log: Log, time_ms: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretches of [start, end) that may hold a record at or after the time, in order."""
    for part in log.engine.stat().parts:
        first, last = max(part.base_offset, start), min(part.end_offset, end)
        if first >= last:
            continue
        newest = log.times.newest(part)
        if newest is None or newest >= time_ms:
            yield first, last


def parts_by_newest(log: Log, start: int, end: int) -> list[tuple[int, int, int]]:
    """The stretches of [start, end) with the newest time each may hold, newest first: (time, from, to)."""
    found: list[tuple[int, int, int]] = []
    for part in log.engine.stat().parts:
        first, last = max(part.base_offset, start), min(part.end_offset, end)
        if first < last:
            newest = log.times.newest(part)
            found.append((newest_in(log, first, last) if newest is None else newest, first, last))
    return sorted(found, key=lambda one: (-one[0], one[1]))


def find_time_stored(
    log: Log, time_ms: int, start: int, end: int, condition: Condition | None = None
) -> tuple[int, int] | None:
    """Of a log of one topic: the first record at or after the time, (offset, its time); None when all are older."""
    for first, last in parts_since(log, time_ms, start, end):
        for record in _records_since(log, first, last, time_ms):
            if record.time_ms >= time_ms and fulfils(condition, record):
                return record.offset, record.time_ms
    return None


def newest_stored(log: Log, start: int, end: int, condition: Condition | None = None) -> tuple[int, int] | None:
    """Of a log of one topic: the first of the records with the highest time, (offset, its time)."""
    best: tuple[int, int] | None = None
    for bound, first, last in parts_by_newest(log, start, end):
        if bound == NO_TIME or (best is not None and bound < best[1]):
            break
        records = _records_since(log, first, last, bound)  # mostly the last batch alone
        found = newest_of((record for record in records if fulfils(condition, record)), None)
        if found is None or found[1] < bound:  # cut by `start` or the condition: now all that may be newer
            records = _records_since(log, first, last, NO_TIME)
            found = newest_of((record for record in records if fulfils(condition, record)), None)
        if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
            best = found
    return best


def newest_of(records: Iterable[Record], best: tuple[int, int] | None) -> tuple[int, int] | None:
    """The one with the highest time, and of these the first: of `best` and the records, as (offset, time)."""
    for record in records:
        if best is None or (-record.time_ms, record.offset) < (-best[1], best[0]):
            best = record.offset, record.time_ms
    return best


def fulfils(condition: Condition | None, record: Record) -> bool:
    return condition is None or condition.holds(record.key, headers_for_conditions(record))


def _records_since(log: Log, start: int, end: int, time_ms: int) -> Iterator[Record]:
    """The records of the batches in [start, end) whose newest time reaches `time_ms`."""
    for _, piece, positions in frames_newer(log, start, end, time_ms):
        for position in positions:
            size = FRAME_HEAD_SIZE + int.from_bytes(piece.data[position + 8 : position + 12])
            yield from decode_frames(
                piece.data[position : position + size],
                log.id,
                start_offset=start,
                end_offset=end,
                inflated_bytes_max=INFLATED_BYTES_MAX,
                inflate=inflate_soon,
                bad=[],
            )
