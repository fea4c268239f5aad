"""Offsets are reserved durably in blocks before they are used, so that none is ever given to two records.

    reserved = {"end_offset": first offset not reserved, "epoch": leader epoch, "clean": settled by a clean close}

A reader may have seen a record that a power cut then took away. After an unclean stop the log above goes on at
`end_offset` with `epoch + 1`; the offsets between are a gap that nobody ever fills. Memory logs do so at every start.
"""

from __future__ import annotations

from pathlib import Path

from mainstem.model.errors import CorruptFrame, DiskFull, StorageFault
from mainstem.storage.disk import REAL_DISK, Disk, is_full
from mainstem.storage.state_file import read_state, write_state

NAME = "reserved"
KIND = "reservation"
BLOCK_MAX = 1 << 24  # the log above reserves fewer at a time; a repair that lost the file skips this many


class Reservation:
    """One log's. Not for two threads at once; `extend` takes a few milliseconds of fsync."""

    def __init__(
        self, directory: Path, end_offset: int, epoch: int, disk: Disk = REAL_DISK, *, clean: bool = True
    ) -> None:
        self.end_offset = end_offset
        self.epoch = epoch
        self.clean = clean
        self._path = directory / NAME
        self._disk = disk

    @classmethod
    def open(cls, directory: Path, disk: Disk = REAL_DISK) -> Reservation:
        """What is reserved; nothing (0, epoch 0) for a new log. A damaged file is refused, never read as empty."""
        disk.make_dir(directory)
        try:
            state = read_state(disk, directory / NAME, KIND)
        except CorruptFrame as error:
            raise StorageFault(
                f"{error.message}; without it offsets could be given out twice",
                fix=f"mainstem log repair --quarantine {directory}",
            ) from error
        if state is None:
            return cls(directory, 0, 0, disk)
        return cls(directory, int(state["end_offset"]), int(state["epoch"]), disk, clean=bool(state.get("clean")))

    def extend(self, to: int, epoch: int | None = None) -> None:
        """Offsets below `to` may be used once this returns. A new epoch is kept with them; neither ever goes back."""
        epoch = self.epoch if epoch is None else epoch
        assert (to, epoch) >= (self.end_offset, self.epoch), "a reservation never shrinks"
        self._write(to, epoch, clean=False)

    def settle(self, end: int) -> None:
        """A clean close: nothing at or beyond `end` was ever given out, so the next start goes on exactly there."""
        self._write(end, self.epoch, clean=True)

    def _write(self, end: int, epoch: int, *, clean: bool) -> None:
        try:
            write_state(self._disk, self._path, KIND, {"end_offset": end, "epoch": epoch, "clean": clean})
        except OSError as error:
            if is_full(error):  # the old reservation still holds; nothing was given out
                raise DiskFull(f"{self._path}: no space to reserve offsets: {error}") from error
            raise StorageFault(f"{self._path}: cannot reserve offsets: {error}") from error
        self.end_offset, self.epoch, self.clean = end, epoch, clean
