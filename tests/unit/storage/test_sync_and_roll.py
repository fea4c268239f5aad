"""A segment that grows and is sealed while a sync runs is not taken for synced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.testing.faulty_disk import FaultyDisk
from mainstem.testing.frames import Writer, read_everything

LOG_ID = 3


class BusyDisk(FaultyDisk):
    """Does something else the moment after a file was synced, once: what an appending thread does."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.meanwhile: Callable[[], None] | None = None

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self._interrupt()

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._interrupt()

    def _interrupt(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


@pytest.mark.parametrize("seed", range(10))
def test_what_is_appended_and_sealed_during_a_sync_is_synced_by_the_next(seed: int) -> None:
    disk = BusyDisk(seed)
    options = EngineOptions(segment_bytes=4096, shared=SharedFiles(disk))
    engine = open_engine("segment", Path("/log"), LOG_ID, options=options)
    writer = Writer(engine, LOG_ID)
    writer.append([b"first"])

    def append_and_roll() -> None:
        writer.append([b"second"])
        engine.roll()

    disk.meanwhile = append_and_roll
    engine.sync()
    assert engine.durable_offset == 1
    writer.append([b"third"])
    engine.sync()
    assert engine.durable_offset == 3
    disk.restart()  # after a power cut: what was not synced is gone
    options = EngineOptions(segment_bytes=4096, shared=SharedFiles(disk))
    again = open_engine("segment", Path("/log"), LOG_ID, options=options)
    assert [value for _, value in read_everything(again, LOG_ID)] == [b"first", b"second", b"third"]
