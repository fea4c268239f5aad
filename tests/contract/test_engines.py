"""Each engine, held to the contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from mainstem.storage.disk import RealDisk
from mainstem.storage.engine import Buffer, Engine
from mainstem.storage.engines import ENGINES, EngineOptions, open_engine
from mainstem.testing.frames import Writer, read_everything
from tests.contract.engine_contract import LOG_ID, EngineContract

SMALL = EngineOptions(segment_bytes=4096)


class TestSegmentEngine(EngineContract):
    def open(self, directory: Path) -> Engine:
        return open_engine("segment", directory, LOG_ID, options=SMALL)

    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        engine = self.open(directory)
        Writer(engine, LOG_ID).append([b"a"], [b"b"])

        def short_then_full(_disk: RealDisk, fd: int, buffers: Sequence[Buffer], position: int) -> int:
            if position % 4096 >= 1000 or position > 1 << 16:
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.pwritev(fd, [b"".join(buffers)[:70_000]], position)

        monkeypatch.setattr(RealDisk, "pwritev", short_then_full)
        return engine, "wait"


class TestMemoryEngine(EngineContract):
    durable = False

    def open(self, directory: Path) -> Engine:
        return open_engine("memory", directory, LOG_ID, options=EngineOptions(bytes_max=1 << 20))

    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        engine = self.open(directory)
        writer = Writer(engine, LOG_ID)
        for _ in range(24):
            writer.append([b"x" * 40_000])
        return engine, "trim"

    def test_it_never_touches_the_disk(self, tmp_path: Path) -> None:
        engine = self.open(tmp_path / "log")
        Writer(engine, LOG_ID).append([b"a"])
        engine.sync()
        engine.close()
        assert not (tmp_path / "log").exists()


class TestRocksDbEngine(EngineContract):
    def open(self, directory: Path) -> Engine:
        return open_engine("rocksdb", directory, LOG_ID, options=SMALL)

    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        engine = self.open(directory)
        Writer(engine, LOG_ID).append([b"a"], [b"b"])
        monkeypatch.setattr(RealDisk, "free_bytes", lambda _disk, _directory: 1 << 20)
        return engine, "wait"


def test_every_engine_that_can_be_opened_is_held_to_the_contract() -> None:
    from tests.contract import test_object_engine

    names = [*globals(), *vars(test_object_engine)]
    held = {name.removeprefix("Test").removesuffix("Engine").lower() for name in names if name.endswith("Engine")}
    assert set(ENGINES) <= held


def test_an_unclean_segment_log_opens_with_everything_that_was_whole(tmp_path: Path) -> None:
    first = open_engine("segment", tmp_path, LOG_ID, options=SMALL)
    writer = Writer(first, LOG_ID)
    for _ in range(30):
        writer.append([b"x" * 500])
    second = open_engine("segment", tmp_path, LOG_ID, options=SMALL)
    assert not second.stat().clean
    assert read_everything(second, LOG_ID) == read_everything(first, LOG_ID)
