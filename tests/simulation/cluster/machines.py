"""Brokers of a cluster in one history: one owns the cell, others did, and may not know that they do not any more."""

from __future__ import annotations

import asyncio.events
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.topics.policy import Policy
from mainstem.cluster import image, wal
from mainstem.cluster.disk import CellDisk
from mainstem.cluster.image import ImageMaker
from mainstem.cluster.membership import look, take_cell
from mainstem.cluster.rebuilding import Rebuilding, Rebuilt
from mainstem.model.clock import ManualClock
from mainstem.model.cut_names import CUT_NAMES
from mainstem.model.errors import CorruptFrame, Overloaded
from mainstem.storage.ballast import NAME as BALLAST
from mainstem.storage.tier.store import ObjectMissing
from mainstem.testing.faulty_disk import PowerCut
from tests.simulation.cluster.cell import CellMetadata, CellServer, Objects, Session, SimulatedObjects, SimulatedWal
from tests.simulation.cluster.postgres import CELL
from tests.simulation.cluster.world import World
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import MEMORY, Machine, SimulatedCommitter, empty_metadata

IMAGE_CHANCE = 0.05


class _NoPower:
    """What a history tells the disk of a machine that is alone: here nothing is cut."""

    def kill(self) -> None: ...

    def cut_power_after(self, operations: int) -> None: ...


class CellMachine(Machine):
    """One life of one broker: from taking the cell to its end, whether it knows of that or not."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.name = cluster, f"broker-{number}"
        self.rng, self.slicing, self.clock, self.policy = cluster.rng, cluster.slicing, cluster.clock, cluster.policy
        self.directory = cluster.directory / self.name
        self.metadata = cluster.metadata
        self.objects = SimulatedObjects(cluster.world, cluster.objects)
        self.session = Session(cluster.server)
        self.rebuilding = Rebuilding(self.session, CELL, self.directory, self.objects)  # type: ignore[arg-type]
        self.disk = _NoPower()  # type: ignore[assignment]
        self.gone = False
        self.crashes = 0
        self.broker: Broker | None = None

    @property
    def is_cut(self) -> bool:
        return self.gone

    def lose(self, reason: str = "") -> NoReturn:
        """As `os._exit`: from here on it says nothing to anyone."""
        self.gone = True
        raise PowerCut

    def prepare(self) -> None:
        """As heir of an owner that serves."""
        with suppress(CorruptFrame, ObjectMissing, Overloaded):
            self.rebuilding.catch_up()

    def take(self) -> None:
        """Early or not: the epoch decides."""
        while True:
            try:
                cell = self.session.use(look).cells[CELL]
                taking = partial(take_cell, name=self.name, cell_id=CELL, epoch=cell.epoch, reason="", early=True)
                epoch = self.session.use(partial(taking, relay_port=None))
            except Overloaded:
                continue
            if epoch is not None:
                self.epoch = epoch
                return

    def start(self) -> bool:
        self.take()
        found = self._rebuild()
        self.wal = SimulatedWal("", CELL, self.epoch, found.seq, found.slot, self.lose)
        disk = CellDisk(self.directory, self.wal, self.objects, found.files)
        self.images = ImageMaker("", CELL, self.epoch, self.directory, self.wal, disk, self.objects)
        self.images.go_on(found.image)
        self.loop = SimulatedLoop(self.clock)
        self.loop.enter()
        (self.directory / BALLAST).touch()
        dedicated = {"own/#": {"layout": "dedicated"}}
        options = BrokerOptions(self.directory, self.policy, dedicated, disk=disk, replicated=True)
        make: Any = lambda post: SimulatedCommitter(post, lambda: self.gone)  # noqa: E731
        self.store = CellMetadata(self.metadata, self.cluster.server, self.epoch, self.lose)
        self.broker = Broker(options, self.clock, committer=make, store=self.store)
        self.loop.run(self._open(self.broker))
        self.check_failures()
        self.store.holds = True
        return True

    def _rebuild(self) -> Rebuilt:
        while True:
            try:
                return self.rebuilding.finish(self.epoch)
            except Overloaded:
                continue

    def make_image(self) -> None:
        """Of every other owner with its topic indexes, as if their chunks had just been full."""
        for log in self.broker.logs.by_id.values() if self.broker is not None and self.epoch % 2 else ():
            if log.index is not None and log.index._path is not None:
                log.index._save_all(log.index._path)
        with suppress(Overloaded):  # it is made again later
            self.images.run()

    def hand_over(self) -> None:
        assert super().stop()
        self.wal.close()

    def kill(self) -> None:
        self.gone = True
        self._end_process()

    def _end_process(self) -> None:
        assert self.broker is not None
        self.gone = True
        self.loop.leave()
        self.store.end_process()
        with suppress(ValueError):
            CUT_NAMES.sources.remove(self.broker._names)
        self.broker = None


class Cluster:
    """What a history knows as its machine: the broker that owns the cell now. `zombies` owned it before."""

    def __init__(self, seed: int, *, fences: bool = True) -> None:
        self.rng = random.Random(seed)
        self.slicing = random.Random(-seed - 1)
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-", dir=MEMORY if MEMORY.is_dir() else None))
        self.clock = ManualClock()
        self.policy = Policy(
            segment_bytes=self.rng.choice((4096, 65_536, 1 << 20)), retention_ms=self.rng.choice((-1, -1, 500))
        )
        self.metadata = empty_metadata()
        self.world = World(seed)
        self.server = CellServer(self.world, self.metadata, fences=fences)
        self.objects = Objects(self.world.rng)
        self.zombies: list[CellMachine] = []
        self.owners = 0
        self.owner = self.next_owner()

    def next_owner(self) -> CellMachine:
        self.owners += 1
        return CellMachine(self, self.owners)

    def start(self) -> bool:
        return self.owner.start()

    def replace_by(self, heir: CellMachine, *, zombie: bool) -> None:
        """`zombie`: the owner goes on, as far as it can."""
        if zombie:
            self.zombies.append(self.owner)
        elif self.owner.broker is not None:
            self.owner.kill()
        self.owner = heir
        while not heir.start():
            pass

    def end_zombie(self, one: CellMachine) -> None:
        self.zombies.remove(one)
        with self.entered(one):
            one.kill()

    @contextmanager
    def entered(self, one: CellMachine) -> Iterator[None]:
        """What happens is of that broker's process."""
        one.loop.enter()
        try:
            yield
        finally:
            if self.owner.broker is not None:
                self.owner.loop.enter()

    def close(self) -> None:
        for one in [*self.zombies, self.owner]:
            if one.broker is not None:
                one.kill()
        asyncio.events._set_running_loop(None)
        self.metadata.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """The product's sessions are the simulated server's, and its waits cost nothing."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (wal, image):
                patch.setattr(module, "PostgresSession", lambda *_, **__: Session(self.server))
            yield

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner, name)
