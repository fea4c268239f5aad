"""A log on a faulty disk beside a model of what it promised; every step is decided by one seed."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import cast

from mainstem.codec.batch import frame_heads
from mainstem.storage.engine import Part
from mainstem.storage.flusher import FlushHandle
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.testing.faulty_disk import FaultyDisk, PowerCut
from mainstem.testing.frames import make_test_frame, read_everything

LOG_ID = 3
DIRECTORY = Path("/log")
RESERVED_OFFSETS = 8
PLACES_MAX = 8  # as a real one


class SimulatedHandle:
    """A `FlushHandle` on the simulated disk: what is requested is synced when the simulation says so, and told later."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self._requested = self._completed = 0
        self._places: dict[int, None] = {}

    def request(self, *places: int) -> int:
        if len({*self._places, *places}) > PLACES_MAX:
            return 0
        self._places.update(dict.fromkeys(places))
        self._requested += 1
        return self._requested

    def work(self) -> None:
        requested, places, self._places = self._requested, self._places, {}
        for place in places:
            if place >= 0:
                self._disk.fdatasync(place)
            else:
                self._disk.fsync(~place)
        self._completed = requested

    def wait(self) -> int:
        self.work()
        return 0

    def outcome(self) -> tuple[int, int]:
        return self._completed, 0


class SimulatedLog:
    """Plays the log above the engine: reserves offsets, goes on at the reserved end after an unclean stop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(seed, short_write_chance=self.rng.choice((0.0, 0.2)))
        self.disk.flushable = True
        self.now_ns = 0
        self.written: dict[int, bytes] = {}  # every offset ever given to a value, by history
        self.present: dict[int, bytes] = {}  # what a reader must see while the process lives
        self.durable: set[int] = set()  # what no crash may take
        self.optional: set[int] = set()  # what an interrupted trim or rewrite may or may not have taken
        self.stopped = "clean"
        self.stamp = 1_000
        self.open()

    # Steps

    def step(self) -> None:
        actions = {
            self.append: 50, self.sync: 20, self.roll: 4, self.trim: 3, self.replace: 3, self.read: 5,
            self.wait: 5, self.close: 2, self.kill: 2, self.begin_sync: 20, self.work: 12, self.end_sync: 12,
            self.sync_data: 8, self.keep_up: 8,
        }  # fmt: skip
        action = self.rng.choices(list(actions), list(actions.values()))[0]
        if self.rng.random() < 0.08:
            self.disk.cut_power_after(self.rng.randint(0, 12))
        try:
            action()
            self.disk.cut_power_after(-1)
            if self.rng.random() < 0.02:
                raise PowerCut
        except PowerCut:
            self.restart()

    def restart(self) -> None:
        """After a power cut; the power may fail again while the log recovers."""
        self.stopped = "power cut"
        while True:
            self.disk.restart()
            if self.rng.random() < 0.3:
                self.disk.cut_power_after(self.rng.randint(0, 25))
            try:
                self.open()
                return
            except PowerCut:
                continue

    def append(self) -> None:
        data, frames, fresh = [], [], {}
        offset = self.next_offset
        for _ in range(self.rng.randint(1, 3)):
            values = [self.value(offset + i) for i in range(self.rng.randint(1, 3))]
            stamp, self.stamp = self.stamp, self.stamp + len(values)
            frame, ref = make_test_frame(LOG_ID, offset, values, stamp=stamp, durable_offset=self.engine.durable_offset)
            data.append(frame)
            frames.append(ref)
            fresh.update(enumerate(values, offset))
            offset += len(values)
        if offset > self.reservation.end_offset:
            self.reservation.extend(offset + RESERVED_OFFSETS)
        assert not fresh.keys() & self.written.keys(), "an offset was given out twice"
        self.written.update(fresh)
        self.engine.append(data, frames)
        self.present.update(fresh)
        self.next_offset = offset

    def value(self, offset: int) -> bytes:
        return b"%d:" % offset + self.rng.randbytes(self.rng.choice((0, 10, 100, 600, 2500)))

    def sync(self) -> None:
        before = set(self.present)
        self.engine.sync()
        self.durable |= before

    def sync_data(self) -> None:
        before = set(self.present)
        self.engine.sync_data()
        self.durable |= before

    def keep_up(self) -> None:
        if self.engine.upkeep_is_due:
            self.engine.keep_up()

    def begin_sync(self) -> None:
        before = set(self.present)
        number = self.engine.begin_sync(cast(FlushHandle, self.handle))
        if number:
            self.asked.append((number, before))

    def work(self) -> None:
        self.handle.work()

    def end_sync(self) -> None:
        completed = self.engine.end_sync(cast(FlushHandle, self.handle))
        while self.asked and self.asked[0][0] <= completed:
            self.durable |= self.asked.popleft()[1] & self.present.keys()

    def roll(self) -> None:
        self.engine.roll()

    def trim(self) -> None:
        sealed = [part for part in self.engine.stat().parts if part.sealed]
        if not sealed:
            return
        before = self.rng.choice(sealed).end_offset
        gone = {offset for offset in self.present if offset < before}
        self.optional |= gone
        start = self.engine.trim(before)
        assert start >= before
        self.drop(gone)

    def replace(self) -> None:
        sealed = [part for part in self.engine.stat().parts if part.sealed]
        if not sealed:
            return
        part = self.rng.choice(sealed)
        kept, gone = self.choose_frames(part)
        self.optional |= gone
        self.engine.replace(part, kept)
        self.drop(gone)

    def choose_frames(self, part: Part) -> tuple[list[bytes], set[int]]:
        """Some of a part's frames, and the offsets of the others."""
        kept: list[bytes] = []
        gone: set[int] = set()
        offset = part.base_offset
        while (piece := self.engine.read(offset, 1, part.end_offset)) is not None:
            if self.rng.random() < 0.5:
                kept.append(bytes(piece.data))
            else:
                gone.update(range(piece.base_offset, piece.end_offset))
            offset = piece.end_offset
        return kept, gone

    def drop(self, gone: set[int]) -> None:
        """It has returned: what it took stays away, also after a crash."""
        for offset in gone:
            self.present.pop(offset, None)
            self.written[offset] = b"(gone)"
        self.durable -= gone
        self.optional -= gone

    def read(self) -> None:
        self.check_reads()

    def wait(self) -> None:
        self.now_ns += self.rng.choice((1_000_000, 1_200_000_000))

    def close(self) -> None:
        self.engine.close()
        self.durable |= set(self.present)
        self.stopped = "clean"
        self.disk.kill()
        self.open()

    def kill(self) -> None:
        self.stopped = "kill"
        self.disk.kill()
        self.open()

    # Opening and checking

    def open(self) -> None:
        files = OpenFiles(self.disk, files_max=self.rng.choice((1, 2, 100)))
        engine = SegmentEngine(
            DIRECTORY,
            LOG_ID,
            files=files,
            indexes=IndexCache(files, bytes_max=self.rng.choice((16, 1 << 20))),
            segment_bytes=self.rng.choice((4096, 10_000, 1 << 20)),
            monotonic_ns=lambda: self.now_ns,
        )
        self.reservation = Reservation.open(DIRECTORY, self.disk)
        stat = engine.stat()
        self.engine = engine
        self.handle = SimulatedHandle(self.disk)
        self.asked: deque[tuple[int, set[int]]] = deque()  # syncs of the handle that were not told: number, offsets
        found = dict(read_everything(engine, LOG_ID, bytes_max=self.rng.choice((1, 700, 1 << 16))))
        self.check_recovered(found, clean=stat.clean)
        if stat.clean:  # then an append that the power cut interrupted had not begun to write: its offsets are free
            assert all(offset < stat.end_offset for offset in self.present)
            self.written = {offset: value for offset, value in self.written.items() if offset < stat.end_offset}
        self.present = found
        self.durable = set(found)
        self.optional = set()
        self.next_offset = stat.end_offset if stat.clean else max(stat.end_offset, self.reservation.end_offset)

    def check_recovered(self, found: dict[int, bytes], *, clean: bool) -> None:
        for offset, value in found.items():
            assert self.written.get(offset) == value, f"offset {offset} holds something else"
        lost = self.durable - found.keys() - self.optional
        assert not lost, f"durable offsets {sorted(lost)[:5]} were lost in a {self.stopped}"
        if self.stopped in ("clean", "kill"):
            assert found == self.present, f"{self.stopped} changed the log"
            assert clean or self.stopped != "clean" or not self.written
        ends = [offset for offset in self.written if offset not in found and offset in self.present]
        missing = [offset for offset in ends if offset not in self.optional]
        if missing and found:
            assert min(missing) > max(found.keys() & self.present.keys(), default=-1), "a hole in what was kept"

    def check_reads(self) -> None:
        if not self.present:
            return
        offset = self.rng.choice(list(self.present))
        piece = self.engine.read(offset, self.rng.choice((1, 1000, 10_000)))
        assert piece is not None
        heads = frame_heads(piece.data, LOG_ID)
        assert heads[0].base_offset <= offset < heads[0].base_offset + heads[0].count
        assert heads[-1].base_offset + heads[-1].count == piece.end_offset
