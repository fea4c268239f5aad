"""A log in front of an object store, held to the contract: all that is sealed lies in the store only, at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.storage.engine import Engine, NotLocal
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.store import StoreSettings
from mainstem.storage.tier.tier import Tier, TierSettings
from mainstem.testing.frames import Writer, read_everything
from tests.contract.engine_contract import LOG_ID, EngineContract
from tests.contract.test_engines import TestSegmentEngine as SegmentContract


def open_tier(directory: Path, shared: SharedFiles, **settings: Any) -> Tier:
    (directory / "store").mkdir(parents=True, exist_ok=True)
    store = StoreSettings(f"file://{directory / 'store'}")
    return Tier(directory, TierSettings(store, **settings), shared.indexes)


def open_far(directory: Path) -> TieredEngine:
    """An engine that moves whatever is sealed into the store after each call that may have sealed something."""
    shared = SharedFiles()
    tier, log = open_tier(directory, shared), directory / "log"
    options = EngineOptions(segment_bytes=4096, shared=shared)
    local = open_engine("segment", log, LOG_ID, options=options)
    assert isinstance(local, SegmentEngine)
    engine = tier.attach(local, LOG_ID, log)

    def then_move(call: Callable[..., Any]) -> Callable[..., Any]:
        def moving(*given: Any) -> Any:
            answer = call(*given)
            if any(segment.sealed for segment in local.segments):
                local.sync()
            for part in engine.uploadable():
                tier.upload(engine, LOG_ID, part, log)
            engine.drop_local(1 << 62)
            return answer

        return moving

    engine.append, engine.roll = then_move(engine.append), then_move(engine.roll)
    return engine


class TestTieredEngine(EngineContract):
    writes = 160

    def open(self, directory: Path) -> Engine:
        return open_far(directory)

    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        full: tuple[Engine, str] = SegmentContract.fill_the_room(self, directory, monkeypatch)  # type: ignore[arg-type]
        return full

    def test_what_is_local_is_read_now_as_it_is_read(self, writer: Writer) -> None:
        """Of what is not: it says so, brings it, and then reads it."""
        for number in range(100):
            writer.append([b"%d" % number * 20])
        engine, offset, away = writer.engine, 0, 0
        assert not engine.is_local
        while offset < writer.next_offset:
            try:
                piece = engine.read_now(offset, 700)
            except NotLocal as missing:
                missing.bring()
                away += 1
                piece = engine.read_now(offset, 700)
            assert piece is not None
            again = engine.read(offset, 700)
            assert again is not None
            assert (bytes(piece.data), piece.base_offset, piece.end_offset) == (
                bytes(again.data),
                again.base_offset,
                again.end_offset,
            )
            offset = piece.end_offset
        assert away
        assert engine.read_now(offset, 700) is None

    def test_find_stamp_returns_the_last_frame_at_or_before_it(self, engine: Engine) -> None:
        writer = Writer(engine, LOG_ID)
        for number in range(60):
            writer.append([b"%d" % number * 200])
        away = list[tuple[int, int]]()
        for offset in range(60):
            while True:
                try:
                    assert engine.find_stamp(1_000 + offset) == offset
                    break
                except NotLocal as missing:
                    part = next(part for part in engine.stat().parts if part.end_offset > offset)
                    away.append((missing.offset, part.base_offset))
                    missing.bring()
        assert away
        assert all(told == begin for told, begin in away), "where their part begins"
        assert engine.find_stamp(0) == 0

    def test_parts_that_are_files_can_be_held_cut_and_read_straight(self, writer: Writer) -> None:
        """None of the sealed ones is a file any more."""
        for number in range(200):
            writer.append([b"%d" % number * 30])
        engine = writer.engine
        assert isinstance(engine, TieredEngine)
        part = engine.stat().parts[0]
        assert not engine.hold(part)
        assert engine.cuts(part, 1) == []
        assert engine.read_into(part.base_offset, memoryview(bytearray(1000))) == 0

    def test_readers_see_whole_frames_while_the_log_grows_and_is_trimmed_and_rewritten(self, writer: Writer) -> None:
        engine = writer.engine
        assert isinstance(engine, TieredEngine)
        engine.find_stamp = engine.find_stamp_waiting  # type: ignore[method-assign]
        super().test_readers_see_whole_frames_while_the_log_grows_and_is_trimmed_and_rewritten(writer)


def test_what_lies_in_the_store_is_read_after_an_unclean_stop(tmp_path: Path) -> None:
    first = open_far(tmp_path)
    writer = Writer(first, LOG_ID)
    for number in range(100):
        writer.append([b"%d" % number * 30])
    stored = read_everything(first, LOG_ID)
    second = open_far(tmp_path)
    assert not second.stat().clean
    assert second.local.start_offset > 0
    assert read_everything(second, LOG_ID) == stored
