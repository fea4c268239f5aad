"""Two small files that bound what a start has to look at (see `state_file` for their form).

    checkpoint   after a sync, at most once a second or for 64 MiB: everything before (segment, position) is durable
    clean        at a clean close: every part with its exact size. Removed, durably, before the next change

A checkpoint is believed to the end: what it speaks of and is not there is damage, never a torn tail. One is also
written before anything that would otherwise look like damage: a trim (`start_offset`), a rewrite of what no
checkpoint covers yet, and a jump of the offsets (`next_offset`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mainstem.model.errors import CorruptFrame
from mainstem.storage.disk import Disk
from mainstem.storage.engine import Part
from mainstem.storage.state_file import PREVIOUS, TEMPORARY, read_state, remove, write_state

CHECKPOINT_NAME = "checkpoint"
CLEAN_NAME = "clean"
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_NS = 1_000_000_000
_PART_FIELDS = ("name", "generation", "base_offset", "end_offset", "first_stamp", "last_stamp", "size_bytes", "sealed")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    log_id: int
    start_offset: int  # the first segment's; the end of the log if it holds nothing
    end_offset: int  # of what is durable
    next_offset: int  # where the log goes on: beyond `end_offset` if offsets are skipped
    last_stamp: int
    segment: str | None  # the file that was being written, None if there was none
    position: int  # in it
    skips: list[int] | None = None  # where files begin behind offsets that were left out; None: not known

    def write(self, disk: Disk, directory: Path) -> None:
        write_state(disk, directory / CHECKPOINT_NAME, "checkpoint", asdict(self))

    @classmethod
    def read(cls, disk: Disk, directory: Path) -> tuple[Checkpoint | None, bool]:
        """The newest that validates, None if there is none; and whether a newer one is lost. An older one is true
        too, but does not know what was trimmed, rewritten or skipped since."""
        path = directory / CHECKPOINT_NAME
        lost = False
        for candidate in (path, path.with_name(path.name + PREVIOUS)):
            try:
                state = read_state(disk, candidate, "checkpoint")
            except CorruptFrame:
                lost = True
                continue
            return (None if state is None else cls(**state)), lost
        return None, lost


class CheckpointPace:
    """When the next checkpoint is due."""

    __slots__ = ("_end_offset", "_monotonic_ns", "_written_bytes", "_written_ns", "synced_bytes")

    def __init__(self, found: Checkpoint | None, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns, self._written_ns = monotonic_ns, monotonic_ns()
        self._end_offset = -1 if found is None else found.end_offset
        self.synced_bytes = self._written_bytes = 0  # by this run; at the last checkpoint

    def is_due(self, end_offset: int) -> bool:
        if end_offset == self._end_offset:
            return False
        grown = self.synced_bytes - self._written_bytes
        return grown >= CHECKPOINT_BYTES or self._monotonic_ns() - self._written_ns >= CHECKPOINT_NS

    def note(self, written: Checkpoint) -> None:
        self._written_ns, self._written_bytes = self._monotonic_ns(), self.synced_bytes
        self._end_offset = written.end_offset

    def covers(self, end_offset: int) -> bool:
        """Whether the last checkpoint speaks of everything below."""
        return self._end_offset >= end_offset

    def ends_at(self, end_offset: int) -> bool:
        return self._end_offset == end_offset


@dataclass(frozen=True, slots=True)
class CleanMark:
    log_id: int
    end_offset: int
    last_stamp: int
    parts: list[Part]

    def write(self, disk: Disk, directory: Path) -> None:
        value: dict[str, Any] = {
            "log_id": self.log_id,
            "end_offset": self.end_offset,
            "last_stamp": self.last_stamp,
            "parts": [[getattr(part, name) for name in _PART_FIELDS] for part in self.parts],
        }
        write_state(disk, directory / CLEAN_NAME, "clean", value)

    @classmethod
    def read(cls, disk: Disk, directory: Path) -> CleanMark | None:
        """None if the log was not closed cleanly, or the mark is damaged: then the log is scanned."""
        try:
            state = read_state(disk, directory / CLEAN_NAME, "clean")
        except CorruptFrame:
            return None
        if state is None:
            return None
        parts = [Part(**dict(zip(_PART_FIELDS, values, strict=True))) for values in state["parts"]]
        return cls(state["log_id"], state["end_offset"], state["last_stamp"], parts)

    @staticmethod
    def remove(disk: Disk, directory: Path) -> None:
        """The removal survives a power cut: a stale mark would hide an unclean stop."""
        for suffix in (PREVIOUS, TEMPORARY, ""):
            remove(disk, directory / f"{CLEAN_NAME}{suffix}")
        disk.fsync_dir(directory)
