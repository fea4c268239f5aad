"""Frames of many logs in one object: gathered, committed in order, merged, found again, deleted when nothing names them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mainstem.model.errors import CorruptFrame, Overloaded
from mainstem.storage.engine import FrameRef
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.object import merging
from mainstem.storage.object.bundle import FINAL, Content, index_frames, make_bundle, parse_bundle
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.object.shared import ObjectLogs
from mainstem.storage.object.writer import BundleWriter, Gathered
from mainstem.storage.tier.manifest import restore, store_manifest
from mainstem.storage.tier.store import ObjectStore, StoreAway, StoreSettings
from mainstem.storage.tier.tier import Tier, TierSettings
from mainstem.testing.frames import Writer, make_test_frame, read_everything

DEADLINE_S = 30.0


class House:
    """A data directory, a bucket and some logs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.data, self.bucket = folder / "data", folder / "bucket"
        self.settings = {"bundle_ms": 5, "grace_ms": 0, **settings}
        self.bucket.mkdir(parents=True, exist_ok=True)
        self.open()

    def open(self) -> None:
        (self.data / "logs").mkdir(parents=True, exist_ok=True)
        settings = TierSettings(StoreSettings(f"file://{self.bucket}"), **self.settings)
        self.tier = Tier(self.data, settings, SharedFiles().indexes)
        self.tier.claim()
        self.objects = ObjectLogs(self.tier)

    def log(self, log_id: int, segment_bytes: int = 1 << 20) -> ObjectEngine:
        options = EngineOptions(segment_bytes=segment_bytes, objects=self.objects)
        engine = open_engine("object", self.data / "logs" / str(log_id), log_id, options=options)
        assert isinstance(engine, ObjectEngine)
        return engine

    def stored(self) -> set[str]:
        found = [path for folder in ("bundles", "merged") for path in (self.bucket / folder).rglob("*")]
        return {str(path.relative_to(self.bucket)) for path in found if path.is_file()}

    def named(self) -> set[str]:
        return {bundle.key for bundle in self.objects.pieces.bundles()}


def fill(engines: dict[int, ObjectEngine], rounds: int, size: int = 100) -> None:
    """Each round is a bundle of its own."""
    writers = {log_id: Writer(engine, log_id) for log_id, engine in engines.items()}
    for number in range(rounds):
        for log_id, writer in writers.items():
            writer.append([b"%d-%d" % (log_id, number)], [b"x" * size])
        next(iter(engines.values())).sync()


def eventually(found: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_bundle_cut_at_any_byte_or_changed_in_any_is_refused() -> None:
    frame, ref = make_test_frame(7, 0, [b"a", b"b"], stamp=5)
    content = Content(7, 0, 0, 0, ref.count, 5, 5, [frame], index_frames(7, 0, [frame]))
    _, body = make_bundle([content], "run", 3)
    assert parse_bundle("k", bytes(body)).footer.pieces[0][:5] == (7, 0, 0, 0, 2)
    footer = parse_bundle("k", bytes(body)).footer
    for cut in range(len(body)):
        with pytest.raises(CorruptFrame):
            parse_bundle("k", bytes(body[:cut]))
    for at in range(footer.body_size, len(body)):
        changed = bytearray(body)
        changed[at] ^= 1
        with pytest.raises(CorruptFrame):
            parse_bundle("k", bytes(changed))


def test_bundles_are_stored_side_by_side_and_committed_in_order() -> None:
    committed, gates = list[int](), [threading.Event() for _ in range(3)]

    def store(gathered: Gathered) -> int:
        assert gates[gathered.sequence].wait(DEADLINE_S)
        return gathered.sequence

    writer = BundleWriter(
        store, lambda gathered, _: committed.append(gathered.sequence), bundle_bytes=1, bundle_s=9, unstored_max=10
    )
    for number in range(3):
        writer.add(1, 0, [b"abc"], [FrameRef(number, 1, number, 3)], 3)
    with pytest.raises(Overloaded):
        writer.add(1, 0, [b"abc"], [FrameRef(3, 1, 3, 3)], 3)
    gates[2].set()
    gates[1].set()
    assert not writer.wait(time.monotonic() + 0.1)
    assert committed == []
    gates[0].set()
    assert writer.wait(time.monotonic() + DEADLINE_S)
    assert committed == [0, 1, 2]
    assert writer.unstored_bytes == 0
    assert writer.oldest_s == 0


def test_frames_of_all_logs_share_a_bundle_and_merges_bring_each_logs_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    house = House(tmp_path, bundle_ms=60_000)  # a sync ends a bundle, no time does
    engines = {log_id: house.log(log_id) for log_id in range(1, 6)}
    fill(engines, merging.FAN - 1)
    assert len(house.named()) == merging.FAN - 1, "one object for the frames of all logs"
    before = {log_id: read_everything(engine, log_id) for log_id, engine in engines.items()}
    fill({1: engines[1]}, 1)
    eventually(lambda: house.objects.merger.merges == 1, "16 bundles are merged")
    assert len(house.named()) == 1
    assert engines[2].remote_pieces == 1
    house.tier.sweep()
    assert house.stored() == house.named(), "no object is left that nothing names"
    house.tier.cache.close()
    house.open()
    for log_id in range(2, 6):
        assert read_everything(house.log(log_id), log_id) == before[log_id]


def test_what_is_trimmed_rewritten_or_deleted_while_it_is_merged_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    house = House(tmp_path)
    engines = {log_id: house.log(log_id) for log_id in range(1, 5)}
    fill(engines, 4)
    for engine in engines.values():
        engine.roll()
    bundles, stored = house.objects.pieces.bundles(), house.tier.store_object
    kept, _ = make_test_frame(2, 3, [b"kept"], stamp=5_000)

    def meanwhile(*given: Any) -> None:
        monkeypatch.undo()
        stored(*given)
        engines[1].trim(1 << 40)
        engines[2].replace(engines[2].stat().parts[0], [kept])
        engines[3].close()
        house.objects.forget_log(3)

    monkeypatch.setattr(house.tier, "store_object", meanwhile)
    whole = read_everything(engines[4], 4)
    house.objects.merger.merge(bundles, 0)
    assert read_everything(engines[1], 1) == []
    assert read_everything(engines[2], 2) == [(3, b"kept")]
    assert read_everything(engines[4], 4) == whole
    assert engines[4].remote_pieces == 1
    house.open()
    assert [read_everything(house.log(n), n) for n in (1, 2, 4)] == [[], [(3, b"kept")], whole]
    assert house.objects.pieces.of_log(3) == []
    engines = {n: house.log(n) for n in (2, 4)}
    for log_id, engine in engines.items():
        engine.close()
        house.objects.forget_log(log_id)
    house.tier.sweep()
    assert house.stored() == set()


def test_a_part_of_its_own_is_made_of_what_one_log_has_much_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    monkeypatch.setattr(merging, "ALONE_BYTES", 20_000)
    house = House(tmp_path)
    engines = {1: house.log(1), 2: house.log(2)}
    fill({1: engines[1]}, 15, size=2_000)
    fill({2: engines[2]}, 1)
    eventually(lambda: house.objects.merger.merges == 1, "16 bundles are merged")
    levels = sorted(bundle.footer.level for bundle in house.objects.pieces.bundles())
    assert levels == [1, FINAL]


def test_a_bundle_that_is_mostly_unused_is_written_anew_so_that_it_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    monkeypatch.setattr(merging, "SPARSE_S", 0.0)
    house = House(tmp_path)
    engines = {1: house.log(1), 2: house.log(2)}
    small, large = Writer(engines[1], 1), Writer(engines[2], 2)
    small.append([b"kept"])
    large.append([b"x" * 5_000])
    engines[2].sync()
    first = house.named()
    engines[2].roll()
    engines[2].trim(1 << 40)
    assert house.named() == first, "something of it is kept"
    time.sleep(0.01)
    small.append([b"more"])
    engines[1].sync()
    eventually(lambda: not first & house.named(), "what was left of it lies elsewhere")
    assert read_everything(engines[1], 1) == [(0, b"kept"), (1, b"more")]
    house.open()
    assert read_everything(house.log(1), 1) == [(0, b"kept"), (1, b"more")]


def hide_a_secret(house: House) -> dict[int, ObjectEngine]:
    """In a bundle that holds records of two logs."""
    engines = {1: house.log(1), 2: house.log(2)}
    writers = {log_id: Writer(engine, log_id) for log_id, engine in engines.items()}
    writers[1].append([b"SECRET", b"kept of 1"])
    writers[2].append([b"kept of 2"] * 100)
    engines[1].sync()
    engines[1].roll()
    return engines


def test_what_is_erased_leaves_bundles_that_others_need_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    house = House(tmp_path, bundle_ms=60_000)
    engines = hide_a_secret(house)
    before = house.named()
    assert len(before) == 1
    kept, _ = make_test_frame(1, 1, [b"kept of 1"], stamp=5_000)
    with house.objects.erasing():
        engines[1].replace(engines[1].stat().parts[0], [kept])
    assert not before & house.named()
    assert read_everything(engines[1], 1) == [(1, b"kept of 1")]
    assert read_everything(engines[2], 2) == [(offset, b"kept of 2") for offset in range(100)]
    house.tier.sweep()
    assert house.stored() == house.named()
    files = [path for folder in (house.bucket, house.data) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"SECRET" in path.read_bytes()]
    with house.objects.erasing():
        engines[2].roll()
        engines[2].trim(1 << 40)
    assert read_everything(engines[1], 1) == [(1, b"kept of 1")]
    assert not any(piece.log_id == 2 for one in house.objects.pieces.of_log(1) for piece in [one.piece])


@pytest.mark.parametrize("ends", ["before it is stored", "after it was stored"])
def test_what_is_erased_while_bundles_are_merged_is_in_no_merged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(merging, "PUT_S", 0.0)
    house = House(tmp_path, bundle_ms=60_000)
    engines = hide_a_secret(house)
    kept, _ = make_test_frame(1, 1, [b"kept of 1"], stamp=5_000)
    objects, merger = house.objects, house.objects.merger
    pause, under_way = merger._pause, contextlib.ExitStack()

    def erase() -> None:
        monkeypatch.setattr(merger, "_pause", pause)
        under_way.enter_context(objects.erasing())
        engines[1].replace(engines[1].stat().parts[0], [kept])
        if ends == "before it is stored":
            under_way.close()

    monkeypatch.setattr(merger, "_pause", erase)  # the merge has read what it writes
    merger.merge(objects.pieces.bundles(), 0)
    under_way.close()
    house.tier.sweep()
    assert house.stored() == house.named()
    files = [path for folder in (house.bucket, house.data) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"SECRET" in path.read_bytes()]
    assert read_everything(engines[1], 1) == [(1, b"kept of 1")]
    assert read_everything(engines[2], 2) == [(offset, b"kept of 2") for offset in range(100)]


def test_bundles_stored_after_the_manifest_are_found_when_the_disk_is_lost(tmp_path: Path) -> None:
    house = House(tmp_path)
    engines = {1: house.log(1), 2: house.log(2)}
    fill(engines, 3)
    store_manifest(house.tier.store, house.tier.registry, house.data)
    fill(engines, 4)
    fill({9: house.log(9)}, 1)  # younger than the manifest
    before = {log_id: read_everything(engine, log_id) for log_id, engine in engines.items()}
    house.open()  # a second life
    engines = {1: house.log(1), 2: house.log(2)}
    fill(engines, 2)
    before = {log_id: read_everything(engine, log_id) for log_id, engine in engines.items()}
    shutil.rmtree(house.data)
    restored = restore(house.tier.settings.store, house.data)
    assert restored.caught_up >= 4 + 1 + 2, "one more for each time that the two logs did not share a bundle"
    house.open()
    assert {log_id: read_everything(house.log(log_id), log_id) for log_id in (1, 2)} == before
    assert house.objects.pieces.of_log(9) == []


def test_a_store_that_is_away_refuses_more_and_a_close_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path, unstored_bytes_max=1_000)
    engine, tried = house.log(1), threading.Event()

    def away(*_: Any) -> None:
        tried.set()
        raise StoreAway("away")

    monkeypatch.setattr(ObjectStore, "put", away)
    writer = Writer(engine, 1)
    writer.append([b"x"])
    assert tried.wait(DEADLINE_S)
    with pytest.raises(Overloaded):
        writer.append([b"y" * 1_000])
    assert read_everything(engine, 1) == [(0, b"x")]
    house.tier.stop()
    assert not house.objects.finish(time.monotonic() + 1)
    with pytest.raises(StoreAway):
        engine.sync()
    engine.close()
    house.tier.registry.close()
    monkeypatch.undo()
    house.open()
    assert read_everything(house.log(1), 1) == []
    house.tier.sweep()
    assert house.tier.registry.totals() == {}, "what was begun is forgotten"
