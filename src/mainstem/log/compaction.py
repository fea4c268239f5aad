"""Compaction: of each key only the last record stays. Offsets, stamps and order are kept; the gaps stay gaps.

A pass reads the sealed parts that were added since the last one, to learn the last offset of each of their keys, then
rewrites all parts up to there that hold anything older. A tombstone (null value) is itself kept for `delete_retention_ms`,
so that every reader has a chance to see it. Aborted transactions go; a pass ends before the first that is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mainstem.log.committed import TRANSACTIONAL, read_extent
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP, TRANSACTION_NS_MAX, Holds
from mainstem.log.rewriting import StoredFrame, keep_records, stored_frames
from mainstem.model.record import Record
from mainstem.storage.engine import Buffer, Part

KEYS_MAX = 5_000_000  # of one pass; the pass stops there and the next goes on


@dataclass(slots=True)
class Compacted:
    parts: int = 0
    records_before: int = 0
    records_after: int = 0
    end_offset: int = 0  # parts below it are compacted


@dataclass(slots=True)
class _Keys:
    """What a pass learned: each key's last offset, and what became of transactions."""

    last: dict[bytes, int] = field(default_factory=dict)
    open: dict[int, list[StoredFrame]] = field(default_factory=dict)  # producer → batches without a marker yet
    aborted: set[int] = field(default_factory=set)  # base offsets of transactional batches

    def learn(self, frame: StoredFrame) -> None:
        if frame.is_marker:
            self._decide(frame)
        elif frame.batch is not None and frame.batch.attributes & TRANSACTIONAL:
            self.open.setdefault(frame.batch.producer_id, []).append(_light(frame))
        else:
            self._count(frame.records)

    def _decide(self, marker: StoredFrame) -> None:
        extent = read_extent(marker.payload)
        if extent is None:
            return
        commits, producer_id, _ = extent
        for frame in self.open.pop(producer_id, []):
            if commits:
                self._count(frame.records)
            else:
                self.aborted.add(frame.head.base_offset)

    def _count(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.key is not None and record.offset > self.last.get(record.key, -1):
                self.last[record.key] = record.offset


def _light(frame: StoredFrame) -> StoredFrame:
    """Without the values, which a long transaction would keep in memory."""
    records = [Record(None, record.key, offset=record.offset) for record in frame.records]
    return StoredFrame(frame.head, memoryview(b""), frame.batch, records)


def compact(
    log: Log,
    *,
    now_ns: int,
    delete_retention_ms: int,
    lag_min_ms: int = 0,
    holds: Holds | None = None,
) -> Compacted:
    """One pass over the sealed parts whose records are older than the lag. Runs in a thread."""
    holds = holds or Holds()
    youngest = now_ns - lag_min_ms * 1_000_000
    done = Compacted(end_offset=log.compacted_end)
    parts: list[Part] = []
    for part in log.engine.stat().parts:
        if not part.sealed or part.last_stamp >= youngest or part.end_offset > log.stable or _is_held(part, holds):
            break
        parts.append(part)
    if not parts or parts[-1].end_offset <= log.compacted_end:
        return done
    keys = _learn(log, parts, done)
    pass_ = _Pass(log, keys, set(holds.offsets), now_ns - delete_retention_ms * 1_000_000)
    for part in parts:
        if part.end_offset > done.end_offset:
            break
        frames, before, after = pass_.kept(part)
        if after < before:
            log.engine.replace(part, frames)
            done.parts += 1
            done.records_before += before
            done.records_after += after
    log.compacted_end = done.end_offset
    return done


def _learn(log: Log, parts: Sequence[Part], done: Compacted) -> _Keys:
    """Transactions are followed from the first part on, keys only where they are new."""
    keys = _Keys()
    for part in parts:
        for frame in stored_frames(log, part):
            if part.end_offset > log.compacted_end or frame.is_marker or _is_transactional(frame):
                keys.learn(frame)
        if part.end_offset > log.compacted_end:
            done.end_offset = part.end_offset
            if len(keys.last) > KEYS_MAX:
                break
    undecided = min((frame.head.base_offset for frames in keys.open.values() for frame in frames), default=None)
    if undecided is not None:
        ends = (part.end_offset for part in parts if part.end_offset <= undecided)
        done.end_offset = min(done.end_offset, max(ends, default=0))
    return keys


def _is_transactional(frame: StoredFrame) -> bool:
    return frame.batch is not None and frame.batch.attributes & TRANSACTIONAL != 0


def _is_held(part: Part, holds: Holds) -> bool:
    """Conservative by a part: a queue that still needs anything of it needs it whole."""
    from_stamp = holds.from_stamp - TRANSACTION_NS_MAX if holds.from_stamp < NO_STAMP else NO_STAMP
    return part.last_stamp >= from_stamp or part.end_offset > min(holds.from_offset, holds.start_max)


class _Pass:
    def __init__(self, log: Log, keys: _Keys, held: set[int], tombstones_from: int) -> None:
        self._log = log
        self._keys = keys
        self._held = held
        self._tombstones_from = tombstones_from
        self._alive: set[int] = set()  # producers of whose current transaction a record stayed

    def kept(self, part: Part) -> tuple[list[Buffer], int, int]:
        """The part's frames with what stays; counts include markers, which go when nothing needs them any more."""
        frames: list[Buffer] = []
        before = after = 0
        for frame in stored_frames(self._log, part):
            kept = self._stays(frame)
            if frame.records:
                before += len(frame.records)
                after += len(kept)
            elif frame.is_marker:
                before += 1
                if not self._marker_stays(frame):
                    continue
                after += 1
            if len(kept) == len(frame.records):
                frames.append(bytes(frame.data))
            elif kept:
                frames.append(keep_records(frame, self._log.id, kept))
        return frames, before, after

    def _stays(self, frame: StoredFrame) -> list[Record]:
        if not _is_transactional(frame) or not frame.records:
            return [record for record in frame.records if self._record_stays(record)]
        assert frame.batch is not None
        if frame.head.base_offset in self._keys.aborted:
            return []
        kept = [record for record in frame.records if self._record_stays(record)]
        if kept:
            self._alive.add(frame.batch.producer_id)
        return kept

    def _record_stays(self, record: Record) -> bool:
        if record.key is None or record.offset in self._held:
            return True
        if self._keys.last.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or record.stamp >= self._tombstones_from

    def _marker_stays(self, frame: StoredFrame) -> bool:
        extent = read_extent(frame.payload)
        if extent is None:
            return True
        alive = extent[1] in self._alive
        self._alive.discard(extent[1])
        return alive or frame.head.stamp >= self._tombstones_from
