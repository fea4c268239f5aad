"""The wiring: one broker, its protocols' listeners, the HTTP door. The only place that knows them all."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mainstem.admin.connections import connections_in
from mainstem.admin.events import Events
from mainstem.admin.history.keeper import History
from mainstem.admin.otlp import OtlpExporter
from mainstem.admin.rates import Rates
from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.identity.login import IdentityOptions
from mainstem.broker.identity.tokens import TokenOptions
from mainstem.broker.rights.audit import AuditOptions
from mainstem.broker.sessions.keeper import SessionLimits
from mainstem.broker.topics.policy import Policy
from mainstem.log.logs import LogLimits
from mainstem.model.errors import ConfigError, Overloaded
from mainstem.protocols.admission import Admission
from mainstem.protocols.connection import Server
from mainstem.protocols.large import release_memory
from mainstem.protocols.porter import with_porters
from mainstem.protocols.reactor import Listener, let_go, listen
from mainstem.protocols.unfinished import Unfinished
from mainstem.protocols.unsent import Unsent
from mainstem.server.listeners import Taken, check_bind, ports_of, take_ports, take_twins
from mainstem.server.protocols import HTTP, PROTOCOLS, doors, load, protocol_of_listener
from mainstem.server.settings import Config, Tls, Topics
from mainstem.server.settings import Policy as PolicySettings
from mainstem.server.tls import TWINS, load_certificate, load_revoked, make_context
from mainstem.server.watchdog import Watchdog
from mainstem.storage.directory import DataDirectory
from mainstem.storage.scheduling import answer_at_once
from mainstem.storage.tier.store import StoreSettings
from mainstem.storage.tier.tier import TierSettings

logger = logging.getLogger("mainstem.server")

WS = "ws"  # the door of all WebSockets
ANSWER_S = 2.0  # that a stop waits for what was read to become durable
TRIES_MAX = 2  # of "Try it" at once: each takes a thread for seconds


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
    kafka, mqtt = config.kafka, config.mqtt
    groups = GroupLimits(
        kafka.session_timeout_min_ms,
        kafka.session_timeout_max_ms,
        kafka.group_rebalance_initial_ms,
        kafka.offsets_retention_ms,
    )
    sessions = SessionLimits(
        retained_max=mqtt.retained_max,
        held_ms_max=mqtt.session_held_ms_max,
        held_messages_max=mqtt.session_held_messages_max,
        held_bytes_max=mqtt.session_held_bytes_max,
    )
    directory, lost_kept_ms = Path(config.data.directory), config.data.lost_kept_ms
    return BrokerOptions(
        directory,
        defaults,
        rules,
        limits,
        groups,
        sessions,
        kafka.cluster_id,
        lost_kept_ms,
        tier_settings(config),
        identity_options(config),
        AuditOptions(config.audit.enabled, config.audit.file, config.audit.retention_ms),
    )


def identity_options(config: Config) -> IdentityOptions:
    given = config.jwt
    tokens = TokenOptions(
        given.keys,
        given.issuer,
        given.audience,
        given.algorithms,
        given.user_claim,
        given.namespace_claim,
        given.roles_claim,
        given.rules_claim,
        given.admin_role,
        given.namespace,
        given.users == "known",
        given.leeway_ms / 1000,
        given.keys_max_age_ms / 1000,
        given.more_issuers,
    )
    return IdentityOptions(tokens, config.tls.client_users, config.limits.login_failures_max, bool(config.oidc.issuer))


def tier_settings(config: Config) -> TierSettings | None:
    """None where no store is set; then no topic may ask for one."""
    given = config.tier
    if not given.store:
        asking: dict[str, Topics | PolicySettings] = {"topics": config.topics, **config.policies}
        for name, one in asking.items():
            asked = f'tier = "{one.tier}"' if one.tier not in (None, "none") else ""
            asked = 'engine = "object"' if one.engine == "object" else asked
            if asked:
                raise ConfigError(
                    f"{name}: {asked}, and no object store is set", fix='[tier] store = "s3://BUCKET/PREFIX"'
                )
        return None
    store = StoreSettings(
        given.store,
        given.endpoint,
        given.region,
        given.path_style,
        given.encryption.removeprefix("none"),
        given.kms_key,
        given.timeout_ms / 1000,
    )
    prices = given.price_stored, given.price_puts, given.price_gets
    return TierSettings(
        store,
        given.cache_bytes,
        given.grace_ms,
        given.manifest_ms,
        given.bundle_bytes,
        given.bundle_ms,
        given.unstored_bytes_max,
        given.backlog_bytes_max,
        given.catalog,
        prices,
    )


class App:
    """Start it, ask it for its ports, stop it. With `move_ports` a taken port is moved, and `notices` say so."""

    def __init__(
        self, config: Config, *, move_ports: bool = False, broker: Broker | None = None, taken: Taken | None = None
    ) -> None:
        """`broker` and `taken`, its ports, are made here unless someone has them already."""
        self.config = config
        self.broker = broker or Broker(broker_options(config))
        self._taken = taken
        self.servers: dict[str, Any] = {}
        self.ports: dict[str, int] = {}
        self.notices: list[str] = []
        self.started_s = time.time()
        self.protocols = protocol_of_listener()
        self.rates = Rates(self)
        self.history = History(self)
        self.events = Events(self)
        self._otlp = OtlpExporter(config.trace.otlp_url) if config.trace.otlp_url else None
        self.asking: Any = None  # made with the HTTP server
        self.cluster: Any = None  # set by whoever runs it as one of several
        self.tokens: Any = None  # likewise
        self.sessions: Any = None  # likewise
        self.live: Any = None  # likewise
        self.forward: Any = None  # likewise, to other cells of a cluster: cell_serving.Forwarding
        self.serves_all = False  # also what it does not listen for: clients come by other brokers
        self.ready = False
        self._move_ports = move_ports
        limits = config.limits
        self._admission = Admission(limits.connections_per_address_max, limits.connections_per_address_rate)
        self.unsent = Unsent(limits.output_bytes_total_max)
        self.unfinished = Unfinished(limits.input_bytes_total_max)
        self.watchdog = Watchdog()
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
            directory, listeners = Path(self.config.data.directory), self.config.listeners
            if directory.exists():  # whoever uses it is the better explanation of a port that is taken
                self._directory = DataDirectory(directory)
            taken = self._taken or take_ports(listeners, move=self._move_ports, tls=self._tls is not None)
            if self._directory is None:  # a broker that may not start creates nothing
                check_bind(
                    listeners,
                    users=bool(self.config.jwt.keys or self.config.tls.client_users or self.config.oidc.issuer),
                )
            if self._taken is None:
                take_twins(taken, listeners)
            self._tell_ports(taken)
            self._directory = self._directory or DataDirectory(directory)
            await self.broker.open()
            if self._otlp is not None:
                self.broker.tracer.exporters.append(self._otlp.put)
            self.apply_live_settings()
            check_bind(listeners, users=not self.broker.access.open)
            self._tell_stranded()
            self._make_servers()
            applied = self.broker.recover_journal()
            logger.info("recovered %d entries of state", applied)
            self.broker.start()
            await self.broker.staging.recover()
            await self.broker.settle_marks()
            await self._listen(taken)
        except BaseException:
            taken.close()
            if self._directory is not None:
                self._directory.release()
            raise
        answer_at_once()
        self.watchdog.start()
        self.ready = True

    async def try_it(
        self, protocol: str, topic: str, value: str, login: tuple[str, str], namespace: str
    ) -> list[dict[str, Any]]:
        """The console's "Try it": one publish by a protocol, its arrival by all of them, through the real ports."""
        from mainstem.server.round_trip import round_trip

        if self._tries >= TRIES_MAX:
            raise Overloaded(f"{TRIES_MAX} are being tried already", fix="try again in a moment")
        host = self.config.listeners.host
        self._tries += 1
        try:
            data = value.encode()
            found = await asyncio.to_thread(round_trip, self.ports, host, protocol, topic, data, login, namespace)
        finally:
            self._tries -= 1
        return [arrival.to_document() for arrival in found]

    def spellings(self, name: bytes) -> dict[str, str]:
        """A topic's name as each protocol spells it."""
        return {one.name: one.spell(name) for one in PROTOCOLS}

    def doors(self) -> list[dict[str, Any]]:
        """Each listener with a command or an address that works."""
        found = []
        for door in doors():
            hints = ((door.name, door.hint, False), (door.tls_name, door.tls_hint, True))
            for name, hint, tls in ((name, hint, tls) for name, hint, tls in hints if name in self.ports):
                port = self.ports[name]
                login = door.login if self.broker.access.users else door.anonymous
                if tls:
                    login = login.replace("SASL_PLAINTEXT", "SASL_SSL")
                snippet = hint.format(port=port, path=self.config.mqtt.ws_path, login=login)
                found.append({"protocol": self.protocols[door.name], "port": port, "tls": tls, "snippet": snippet})
        return found

    async def stop(self) -> None:
        """Take no one new, say goodbye, write and sync everything, mark it clean."""
        self.ready = False
        self.watchdog.stop()
        for listener in self._listeners:
            listener.close()
        await self._answer_what_was_read()
        for server in self.servers.values():
            server.close_all("the broker is shutting down")
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._otlp is not None:
            self._otlp.stop()
        servers = [server for server in self.servers.values() if isinstance(server, Server)]
        for server in servers:
            await server.settle()
        await self.broker.close()
        for server in servers:
            server.let_go()
        let_go(self._listeners)
        if self._directory is not None:
            self._directory.release()

    async def _answer_what_was_read(self) -> None:
        """A publish that was read is going to be stored: its client is told so before it is told goodbye, else it sends it
        again to whoever is next. What does not become durable in ANSWER_S stays in doubt."""
        for server in self.servers.values():
            if isinstance(server, Server):
                server.hear_no_more()
        ticker = self.broker.ticker
        ticker.drain()
        logs = [log for log in self.broker.logs.by_id.values() if not log.is_asleep]
        await ticker.settle([log for log in logs if log.durability.acks_wait and not log.refusal], ANSWER_S)
        await asyncio.sleep(0)  # who waited for it is told in this turn

    def apply_live_settings(self) -> None:
        """At the start, and again when SIGHUP changed something: those who keep a copy are told."""
        limits = self.config.limits
        self._admission.per_address_max = limits.connections_per_address_max
        self._admission.per_address_rate = limits.connections_per_address_rate
        self.unsent.bytes_max = limits.output_bytes_total_max
        self.unfinished.bytes_max = limits.input_bytes_total_max
        self.broker.identity.throttle.free = limits.login_failures_max
        self.broker.ticker.unsynced_bytes_max = limits.unsynced_bytes_max
        self.broker.logs.limit_unsynced(limits.unsynced_bytes_per_log_max)
        self.broker.maintenance.space_low_bytes = self.config.data.space_low_bytes
        self.broker.maintenance.every_s = max(self.config.data.retention_check_ms, 1_000) / 1000
        for name, server in self.servers.items():
            if name != "http":
                server.connections_max = limits.connections_max

    def reload_certificate(self, tls: Tls) -> None:
        """New connections are shown what the files say now; a mistake in them changes nothing."""
        if self._tls is not None:
            load_certificate(self._tls, tls)
            load_revoked(self._tls, tls)

    def _listens(self, name: str) -> bool:
        return (
            self.serves_all
            or name in self.ports
            or any(twin in self.ports for twin, plain in TWINS.items() if plain == name)
        )

    def _tell_ports(self, taken: Taken) -> None:
        """From here on the configuration names the ports that are really used."""
        self.ports = dict(ports_of(taken))
        self.notices = taken.notices
        for name, port in self.ports.items():
            setattr(self.config.listeners, f"{name}_port", port)

    def _tell_stranded(self) -> None:
        """Users of a namespace that does not exist get in nowhere: said at the start, with what mends it."""
        for user in self.broker.access.stranded():
            notice = (
                f"user {user.name} belongs to namespace {user.namespace!r}, which does not exist, and is refused: "
                f"mainstem namespace add {user.namespace}, or mainstem user rm {user.name}"
            )
            logger.warning("%s", notice)
            self.notices.append(notice)

    def _make_servers(self) -> None:
        for name, door in ((door.name, door) for one in PROTOCOLS for door in one.doors):
            if not self._listens(name):
                continue  # switched off: its state is the broker's, and goes on
            self.servers[name] = load(door.server)(self.broker, self.config)
            self.servers[name].protocol = self.protocols[name]
            self.servers[name].admission = self._admission
            self.servers[name].unsent = self.unsent
            self.servers[name].unfinished = self.unfinished
            self.servers[name].turns = self.broker.turns
            self.servers[name].tls = self._tls
            self.unsent.listeners.append(self.servers[name].set_tight)
            self.servers[name].out_bytes_max = self.config.limits.output_bytes_max
            self.broker.access.listeners.append(partial(self.servers[name].end_logins, self.broker.access.holds))
        for one in PROTOCOLS:
            if one.ws_path and one.name in self.servers and WS in self.servers:
                self.servers[WS].serve_path(one.ws_path, self.servers[one.name].make_connection)
        self.broker.removal.clients = partial(connections_in, self)
        self.broker.removal.forget_names = self.history.forget_namespace
        if self._listens(HTTP.name):
            self.servers[HTTP.name] = load(HTTP.server)(self)
        if self.forward is not None:
            for name, server in self.servers.items():
                if name != HTTP.name:
                    with_porters(server, name, self.forward)

    async def _listen(self, taken: Taken) -> None:
        loop = asyncio.get_running_loop()
        backlog = self.config.listeners.backlog
        self._tasks += [loop.create_task(self.rates.run()), loop.create_task(self.history.run())]
        self._tasks.append(loop.create_task(release_memory()))
        limits = self.config.limits
        for server in self.servers.values():
            self._tasks.append(loop.create_task(server.run_deadlines()))
        for name, one in (*taken.sockets.items(), *taken.twins):
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
