"""A log that rests in an object store only, held to the contract: what is synced lies in bundles, the rest in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.storage.engine import Engine, NotLocal
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.object.shared import ObjectLogs
from mainstem.testing.frames import Writer, read_everything
from tests.contract.engine_contract import LOG_ID, EngineContract
from tests.contract.test_tiered_engine import open_tier


def open_objects(directory: Path) -> ObjectLogs:
    """Small bundles, and a cache that begins empty: much is read from the store."""
    return ObjectLogs(open_tier(directory, SharedFiles(), bundle_bytes=8 << 10, bundle_ms=10))


def open_object(directory: Path, objects: ObjectLogs | None = None, log_id: int = LOG_ID) -> ObjectEngine:
    options = EngineOptions(segment_bytes=4096, objects=objects or open_objects(directory))
    engine = open_engine("object", directory / str(log_id), log_id, options=options)
    assert isinstance(engine, ObjectEngine)
    return engine


class TestObjectEngine(EngineContract):
    writes = 160

    def open(self, directory: Path) -> Engine:
        return open_object(directory)

    def fill_the_room(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, str]:
        objects = open_objects(directory)
        engine = open_object(directory, objects)
        Writer(engine, LOG_ID).append([b"a"], [b"b"])
        monkeypatch.setattr(objects.writer, "unstored_max", 100_000)
        return engine, "wait"

    def test_what_is_local_is_read_now_as_it_is_read(  # type: ignore[override]  # one fixture more
        self, writer: Writer, tmp_path: Path
    ) -> None:
        """Of what is not: it says so, brings it, and then reads it."""
        for number in range(100):
            writer.append([b"%d" % number * 20])
        writer.engine.close()
        engine, offset, away = self.open(tmp_path), 0, 0
        assert not engine.is_local
        while offset < writer.next_offset:
            try:
                piece = engine.read_now(offset, 700)
            except NotLocal as missing:
                missing.bring()
                away += 1
                continue
            again = engine.read(offset, 700)
            assert piece is not None
            assert again is not None
            assert bytes(piece.data) == bytes(again.data)
            assert (piece.base_offset, piece.end_offset) == (again.base_offset, again.end_offset)
            offset = piece.end_offset
        assert away
        assert engine.read_now(offset, 700) is None

    def test_readers_see_whole_frames_while_the_log_grows_and_is_trimmed_and_rewritten(self, writer: Writer) -> None:
        engine = writer.engine
        assert isinstance(engine, ObjectEngine)
        engine.find_stamp = engine.find_stamp_waiting  # type: ignore[method-assign]
        super().test_readers_see_whole_frames_while_the_log_grows_and_is_trimmed_and_rewritten(writer)


def test_what_was_synced_is_read_after_an_unclean_stop_and_nothing_is_half_there(tmp_path: Path) -> None:
    first = open_object(tmp_path)
    writer = Writer(first, LOG_ID)
    for number in range(100):
        writer.append([b"%d" % number * 30])
    first.sync()
    stored = read_everything(first, LOG_ID)
    second = open_object(tmp_path)
    assert not second.stat().clean
    assert second.durable_offset == 100
    assert read_everything(second, LOG_ID) == stored
