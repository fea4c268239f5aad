"""Offsets are reserved durably in blocks before they are used, so that none is ever given to two records.

    reserved = {"end_offset": first offset not reserved, "epoch": leader epoch, "clean": settled by a clean close,
                "gaps": [[first offset without a record, first with one again], ...]}

A reader may have seen a record that a power cut then took away. After an unclean stop the log above goes on at
`end_offset` with `epoch + 1`; the offsets between are a gap that nobody ever fills. Memory logs do so at every start.

The gap is what people see of it, so a block is as large as the log is busy: what it takes in a few seconds (`Pace`). When a
log falls silent what it will not need for now is given back (`lower`, then `keep`). The gaps are kept with what is
reserved, so that nobody who counts records counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mainstem.model.errors import CorruptFrame, StorageFault
from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.log_state import KINDS, RESERVED, Fact, FileState, LogState

NAME, KIND = RESERVED, KINDS[RESERVED]
BLOCK_MIN = 256
BLOCK_MAX = 1 << 24  # a repair that lost the file skips this many
BLOCK_MS = 10_000  # of the recent rate
GAPS_MAX = 1_000  # of one log: the newest; who counts records counts older ones as if they were records
IDLE_MS = 30_000  # without a record: then a block is what it was in the beginning
GROWTH_MAX = 8  # times what was taken of the last block: else a flood's first reservations are one fsync for each turn


class Pace:
    """How many offsets one log reserves at a time."""

    def __init__(self) -> None:
        self.block = BLOCK_MIN
        self._from, self._since_ms = -1, 0

    @property
    def used(self) -> bool:
        return self._from >= 0

    def next(self, offset: int, now_ms: int) -> int:
        """The block to reserve at `offset`: what the last one's rate needs, at most a few times what was taken of it.

        Nor more than the log has: that is what an unclean stop may leave out.
        """
        if self.used:
            elapsed_ms, taken = max(1, now_ms - self._since_ms), offset - self._from
            wanted = taken * BLOCK_MS // elapsed_ms
            self.block = max(BLOCK_MIN, min(wanted, GROWTH_MAX * taken, offset, BLOCK_MAX))
        self._from, self._since_ms = offset, now_ms
        return self.block

    def is_idle(self, offset: int, now_ms: int) -> bool:
        """Nothing was taken since the last look, and that is a while ago."""
        if offset != self._from:
            self._from, self._since_ms = offset, now_ms
        return now_ms - self._since_ms >= IDLE_MS

    def rest(self) -> None:
        self.block = BLOCK_MIN


class Reservation:
    """One log's. Not for two threads at once; `extend` takes a few milliseconds of fsync."""

    def __init__(self, end_offset: int, epoch: int, fact: Fact | None = None, *, clean: bool = True) -> None:
        """Without a `fact` it only says what is reserved."""
        self.end_offset = end_offset
        self.epoch = epoch
        self.clean = clean
        self.gaps: list[tuple[int, int]] = []  # ascending
        self._fact = fact

    @classmethod
    def open(cls, directory: Path, disk: Disk = REAL_DISK) -> Reservation:
        """What is reserved; nothing (0, epoch 0) for a new log. A damaged file is refused, never read as empty."""
        disk.make_dir(directory)
        try:
            return cls.of(FileState(directory, disk))
        except CorruptFrame as error:
            raise StorageFault(
                f"{error.message}; without it offsets could be given out twice",
                fix=f"mainstem log repair --quarantine {directory}",
            ) from error

    @classmethod
    def of(cls, state: LogState) -> Reservation:
        fact = Fact(state, RESERVED)
        stored = fact.value
        if stored is None:
            return cls(0, 0, fact)
        made = cls(int(stored["end_offset"]), int(stored["epoch"]), fact, clean=bool(stored.get("clean")))
        made.gaps = [(int(first), int(end)) for first, end in stored.get("gaps", ())]
        return made

    def add_gap(self, first: int, end: int, start: int) -> None:
        """No record ever lies in [first, end). It is kept with the next change: until then a start finds it again."""
        kept = [gap for gap in self.gaps if gap[0] < first and gap[1] > start]
        self.gaps = [*kept, (first, end)][-GAPS_MAX:]

    def missing(self, start: int, end: int) -> int:
        """How many offsets of [start, end) lie in gaps."""
        return sum(max(0, min(last, end) - max(first, start)) for first, last in self.gaps)

    def extend(self, to: int, epoch: int | None = None) -> None:
        """Offsets below `to` may be used once this returns. A new epoch is kept with them; neither ever goes back."""
        epoch = self.epoch if epoch is None else epoch
        assert (to, epoch) >= (self.end_offset, self.epoch), "a reservation never shrinks"
        self._write(to, epoch, clean=False)

    def lower(self, to: int) -> None:
        """Nothing at or beyond `to` was given out, and from now on nothing is; the file says so after `keep`."""
        self.end_offset = to

    def keep(self) -> None:
        self._write(self.end_offset, self.epoch, clean=False)

    def settle(self, end: int) -> None:
        """A clean close: nothing at or beyond `end` was ever given out, so the next start goes on exactly there."""
        self._write(end, self.epoch, clean=True)

    def _write(self, end: int, epoch: int, *, clean: bool) -> None:
        assert self._fact is not None
        self._fact.set(_value(end, epoch, clean=clean, gaps=self.gaps))
        self.end_offset, self.epoch, self.clean = end, epoch, clean


def replace_damaged(directory: Path, end: int, epoch: int, disk: Disk) -> None:
    """A repair: nobody knows what was reserved, so this is, whatever lies there."""
    FileState(directory, disk).put(RESERVED, _value(end, epoch, clean=False))


def _value(end: int, epoch: int, *, clean: bool, gaps: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    value: dict[str, Any] = {"end_offset": end, "epoch": epoch, "clean": clean}
    return {**value, "gaps": [list(gap) for gap in gaps]} if gaps else value
