"""NATS: subjects are topics, a publish is appended once, and every protocol reads it.

Bytes are `wire`'s and `outbound`'s matter, publishes that somebody must look at `publishing`'s. Commands of one socket read
are handled in order; what they publish is written and delivered by the tick that follows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import time
from array import array
from base64 import b32encode, urlsafe_b64encode
from dataclasses import replace
from typing import Any

from mainstem.broker.broker import DEFAULT_NAMESPACE, Broker
from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.delivery.ticker import SHARE_BYTES
from mainstem.broker.delivery.turns import SLICE_NS
from mainstem.broker.identity.login import Shown
from mainstem.broker.identity.nkeys import is_credentials, user_of_credentials
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Action, Principal
from mainstem.model.crossing import nats_message
from mainstem.model.errors import InvalidName, MainstemError, QuotaExceeded
from mainstem.model.topic import filter_of_nats
from mainstem.model.topic_filter import is_pattern
from mainstem.protocols.connection import HOLD_QUEUE, HOLD_TURN, OUT_BYTES_MAX, Connection, Server
from mainstem.protocols.login import keep_login, log_in, shown_by, tell_refused
from mainstem.protocols.metering import Metering
from mainstem.protocols.nats import commands
from mainstem.protocols.nats.commands import WireError
from mainstem.protocols.nats.jetstream import acks
from mainstem.protocols.nats.jetstream.api import JetStream
from mainstem.protocols.nats.jetstream.infos import API_LEVEL
from mainstem.protocols.nats.listening import Listening
from mainstem.protocols.nats.monitoring import Monitoring
from mainstem.protocols.nats.outbound import Encoder, Outbound, PlainSink, Subscription
from mainstem.protocols.nats.publishing import Publisher, publish
from mainstem.protocols.nats.session import Options, Subscriptions
from mainstem.protocols.nats.wire import Inbound, error_line
from mainstem.protocols.porter import stays
from mainstem.protocols.upgrade import HANDSHAKE, UpgradedTransport

logger = logging.getLogger("mainstem.nats")

VERSION = "2.14.5"  # nats-server's whose core this speaks: clients choose what they dare by it
PING_S = 120
PINGS_MAX = 2  # unanswered; then the connection is stale
SUBSCRIPTIONS_MAX = 100_000  # per connection
PENDING_BYTES_MAX = 64 << 20  # of live-only messages that a client left unread
TURN_BYTES = 1 << 20
NONCE_BYTES = 11
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000


class NatsServer(Server):
    """The TCP listener."""

    reads_in_place = True
    turn_bytes = alone_bytes = TURN_BYTES

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.broker = broker
        self.config = config
        self.login_s = max(1, config.limits.login_ms // 1000)
        self.payload_max = config.topics.message_bytes_max
        self.server_id = "N" + b32encode(os.urandom(35)).decode()[:55]
        self.draining = False
        self.clients_total = self.subscribed_total = self.slow_consumers = 0
        self.monitoring = Monitoring(self, VERSION)
        self._listening: dict[str, Listening] = {}
        self._jetstreams: dict[str, JetStream] = {}
        self._publishers: dict[tuple[Namespace, Principal], Publisher] = {}
        self.encoder = Encoder(self._translate)
        self.turn_out_bytes_max = OUT_BYTES_MAX  # collected for one client before it is written
        broker.access.listeners.append(self._rights_changed)

    def make_connection(self) -> asyncio.Protocol:
        self.clients_total += 1
        return NatsConnection(self, self.clients_total)

    def listening(self, namespace: Namespace) -> Listening:
        found = self._listening.get(namespace.name)
        if found is None or found.namespace is not namespace:
            found = self._listening[namespace.name] = Listening(namespace)
        return found

    def jetstream(self, namespace: Namespace) -> JetStream:
        found = self._jetstreams.get(namespace.name)
        if found is None or found.namespace is not namespace:
            found = self._jetstreams[namespace.name] = JetStream(self, namespace, self.listening(namespace))
        return found

    def close_all(self, reason: str) -> None:
        """Lame duck: clients that know of other servers go there."""
        self.draining = True
        for connection in list(self.connections):
            assert isinstance(connection, NatsConnection)
            connection.send_info()
        super().close_all(reason)

    async def settle(self) -> None:
        for one in self._jetstreams.values():
            await one.settle()

    def set_tight(self, tight: bool) -> None:
        self.turn_out_bytes_max = SHARE_BYTES if tight else OUT_BYTES_MAX
        for connection in self.connections:
            assert isinstance(connection, NatsConnection)
            connection.outbound.bytes_max = self.turn_out_bytes_max

    def identity(self) -> dict[str, Any]:
        return {"name": "mainstem", "id": self.server_id, "ver": VERSION, "jetstream": True}

    def publisher(self, namespace: Namespace, principal: Principal) -> Publisher:
        """Shared by the connections of one user."""
        found = self._publishers.get((namespace, principal))
        if found is None:
            found = self._publishers[namespace, principal] = Publisher(self.jetstream(namespace), principal)
        return found

    def _rights_changed(self) -> None:
        self._publishers.clear()  # who is connected keeps its own, which asks again

    def _translate(self, record: RecordRef) -> tuple[bytes, bytes] | None:
        """Headers and reply of another protocol's record; None: it has expired."""
        return nats_message(record.outline(), self.broker.clock.now_ns())


class NatsMetering(Metering):
    __slots__ = ()

    connection: NatsConnection

    def published_count(self) -> int:
        return self.connection.inbound.messages

    def end(self, error: QuotaExceeded) -> None:
        self.connection._fail(commands.QUOTA)


class NatsConnection(Connection):
    """One client."""

    metered_by = NatsMetering

    __slots__ = (
        "client_id",
        "client_name",
        "draining",
        "inbound",
        "jetstream",
        "listening",
        "namespace",
        "nonce",
        "options",
        "outbound",
        "pings_out",
        "principal",
        "sink",
        "subscriptions",
        "told",
    )

    server: NatsServer

    def __init__(self, server: NatsServer, number: int) -> None:
        super().__init__(server)
        self.client_id = str(number)
        self.client_name = ""
        self.draining = False
        self.nonce = ""  # to be signed by who logs in by an nkey
        self.options = Options(verbose=False, pedantic=False)
        self.outbound = Outbound(self, server.ticker, server.encoder)
        self.outbound.bytes_max = server.turn_out_bytes_max
        self.inbound = Inbound(0)  # nobody publishes before the login
        self.inbound.connection, self.inbound.outbound = self, self.outbound
        self.inbound.dispatcher = server.broker.dispatcher
        self.principal: Principal | None = None
        self.namespace: Namespace | None = None
        self.listening: Listening | None = None
        self.jetstream: JetStream | None = None
        self.sink: PlainSink | None = None
        self.subscriptions = Subscriptions()
        self.pings_out = 0
        self.told = False  # whether its first PONG was sent

    # -- life ------------------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        access, identity = self.server.broker.access, self.server.broker.identity
        if access.by_nkey() or identity.tokens is not None:  # clients send a JWT only to who asks for a signature
            self.nonce = urlsafe_b64encode(os.urandom(NONCE_BYTES)).decode().rstrip("=")
        self.inbound.fresh = self.may_upgrade
        self.send_info()
        if access.open and self.server.broker.placement.elsewhere(DEFAULT_NAMESPACE) is None:
            self._log_in(identity.login_now(Shown()))
        self._watch()

    def send_info(self, **more: Any) -> None:
        server, access = self.server, self.server.broker.access
        peer = self.transport.get_extra_info("peername")
        host = self.transport.get_extra_info("sockname")
        info: dict[str, Any] = {
            "server_id": server.server_id,
            "server_name": "mainstem",
            "version": VERSION,
            "proto": 1,
            "go": "",
            "host": host[0] if isinstance(host, tuple) else "",
            "port": host[1] if isinstance(host, tuple) else 0,
            "headers": True,
            "max_payload": server.payload_max,
            "jetstream": True,
            "api_lvl": API_LEVEL,
            "client_id": int(self.client_id),
            "client_ip": peer[0] if isinstance(peer, tuple) else "",
            **({"auth_required": True} if not access.open else {}),
            **({"nonce": self.nonce} if self.nonce else {}),
            **(
                {f"tls_{server.config.nats.tls}": True, "tls_verify": _asks_back(server.tls)}
                if self.may_upgrade
                else {}
            ),
            **({"ldm": True} if server.draining else {}),
            **more,
        }
        self.send(b"INFO " + json.dumps(info).encode() + b"\r\n")

    @property
    def may_upgrade(self) -> bool:
        """On the plain port of a broker with a certificate. (TLS, WebSocket: a transport of their own.)"""
        return self.server.tls is not None and hasattr(self.transport, "set_protocol") and not self.is_secure

    @property
    def is_secure(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is not None

    def _upgrade(self, data: bytes) -> None:
        assert self.server.tls is not None
        self.server.deadlines.watch(self, self.server.login_s, however=True)
        UpgradedTransport(self, self.server.tls, self._watch).on_data(data)

    def _watch(self) -> None:
        """A login has its time; whoever is logged in is pinged when silent."""
        known = self.principal is not None
        self.server.deadlines.watch(self, PING_S if known else self.server.login_s, however=not known)

    def on_lost(self) -> None:
        for one in list(self.subscriptions.by_sid.values()):
            self.drop(one)
        if self.sink is not None:
            self.server.broker.pump.stop(self.sink)
        self.server.monitoring.left(self)
        self.inbound.forget()

    def on_silence(self) -> None:
        if self.principal is None:
            self._fail(commands.AUTHENTICATION_TIMEOUT)
        elif self.pings_out >= PINGS_MAX:
            self._fail(commands.STALE)
        else:
            self.pings_out += 1
            self.send(b"PING\r\n")
            self.server.deadlines.watch(self, PING_S)

    def logged_in(self) -> Principal | None:
        return self.principal

    def end_login(self) -> None:
        self._fail(commands.AUTHORIZATION)

    def _fail(self, text: str) -> None:
        """nats-server's last word, where it has one, then the end."""
        if text:
            self.send(error_line(text))
        self.close(text or "broke the protocol", linger=bool(text))

    # -- what it sends ---------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        self.pings_out = 0
        if self.inbound.fresh:
            self.inbound.fresh = False
            if data[0] == HANDSHAKE:
                self._upgrade(data)
                return
            if self.server.config.nats.tls == "required":
                self._fail(commands.TLS_REQUIRED)
                return
        self.inbound.receive(data)
        if not self.held & (HOLD_QUEUE | HOLD_TURN) and not self.draining:
            self.handle(None, self.inbound.messages_in)
            if self.server.broker.ticker.behind and len(data) >= SHARE_BYTES:
                self.server.broker.ticker.outrun(self)

    def handle(self, event: tuple[Any, ...] | None, before: int, failure: Exception | None = None) -> None:
        """Commands until none is whole, one must be decided elsewhere first, or this turn's slice is over.

        `event` or `failure`: what the first of them came to, if they were looked at where they lay (`Inbound.take`).
        """
        inbound, self.draining = self.inbound, True
        time_ms, until_ns = self.server.broker.clock.now_ns() // NS_PER_MS, time.monotonic_ns() + SLICE_NS
        try:
            if failure is not None:
                raise failure
            if event is None:
                event = inbound.next(time_ms)
            while event is not None:
                self._handle(event)
                if self.closing or self.held & HOLD_QUEUE:
                    break
                if time.monotonic_ns() >= until_ns:
                    self.wait_for_turn()
                    break
                event = inbound.next(time_ms)
        except WireError as error:
            self._fail(error.text if self.principal is not None else commands.AUTHORIZATION)
        except Exception:
            self.break_off()
        finally:
            self.draining = False
        self.server.counters.messages_in += inbound.messages_in - before
        self.note_unfinished()
        if inbound.messages_in != before and self.server.broker.ticker.pressed:
            self.server.broker.ticker.press(self)

    def on_released(self) -> None:
        """What was read before is handled before more is read."""
        if self.inbound.has_more and not self.draining:
            self.handle(None, self.inbound.messages_in)

    def note_unfinished(self) -> None:
        self.server.unfinished.note(self, self.inbound.kept_bytes())

    def _handle(self, command: tuple[Any, ...]) -> None:
        kind = command[0]
        if self.principal is None and kind != commands.CONNECT and not self.server.broker.access.open:
            raise WireError(commands.AUTHORIZATION)
        if kind == commands.PING:
            self.send(b"PONG\r\n")
            if not self.told and self.options.protocol:
                account = self.namespace.name if self.namespace is not None else ""
                self.send_info(connect_info=True, remote_account=account)
            self.told = True
            return
        if kind == commands.PONG:
            return
        if kind == commands.CONNECT:
            self._connect(command[1])
            return
        if self.principal is None:
            raise WireError(commands.AUTHORIZATION)
        if kind in (commands.PUB, commands.HPUB):
            publish(self, *command)
        elif kind == commands.SUB:
            self._subscribe(*command[1:])
        elif kind == commands.UNSUB:
            self._unsubscribe(*command[1:])
        else:
            raise WireError(commands.UNKNOWN_OPERATION)

    def ok(self) -> None:
        if self.options.verbose:
            self.send(b"+OK\r\n")

    # -- logging in ------------------------------------------------------------------------------------------------

    def _connect(self, text: bytes) -> None:
        self.options = Options.parse(text)
        self.client_name = self.options.name
        identity = b"" if self.options.echo else b"nats-" + os.urandom(12).hex().encode()
        self.inbound.identity = self.outbound.identity = identity
        self.inbound.verbose, self.inbound.no_responders = self.options.verbose, self.options.no_responders
        self.inbound.takes_headers = self.outbound.headers = self.options.headers
        for one in list(self.subscriptions.by_sid.values()):  # of before: a second CONNECT begins again
            self.drop(one)
        if is_credentials(self.options.jwt):
            now_s = self.server.broker.clock.now_ns() / NS_PER_S
            self.options.nkey, self.options.jwt = user_of_credentials(self.options.jwt, now_s), ""
            if not self.options.nkey:
                raise WireError(commands.AUTHORIZATION)
        shown = shown_by(self, *self.options.login())
        if self.options.nkey:
            shown = replace(shown, signed=(self.options.nkey, self.nonce.encode(), self.options.signature))
        log_in(self, self.server.broker.identity, shown, self._admit, lambda _: self._fail(commands.AUTHORIZATION))

    def _admit(self, principal: Principal) -> None:
        if not stays(self, principal):
            return
        try:
            self._log_in(principal)
        except WireError as error:
            self._fail(error.text)
        else:
            self.ok()

    def _log_in(self, principal: Principal | None) -> None:
        if principal is None:
            return
        try:
            namespace = self.server.broker.namespace(principal.namespace)
        except MainstemError:
            raise WireError(commands.AUTHORIZATION) from None
        try:
            self.server.broker.quotas.enter(self.metering, namespace, "" if principal.anonymous else principal.name)
        except QuotaExceeded:
            raise WireError(commands.CONNECTIONS) from None
        self.principal = principal
        keep_login(self, principal)
        self.inbound.payload_max = self.server.payload_max
        self.inbound.publisher = self.server.publisher(namespace, principal)
        self.outbound.allows = None if principal.admin else self._may_read
        if self.namespace is not namespace:
            self.namespace = namespace
            self.listening = self.server.listening(namespace)
            self.jetstream = self.server.jetstream(namespace)
            self.sink = PlainSink(self, namespace)
        self._watch()

    def may(self, action: Action, topic: bytes) -> bool:
        assert self.principal is not None
        return self.server.broker.access.allows(self.principal, action, topic)

    def _may_read(self, topic: bytes) -> bool:
        """A filter may overlap topics that its subscriber may not read: each delivery is checked."""
        return self.may(Action.CONSUME, topic)

    # -- publishing ------------------------------------------------------------------------------------------------

    def refuse_publish(self, tokens: list[str], prefix: str = "$JS.API.", why: str = "") -> None:
        name = prefix + ".".join(tokens)
        if not why:
            tell_refused(self, self.server.broker.audit, "publish", name)
        words = f'Permissions Violation for Publish to "{name}"'  # leaves the connection open
        self.send(error_line(f"{words}: {why}" if why else words))

    def takes_acks(self, front: bytes) -> bool:
        """Whether acks of one consumer may come together; `front`: their subject up to its name. Else each is looked at."""
        assert self.jetstream is not None
        return self.jetstream.takes_acks(front)

    def on_acks(self, front: bytes, offsets: array[int], told: array[int]) -> None:
        assert self.jetstream is not None
        acks.handle_many(self.jetstream, self, front, offsets, told)

    def write_published(self) -> None:
        """What it published before is delivered before what follows."""
        if self.inbound.published:
            self.inbound.published = False
            self.server.broker.ticker.write_now()

    # -- subscribing -----------------------------------------------------------------------------------------------

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        assert self.listening is not None
        if sid in self.subscriptions.by_sid:
            self.ok()
            return
        try:
            topic_filter = filter_of_nats(subject)
        except InvalidName:
            self.send(error_line(commands.INVALID_SUBJECT))
            return
        if not self._may_listen(subject, topic_filter):
            using = f' using queue "{queue.decode(errors="replace")}"' if queue else ""
            name = subject.decode(errors="replace")
            tell_refused(self, self.server.broker.audit, "consume", name)
            self.send(error_line(f'Permissions Violation for Subscription to "{name}"{using}'))
            return
        if len(self.subscriptions.by_sid) >= SUBSCRIPTIONS_MAX:
            self.send(error_line(commands.SUBSCRIPTIONS))
            return
        self.write_published()
        one = Subscription(self, self.outbound, sid, topic_filter, queue, subject)
        self.server.subscribed_total += 1
        self.subscriptions.add(one)
        try:
            self.listening.add(one)
        except MainstemError as error:
            self.subscriptions.remove(one)
            logger.info("%s: subscription to %r refused: %s", self.label(), subject, error)
            self.send(error_line(commands.INVALID_SUBJECT))
            return
        self.ok()

    def _may_listen(self, subject: bytes, topic_filter: bytes) -> bool:
        """An inbox of its own needs no right: whoever knows its random name made it."""
        assert self.principal is not None
        if self.principal.admin:
            return True
        first, _, rest = subject.partition(b".")
        if first == b"_INBOX" and rest and not is_pattern(filter_of_nats(rest.partition(b".")[0])):
            return True
        return self.server.broker.access.allows_filter(self.principal, Action.CONSUME, topic_filter)

    def _unsubscribe(self, sid: bytes, limit: int) -> None:
        self.write_published()
        one = self.subscriptions.by_sid.get(sid)
        if one is not None:
            one.limit = limit
            if not limit or one.delivered >= limit:
                self.drop(one)
        self.ok()

    def drop(self, one: Subscription) -> None:
        self.subscriptions.remove(one)
        if self.listening is not None:
            self.listening.remove(one)

    # -- delivering ------------------------------------------------------------------------------------------------

    @property
    def messages_in(self) -> int:
        return self.inbound.messages_in

    @property
    def messages_out(self) -> int:
        return self.outbound.messages

    def is_full(self) -> bool:
        return self.outbound.full

    def deliver_live(self, one: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if not one.closed and self.takes_live():
            self.outbound.write_message(one, subject, reply, headers, payload)

    def takes_live(self) -> bool:
        """Whether it is there; who leaves too much of live-only messages unread is cut off."""
        if self.closing:
            return False
        if self.unsent_bytes() > PENDING_BYTES_MAX:
            self.server.slow_consumers += 1
            logger.info("%s disconnected: slow consumer", self.label())
            self.abort()
            return False
        return True

    def send(self, data: bytes) -> None:
        self.outbound.write(data)

    def flush(self) -> None:
        self.outbound.flush()

    def unsent_bytes(self) -> int:
        return self.outbound.out_bytes + super().unsent_bytes()

    def on_blocked(self) -> None:
        """Its commands go on: what it is owed waits in the log."""
        self.outbound.blocked = True

    def on_room(self) -> None:
        self.outbound.blocked = False
        self.resume()

    def resume(self) -> None:
        """It has room: whatever waited for that is read from the log."""
        if self.sink is None or self.namespace is None or self.listening is None:
            return
        if not self.sink.live:
            self.namespace.resume(self.sink)
        for queue in {one.queue for one in self.subscriptions.by_sid.values() if one.queue}:
            group = self.listening.group(queue)
            if group is not None and not group.live:
                self.namespace.resume(group)


def _asks_back(context: ssl.SSLContext | None) -> bool:
    """Whether clients need a certificate, too."""
    return context is not None and context.verify_mode is ssl.CERT_REQUIRED
