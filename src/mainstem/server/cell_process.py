"""`mainstem serve --cell`: the process of one cell that is not the first. Its front starts it, and it ends with its front.

It has no listeners but a relay port. It holds the epoch and the lease itself, so a front that hangs costs the cell nothing,
and whatever ends this process ends nothing else. What it reads from its front: `cell_children.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstem.cluster.certificate import relay_contexts
from mainstem.cluster.membership import Membership, View
from mainstem.cluster.relay import HANDSHAKE_S, Relay, RelayDoor
from mainstem.model.errors import MainstemError
from mainstem.server.cell_serving import Serving
from mainstem.server.lifecycle import handle_signals, loop_factory, set_up_logging, tune_process
from mainstem.server.listeners import Taken
from mainstem.server.protocols import HTTP, PROTOCOLS, load
from mainstem.server.settings import Config

logger = logging.getLogger("mainstem.cluster")

NOT_TAKEN, LOST = 3, 4  # exit codes: another was quicker; the cell is another's by now


def run_cell_process(config: Config, *, reload: Callable[[], Config]) -> int:
    set_up_logging(config)
    tune_process()
    for one in PROTOCOLS:
        for entry in one.doors:
            load(entry.server)
    load(HTTP.server)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_CellProcess(config, reload).run())


class _CellProcess:
    def __init__(self, config: Config, reload: Callable[[], Config]) -> None:
        self._config, self._reload = config, reload
        self._serving: Serving | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        stopping = handle_signals(lambda: self._serving.app if self._serving is not None else None, self._reload)
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        reading = loop.create_task(lines.readline())
        stopped = loop.create_task(stopping.wait())
        await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set() or not (line := reading.result()):
            return 0
        facts = json.loads(line)["take"]
        try:
            if not await self._take(facts):
                return NOT_TAKEN
        except MainstemError as error:
            logger.error("cell %d is not served: %s", facts["cell"], error)
            return 1
        return await self._serve(facts, lines, stopped)

    async def _take(self, facts: dict[str, Any]) -> bool:
        config, loop = self._config, asyncio.get_running_loop()
        config.kafka.advertised_host = config.kafka.advertised_host or facts["host"]
        config.kafka.advertised_port = config.kafka.advertised_port or facts["ports"].get("kafka", 0)
        config.kafka.advertised_tls_port = config.kafka.advertised_tls_port or facts["ports"].get("kafkas", 0)
        cell, dsn = int(facts["cell"]), config.cluster.postgres
        changed = asyncio.Event()
        listening, connecting = relay_contexts(bytes.fromhex(facts["secret"]))
        relay = Relay(connecting, lambda: membership.view)

        def see(view: View) -> None:
            loop.call_soon_threadsafe(changed.set)
            loop.call_soon_threadsafe(relay.look_again)

        membership = self._membership = Membership(dsn, facts["name"], self._lost, see)
        await asyncio.to_thread(membership.follow)
        directory = Path(config.data.directory).resolve()
        self._serving = serving = Serving(config, membership, relay, directory, self._lost)
        port = config.cluster.cell_ports + cell if config.cluster.cell_ports else 0
        door = await loop.create_server(
            lambda: RelayDoor(serving.find, serving.ready_for, serving.opening),
            config.listeners.host,
            port,
            ssl=listening,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        relay_port = door.sockets[0].getsockname()[1]
        if facts.get("heir"):
            await serving.prepare(cell, facts["epoch"])
            if not await self._wait_for_release(facts, changed):
                return False
            facts["reason"] = membership.view.cells[cell].reason
        serving.expect(cell)
        epoch = await asyncio.to_thread(
            membership.take, cell, facts["epoch"], facts["reason"], early=facts["early"], relay_port=relay_port
        )
        if epoch is None:
            return False
        logger.warning("taking cell %d, epoch %d: %s", cell, epoch, facts["reason"])
        try:
            await serving.start(cell, epoch, Taken())
        except BaseException:
            await serving.let_go(cell, f"{facts['name']} could not serve it")
            raise
        gc.enable()
        return True

    async def _wait_for_release(self, facts: dict[str, Any], changed: asyncio.Event) -> bool:
        """As the heir of an owner that serves. False: another is to have it, or has it."""
        while True:
            changed.clear()
            cell = self._membership.view.cells[int(facts["cell"])]
            if cell.epoch != facts["epoch"]:
                return False
            if cell.owner is None or cell.lease_s < 0:
                return True
            if cell.wanted != facts["name"]:
                return False
            await changed.wait()

    async def _serve(self, facts: dict[str, Any], lines: asyncio.StreamReader, stopped: asyncio.Task[Any]) -> int:
        assert self._serving is not None
        reading = asyncio.get_running_loop().create_task(lines.readline())
        await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and not reading.result():
            os._exit(1)  # the front is gone, as if this had been its machine: another broker takes the cell
        reason = json.loads(reading.result())["leave"] if reading.done() else f"{facts['name']} was stopped"
        await self._serving.hand_over(reason)
        self._membership.stop()
        return 0

    def _lost(self, reason: str) -> None:
        """In any thread: at once, and without a word to clients."""
        logger.critical("this process stops serving: %s", reason)
        logging.shutdown()
        os._exit(LOST)
