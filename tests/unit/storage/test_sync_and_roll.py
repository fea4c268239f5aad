"""A segment that grows and is sealed while a sync runs is not taken for synced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.segment.engine import SegmentEngine
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


def test_a_trim_between_a_gap_and_the_first_append_behind_it_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclean stop a log goes on beyond its end. Retention, in its thread, may write a checkpoint just then."""
    disk = FaultyDisk(1)
    options = EngineOptions(segment_bytes=4096, shared=SharedFiles(disk))
    engine = open_engine("segment", Path("/log"), LOG_ID, options=options)
    assert isinstance(engine, SegmentEngine)
    writer = Writer(engine, LOG_ID)
    writer.append([b"old"])
    engine.roll()
    writer.append([b"kept"])
    engine.sync()
    skip_to = engine._skip_to

    def skip_and_trim(offset: int) -> None:
        skip_to(offset)
        engine.trim(1)

    monkeypatch.setattr(engine, "_skip_to", skip_and_trim)
    writer.skip(100)
    writer.append([b"behind the gap"])
    engine.sync()
    disk.restart()
    options = EngineOptions(segment_bytes=4096, shared=SharedFiles(disk))
    again = open_engine("segment", Path("/log"), LOG_ID, options=options)
    assert [value for _, value in read_everything(again, LOG_ID)] == [b"kept", b"behind the gap"]
