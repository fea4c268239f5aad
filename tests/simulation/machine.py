"""The machine a simulated broker runs on: its clock, its disk, and the broker process that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.delivery import ticker
from mainstem.broker.sessions import table
from mainstem.broker.state import snapshot
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log
from mainstem.metadata.rounds import Call, RoundStore, Write, answer_call
from mainstem.metadata.sqlite import SqliteStore
from mainstem.model.clock import ManualClock
from mainstem.model.cut_names import CUT_NAMES
from mainstem.model.errors import StorageFault
from mainstem.model.histogram import counts_histogram, times_histogram
from mainstem.protocols.mqtt.server import MqttServer
from mainstem.server.config import load_config
from mainstem.storage.ballast import NAME as BALLAST
from mainstem.testing.faulty_disk import FaultyDisk, PowerCut
from tests.simulation.loop import SimulatedLoop

MEMORY = Path("/dev/shm")  # derived files and metadata: plain files, so let them be quick
_SCHEMA: list[bytes] = []  # of an empty store, made once
CONFIG = load_config(flags=["mqtt.sys_interval_ms=0"])

snapshot.PIECE_ENTRIES = table.ASLEEP_PIECE = table.AWAKE_PIECE = 1  # what is taken in one go

Post = Callable[[list[tuple[Log, int]]], None]


def _fail(log: Log, error: BaseException) -> None:
    raise AssertionError(f"log {log.id} could not be written: {error}") from error


vars(ticker)["end_process"] = _fail  # a broker's process ends there; here it would be that of all histories


class SimulatedCommitter:
    """Syncs when the simulation says so: a sync may end, and its end be told, any time later, in any order of logs."""

    def __init__(self, post: Post, stopped: Callable[[], bool]) -> None:
        self._post, self._stopped = post, stopped
        self._dirty: dict[Log, None] = {}
        self._done: list[tuple[Log, int]] = []
        self.rounds = 0
        self.sync_ns, self.sync_records = times_histogram(), counts_histogram()

    def listen(self, loop: Any, deliver: Any) -> None: ...

    def collect(self) -> None: ...

    def submit(self, logs: list[tuple[Log, int]]) -> None:
        self._dirty.update(dict.fromkeys(log for log, _ in logs))

    def forget(self, log: Log) -> None:
        self._dirty.pop(log, None)
        self._done = [one for one in self._done if one[0] is not log]

    def stop(self) -> None:
        while self._dirty or self._done:
            self.sync(random.Random(0))
            self.tell()

    @property
    def busy(self) -> bool:
        return bool(self._dirty or self._done)

    def sync(self, rng: random.Random) -> None:
        if self._dirty and not self._stopped():
            log = rng.choice(list(self._dirty))
            del self._dirty[log]
            end = log.written
            log.sync()
            self._done.append((log, end))

    def tell(self) -> None:
        if self._done and not self._stopped():
            done, self._done = self._done, []
            self._post(done)


def empty_metadata() -> sqlite3.Connection:
    """In memory: files would take a sixth of a history's time, and SQLite's own crashes are not what is simulated."""
    if not _SCHEMA:
        store = SqliteStore(None)
        _SCHEMA.append(store._connection.serialize())
        store.close()
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(_SCHEMA[0])
    return connection


class SimulatedStore(SqliteStore):
    """Commits when the simulation says so, without a thread; what waits when the process ends was never written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.holds = False  # a broker that opens or ends waits for its commits where it stands
        self._waiting: list[Write] = []
        RoundStore.__init__(self)
        self.path, self._connection = None, connection  # of the machine: it outlives the broker's process

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def _enqueue(self, one: Write | Call) -> None:
        if isinstance(one, Write) and self.holds:
            self._waiting.append(one)
            return
        self.commit()
        self._enqueue_now(one)

    def commit(self) -> None:
        """Everything that waits, in order; who asked for it hears in the loop's next turn."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._enqueue_now(one)

    def _enqueue_now(self, one: Write | Call) -> None:
        if self._closed:
            raise StorageFault("the metadata store is closed")
        if isinstance(one, Write):
            self._commit([one])
        else:
            answer_call(one)

    def _start_thread(self) -> None: ...

    def _stop_thread(self) -> None: ...

    def _shut(self) -> None: ...

    def end_process(self) -> None:
        self._waiting.clear()
        self.holds = False
        self.close()


class Machine:
    """One data directory through many lives of its broker."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.slicing = random.Random(-seed - 1)  # of snapshots; what else a seed decides does not depend on it
        self.hurrying = random.Random(f"hurry {seed}")  # of bursts, likewise
        self.directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None))
        (self.directory / BALLAST).touch()  # there already: making it takes as long as thirty steps
        self.metadata = empty_metadata()
        self.clock = ManualClock()
        self.disk = FaultyDisk(seed, short_write_chance=self.rng.choice((0.0, 0.0, 0.1)))
        self.policy = Policy(
            segment_bytes=self.rng.choice((4096, 65_536, 1 << 20)), retention_ms=self.rng.choice((-1, -1, 500))
        )
        self.crashes = 0
        self.broker: Broker | None = None

    def close(self) -> None:
        if self.broker is not None:
            self._end_process()
        self.metadata.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- the broker's process

    def start(self) -> bool:
        """Recover and serve; False if the power failed meanwhile."""
        self.loop = SimulatedLoop(self.clock)
        self.loop.enter()
        options = BrokerOptions(self.directory, self.policy, {"own/#": {"layout": "dedicated"}}, disk=self.disk)
        make: Any = lambda post: SimulatedCommitter(post, lambda: self.is_cut)  # noqa: E731
        self.store = SimulatedStore(self.metadata)
        self.broker = Broker(options, self.clock, committer=make, store=self.store)
        try:
            self.loop.run(self._open(self.broker))
        except PowerCut:
            return False
        self.check_failures()
        self.store.holds = True
        return not self.is_cut

    async def _open(self, broker: Broker) -> None:
        await broker.open()
        broker.ticker.slice_ns = 0  # slices end by the machine's clock, which no seed repeats
        broker.snapshot_slice, broker.snapshot_pause = 1, self._pause_snapshot
        self.mqtt = MqttServer(broker, CONFIG)
        broker.recover_journal()
        broker.start()
        await broker.settle_marks()
        self.loop.create_task(self.mqtt.run_deadlines())

    async def _pause_snapshot(self) -> None:
        """Between two slices clients act, or the machine crashes."""
        await asyncio.sleep(self.slicing.choice((0, 0, 0.001, 0.03, 0.5)))

    @property
    def committer(self) -> SimulatedCommitter:
        assert self.broker is not None
        return cast(SimulatedCommitter, self.broker.ticker.committer)

    @property
    def is_cut(self) -> bool:
        """The power is gone: nothing that happens from here on reaches anyone."""
        return self.disk.is_cut

    def check_failures(self) -> None:
        for context in self.loop.failures:
            error = context.get("exception")
            if error is not None and not isinstance(error, PowerCut):
                raise AssertionError(f"the broker failed: {context.get('message')}") from error
        self.loop.failures.clear()

    def stop(self) -> bool:
        """A clean stop; False if the power failed meanwhile."""
        assert self.broker is not None
        self.mqtt.close_all("the broker is shutting down")
        broker = self.broker
        self.store.commit()
        self.store.holds = False

        async def close() -> None:
            await broker.close()

        task = self.loop.create_task(close())
        for _ in range(1_000):
            if task.done() or self.is_cut:
                break
            with contextlib.suppress(PowerCut):
                self.committer.sync(self.rng)
            self.committer.tell()
            self.loop.advance(0.002)
            self.loop.turn()
        if self.is_cut:
            return False
        task.result()
        self._end_process()
        self.disk.kill()
        return True

    def kill(self) -> None:
        """kill -9: what was written stays."""
        self.crashes += 1
        self._end_process()
        self.disk.kill()

    def cut_power(self) -> None:
        self.crashes += 1
        self._end_process()
        self.disk.restart()

    def _end_process(self) -> None:
        assert self.broker is not None
        self.disk.cut_power_after(0)  # whatever still runs of it reaches nothing
        self.loop.leave()
        self.store.end_process()
        with contextlib.suppress(ValueError):  # else it is kept for as long as we run
            CUT_NAMES.sources.remove(self.broker._names)
        self.broker = None

    # -- time and disk

    def breathe(self) -> None:
        """A moment passes: some of what is due happens."""
        loop, rng = self.loop, self.rng
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.6:
                self.committer.sync(rng)
            if rng.random() < 0.6:
                self.committer.tell()
            if rng.random() < 0.6:
                self.store.commit()
            loop.settle(lambda: self.is_cut)
            if self.is_cut:
                return
        loop.advance(rng.choice((0.0005, 0.002, 0.02, 0.06, 0.3, 1.1)))
        loop.settle(lambda: self.is_cut)
        self.check_failures()

    def hurry(self, syncs: int = 0) -> None:
        """Everything happens that needs no time, with syncs that are quick: so many, or some."""
        loop, rng = self.loop, self.hurrying
        for _ in range(syncs or rng.randint(1, 6)):
            loop.settle(lambda: self.is_cut)
            if self.is_cut:
                return
            self.committer.sync(rng)
            self.committer.tell()
            self.store.commit()
        loop.settle(lambda: self.is_cut)
        self.check_failures()

    def rest(self) -> None:
        """Until everything written is durable, and everyone who waits was told."""
        for _ in range(200):
            self.loop.settle()
            if not self.committer.busy and not self.store.busy:
                break
            self.store.commit()
            self.committer.sync(self.rng)
            self.committer.tell()
        self.loop.advance(0.06)
        self.loop.settle()
        self.check_failures()
