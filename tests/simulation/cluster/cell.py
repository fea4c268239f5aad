"""A cell's parts as its brokers meet them in a simulation: sessions with PostgreSQL, the store, the log, the metadata.

What runs is the product's own: lanes, rounds, the disk, images, rebuilding. Only waiting is simulated: who waits for
PostgreSQL makes the world go on until the answer is there, or was lost.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mainstem.cluster.objects import CellObjects
from mainstem.cluster.wal import CellWal
from mainstem.model.errors import Overloaded, StorageFault
from mainstem.storage.tier.store import ObjectMissing, StoreAway
from mainstem.testing.faulty_disk import PowerCut
from tests.simulation.cluster.postgres import CELL, Connection, ConnectionCut, Row, Server
from tests.simulation.cluster.world import World
from tests.simulation.machine import SimulatedStore

TURN_S = 0.002
T = TypeVar("T")


class CellServer(Server):
    """It also knows which logs the metadata names; those lie in a database of their own here."""

    def __init__(self, world: World, metadata: sqlite3.Connection, *, fences: bool = True) -> None:
        super().__init__(world, fences=fences)
        self._metadata = metadata

    def run(self, sql: str, given: tuple[Any, ...], by: Connection) -> list[Row]:
        if sql.startswith("SELECT to_regclass("):
            return [Row({"to_regclass": 1})]
        if re.match(r"SELECT id FROM mainstem_cell_1\.logs$", sql):
            return [Row({"id": row[0]}) for row in self._metadata.execute("SELECT id FROM logs")]
        return super().run(sql, given, by)

    @property
    def epoch(self) -> int:
        return int(self.tables["lane"][CELL]["epoch"])


class Session:
    """As `PostgresSession`."""

    def __init__(self, server: CellServer) -> None:
        self._server = server
        self._connection: Connection | None = None

    def use(self, run: Callable[[Any], Awaitable[T]]) -> T:
        if self._connection is None or self._connection.cut:
            self._connection = Connection(self._server)
        connection = self._connection

        async def ask() -> T:
            return await run(connection)

        try:
            return drive(self._server.world, ask())
        except ConnectionCut as error:
            raise Overloaded(str(error)) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.drop()


def drive(world: World, coroutine: Any) -> Any:
    """To its end; the world goes on while it waits."""
    answer: tuple[Any, BaseException | None] = None, None
    while True:
        try:
            later = coroutine.send(answer[0]) if answer[1] is None else coroutine.throw(answer[1])
        except StopIteration as done:
            return done.value
        known: list[tuple[Any, BaseException | None]] = []
        later.then(lambda value, error, into=known: into.append((value, error)))
        while not known:
            world.run(TURN_S)
        answer = known[0]


class Objects:
    """The object store: it refuses (503), and its answers get lost, as often as `trouble` says."""

    url = "s3://simulated"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._objects: dict[str, bytes] = {}
        self.trouble = 0.0
        self._cut_off = False  # the last answer: not twice in a row

    def put(self, key: str, body: bytes) -> None:
        self._refuse("503")
        self._objects[key] = bytes(body)
        self._refuse("its answer was lost")

    def view_all(self, key: str) -> memoryview:
        self._refuse("503")
        if key not in self._objects:
            raise ObjectMissing(f"{key} is not there")
        body = self._objects[key]
        self._cut_off = not self._cut_off and self._rng.random() < self.trouble / 2
        return memoryview(body)[: len(body) // 2] if self._cut_off else memoryview(body)

    def delete(self, key: str) -> None:
        self._refuse("503")
        self._objects.pop(key, None)

    def _refuse(self, why: str) -> None:
        if self._rng.random() < self.trouble:
            raise StoreAway(f"the simulated store does not serve: {why}")


class Pausing:
    """Nobody is closed while he waits for the store."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wait(self, seconds: float) -> bool:
        self._world.run(seconds)
        return False

    def set(self) -> None: ...


class SimulatedObjects(CellObjects):
    def __init__(self, world: World, store: Objects) -> None:
        self.store = store  # type: ignore[assignment]
        self._prefix, self.away = f"cells/{CELL}", ""
        self.closing = Pausing(world)  # type: ignore[assignment]


class SimulatedWal(CellWal):
    """Without a thread: who waits commits. Where the cell is another's the process ends there (`lost` raises)."""

    reachable = True  # PostgreSQL; while it is not nobody comes back from waiting

    def _start(self) -> None: ...

    def wait(self, position: int) -> None:
        while self.committed < position:
            if not self.reachable:
                raise PowerCut
            try:
                self._commit_round()
            except StorageFault as error:
                self._lost(error.message)

    def seq_of(self, barrier: int) -> int:
        self.wait(barrier)
        with self._state:
            self._pass_barriers()
            return self._barrier_seqs.pop(barrier)

    def close(self) -> None:
        self.wait(self.recorded)
        self._session.close()

    def _wait_away(self, error: Overloaded) -> None: ...


class CellMetadata(SimulatedStore):
    """As `CellStore`: each of its transactions is of the owner's epoch, or ends the process."""

    def __init__(
        self, connection: sqlite3.Connection, server: CellServer, epoch: int, lost: Callable[[], None]
    ) -> None:
        self._server, self._epoch, self._lost = server, epoch, lost
        super().__init__(connection)

    def _in_transaction(self, run: Callable[[], T]) -> T:
        if self._server.fences and self._server.epoch != self._epoch:
            self._lost()
        return super()._in_transaction(run)
