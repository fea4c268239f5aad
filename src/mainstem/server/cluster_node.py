"""The life of a broker in a cluster: take part, relay, take the cell when it is free, serve it, hand it over or lose it.

relaying    every listener is open; clients' bytes go to the owner
taking      the epoch of cell 1 is ours: files are rebuilt, the broker recovers; clients wait
serving     as a broker that is alone does; clients of other cells are handed on
over        handed over (drained, moved): everything is committed, closed and released, and it relays again. Lost (another
            took it, the lease could not be renewed): nothing more is said to anyone, and the process starts over in its
            place (exec), so that nothing of the old owner lives on

Cells other than the first have a process each (`cell_process.py`), which this one, their front, starts and ends.
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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mainstem import __version__
from mainstem.cluster.balance import Balance, ask_for
from mainstem.cluster.certificate import relay_contexts
from mainstem.cluster.checks import check_clock, has_users, join
from mainstem.cluster.membership import CellFacts, Membership, View
from mainstem.cluster.relay import HANDSHAKE_S, Relay, RelayDoor
from mainstem.cluster.schema import FIRST_CELL
from mainstem.cluster.wal import Fenced
from mainstem.model.errors import ConfigError, MainstemError, Overloaded
from mainstem.server.app import App, tier_settings
from mainstem.server.cell_children import Children
from mainstem.server.cell_process import NOT_TAKEN
from mainstem.server.cell_serving import Serving
from mainstem.server.cell_taking import Reason, Taking
from mainstem.server.cli.run import in_url
from mainstem.server.lifecycle import give_back_freed_memory, handle_signals, loop_factory, set_up_logging, tune_process
from mainstem.server.listeners import Taken, check_bind, keep_over_exec, kept_over_exec, ports_of, take_ports
from mainstem.server.notify import notify
from mainstem.server.protocols import HTTP, PROTOCOLS, doors, load, protocol_of_listener
from mainstem.server.settings import Config
from mainstem.server.tls import TWINS, make_context
from mainstem.storage.directory import DataDirectory
from mainstem.storage.engines import ENGINES
from mainstem.storage.tier.patience import START_S, Patience

logger = logging.getLogger("mainstem.cluster")

LOOK_S = 0.25
AGAIN_S = 1.0  # before a cell is taken again whose process could not serve it
HAND_OVER_S, CHILDREN_S = 30.0, 0.05
AWAY_S = 0.5
COLLECT_S = 10.0  # after a hand-over: no client waits then
AGAIN = "MAINSTEM_STARTED_OVER"  # in the environment of a process that took its own place
T = TypeVar("T")
CELLS, KAFKA = "cells", "kafka"  # the role of owning


def run_node(config: Config, *, reload: Callable[[], Config]) -> int:
    """Serve until a signal; returns the exit code."""
    set_up_logging(config)
    tune_process()
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
        self._changed = asyncio.Event()
        self._children = Children()
        self._taking, self._balance = Taking(self._name), Balance()
        self._not_before: dict[int, float] = {}
        self._stopping: asyncio.Event | None = None
        self._listening: dict[str, socket.socket] = {}  # again, for whoever takes the place of this process

    async def serve(self) -> int:
        check_settings(self.config)
        assert self._tier is not None
        self._loop = asyncio.get_running_loop()
        given = self.config.cluster
        self._dsn, store = given.postgres, self._tier.store
        kept = Taken(kept_over_exec())
        # One that starts over waits without its listeners, so that clients go elsewhere.
        patience = Patience(store, 0.0 if AGAIN in os.environ else START_S)
        joining = partial(join, self._dsn, store, single_postgres=given.single_postgres, patience=patience)
        try:
            identity = await until_reached(joining, waiting=kept.close)
        finally:
            patience.end()
        directory = self._claim_directory()
        for one in PROTOCOLS:
            for entry in one.doors:
                load(entry.server)  # imported now, not while clients wait for a new owner
        load(HTTP.server)
        self._tls = make_context(self.config.tls)
        self._roles = close_doors(self.config)
        taken = take_ports(self.config.listeners, move=False, tls=self._tls is not None, kept=kept.sockets)
        self._listening = {name: one.dup() for name, one in taken.sockets.items()}
        self._membership = Membership(self._dsn, self._name, self._lost, self._see)
        await until_reached(partial(check_clock, self._membership))
        listening, connecting = relay_contexts(identity.secret)
        self._secret = identity.secret
        self._relay = Relay(connecting, lambda: self._membership.view)
        self._serving = serving = Serving(self.config, self._membership, self._relay, self._directory, self._lost)
        door = await self._loop.create_server(
            lambda: RelayDoor(serving.find, serving.ready_for, serving.opening),
            self.config.listeners.host,
            given.relay_port,
            ssl=listening,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        self._tell_ports(taken, door)
        await until_reached(self._check_open)
        fronts = await self._open_fronts(taken)
        self._stopping = stopping = handle_signals(lambda: serving.app, self._reload)
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

    # -- what the membership's thread tells

    def _see(self, view: View) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)
        self._loop.call_soon_threadsafe(self._relay.look_again)

    def _lost(self, reason: str) -> None:
        """In any thread: at once, and without a word to clients."""
        if self._stopping is not None and self._stopping.is_set():
            logger.critical("this broker was being stopped, and could not hand over: %s", reason)
            os._exit(1)
        logger.critical("this broker stops serving: %s. It starts over", reason)
        self._start_over()

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

    # -- cells

    async def _live(self, taken: Taken, fronts: list[asyncio.Server], stopping: asyncio.Event) -> int:
        stopped = self._loop.create_task(stopping.wait())
        while not stopping.is_set():
            await self._next_look(stopped)
            view = self._membership.view
            self._notice_ended()
            if stopping.is_set():
                break
            if FIRST_CELL in view.cells:
                await self._look_at_first(view, view.cells[FIRST_CELL], taken, fronts)
            others = [one for one in view.cells.values() if one.cell_id != FIRST_CELL]
            await asyncio.gather(*(self._look_at(view, one) for one in others))
            mine = view.brokers.get(self._name)
            await self._keep_balance(view)
            self._children.keep_spare(len(view.cells) > 1 and mine is not None and mine.takes)
        for one in self._listening.values():
            one.close()
        self._listening.clear()
        await self._stop_serving()
        self._relay.close_all()
        for front in fronts:
            front.close()
        self._membership.stop()
        logger.info("stopped cleanly")
        return 0

    async def _next_look(self, *others: asyncio.Task[Any]) -> None:
        """Until the cluster has changed, one of the others is done, or for a moment."""
        changed = self._loop.create_task(self._changed.wait())
        await asyncio.wait({changed, *others}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()

    async def _look_at_first(self, view: View, cell: CellFacts, taken: Taken, fronts: list[asyncio.Server]) -> None:
        if self._serving.app is None:
            if self._taking.is_heir(view, cell):
                self._serving.prepare(FIRST_CELL, cell.epoch)
            reason = await self._taking.reason_to_take(view, cell)
            if reason is not None:
                await self._take_first(cell, reason, taken, fronts)
        elif why := await self._why_leave(view, cell):
            await self._leave_first(why, taken, fronts)

    async def _why_leave(self, view: View, cell: CellFacts) -> str:
        """Why the cell is to be handed over now; "" where it is not, or where its heir is not prepared."""
        leaving = self._taking.leaving(view, cell)
        if leaving is None:
            return ""
        if cell.wanted != leaving.heir:
            naming = partial(self._membership.name_heir, cell.cell_id, cell.epoch, leaving.heir, leaving.why)
            try:
                await asyncio.to_thread(naming)
            except MainstemError as error:
                logger.warning("cell %s has no heir yet: %s", cell.name, error)
        return leaving.why if self._taking.may_leave(cell, leaving) else ""

    async def _leave_first(self, why: str, taken: Taken, fronts: list[asyncio.Server]) -> None:
        """Clients that connect meanwhile wait in the backlog of the sockets that stay open, then for the next owner."""
        app = self._serving.app
        assert app is not None
        try:
            await self._serving.hand_over(why)
        except MainstemError as error:
            self._lost(f"the cell was not handed over cleanly: {error}")
        taken.sockets = {name: one.dup() for name, one in self._listening.items()}
        fronts += await self._open_fronts(taken)
        notify("STATUS=relaying")
        self._loop.call_later(COLLECT_S, let_go_of, app)

    async def _take_first(self, cell: CellFacts, reason: Reason, taken: Taken, fronts: list[asyncio.Server]) -> None:
        self._serving.expect(FIRST_CELL)
        try:
            epoch = await asyncio.to_thread(
                self._membership.take, FIRST_CELL, cell.epoch, reason.text, early=reason.early
            )
        except MainstemError as error:
            self._serving.expect_no_more()
            logger.warning("the cell was not taken: %s", error)
            return
        if epoch is None:
            self._serving.expect_no_more()
            return
        logger.warning("taking cell %s, epoch %d: %s", cell.name, epoch, reason.text)
        try:
            await self._serving.start(FIRST_CELL, epoch, taken)
        except (Overloaded, Fenced) as error:  # PostgreSQL went away meanwhile, or another broker was early
            self._lost(f"the cell could not be served: {error}")
        except BaseException:
            await self._serving.let_go(FIRST_CELL, f"{self._name} could not serve it")
            raise
        notify(f"READY=1\nSTATUS=serving cell {FIRST_CELL}, epoch {epoch}")
        for front in fronts:
            front.close()
        fronts.clear()

    async def _look_at(self, view: View, cell: CellFacts) -> None:
        """A cell that has a process of its own wherever it is served."""
        number = cell.cell_id
        if number in self._children.by_cell:
            self._children.end_if_lost(cell, self._name)
            if cell.owner == self._name and (why := await self._why_leave(view, cell)):
                self._children.leave(number, why)
            return
        if time.monotonic() < self._not_before.get(number, 0.0):
            return
        heir = self._taking.is_heir(view, cell)
        reason = Reason("") if heir else await self._taking.reason_to_take(view, cell)
        if reason is not None:
            facts = {
                "epoch": cell.epoch,
                "reason": reason.text,
                "early": reason.early,
                "name": self._name,
                "heir": heir,
            }
            facts |= {"host": self._host, "ports": self._ports, "secret": self._secret.hex()}
            try:
                self._children.take(number, facts)
            except OSError as error:
                logger.error("no process for cell %d could be started; it is tried again: %s", number, error)
                self._not_before[number] = time.monotonic() + AGAIN_S

    async def _keep_balance(self, view: View) -> None:
        """One broker decides: the one that serves the first cell."""
        if self._serving.app is None or len(view.cells) == 1 or not self._balance.due(time.monotonic()):
            return
        move = self._balance.look(view, time.monotonic())
        if move is not None:
            try:
                await asyncio.to_thread(ask_for, self._dsn, move, self.config.cluster.moves_per_hour)
            except MainstemError as error:
                logger.warning("a cell was not moved: %s", error)

    def _notice_ended(self) -> None:
        for cell, code in self._children.ended():
            if code not in (0, NOT_TAKEN):
                logger.error("the process of cell %d ended with code %d", cell, code)
            self._not_before[cell] = time.monotonic() + (0.0 if code < 0 else AGAIN_S)

    async def _stop_serving(self) -> None:
        notify("STOPPING=1")
        reason = f"{self._name} was stopped"
        self._children.keep_spare(False)
        await self._wait_for_heirs()
        for cell in self._children.by_cell:
            self._children.leave(cell, reason)
        if self._serving.app is not None:
            await self._serving.hand_over(reason)
        deadline = time.monotonic() + HAND_OVER_S
        while self._children.by_cell and time.monotonic() < deadline:
            self._notice_ended()
            await asyncio.sleep(CHILDREN_S)

    async def _wait_for_heirs(self) -> None:
        """Each cell that is ours is to be prepared by its next owner before it is let go; PREPARE_S at most."""
        self._taking.stopping = True
        try:
            await asyncio.to_thread(self._membership.take_no_more)
        except MainstemError as error:
            logger.warning("cells are let go without heirs: %s", error)
            return
        waiting = {one.cell_id for one in self._membership.view.owned_by(self._name)}
        while waiting:
            view = self._membership.view
            for number in list(waiting):
                cell = view.cells[number]
                if self._taking.leaving(view, cell) is None or await self._why_leave(view, cell):
                    waiting.discard(number)
            if waiting:
                await self._next_look()

    def _start_over(self) -> None:
        self._children.keep_over_exec()
        keep_over_exec(self._listening)
        start_over()


def let_go_of(app: App) -> None:
    """It has ended. Its sessions and logs are let go by hand: one reference to it that the collector does not see would
    keep them all, and what was frozen (`gc.freeze`) is not looked at by itself."""
    for one in (app.broker, app):
        vars(one).clear()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back_freed_memory()


async def until_reached(call: Callable[[], T], waiting: Callable[[], None] = lambda: None) -> T:
    """In a thread. Who starts a broker is told what does not answer; one that starts over calls `waiting`, and waits."""
    said = False
    while True:
        try:
            return await asyncio.to_thread(call)
        except Overloaded as error:
            if AGAIN not in os.environ:
                raise
            if not said:
                logger.warning("starting over, and waiting: %s", error)
                waiting()
            said = True
            await asyncio.sleep(AWAY_S)


def start_over() -> None:
    """Replace this process by a fresh one of the same command: what was open is closed, what was known forgotten."""
    logging.shutdown()
    os.environ[AGAIN] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
