"""The life of a broker in a cluster: take part, relay, take the cell when it is free, serve it, hand it over or lose it.

relaying    every listener is open; clients' bytes go to the owner
taking      the epoch is ours: files are rebuilt, the broker recovers; clients wait
serving     as a broker that is alone does
over        handed over (drained, moved): everything is committed and released. Lost (another took it, the lease could
            not be renewed): nothing more is said to anyone. Either way the process starts over in its place (exec), so
            that nothing of the old owner lives on
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mainstem import __version__
from mainstem.broker.nodes import Node as OtherNode
from mainstem.broker.nodes import Nodes
from mainstem.cluster.cell import Cell
from mainstem.cluster.certificate import relay_contexts
from mainstem.cluster.checks import check_clock, has_users, join
from mainstem.cluster.figures import Figures
from mainstem.cluster.membership import WANTED_S, BrokerFacts, CellFacts, Membership, View
from mainstem.cluster.relay import HANDSHAKE_S, Relay, RelayDoor
from mainstem.cluster.schema import FIRST_CELL
from mainstem.model.errors import ConfigError, MainstemError, Overloaded
from mainstem.server.app import App, broker_options, tier_settings
from mainstem.server.cli.run import in_url
from mainstem.server.lifecycle import GC_THRESHOLD, handle_signals, keep_freed_memory, loop_factory, set_up_logging
from mainstem.server.listeners import Taken, check_bind, ports_of, take_ports
from mainstem.server.notify import notify
from mainstem.server.protocols import HTTP, PROTOCOLS, doors, load, protocol_of_listener
from mainstem.server.settings import Config
from mainstem.server.tls import TWINS, make_context
from mainstem.storage.directory import DataDirectory
from mainstem.storage.engines import ENGINES

logger = logging.getLogger("mainstem.cluster")

REFUSED_S = 1.0  # the owner's address refuses connections for so long: its process is gone
CONNECT_S = 0.5
LOOK_S = 0.25
AWAY_S = 0.5
AGAIN = "MAINSTEM_STARTED_OVER"  # in the environment of a process that took its own place
T = TypeVar("T")
CELLS, KAFKA = "cells", "kafka"  # the role of owning


def run_node(config: Config, *, reload: Callable[[], Config]) -> int:
    """Serve until a signal; returns the exit code."""
    set_up_logging(config)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(Node(config, reload).serve())


def check_settings(config: Config) -> None:
    """What a cell's files cannot hold is refused."""
    if not config.tier.store:
        raise ConfigError("a cluster needs an object store", fix="--store s3://BUCKET/PREFIX, or file:///DIRECTORY")
    for name in (config.topics.engine, *(one.engine for one in config.policies.values() if one.engine)):
        if ENGINES[name].one_machine:
            raise ConfigError(f"the {name} engine keeps its data on one machine", fix="engine = segment in a cluster")
    asking = [config.topics.tier, *(one.tier for one in config.policies.values())]
    if "iceberg" in asking:
        raise ConfigError("the catalog of tables lies on one machine", fix='tier = "s3" in a cluster')


def close_doors(config: Config) -> frozenset[str]:
    """The roles; only listeners of the protocols among them stay, and Kafka's of an owner: it is told to clients."""
    roles, known = frozenset(config.cluster.roles), {CELLS, HTTP.name, *(one.name for one in PROTOCOLS)}
    if unknown := roles - known:
        raise ConfigError(
            f"no role is called {min(unknown)!r}", fix=f"cluster.roles: some of {', '.join(sorted(known))}"
        )
    for door in doors() if roles else ():
        protocol = protocol_of_listener()[door.name]
        if protocol not in roles and not (protocol == KAFKA and CELLS in roles):
            for name in (door.name, door.tls_name):
                setattr(config.listeners, f"{name}_port", None)
    return roles


class Node:
    def __init__(self, config: Config, reload: Callable[[], Config]) -> None:
        self.config, self._reload = config, reload
        self._tier = tier_settings(config)
        self._directory = Path(config.data.directory).resolve()
        self._name = config.cluster.name or platform.node()
        self._app: App | None = None
        self._cell: Cell | None = None
        self._changed = asyncio.Event()
        self._refused_since = 0.0
        self._stopping: asyncio.Event | None = None

    async def serve(self) -> int:
        check_settings(self.config)
        assert self._tier is not None
        self._loop = asyncio.get_running_loop()
        given = self.config.cluster
        self._dsn, store = given.postgres, self._tier.store
        identity = await until_reached(partial(join, self._dsn, store, single_postgres=given.single_postgres))
        directory = self._claim_directory()
        for one in PROTOCOLS:
            for entry in one.doors:
                load(entry.server)  # imported now, not while clients wait for a new owner
        load(HTTP.server)
        self._tls = make_context(self.config.tls)
        self._roles = close_doors(self.config)
        taken = take_ports(self.config.listeners, move=False, tls=self._tls is not None)
        self._membership = Membership(self._dsn, self._name, self._lost, self._see)
        await until_reached(partial(check_clock, self._membership))
        listening, connecting = relay_contexts(identity.secret)
        self._relay = Relay(connecting, self._owner)
        door = await self._loop.create_server(
            lambda: RelayDoor(self._find),
            self.config.listeners.host,
            given.relay_port,
            ssl=listening,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        self._tell_ports(taken, door)
        await until_reached(self._check_open)
        fronts = await self._open_fronts(taken)
        self._stopping = stopping = handle_signals(lambda: self._app, self._reload)
        facts = self._host, self._relay_port, self._ports, __version__
        await until_reached(partial(self._membership.register, *facts, owns=not self._roles or CELLS in self._roles))
        self._announce_relaying()
        gc.enable()
        code = await self._live(taken, fronts, stopping)
        door.close()
        directory.release()
        return code

    def _claim_directory(self) -> DataDirectory:
        if (self._directory / "logs").exists():
            raise ConfigError(
                f"{self._directory} holds the data of a broker that is alone; a cluster's broker only keeps a cache",
                fix="give an empty directory: --data DIR",
            )
        return DataDirectory(self._directory)

    def _tell_ports(self, taken: Taken, door: asyncio.Server) -> None:
        self._host = self.config.cluster.host or self.config.listeners.host
        self._ports = dict(ports_of(taken))
        self._relay_port = door.sockets[0].getsockname()[1]
        kafka = self.config.kafka
        kafka.advertised_host = kafka.advertised_host or self._host
        kafka.advertised_port = kafka.advertised_port or self._ports.get("kafka", 0)
        kafka.advertised_tls_port = kafka.advertised_tls_port or self._ports.get("kafkas", 0)

    def _check_open(self) -> None:
        """Before anyone is let in: others must reach this broker, and strangers must not get in."""
        if self._host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"other brokers cannot connect to {self._host}", fix="say where they can: --set cluster.host=ADDRESS"
            )
        try:
            check_bind(self.config.listeners, users=has_users(self._dsn))
        except ConfigError as error:
            fix = "mainstem user add NAME --admin --cluster URL, or on a network you trust: --insecure-allow-anonymous"
            raise ConfigError(error.message, fix=fix, code=error.code) from None

    def _other_nodes(self) -> list[OtherNode]:
        known = self._membership.view.brokers.values()
        return [OtherNode(one.node_id, one.host, one.ports) for one in known if one.alive and one.name != self._name]

    # -- what the membership's thread tells

    def _see(self, view: View) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def _lost(self, reason: str) -> None:
        """In any thread: at once, and without a word to clients."""
        if self._stopping is not None and self._stopping.is_set():
            logger.critical("this broker was being stopped, and could not hand over: %s", reason)
            os._exit(1)
        logger.critical("this broker stops serving: %s. It starts over", reason)
        start_over()

    def _owner(self) -> BrokerFacts | None:
        return self._membership.view.owner_of(FIRST_CELL)

    def _find(self, listener: str) -> Any:
        """Where a relayed client goes, if we serve."""
        app = self._app
        return app.servers.get(TWINS.get(listener, listener)) if app is not None and app.ready else None

    # -- relaying

    async def _open_fronts(self, taken: Taken) -> list[asyncio.Server]:
        fronts = []
        for name, one in taken.sockets.items():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tls: ssl.SSLContext | None = self._tls if name in TWINS else None
            make = self._relay.connection_for(name)
            fronts.append(
                await self._loop.create_server(make, sock=one.dup(), ssl=tls, backlog=self.config.listeners.backlog)
            )
        return fronts

    def _announce_relaying(self) -> None:
        lines = [f"Mainstem {__version__}  broker {self._name} of the cluster  relay port {self._relay_port}"]
        for name, port in self._ports.items():
            label = "console" if name in ("http", "https") else name
            lines.append(f"  {label:<8} {name}://{in_url(self.config.listeners.host)}:{port}")
        lines += ["Try:", "  mainstem cluster status"]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    # -- the cell

    async def _live(self, taken: Taken, fronts: list[asyncio.Server], stopping: asyncio.Event) -> int:
        stopped = self._loop.create_task(stopping.wait())
        while not stopping.is_set():
            changed = self._loop.create_task(self._changed.wait())
            await asyncio.wait({stopped, changed}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            self._changed.clear()
            cell = self._membership.view.cells.get(FIRST_CELL)
            if cell is None or stopping.is_set():
                continue
            if self._app is None:
                await self._try_to_take(cell, taken, fronts)
            elif reason := self._reason_to_leave(cell):
                await self._hand_over(reason)
                start_over()
        if self._app is not None:
            notify("STOPPING=1")
            await self._hand_over(f"{self._name} was stopped")
        self._relay.close_all()
        for front in fronts:
            front.close()
        self._membership.stop()
        logger.info("stopped cleanly")
        return 0

    async def _try_to_take(self, cell: CellFacts, taken: Taken, fronts: list[asyncio.Server]) -> None:
        reason, early = await self._reason_to_take(cell)
        if not reason:
            return
        try:
            epoch = await asyncio.to_thread(self._membership.take, FIRST_CELL, cell.epoch, reason, early=early)
        except MainstemError as error:
            logger.warning("the cell was not taken: %s", error)
            return
        if epoch is not None:
            logger.warning("taking cell %s, epoch %d: %s", cell.name, epoch, reason)
            try:
                await self._serve_cell(epoch, taken)
            except BaseException:
                await asyncio.to_thread(self._membership.release, FIRST_CELL, f"{self._name} could not serve it")
                raise
            for front in fronts:
                front.close()
            fronts.clear()

    async def _serve_cell(self, epoch: int, taken: Taken) -> None:
        assert self._tier is not None
        began = time.monotonic()
        cell = Cell(self._dsn, self._tier.store, FIRST_CELL, epoch, self._directory)
        found = await asyncio.to_thread(cell.rebuild)
        broker = await asyncio.to_thread(cell.open, found, broker_options(self.config), self._lost)
        broker.nodes = Nodes(self._membership.node_id, self._other_nodes)
        config = replace(self.config, data=replace(self.config.data, directory=str(broker.options.data)))
        app = App(config, broker=broker, taken=taken)
        app.serves_all = True
        await app.start()
        app.cluster = Figures(cell, self._membership, self._relay)
        self._cell, self._app = cell, app
        cell.start()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 50)
        logger.warning("serving cell %d, epoch %d, after %.2f s", FIRST_CELL, epoch, time.monotonic() - began)
        notify(f"READY=1\nSTATUS=serving cell {FIRST_CELL}, epoch {epoch}")

    async def _reason_to_take(self, cell: CellFacts) -> tuple[str, bool]:
        view, me = self._membership.view, self._name
        mine = view.brokers.get(me)
        others = [one for one in view.brokers.values() if one.name != me and one.takes]
        if mine is None or not mine.owns or (mine.draining and others):
            return "", False
        if cell.owner is None or cell.lease_s < 0:
            wanted = view.brokers.get(cell.wanted or me)
            if wanted is not None and wanted.name != me and wanted.alive and -cell.lease_s < WANTED_S:
                return "", False
            before = cell.reason if cell.owner is None else f"the lease of {cell.owner} ran out"
            return before or "nobody owned it", False
        if cell.owner == me:
            return f"{me} was restarted", True
        owner = view.brokers.get(cell.owner)
        if owner is None or not await self._refuses(owner):
            self._refused_since = 0.0
            return "", False
        self._refused_since = self._refused_since or time.monotonic()
        return (
            (f"{owner.name} refuses connections", True)
            if time.monotonic() - self._refused_since > REFUSED_S
            else ("", False)
        )

    async def _refuses(self, owner: BrokerFacts) -> bool:
        """Its machine answers, and says that nobody listens."""
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(owner.host, owner.relay_port)
            writer.close()
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    def _reason_to_leave(self, cell: CellFacts) -> str:
        view = self._membership.view
        others = [one.name for one in view.brokers.values() if one.name != self._name and one.takes]
        if view.brokers[self._name].draining and others:
            return f"{self._name} is drained"
        if cell.wanted is not None and cell.wanted != self._name and cell.wanted in others:
            return f"it is moved to {cell.wanted}"
        return ""

    async def _hand_over(self, reason: str) -> None:
        """Say goodbye, commit everything, let go."""
        assert self._app is not None
        assert self._cell is not None
        began = time.monotonic()
        app, self._app = self._app, None
        await app.stop()
        await self._cell.close()
        await asyncio.to_thread(self._membership.release, FIRST_CELL, reason)
        logger.warning("handed cell %d over in %.2f s: %s", FIRST_CELL, time.monotonic() - began, reason)


async def until_reached(call: Callable[[], T]) -> T:
    """In a thread. A person who starts a broker is told what does not answer; one that starts over waits for it."""
    said = False
    while True:
        try:
            return await asyncio.to_thread(call)
        except Overloaded as error:
            if AGAIN not in os.environ:
                raise
            if not said:
                logger.warning("starting over, and waiting: %s", error)
            said = True
            await asyncio.sleep(AWAY_S)


def start_over() -> None:
    """Replace this process by a fresh one of the same command: what was open is closed, what was known forgotten."""
    logging.shutdown()
    os.environ[AGAIN] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
