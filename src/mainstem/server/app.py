"""The wiring: one broker, its protocols' listeners, the HTTP door. The only place that knows them all."""

from __future__ import annotations

import asyncio
import importlib
import logging
import ssl
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mainstem.admin.rates import Rates
from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.policy import Policy
from mainstem.log.logs import LogLimits
from mainstem.model.compiled import COMPILED
from mainstem.model.errors import Overloaded
from mainstem.protocols.admission import Admission
from mainstem.protocols.reactor import Listener, let_go, listen
from mainstem.protocols.unsent import Unsent
from mainstem.server.listeners import Taken, check_bind, ports_of, take_ports
from mainstem.server.settings import Config, Tls
from mainstem.server.tls import TWINS, load_certificate, make_context
from mainstem.storage.directory import DataDirectory

logger = logging.getLogger("mainstem.server")

COMPILE_FIX = (
    "install a C compiler and run: pip install --force-reinstall --no-deps mainstem (in a checkout: make setup)"
)

TRIES_MAX = 2  # of "Try it" at once: each takes a thread for seconds

# Adding a protocol is one folder and one line: listener name, module, class.
PROTOCOLS = (
    ("mqtt", "mainstem.protocols.mqtt.server", "MqttServer"),
    ("ws", "mainstem.protocols.mqtt.server", "MqttWebSocketServer"),
    ("kafka", "mainstem.protocols.kafka.adapter", "KafkaServer"),
    ("amqp", "mainstem.protocols.amqp.adapter", "AmqpServer"),
)


def broker_options(config: Config) -> BrokerOptions:
    known = Policy.__dataclass_fields__
    defaults = Policy(**{name: value for name, value in asdict(config.topics).items() if name in known})
    rules = {
        topic_filter: {name: value for name, value in asdict(policy).items() if value is not None}
        for topic_filter, policy in config.policies.items()
    }
    given = config.limits
    limits = LogLimits(
        open_files_max=given.open_files_max,
        dedicated_logs_max=given.dedicated_logs_max,
        topics_max=given.topics_max,
        unsynced_bytes_max=given.unsynced_bytes_per_log_max,
    )
    return BrokerOptions(Path(config.data.directory), defaults, rules, limits)


class App:
    """Start it, ask it for its ports, stop it. With `move_ports` a taken port is moved, and `notices` say so."""

    def __init__(self, config: Config, *, move_ports: bool = False) -> None:
        self.config = config
        self.broker = Broker(broker_options(config))
        self.servers: dict[str, Any] = {}
        self.ports: dict[str, int] = {}
        self.notices: list[str] = []
        self.started_s = time.time()
        self.rates = Rates(self)
        self.ready = False
        self._move_ports = move_ports
        limits = config.limits
        self._admission = Admission(limits.connections_per_address_max, limits.connections_per_address_rate)
        self.unsent = Unsent(limits.output_bytes_total_max)
        self._directory: DataDirectory | None = None
        self._tls: ssl.SSLContext | None = None
        self._tries = 0
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Ready to serve once this returns; on failure everything taken so far is given back."""
        taken = Taken()
        try:
            self._tls = make_context(self.config.tls)
            self._directory = DataDirectory(Path(self.config.data.directory))
            taken = take_ports(self.config.listeners, move=self._move_ports, tls=self._tls is not None)
            self._tell_ports(taken)
            await self.broker.open()
            self.apply_live_settings()
            check_bind(self.config.listeners, users=bool(self.broker.access.users))
            self._make_servers()
            applied = self.broker.recover_journal()
            logger.info("recovered %d entries of state", applied)
            if not COMPILED:
                logger.warning(
                    "plain Python is used instead of the compiled modules, several times slower: %s", COMPILE_FIX
                )
            self.broker.start()
            await self.broker.staging.recover()
            await self._listen(taken)
        except BaseException:
            taken.close()
            if self._directory is not None:
                self._directory.release()
            raise
        self.ready = True

    async def try_it(self, protocol: str, topic: str, value: str, login: tuple[str, str]) -> list[dict[str, Any]]:
        """The console's "Try it": one publish by a protocol, its arrival by all of them, through the real ports."""
        from mainstem.server.round_trip import round_trip

        if self._tries >= TRIES_MAX:
            raise Overloaded(f"{TRIES_MAX} are being tried already", fix="try again in a moment")
        host = self.config.listeners.host
        self._tries += 1
        try:
            found = await asyncio.to_thread(round_trip, self.ports, host, protocol, topic, value.encode(), login)
        finally:
            self._tries -= 1
        return [arrival.to_document() for arrival in found]

    async def stop(self) -> None:
        """Take no one new, say goodbye, write and sync everything, mark it clean."""
        self.ready = False
        for listener in self._listeners:
            listener.close()
        for server in self.servers.values():
            server.close_all("the broker is shutting down")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.close()
        let_go(self._listeners)
        if self._directory is not None:
            self._directory.release()

    def apply_live_settings(self) -> None:
        """At the start, and again when SIGHUP changed something: those who keep a copy are told."""
        limits = self.config.limits
        self._admission.per_address_max = limits.connections_per_address_max
        self._admission.per_address_rate = limits.connections_per_address_rate
        self.unsent.bytes_max = limits.output_bytes_total_max
        self.broker.access.failures_max = limits.login_failures_max
        self.broker.ticker.unsynced_bytes_max = limits.unsynced_bytes_max
        self.broker.logs.limit_unsynced(limits.unsynced_bytes_per_log_max)
        self.broker.maintenance.space_low_bytes = self.config.data.space_low_bytes
        for name, server in self.servers.items():
            if name != "http":
                server.connections_max = limits.connections_max

    def reload_certificate(self, tls: Tls) -> None:
        """New connections are shown what the files say now; a mistake in them changes nothing."""
        if self._tls is not None:
            load_certificate(self._tls, tls)

    def _listens(self, name: str) -> bool:
        return name in self.ports or any(twin in self.ports for twin, plain in TWINS.items() if plain == name)

    def _tell_ports(self, taken: Taken) -> None:
        """From here on the configuration names the ports that are really used."""
        self.ports = dict(ports_of(taken))
        self.notices = taken.notices
        for name, port in self.ports.items():
            setattr(self.config.listeners, f"{name}_port", port)

    def _make_servers(self) -> None:
        for name, module, class_name in PROTOCOLS:
            if not self._listens(name):
                continue  # switched off: its journaled state is kept untouched
            make = getattr(importlib.import_module(module), class_name)
            self.servers[name] = make(self.broker, self.config)
            self.servers[name].admission = self._admission
            self.servers[name].unsent = self.unsent
            self.unsent.listeners.append(self.servers[name].set_tight)
            self.servers[name].out_bytes_max = self.config.limits.output_bytes_max
            self.broker.access.listeners.append(partial(self.servers[name].end_logins, self.broker.access.holds))
        if self._listens("http"):
            from mainstem.admin.server import AdminServer

            self.servers["http"] = AdminServer(self)

    async def _listen(self, taken: Taken) -> None:
        loop = asyncio.get_running_loop()
        backlog = self.config.listeners.backlog
        self._tasks.append(loop.create_task(self.rates.run()))
        limits = self.config.limits
        for server in self.servers.values():
            self._tasks.append(loop.create_task(server.run_deadlines()))
        for name, one in taken.sockets.items():
            server = self.servers[TWINS.get(name, name)]
            secured = name in TWINS
            self._listeners.append(
                await listen(
                    server,
                    one,
                    backlog=backlog,
                    now_ns=self.broker.clock.now_ns,
                    tls=self._tls if secured else None,
                    handshake_seconds=limits.login_ms / 1000,
                )
            )
