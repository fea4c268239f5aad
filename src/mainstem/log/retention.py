"""What a log may forget, and when.

Time and size decide by whole parts (segments): a part goes when its newest record is too old, or when the log without
it is still large enough, or when all of it was deleted on request. For streams the log's start then moves. What a queue,
a persistent session or a retained pointer still holds stays readable for its holder: a part with held records is kept,
or rewritten to just those, at the same offsets, once they are under a tenth of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mainstem.log.log import Log
from mainstem.log.rewriting import cut_down
from mainstem.storage.engine import Buffer, Part

NO_STAMP = (1 << 63) - 1
HELD_SHARE_MAX = 0.1
TRANSACTION_NS_MAX = 3_600_000_000_000  # what becomes visible at a stamp may have been written that much before it


@dataclass(slots=True)
class Holds:
    """What must stay: everything from a stamp on (queues and sessions), and single offsets (retained pointers)."""

    from_stamp: int = NO_STAMP
    offsets: Sequence[int] = ()  # sorted
    from_offset: int = NO_STAMP  # state after the last snapshot
    start_max: int = NO_STAMP  # streams begin no later: an archive still has to read what lies there


@dataclass(frozen=True, slots=True)
class Plan:
    start_offset: int  # streams begin here
    drop_before: int  # parts that end at or before it go
    rewrite: tuple[Part, ...]  # parts to be cut down to what is held of them
    forget_before: int  # all before it is gone or held one by one: the topic index can forget it
    held: tuple[tuple[int, int], ...]  # (stamp end, bytes) of each part that stays though time or size would let it go

    @property
    def held_bytes(self) -> int:
        return sum(size for _, size in self.held)

    def changes(self, log: Log) -> bool:
        return self.start_offset > log.start_offset or bool(self.rewrite) or self.drop_before > 0


def plan(log: Log, *, now_ns: int, retention_ms: int, retention_bytes: int, holds: Holds) -> Plan:
    """Decide; touches nothing."""
    parts = log.engine.stat().parts
    expired = _expired(parts, now_ns, retention_ms, retention_bytes, log.low_mark)
    waits_for = [part for part in expired if part.end_offset > max(holds.start_max, log.low_mark)]
    expired = expired[: len(expired) - len(waits_for)]
    start = max(log.start_offset, expired[-1].end_offset) if expired else log.start_offset
    from_stamp = holds.from_stamp if log.index is not None else holds.from_stamp - TRANSACTION_NS_MAX
    drop_before = forget_before = 0
    held = [(_stamp_end(log, parts, len(expired) + at), part.size_bytes) for at, part in enumerate(waits_for)]
    rewrite: list[Part] = []
    leading = True
    for at, part in enumerate(expired):
        if _stamp_end(log, parts, at) > from_stamp or part.end_offset > holds.from_offset:
            held += [(_stamp_end(log, parts, at + more), one.size_bytes) for more, one in enumerate(expired[at:])]
            break
        kept = _held_in(part, holds.offsets)
        if not kept and leading:
            drop_before = part.end_offset
        else:
            leading = False
            if _worth_cutting(log, part, kept):
                rewrite.append(part)
            else:
                held.append((_stamp_end(log, parts, at), part.size_bytes))
        forget_before = part.end_offset
    return Plan(start, drop_before, tuple(rewrite), forget_before, tuple(held))


def may_be_due(log: Log, cleanup: Sequence[str], now_ns: int, retention_ms: int, retention_bytes: int) -> bool:
    """Whether a log that sleeps must be opened: there is something to compact, or its oldest part is too old or too much."""
    stat = log.engine.stat()
    if not stat.parts or stat.start_offset == stat.end_offset:
        return False
    too_old = retention_ms >= 0 and stat.parts[0].last_stamp < now_ns - retention_ms * 1_000_000
    too_much = retention_bytes >= 0 and stat.size_bytes > retention_bytes
    return "compact" in cleanup or too_old or too_much or stat.parts[0].end_offset <= log.low_mark


def _expired(parts: Sequence[Part], now_ns: int, retention_ms: int, retention_bytes: int, low_mark: int) -> list[Part]:
    """The oldest sealed parts that time, size or a deletion lets go, in order."""
    total = sum(part.size_bytes for part in parts)
    expired: list[Part] = []
    for part in parts:
        too_old = retention_ms >= 0 and part.last_stamp < now_ns - retention_ms * 1_000_000
        too_much = retention_bytes >= 0 and total - part.size_bytes >= retention_bytes
        if not part.sealed or not (too_old or too_much or part.end_offset <= low_mark):
            break
        total -= part.size_bytes
        expired.append(part)
    return expired


def _stamp_end(log: Log, parts: Sequence[Part], at: int) -> int:
    """All stamps of the part are smaller. (Its own `last_stamp` is where its last frame begins.)"""
    for later in parts[at + 1 :]:
        if later.first_stamp:
            return later.first_stamp
    return log.last_stamp + 1


def _held_in(part: Part, offsets: Sequence[int]) -> int:
    return bisect_left(offsets, part.end_offset) - bisect_left(offsets, part.base_offset)


def _worth_cutting(log: Log, part: Part, held: int) -> bool:
    """A part that was cut down before is cut again when half of what it kept is free."""
    if not part.size_bytes:
        return False
    if part.generation == 0:
        return held < (part.end_offset - part.base_offset) * HELD_SHARE_MAX
    return held <= log.held_counts.get(part.base_offset, held) // 2


def apply(log: Log, decided: Plan, holds: Holds) -> None:
    """Carry a plan out; in a thread."""
    if decided.start_offset > log.start_offset:
        log.move_start(decided.start_offset)
        log.keep_start()
    drop(log, decided, holds)


def drop(log: Log, decided: Plan, holds: Holds) -> None:
    """The bytes of it; streams begin behind them already."""
    offsets = set(holds.offsets)
    for part in decided.rewrite:
        frames: Sequence[Buffer] = ()
        kept = _held_in(part, holds.offsets)
        if kept:
            frames, _, kept = cut_down(log, part, lambda record: record.offset in offsets, others_stay=False)
        log.engine.replace(part, frames)
        log.held_counts[part.base_offset] = kept
    if decided.drop_before:
        log.trim(decided.drop_before)
        for base in [base for base in log.held_counts if base < decided.drop_before]:
            del log.held_counts[base]


def roll_due(log: Log, *, now_ns: int, segment_ms: int) -> bool:
    """Whether the part being written is old enough to be sealed, so that retention can reach it."""
    parts = log.engine.stat().parts
    if not parts or parts[-1].sealed or parts[-1].end_offset == parts[-1].base_offset:
        return False
    return segment_ms > 0 and parts[-1].first_stamp < now_ns - segment_ms * 1_000_000
