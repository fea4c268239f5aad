"""Compaction: of each key only the last record stays. Offsets, stamps and order are kept; the gaps stay gaps.

A pass reads the sealed parts once to learn each key's last offset, then rewrites the parts that hold anything older.
A tombstone (null value) is itself kept for `delete_retention_ms`, so that every reader has a chance to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, FrameHead, decode_frames, frame_heads
from mainstem.log.log import Log
from mainstem.log.rewriting import keep_records
from mainstem.model.record import Record
from mainstem.storage.engine import Buffer, Part

KEYS_MAX = 5_000_000  # of one pass; the pass stops there and the next goes on
READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
FLAG_CONTROL = 0x100  # of a decoded record: a transaction's marker, not data


@dataclass(slots=True)
class Compacted:
    parts: int = 0
    records_before: int = 0
    records_after: int = 0


def compact(
    log: Log,
    *,
    now_ns: int,
    delete_retention_ms: int,
    lag_min_ms: int = 0,
    end_offset: int | None = None,
    is_aborted: Callable[[Record, FrameHead], bool] = lambda record, head: False,
) -> Compacted:
    """One pass over the sealed parts whose records are older than the lag. Runs in a thread."""
    youngest = now_ns - lag_min_ms * 1_000_000
    limit = log.stable if end_offset is None else min(end_offset, log.stable)
    parts = [p for p in log.engine.stat().parts if p.sealed and p.last_stamp < youngest and p.end_offset <= limit]
    done = Compacted()
    last = _last_offsets(log, parts, is_aborted)
    for part in parts:
        frames, before, after = _kept(log, part, last, now_ns - delete_retention_ms * 1_000_000, is_aborted)
        if after < before:
            log.engine.replace(part, frames)
            done.parts += 1
            done.records_before += before
            done.records_after += after
    return done


def _last_offsets(log: Log, parts: list[Part], is_aborted: Callable[[Record, FrameHead], bool]) -> dict[bytes, int]:
    last: dict[bytes, int] = {}
    for part in parts:
        for head, _, records in _frames(log, part):
            for record in records:
                if record.key is not None and not is_aborted(record, head):
                    last[record.key] = record.offset
        if len(last) > KEYS_MAX:
            break
    return last


def _kept(
    log: Log,
    part: Part,
    last: dict[bytes, int],
    tombstones_from: int,
    is_aborted: Callable[[Record, FrameHead], bool],
) -> tuple[list[Buffer], int, int]:
    frames: list[Buffer] = []
    before = after = 0
    for head, frame, records in _frames(log, part):
        before += len(records)
        if not records or records[0].flags & FLAG_CONTROL:
            frames.append(bytes(frame))
            continue
        kept = [r for r in records if not is_aborted(r, head) and _stays(r, head, last, tombstones_from)]
        after += len(kept)
        if len(kept) == len(records):
            frames.append(bytes(frame))
        elif kept:
            frames.append(keep_records(frame, log.id, kept))
    return frames, before, after


def _stays(record: Record, head: FrameHead, last: dict[bytes, int], tombstones_from: int) -> bool:
    if record.key is None:
        return True
    if last.get(record.key, record.offset) != record.offset:
        return False
    stamp = head.stamp + record.offset - head.base_offset
    return record.value is not None or stamp >= tombstones_from


def _frames(log: Log, part: Part) -> Iterator[tuple[FrameHead, memoryview, list[Record]]]:
    offset = part.base_offset
    while offset < part.end_offset and (piece := log.read(offset, READ_BYTES, part.end_offset)) is not None:
        at = 0
        for head in frame_heads(piece.data, log.id):
            frame = piece.data[at : at + head.size]
            at += head.size
            if head.kind != KIND_DATA or head.size == FRAME_HEAD_SIZE:
                yield head, frame, []
                continue
            yield head, frame, decode_frames(frame, log.id, inflated_bytes_max=INFLATED_BYTES_MAX)
        offset = piece.end_offset
