"""Brokers that fight for one cell of a simulated PostgreSQL and object store, by the product's leases, epochs and lanes.

A broker looks, takes the cell when its lease is over (or too early, as one that was told a wrong thing), rebuilds what is
there, and then does three things at once: it commits rounds, each a record with the next offset, it renews its lease, and it
makes images. It is killed, paused and cut off at any moment. Whatever it acknowledges is noted (`Notes`), with its epoch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from mainstem.cluster.image import commit_image
from mainstem.cluster.lane import Lane
from mainstem.cluster.membership import FENCE_S, RENEW_S, Membership, look, take_cell
from mainstem.cluster.rebuilding import ROWS_MIN, rows_after
from mainstem.cluster.schema import SLOTS
from mainstem.cluster.wal import RETRY_S, Fenced
from mainstem.codec.batch import crc32c
from mainstem.model.errors import CorruptFrame, Overloaded
from tests.simulation.cluster.postgres import CELL, Connection, ConnectionCut, Server
from tests.simulation.cluster.world import Process, World

DSN = "postgresql://nobody@nowhere/none"  # never connected to
Use = Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
EARLY = 0.02  # how often a look takes a cell whose owner is well


@dataclass
class Notes:
    """What was promised to clients, and what each owner found; `wrong` says which promise was broken."""

    acked: dict[int, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)  # under which each was acknowledged first
    found: dict[int, dict[int, str]] = field(default_factory=dict)  # by epoch: what its owner rebuilt
    wrong: list[str] = field(default_factory=list)
    takes: int = 0
    fenced: int = 0
    images: int = 0
    cuts: int = 0

    def ack(self, epoch: int, offset: int, value: str) -> None:
        if self.acked.setdefault(offset, value) != value:
            self.wrong.append(f"offset {offset} was acknowledged as {self.acked[offset]}, and as {value}")
        self.epochs.setdefault(offset, epoch)
        for later in (one for one in self.found if one > epoch):
            if self.found[later].get(offset) != value:
                self.wrong.append(
                    f"epoch {epoch} acknowledged {offset} after epoch {later} had taken the cell without it"
                )

    def rebuilt(self, epoch: int, records: dict[int, str]) -> None:
        self.found[epoch] = dict(records)
        earlier = [one for one in self.acked if self.epochs[one] < epoch]  # it may be late, and overtaken by now
        lost = [one for one in earlier if records.get(one) != self.acked[one]]
        if lost:
            self.wrong.append(f"epoch {epoch} did not find what was acknowledged at {lost[:5]}")


class Store:
    """Objects by key. A put or a delete may be late; the puts of a broker that has lost its cell arrive all the same."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._objects: dict[str, bytes] = {}

    async def put(self, key: str, body: bytes) -> None:
        await self._world.sleep(0.01, 4.0)
        self._objects[key] = body
        await self._world.sleep(0.0, 0.5)

    async def get(self, key: str) -> bytes:
        await self._world.sleep(0.01, 1.0)
        return self._objects[key]

    async def delete(self, key: str) -> None:
        await self._world.sleep(0.01, 2.0)
        self._objects.pop(key, None)


class Broker:
    """One process after the other, by one name."""

    def __init__(self, name: str, world: World, server: Server, store: Store, notes: Notes) -> None:
        self.name, self.world, self.server, self.store, self.notes = name, world, server, store, notes
        self._numbers = itertools.count()
        self.process: Process | None = None
        self.connections: list[Connection] = []

    def start(self) -> None:
        self.process = Process(self.world, self._ended)
        self.connections = []
        self.process.start(self._live(self.process))

    def kill(self) -> None:
        """What it sent may still arrive; its connections end a moment later."""
        assert self.process is not None
        self.process.kill()
        self._leave()

    def _ended(self, error: BaseException) -> None:
        if not isinstance(error, Fenced):
            raise error
        self.notes.fenced += 1
        self._leave()

    def _leave(self) -> None:
        for one in self.connections:
            self.world.after(self.world.rng.uniform(0.0, 2.0), one.drop)
        self.world.after(self.world.rng.uniform(0.1, 3.0), self.start)

    # -- one process

    def session(self) -> Use:
        """As `PostgresSession.use`: one connection after the other."""
        current: list[Connection] = []

        async def use(run: Callable[[Any], Awaitable[Any]]) -> Any:
            if not current or current[-1].cut:
                current.append(Connection(self.server))
                self.connections.append(current[-1])
                await self.world.sleep(0.001, 0.05)
            try:
                return await run(current[-1])
            except ConnectionCut as error:
                self.notes.cuts += 1
                raise Overloaded(str(error)) from error

        return use

    async def _live(self, process: Process) -> None:
        member = Membership(DSN, self.name, _never, _ignore)
        member._session.close()  # its loop is not needed
        use, epoch = self.session(), None
        while epoch is None:
            await self.world.sleep(0.1, 0.6)
            try:
                cell = (await use(look)).cells[CELL]
                early = cell.owner == self.name or self.world.rng.random() < EARLY
                if early or cell.owner is None or cell.lease_s < 0:
                    began = self.world.now
                    epoch = await use(partial(_take, self.name, cell.epoch, early))
                    member.note_taken(CELL, epoch, began)
            except Overloaded:
                continue
        self.notes.takes += 1
        process.start(self._renew(member))
        lane, image, records = await self._rebuild(epoch)
        owner = Owner(self, epoch, lane, records, image)
        process.start(owner.publish())
        process.start(owner.make_images())

    async def _renew(self, member: Membership) -> None:
        """As `Membership._run` does in its thread."""
        use = self.session()
        while True:
            await self.world.sleep(RENEW_S, RENEW_S + 0.1)
            held, began = dict(member._held), self.world.now
            member._check_time(held)
            self._check_lease(held)
            try:
                await use(partial(_beat, member, held))
            except Overloaded:
                continue
            member._note_renewed(held, began)

    def _check_lease(self, held: dict[int, tuple[int, float]]) -> None:
        """Who believes to own the cell does own it, unless somebody took it too early: then only commits are fenced."""
        cell = self.server.tables["cell"][CELL]
        epoch = held[CELL][0]
        if cell["epoch"] > epoch and not any(self.server.early[later] for later in range(epoch + 1, cell["epoch"] + 1)):
            self.notes.wrong.append(f"{self.name} believed in epoch {epoch} when the lease was over")

    async def _rebuild(self, epoch: int) -> tuple[Lane, str, dict[int, str]]:
        """As `image.rebuild`."""
        use = self.session()
        try:
            lane, records, at = await self._read(use)
            if at != lane["wal_seq"]:
                raise CorruptFrame("the log ends elsewhere")
        except (CorruptFrame, KeyError) as error:
            now = await self._again(use, lambda c: c.fetchrow("SELECT * FROM lane WHERE cell_id = $1", CELL))
            if now["epoch"] != epoch:
                raise Fenced("another took the cell meanwhile") from error
            raise AssertionError(f"epoch {epoch} cannot rebuild what it owns") from error
        if lane["epoch"] == epoch:
            self.notes.rebuilt(epoch, records)
        return Lane(CELL, epoch, at, lane["slot"]), lane["image"], records

    async def _read(self, use: Use) -> tuple[Any, dict[int, str], int]:
        lane = await self._again(use, lambda c: c.fetchrow("SELECT * FROM lane WHERE cell_id = $1", CELL))
        records: dict[int, str] = {}
        if lane["image"]:
            records = {int(one): value for one, value in json.loads(await self.store.get(lane["image"])).items()}
        at = lane["flushed_seq"]
        while found := await self._again(use, partial(_rows, at)):
            for seq, crc, body in found:
                if seq != at + 1 or crc32c(body) != crc:
                    raise CorruptFrame(f"row {at + 1} is missing")
                records |= {int(one): value for one, value in json.loads(body).items()}
                at = seq
        return lane, records, at

    async def _again(self, use: Use, run: Callable[[Any], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await use(run)
            except Overloaded:
                await self.world.sleep(RETRY_S, 2 * RETRY_S)


class Owner:
    """What a broker does with a cell that it has."""

    def __init__(self, broker: Broker, epoch: int, lane: Lane, records: dict[int, str], image: str) -> None:
        self._broker, self._epoch, self._lane, self._records = broker, epoch, lane, records
        self._world, self._named = broker.world, image
        self._offset = max(records, default=-1) + 1
        self._barriers: list[Callable[[int, dict[int, str]], None]] = []

    async def publish(self) -> None:
        """As the thread of `CellWal`: a round is sent again until it is there, or the cell another's."""
        use = self._broker.session()
        for number in itertools.count():
            await self._world.sleep(0.0, 0.3)
            for barrier in self._barriers:
                barrier(self._lane.seq, dict(self._records))
                self._lane.take_turns()
            self._barriers.clear()
            value = f"{self._broker.name}-{self._epoch}-{number}"
            body = json.dumps({self._offset: value}).encode()
            while not await self._broker._again(use, lambda c, body=body: self._lane.commit(c, body)):
                pass
            self._records[self._offset] = value
            self._broker.notes.ack(self._epoch, self._offset, value)
            self._offset += 1

    async def make_images(self) -> None:
        """As `ImageMaker.run`; one whose commit was not answered is given up, and the next one made later."""
        broker, use = self._broker, self._broker.session()
        while True:
            await self._world.sleep(1.0, 6.0)
            captured: list[tuple[int, dict[int, str]]] = []
            self._barriers.append(lambda seq, records, into=captured: into.append((seq, records)))  # type: ignore[misc]
            while not captured:
                await self._world.sleep(0.05, 0.1)
            seq, records = captured[0]
            key = f"images/{broker.name}-{self._epoch}-{next(broker._numbers)}"
            await broker.store.put(key, json.dumps(records).encode())
            try:
                older = (self._lane.slot + 1) % SLOTS
                if not await use(lambda c: commit_image(c, CELL, self._epoch, seq, key, older)):  # noqa: B023
                    raise Fenced("the image is not ours to change")
            except Overloaded:
                continue
            broker.notes.images += 1
            if self._named:
                await broker.store.delete(self._named)
            self._named = key


async def _take(name: str, epoch: int, early: bool, connection: Any) -> int | None:
    return await take_cell(connection, name, CELL, epoch, "", early, None)


async def _beat(member: Membership, held: dict[int, tuple[int, float]], connection: Any) -> Any:
    return await member._beat(connection, held)


async def _rows(after: int, connection: Any) -> Any:
    return await rows_after(connection, CELL, after, ROWS_MIN)


def _never(reason: str) -> None:
    raise AssertionError(reason)


def _ignore(view: Any) -> None:
    """Its thread is not started."""


class History:
    """`run(seed)`: brokers a, b and c, an accident every few seconds, a calm end in which one of them must own the cell."""

    def __init__(self, seed: int, *, fences: bool = True) -> None:
        self.world = World(seed)
        self.server = Server(self.world, fences=fences)
        self.notes, store = Notes(), Store(self.world)
        self.brokers = [Broker(name, self.world, self.server, store, self.notes) for name in "abc"]

    def run(self, seconds: float = 120.0) -> Notes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mainstem.cluster.membership.time.monotonic", lambda: self.world.now)
            for one in self.brokers:
                one.start()
            end = self.world.now + seconds
            while self.world.now < end:
                self.world.run(self.world.rng.uniform(0.5, 5.0))
                self._accident()
            self.server.trouble = 0.0
            before = len(self.notes.acked)
            self.world.run(60.0)
            if len(self.notes.acked) == before:
                self.notes.wrong.append("nobody acknowledges anything although all is well")
        return self.notes

    def _accident(self) -> None:
        rng, one = self.world.rng, self.world.rng.choice(self.brokers)
        self.server.trouble = rng.choice((0.0, 0.0, 0.01, 0.1))
        kind = rng.random()
        if one.process is None or one.process.dead:
            return
        if kind < 0.3:
            one.kill()
        elif kind < 0.7:
            one.process.pause(rng.choice((rng.uniform(0.1, 1.0), rng.uniform(FENCE_S - 1, 20.0))))
