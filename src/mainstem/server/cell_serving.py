"""One cell as a process serves it: files rebuilt, the broker over them, its servers, and the way to other cells.

The front of a broker serves cell 1 in its own process, with its listeners; other cells have a process each
(`cell_process.py`), which clients reach by relays.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.placement import Placement
from mainstem.broker.nodes import Node, Nodes
from mainstem.broker.rights.access import Principal
from mainstem.cluster.cell import Cell
from mainstem.cluster.figures import Figures
from mainstem.cluster.membership import Membership
from mainstem.cluster.phases import Phases
from mainstem.cluster.places import place, take_place_away
from mainstem.cluster.principals import to_document
from mainstem.cluster.relay import Relay
from mainstem.cluster.schema import FIRST_CELL
from mainstem.cluster.trunk import Stream
from mainstem.cluster.users import CellUsers
from mainstem.model.errors import CorruptFrame, MainstemError, Overloaded
from mainstem.server.app import App, broker_options, tier_settings
from mainstem.server.lifecycle import GC_THRESHOLDS
from mainstem.server.listeners import Taken
from mainstem.server.settings import Config
from mainstem.server.tls import TWINS
from mainstem.storage.tier.store import ObjectMissing

logger = logging.getLogger("mainstem.cluster")

PLACES_S = 0.25
PREPARE_TRIES, PREPARE_AGAIN_S = 20, 0.2
NAMESPACE_S = 3.0  # for a namespace that was just added to be made
PLACED_S, PLACED_AGAIN_S = 10.0, 0.05  # for a cell that was just added to be owned


class Forwarding:
    """The way from this cell to the others, for connections (`protocols/porter.py`) and for requests by HTTP."""

    def __init__(self, relay: Relay, placement: Placement) -> None:
        self.placement = placement
        self._relay = relay

    def __call__(self, transport: Any, listener: str, cell: int, principal: Principal, said: bytes) -> None:
        self._relay.forward(transport, listener, cell, principal, said)

    async def open(
        self, listener: str, peer: tuple[str, int], tls: bool, cell: int, principal: Principal, namespace: str = ""
    ) -> Stream:
        """A stream of its own to the cell's owner, for a client that this cell speaks for, and that asks about that
        namespace, if not about its own."""
        hello = {"listener": listener, "peer": list(peer), "tls": tls, "certificate": None, "namespace": namespace}
        return await self._relay.reach(hello, cell, to_document(principal))


class Places:
    """What the API asks of the cluster: where a namespace is to be."""

    def __init__(self, dsn: str, membership: Membership, placement: Placement) -> None:
        self._dsn, self._membership, self._placement = dsn, membership, placement
        self._removed: dict[str, int | None] = {}  # and the look from which on a place of that name is a new one

    async def place(self, namespace: str, cell: str) -> dict[str, Any]:
        """A namespace that does not exist yet; returns once its cell has an owner and this process knows it, or that
        takes too long."""
        left_over = namespace in self._membership.view.places  # of one that was removed a moment ago
        number, name = await asyncio.to_thread(place, self._dsn, namespace, cell)
        deadline, looks = time.monotonic() + PLACED_S, self._membership.looks + 2 if left_over else 0
        while time.monotonic() < deadline:
            if self._membership.looks >= looks and self._is_placed(namespace, number):
                self._placement.places = self._membership.view.places
                break
            await asyncio.sleep(PLACED_AGAIN_S)
        owner = self._membership.view.owner_of(number)
        return {"name": namespace, "cell": name, "owner": owner.name if owner is not None else None}

    def _is_placed(self, namespace: str, number: int) -> bool:
        view = self._membership.view
        return number == FIRST_CELL or (view.places.get(namespace) == number and view.owner_of(number) is not None)

    async def take_away(self, namespace: str) -> None:
        """It was removed, and is not made again while the view that shows its place may be an old one."""
        self._removed[namespace] = None
        await asyncio.to_thread(take_place_away, self._dsn, namespace)
        self._removed[namespace] = self._membership.looks + 2  # the next one may have begun before

    def known(self) -> dict[str, int]:
        """Without those of namespaces that were removed."""
        looks, places = (
            self._membership.looks,
            self._membership.view.places,
        )  # in this order: the view is as new, or newer
        self._removed = {
            name: new for name, new in self._removed.items() if name in places and (new is None or looks < new)
        }
        return {name: cell for name, cell in places.items() if name not in self._removed}

    def cell_names(self) -> dict[str, str]:
        """Cells of the namespaces that are not in the first one."""
        view = self._membership.view
        return {one: view.cells[cell].name for one, cell in view.places.items() if cell in view.cells}


class Serving:
    """`lost(reason)`, from any thread: the cell is not ours any more."""

    def __init__(
        self, config: Config, membership: Membership, relay: Relay, directory: Path, lost: Callable[[str], None]
    ) -> None:
        self._config, self._membership, self._relay = config, membership, relay
        self._directory, self._lost = directory, lost
        self._users: CellUsers | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.app: App | None = None
        self._cell: Cell | None = None
        self._heir_of: tuple[Cell, int, asyncio.Task[None]] | None = None  # a cell we prepare, as of that epoch
        self._opening: tuple[int, asyncio.Event] | None = None

    @property
    def dsn(self) -> str:
        return self._config.cluster.postgres

    # -- before it is ours

    def prepare(self, cell_id: int, epoch: int) -> asyncio.Task[None]:
        """Its owner, of that epoch, is about to hand it over to us: make its files meanwhile, and tell. Once an epoch."""
        known = self._heir_of
        if known is None or (known[0].cell_id, known[1]) != (cell_id, epoch):
            cell = self._new_cell(cell_id)
            task = asyncio.get_running_loop().create_task(self._prepare(cell, epoch, known))
            self._heir_of = cell, epoch, task
            return task
        return known[2]

    async def _prepare(self, cell: Cell, epoch: int, before: tuple[Cell, int, asyncio.Task[None]] | None) -> None:
        if before is not None:  # in vain: it uses the same files
            await before[2]
            await asyncio.to_thread(before[0].forget)
        phases = Phases()
        for _ in range(PREPARE_TRIES):
            try:
                await asyncio.to_thread(cell.prepare)
                await asyncio.to_thread(self._membership.tell_prepared, cell.cell_id, epoch)
            except (CorruptFrame, ObjectMissing, Overloaded) as error:
                logger.info("cell %d is not prepared yet: %s", cell.cell_id, error)
                await asyncio.sleep(PREPARE_AGAIN_S)
            else:
                phases.end("files")
                logger.info("cell %d is prepared after %s", cell.cell_id, phases)
                return

    def expect(self, cell_id: int) -> None:
        """It may be ours in a moment: who comes for it from now on waits until it serves."""
        self._opening = cell_id, asyncio.Event()

    def expect_no_more(self) -> None:
        if self._opening is not None:
            self._opening[1].set()
            self._opening = None

    def opening(self, cell_id: int) -> asyncio.Event | None:
        return self._opening[1] if self._opening is not None and self._opening[0] == cell_id else None

    def _new_cell(self, cell_id: int) -> Cell:
        tier = tier_settings(self._config)
        assert tier is not None
        return Cell(self.dsn, tier.store, cell_id, self._directory)

    async def _prepared(self, cell_id: int) -> Cell:
        heir_of, self._heir_of = self._heir_of, None
        if heir_of is None or heir_of[0].cell_id != cell_id:
            return self._new_cell(cell_id)
        await heir_of[2]
        return heir_of[0]

    # -- ours

    async def start(self, cell_id: int, epoch: int, taken: Taken) -> None:
        phases = Phases()
        cell = await self._prepared(cell_id)
        found = await asyncio.to_thread(cell.rebuild, epoch)
        phases.end("files")
        self._users = CellUsers(self.dsn) if cell_id != FIRST_CELL else None
        broker = await asyncio.to_thread(cell.open, found, broker_options(self._config), self._lost, users=self._users)
        phases.end("metadata")
        broker.placement.cell, broker.placement.places = cell_id, self._membership.view.places
        broker.nodes = Nodes(self._node_id(), self._other_nodes)
        config = replace(self._config, data=replace(self._config.data, directory=str(broker.options.data)))
        app = App(config, broker=broker, taken=taken)
        app.serves_all = True
        app.forward = Forwarding(self._relay, broker.placement)
        await app.start()
        app.cluster = Figures(cell, self._membership, self._relay)
        app.cluster.places = Places(self.dsn, self._membership, broker.placement)
        self._cell, self.app = cell, app
        cell.start()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep_places(broker)))
        self._tasks.append(loop.create_task(self._watch_for_heirs(cell)))
        if self._users is not None:
            self._tasks.append(loop.create_task(self._users.keep(lambda: broker.access)))
        phases.end("broker")
        self.expect_no_more()
        logger.warning("serving cell %d, epoch %d, after %s", cell_id, epoch, phases)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    def find(self, listener: str, cell_id: int) -> Any:
        """Where a relayed client of that cell goes, if we serve it."""
        app = self.app
        if app is None or not app.ready or app.broker.placement.cell != cell_id:
            return None
        return app.servers.get(TWINS.get(listener, listener))

    async def ready_for(self, principal: Principal, namespace: str = "") -> None:
        """Before a client is served that another cell let in: its user or the namespace that it asks about (else its own)
        may be a moment old."""
        if self.app is None:
            return
        broker = self.app.broker
        if self._users is not None:
            await self._users.catch_up(broker.access, principal)
        deadline = time.monotonic() + NAMESPACE_S
        while (namespace or principal.namespace) not in broker.namespaces and time.monotonic() < deadline:
            await asyncio.sleep(PLACED_AGAIN_S)

    async def hand_over(self, reason: str) -> None:
        """Say goodbye, commit everything, let go."""
        assert self.app is not None
        assert self._cell is not None
        phases = Phases()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        app, self.app = self.app, None
        cell, self._cell = self._cell, None
        await app.stop()
        phases.end("broker")
        await cell.close()
        phases.end("commit")
        await self.let_go(cell.cell_id, reason)
        phases.end("release")
        logger.warning("handed cell %d over in %s: %s", cell.cell_id, phases, reason)

    async def let_go(self, cell_id: int, reason: str) -> None:
        """Anyone may take the cell from now on; where PostgreSQL does not answer, once the lease is over."""
        try:
            await asyncio.to_thread(self._membership.release, cell_id, reason)
        except Overloaded as error:
            logger.warning("cell %d is free when its lease is over, PostgreSQL was not told: %s", cell_id, error)

    def _node_id(self) -> int:
        known = self._membership.view.brokers.get(self._membership.name)
        return known.node_id if known is not None else self._membership.node_id

    def _other_nodes(self) -> list[Node]:
        name, known = self._membership.name, self._membership.view.brokers.values()
        return [Node(one.node_id, one.host, one.ports) for one in known if one.alive and one.name != name]

    async def _keep_places(self, broker: Broker) -> None:
        """Namespaces that were placed here are made; those placed elsewhere are known to be there."""
        assert self.app is not None
        known: Places = self.app.cluster.places
        while True:
            placement = broker.placement
            placement.places = self._membership.view.places
            for name in [name for name, cell in known.known().items() if cell == placement.cell]:
                if name not in broker.namespaces:
                    await self._make_namespace(broker, name)
            await asyncio.sleep(PLACES_S)

    async def _watch_for_heirs(self, cell: Cell) -> None:
        known = None
        while True:
            wanted = self._membership.view.cells[cell.cell_id].wanted
            if wanted not in (known, None, self._membership.name):
                cell.hold_images()
            known = wanted
            await asyncio.sleep(PLACES_S)

    async def _make_namespace(self, broker: Broker, name: str) -> None:
        try:
            await broker.declare_namespace(name)
            logger.warning("namespace %s is in cell %d", name, broker.placement.cell)
        except MainstemError as error:
            logger.warning("namespace %s was not made; it is tried again: %s", name, error)
