"""What a log may forget, and when.

Time and size decide by whole parts (segments): a part goes when its newest record is too old, or when the log without
it is still large enough. For streams the log's start then moves. What a queue, a persistent session or a retained
pointer still holds stays readable for its holder: a part with held records is kept, or rewritten to just those, at the
same offsets, once they are under a tenth of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mainstem.codec.batch import FRAME_HEAD_SIZE, KIND_DATA, decode_frames, frame_heads
from mainstem.log.log import Log
from mainstem.log.rewriting import keep_records
from mainstem.storage.engine import Buffer, Part

NO_STAMP = (1 << 63) - 1
HELD_SHARE_MAX = 0.1
READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20


@dataclass(slots=True)
class Holds:
    """What must stay: everything from a stamp on (queues and sessions), and single offsets (retained pointers)."""

    from_stamp: int = NO_STAMP
    offsets: list[int] = field(default_factory=list)  # sorted
    from_offset: int = NO_STAMP  # state after the last snapshot; an archive's position


@dataclass(frozen=True, slots=True)
class Plan:
    start_offset: int  # streams begin here
    drop_before: int  # parts that end at or before it go
    rewrite: tuple[Part, ...]  # parts to be cut down to what is held of them


def plan(log: Log, *, now_ns: int, retention_ms: int, retention_bytes: int, holds: Holds) -> Plan:
    """Decide; touches nothing."""
    parts = log.engine.stat().parts
    expired = _expired(parts, now_ns, retention_ms, retention_bytes)
    start = expired[-1].end_offset if expired else log.start_offset
    drop_before, rewrite, leading = 0, [], True
    for part in expired:
        if part.last_stamp >= holds.from_stamp or part.end_offset > holds.from_offset:
            break
        held = _held_in(part, holds.offsets)
        if not held and leading:
            drop_before = part.end_offset
            continue
        leading = False
        size = part.end_offset - part.base_offset
        if held < size * HELD_SHARE_MAX and part.generation == 0:
            rewrite.append(part)
    return Plan(start, drop_before, tuple(rewrite))


def _expired(parts: Sequence[Part], now_ns: int, retention_ms: int, retention_bytes: int) -> list[Part]:
    """The oldest sealed parts that time or size lets go, in order."""
    total = sum(part.size_bytes for part in parts)
    expired: list[Part] = []
    for part in parts:
        too_old = retention_ms >= 0 and part.last_stamp < now_ns - retention_ms * 1_000_000
        too_much = retention_bytes >= 0 and total - part.size_bytes >= retention_bytes
        if not part.sealed or not (too_old or too_much):
            break
        total -= part.size_bytes
        expired.append(part)
    return expired


def _held_in(part: Part, offsets: Sequence[int]) -> int:
    return bisect_left(offsets, part.end_offset) - bisect_left(offsets, part.base_offset)


def apply(log: Log, decided: Plan, holds: Holds) -> int:
    """Carry a plan out, in any thread; returns where the log's stored parts begin now."""
    log.move_start(decided.start_offset)
    for part in decided.rewrite:
        log.engine.replace(part, list(held_frames(log, part, set(holds.offsets))))
    return log.trim(decided.drop_before)


def held_frames(log: Log, part: Part, offsets: set[int]) -> Iterable[Buffer]:
    """The part's frames cut down to the given offsets; a frame that loses all its records goes."""
    offset = part.base_offset
    while offset < part.end_offset and (piece := log.read(offset, READ_BYTES, part.end_offset)) is not None:
        at = 0
        for head in frame_heads(piece.data, log.id):
            frame = piece.data[at : at + head.size]
            at += head.size
            wanted = [n for n in range(head.base_offset, head.base_offset + head.count) if n in offsets]
            if head.kind == KIND_DATA and head.size > FRAME_HEAD_SIZE and wanted:
                records = decode_frames(frame, log.id, inflated_bytes_max=INFLATED_BYTES_MAX)
                yield keep_records(frame, log.id, [r for r in records if r.offset in offsets])
        offset = piece.end_offset


def roll_due(log: Log, *, now_ns: int, segment_ms: int) -> bool:
    """Whether the part being written is old enough to be sealed, so that retention can reach it."""
    parts = log.engine.stat().parts
    if not parts or parts[-1].sealed or parts[-1].end_offset == parts[-1].base_offset:
        return False
    return segment_ms > 0 and parts[-1].first_stamp < now_ns - segment_ms * 1_000_000
