"""The tier never loses: killed at each step of an upload, a drop and a removal; damaged, missing and foreign objects."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mainstem.model.errors import ConfigError, CorruptFrame, StorageFault
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.inspection import dump, list_log, verify
from mainstem.storage.log_state import FileState
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.tier.cache import ChunkCache
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.objects import Stored, make_footer
from mainstem.storage.tier.registry import Registry
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreAway, StoreSettings
from mainstem.storage.tier.tier import MONTH_S, Tier, TierSettings
from mainstem.testing.frames import Writer, read_everything

LOG_ID = 7


class Killed(BaseException):
    """The process ends here."""


class House:
    """A data directory with one log and a store beside it, opened again as often as it is killed."""

    def __init__(self, folder: Path, grace_ms: int = 0) -> None:
        self.data, self.bucket = folder / "data", folder / "bucket"
        self.log = self.data / "logs" / str(LOG_ID)
        self.bucket.mkdir(parents=True, exist_ok=True)
        self.log.mkdir(parents=True, exist_ok=True)
        self.grace_ms = grace_ms
        self.trimmed = 0  # asked for, so what lies below may be gone
        self.open()

    def open(self) -> None:
        shared = SharedFiles()
        settings = TierSettings(StoreSettings(f"file://{self.bucket}"), grace_ms=self.grace_ms)
        self.tier = Tier(self.data, settings, shared.indexes)
        self.tier.claim()
        self.tier.check_known(self.log, FileState(self.log))
        local = open_engine("segment", self.log, LOG_ID, options=EngineOptions(segment_bytes=4096, shared=shared))
        assert isinstance(local, SegmentEngine)
        self.engine: TieredEngine = self.tier.attach(local, LOG_ID, self.log)

    def fill(self, count: int = 60) -> list[tuple[int, bytes]]:
        writer = Writer(self.engine, LOG_ID)
        for number in range(count):
            writer.append([b"%d" % number * 60])
        self.engine.sync()
        return self.read()

    def read(self) -> list[tuple[int, bytes]]:
        return read_everything(self.engine, LOG_ID)

    def move(self) -> None:
        """Everything sealed goes to the store and leaves the disk."""
        for part in self.engine.uploadable():
            self.tier.upload(self.engine, LOG_ID, part, self.log)
        self.engine.drop_local(1 << 62)

    def is_killed(self) -> bool:
        """While it does everything that there is to do."""
        try:
            for _ in range(3):
                self.move()
                self.trimmed = self.engine.stat().parts[0].end_offset
                self.engine.trim(self.trimmed)
                self.tier.sweep()
        except Killed:
            return True
        return False

    def stored(self) -> set[str]:
        return {str(path.relative_to(self.bucket)) for path in self.bucket.glob("parts/**/*") if path.is_file()}

    def named(self) -> set[str]:
        return {one.key for one in self.tier.registry.parts_of(LOG_ID)}


def killed(call: Callable[..., Any], *, after: bool, countdown: int) -> Callable[..., Any]:
    left = [countdown]

    def run(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        answer = call(*given, **named)
        if left[0] == 0:
            raise Killed
        return answer

    return run


STEPS = [
    (Registry, "begin"), (ObjectStore, "put"), (Tier, "_look_at"), (Registry, "commit"), (Tier, "note_drop"),
    (SegmentEngine, "trim"), (Registry, "doom"), (ObjectStore, "delete"), (Registry, "forget"),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
def test_killed_at_any_step_nothing_is_lost_and_no_object_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], after: bool
) -> None:
    house = House(tmp_path)
    stored = house.fill(100)
    owner, name = step
    for countdown in (1, 2):  # killed, and again in what the next run does
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, killed(getattr(owner, name), after=after, countdown=countdown))
            assert house.is_killed() or countdown == 2
        house.open()
        assert house.engine.start_offset <= house.trimmed
        assert house.read() == [one for one in stored if one[0] >= house.engine.start_offset]
    house.move()
    house.tier.sweep()
    assert house.stored() == house.named(), "objects that nothing names are gone, the others are there"
    assert house.read() == [one for one in stored if one[0] >= house.engine.start_offset]


def test_a_damaged_and_a_missing_object_are_told_and_all_others_are_read(tmp_path: Path) -> None:
    house = House(tmp_path)
    stored = house.fill()
    house.move()
    first, second, third = house.tier.registry.parts_of(LOG_ID)[:3]
    broken = house.bucket / first.key
    data = bytearray(broken.read_bytes())
    data[300] ^= 1
    broken.write_bytes(data)
    (house.bucket / second.key).unlink()
    house.open()
    with pytest.raises(CorruptFrame, match="do not match their checksum"):
        house.engine.read(0, 1)
    with pytest.raises(CorruptFrame, match="checksum"):
        house.engine.read_now(0, 1)  # not NotLocal: it would be fetched again and again
    with pytest.raises(ObjectMissing, match=f"offsets {second.footer.base_offset}"):
        house.engine.read(second.footer.base_offset, 1)
    start = third.footer.base_offset
    assert read_everything(house.engine, LOG_ID, start) == [one for one in stored if one[0] >= start]
    found = verify(house.log)
    assert [damage.next_offset for damage in found.remote_damage] == [first.footer.end_offset, second.footer.end_offset]
    assert not found.damage


def test_listing_verifying_and_dumping_see_what_is_in_the_store(tmp_path: Path) -> None:
    house = House(tmp_path)
    stored = house.fill()
    house.move()
    house.engine.sync()
    listed = list_log(house.log)
    assert (listed.start_offset, listed.end_offset) == (0, 60)
    assert listed.remote_bytes == house.engine.remote_bytes > 0
    assert verify(house.log).remote_frames > 0
    dumped = [frame.head.base_offset for frame in dump(house.log) if hasattr(frame, "head")]
    assert dumped == [offset for offset, _ in stored]
    assert [frame.head.base_offset for frame in dump(house.log, start_offset=3, end_offset=5)] == [3, 4]  # type: ignore[union-attr]


def test_many_who_wait_for_a_chunk_share_one_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    house.fill()
    house.move()
    gets, go = list[str](), threading.Event()
    get = ObjectStore.get_view

    def slow(store: ObjectStore, key: str, start: int, length: int) -> memoryview:
        gets.append(key)
        assert go.wait(30)
        return get(store, key, start, length)

    monkeypatch.setattr(ObjectStore, "get_view", slow)
    monkeypatch.setattr(ChunkCache, "_look_ahead", lambda *_: None)
    found = list[Any]()
    readers = [threading.Thread(target=lambda: found.append(house.engine.read(0, 1))) for _ in range(20)]
    for reader in readers:
        reader.start()
    while not gets:
        pass
    go.set()
    for reader in readers:
        reader.join(30)
    assert len(found) == 20
    assert len({bytes(one.data) for one in found}) == 1
    assert len(gets) == 1


def test_who_reads_on_finds_the_next_chunks_on_their_way_and_none_beyond_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.storage.tier.tier.make_footer", partial(make_footer, chunk_bytes=512))
    house = House(tmp_path)
    house.fill()
    house.move()
    first = house.engine.remote_parts[0]
    assert first.object.footer.body_size > 6 * 512
    asked, ask = list[tuple[str, int]](), ChunkCache._ask

    def note(cache: ChunkCache, one: Stored, number: int, priority: int) -> Future[None]:
        asked.append((one.id, number))
        return ask(cache, one, number, priority)

    monkeypatch.setattr(ChunkCache, "_ask", note)
    house.tier.cache.read(first.object, 0, 10, wait=True, until=first.size)
    assert asked == [(first.object.id, number) for number in range(4)]
    asked.clear()
    house.tier.cache.read(first.object, 0, 10, wait=True, until=600)
    assert (first.object.id, 2) not in asked


def test_a_cache_that_is_full_forgets_what_was_read_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstem.storage.tier.cache.BYTES_MIN", 0)
    house = House(tmp_path)
    stored = house.fill(200)
    house.move()
    house.tier.cache.bytes_max = 12_000
    for _ in range(2):
        assert house.read() == stored
    cache = house.tier.cache
    deadline = time.monotonic() + 10
    while (cached := bytes_in(house.data / "cache")) != cache.bytes and time.monotonic() < deadline:
        time.sleep(0.01)  # files are written behind the reads
    assert cached == cache.bytes <= cache.bytes_max


def bytes_in(directory: Path) -> int:
    found = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # forgotten between the two looks
            found += path.stat().st_size
    return found


def test_a_part_that_is_rewritten_while_it_is_uploaded_is_not_served_from_the_old_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path)
    stored = house.fill()
    part = house.engine.uploadable()[0]
    look_at = Tier._look_at

    def rewritten_meanwhile(tier: Tier, made: Any, tail: bytes) -> None:
        house.engine.replace(part, [])
        look_at(tier, made, tail)

    with monkeypatch.context() as patched:
        patched.setattr(Tier, "_look_at", rewritten_meanwhile)
        assert not house.tier.upload(house.engine, LOG_ID, part, house.log)
    house.move()
    house.tier.sweep()
    assert house.read() == [one for one in stored if one[0] >= part.end_offset]
    assert house.stored() == house.named()


def test_an_upload_is_tried_again_until_the_store_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    stored = house.fill()
    monkeypatch.setattr("mainstem.storage.tier.tier.PAUSE_S", 0.001)
    put, answers = ObjectStore.put, iter([False] * 5)

    def failing(store: ObjectStore, key: str, data: bytes) -> None:
        fault = next(answers, True)
        if fault is False:
            if key.endswith("0"):  # stored, and the answer is lost
                put(store, key, data)
            raise StoreAway("503 Slow Down")
        put(store, key, data)

    monkeypatch.setattr(ObjectStore, "put", failing)
    house.move()
    assert house.tier.upload_failures == 5
    assert house.tier.fault is None
    assert house.read() == stored
    assert house.stored() == house.named()


def test_a_prefix_of_another_broker_and_a_registry_that_is_not_the_logs_are_refused(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.fill()
    house.move()
    with pytest.raises(ConfigError, match="belongs to another broker"):
        Tier(tmp_path, house.tier.settings, house.tier.indexes).claim()
    house.tier.close()
    for path in house.data.glob("tier.sqlite*"):
        path.unlink()
    (house.bucket / "owner").unlink()
    with pytest.raises(StorageFault, match="does not know them"):
        house.open()


def test_a_store_that_is_not_there_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there") as told:
        ObjectStore(StoreSettings(f"file://{tmp_path}/nowhere"))
    assert told.value.fix.startswith("mkdir")
    with pytest.raises(ConfigError, match="not an address"):
        ObjectStore(StoreSettings("bucket/prefix"))


def test_a_months_cost_is_what_is_stored_and_the_requests_at_their_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path)
    house.fill(100)
    house.move()
    house.tier.count()
    stored = sum(size for _, size in house.tier.totals.values())
    assert stored == sum((house.bucket / key).stat().st_size for key in house.named())
    began_s, puts = house.tier._began_s, house.tier.store.meters.requests["PUT"]
    monkeypatch.setattr(time, "monotonic", lambda: began_s + MONTH_S / 30)  # a day
    house.tier.settings = replace(
        house.tier.settings, prices=(1e9, 1000.0, 0.0)
    )  # a byte and month costs 1, as does a PUT
    assert house.tier.cost_month() == pytest.approx(stored + 30 * puts)
