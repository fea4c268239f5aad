"""NATS: subjects are topics, a publish is appended once, and every protocol reads it.

Commands of one socket read are handled in order; what they publish is written and delivered by the tick that follows.
Inboxes and subjects that begin with `$` are live only: they go straight to who listens by NATS, and are never stored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from base64 import b32encode
from functools import lru_cache
from typing import Any

from mainstem.broker.access import Action, Principal
from mainstem.broker.broker import Broker
from mainstem.broker.live import RecordRef
from mainstem.broker.namespace import Namespace
from mainstem.broker.ticker import SHARE_BYTES
from mainstem.broker.turns import SLICE_NS
from mainstem.model.crossing import nats_message
from mainstem.model.crossing_nats import header_lines
from mainstem.model.errors import InvalidName, MainstemError, NotAuthorized, Overloaded, QuotaExceeded
from mainstem.model.origin import Origin
from mainstem.model.record import Header
from mainstem.model.topic import filter_of_nats, nats_subject, topic_of_nats
from mainstem.model.topic_filter import is_pattern
from mainstem.protocols.connection import HOLD_QUEUE, Connection, Server
from mainstem.protocols.nats import commands
from mainstem.protocols.nats.commands import WireError
from mainstem.protocols.nats.jetstream.api import PREFIX as JETSTREAM
from mainstem.protocols.nats.jetstream.api import JetStream, NotAllowed
from mainstem.protocols.nats.listening import Listening, PlainSink, is_live_only
from mainstem.protocols.nats.monitoring import Monitoring
from mainstem.protocols.nats.session import Options, Subscription, Subscriptions
from mainstem.protocols.nats.wire import Parser, error_line, message

logger = logging.getLogger("mainstem.nats")

VERSION = "2.14.5"  # nats-server's whose core this speaks: clients choose what they dare by it
PING_S = 120
HOLD_TURN = 8  # beside the reasons to hold that all protocols have: the rest of a large read waits for its turn
PINGS_MAX = 2  # unanswered; then the connection is stale
SUBSCRIPTIONS_MAX = 100_000  # per connection
PENDING_BYTES_MAX = 64 << 20  # of live-only messages that a client left unread
TURN_OUT_BYTES_MAX = 1 << 20  # collected for one client before it is written
USER_INFO = b"$SYS.REQ.USER.INFO"
SUBJECTS_KNOWN_MAX = 65_536

subject_of = lru_cache(SUBJECTS_KNOWN_MAX)(nats_subject)


class NatsServer(Server):
    """The TCP listener."""

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
        self._translated: tuple[int, bytes, bytes, bytes, bytes] | None = None

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

    def translated(self, record: RecordRef) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Subject, reply, headers and payload; once per record, however many listen. None: it has expired."""
        known = self._translated
        if known is not None and known[0] == record.serial:
            return known[1:]
        if record.origin == Origin.NATS:
            headers, reply = record.header(b"ms-nats") or b"", record.header(b"ms-nats-reply") or b""
        else:
            found = nats_message(record.copy(), self.broker.clock.now_ns())
            if found is None:
                return None
            headers, reply = found
        self._translated = (record.serial, subject_of(record.topic), reply, headers, record.value or b"")
        return self._translated[1:]


class NatsConnection(Connection):
    """One client."""

    __slots__ = (
        "client_id",
        "client_name",
        "identity",
        "jetstream",
        "listening",
        "messages",
        "messages_in",
        "messages_out",
        "namespace",
        "options",
        "parser",
        "pings_out",
        "principal",
        "published",
        "sink",
        "subscriptions",
        "told",
        "unread",
        "waiting",
    )

    server: NatsServer

    def __init__(self, server: NatsServer, number: int) -> None:
        super().__init__(server)
        self.client_id = str(number)
        self.client_name = ""
        self.messages = 0  # published and to be stored
        self.identity = b""  # in records of a client that wants no echo
        self.unread = b""  # came in a large read; its turn is yet to come
        self.options = Options(verbose=False, pedantic=False)
        self.parser = Parser(0)  # nobody publishes before the login
        self.principal: Principal | None = None
        self.namespace: Namespace | None = None
        self.listening: Listening | None = None
        self.jetstream: JetStream | None = None
        self.sink: PlainSink | None = None
        self.subscriptions = Subscriptions()
        self.waiting: list[tuple[Any, ...]] = []  # commands behind a login that takes its time
        self.published = False  # since its last command that must come after what it published
        self.pings_out = self.messages_in = self.messages_out = 0
        self.told = False  # whether its first PONG was sent

    # -- life ------------------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        self.send_info()
        access = self.server.broker.access
        if access.open:
            self._log_in(access.login_now("anonymous", b""))
        self.server.deadlines.watch(self, self.server.login_s if self.principal is None else PING_S, however=True)

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
            "client_id": int(self.client_id),
            "client_ip": peer[0] if isinstance(peer, tuple) else "",
            **({"auth_required": True} if not access.open else {}),
            **({"ldm": True} if server.draining else {}),
            **more,
        }
        self.send(b"INFO " + json.dumps(info).encode() + b"\r\n")

    def on_lost(self) -> None:
        for one in list(self.subscriptions.by_sid.values()):
            self._drop(one)
        if self.sink is not None:
            self.server.broker.pump.stop(self.sink)

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

    def published_count(self) -> int:
        return self.messages

    def end_for_quota(self, error: QuotaExceeded) -> None:
        self._fail(commands.QUOTA)

    def _fail(self, text: str) -> None:
        """nats-server's last word, where it has one, then the end."""
        if text:
            self.send(error_line(text))
        self.close(text or "broke the protocol", linger=bool(text))

    # -- what it sends ---------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        """What is more than a share is taken a slice at a time, in turns with other connections."""
        self.pings_out = 0
        if len(data) <= SHARE_BYTES and not self.unread:
            self._take(data)
            return
        self.unread += data
        if not self.held & HOLD_TURN:
            self._read_on()

    def _read_on(self) -> None:
        until_ns, at = time.monotonic_ns() + SLICE_NS, 0
        while at < len(self.unread) and not self.closing:
            self._take(self.unread[at : at + SHARE_BYTES])
            at += SHARE_BYTES
            if time.monotonic_ns() >= until_ns:
                break
        self.unread = self.unread[at:] if not self.closing else b""
        if self.unread:
            self.hold(HOLD_TURN)
            self.server.broker.turns.soon(self._read_on)
        else:
            self.release(HOLD_TURN)

    def _take(self, data: bytes) -> None:
        try:
            found, fault = self.parser.feed(data), None
        except WireError as error:
            found, fault = error.commands, error
        if self.waiting:
            self.waiting += found
        else:
            self._handle_all(found)
        self.server.unfinished.note(self, self.parser.kept_bytes())
        if fault is not None and not self.closing:
            self._fail(fault.text if self.principal is not None else commands.AUTHORIZATION)
        elif self.server.broker.ticker.pressed:
            self.server.broker.ticker.press(self)
        elif self.server.broker.ticker.behind and len(data) >= SHARE_BYTES:
            self.server.broker.ticker.outrun(self)

    def _handle_all(self, found: list[tuple[Any, ...]]) -> None:
        for place, command in enumerate(found):
            if self.closing:
                return
            try:
                self._handle(command)
            except WireError as error:
                self._fail(error.text)
                return
            except Exception:
                self.break_off()
                return
            if self.held & HOLD_QUEUE:
                self.waiting = found[place + 1 :]
                return

    def _handle(self, command: tuple[Any, ...]) -> None:
        kind = command[0]
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
            self._publish(*command)
        elif kind == commands.SUB:
            self._subscribe(*command[1:])
        elif kind == commands.UNSUB:
            self._unsubscribe(*command[1:])
        else:
            raise WireError(commands.UNKNOWN_OPERATION)

    def _ok(self) -> None:
        if self.options.verbose:
            self.send(b"+OK\r\n")

    # -- logging in ------------------------------------------------------------------------------------------------

    def _connect(self, text: bytes) -> None:
        self.options = Options.parse(text)
        self.client_name = self.options.name
        if not self.options.echo:
            self.identity = b"nats-" + os.urandom(12).hex().encode()
        for one in list(self.subscriptions.by_sid.values()):  # of before: a second CONNECT begins again
            self._drop(one)
        name, password = self.options.login()
        principal = self.server.broker.access.login_now(name, password)
        if principal is not None:
            self._log_in(principal)
            self._ok()
            return
        self.hold(HOLD_QUEUE)
        asyncio.get_running_loop().create_task(self._login(name, password))

    async def _login(self, name: str, password: bytes) -> None:
        peer = self.transport.get_extra_info("peername") if self.transport is not None else None
        try:
            principal = await self.server.broker.access.login(name, password, str(peer[0]) if peer else "")
        except (NotAuthorized, Overloaded) as error:
            logger.info("%s: login of %r refused: %s", self.label(), name, error)
            self._fail(commands.AUTHORIZATION)
            return
        if self.closing:
            return
        self._log_in(principal)
        self._ok()
        waiting, self.waiting = self.waiting, []
        self.release(HOLD_QUEUE)
        self._handle_all(waiting)

    def _log_in(self, principal: Principal | None) -> None:
        if principal is None:
            return
        try:
            namespace = self.server.broker.namespace(principal.namespace)
        except MainstemError:
            raise WireError(commands.AUTHORIZATION) from None
        try:
            self.server.broker.quotas.enter(self, namespace, "" if principal.anonymous else principal.name)
        except QuotaExceeded:
            raise WireError(commands.CONNECTIONS) from None
        self.principal = principal
        self.parser.payload_max = self.server.payload_max
        if self.namespace is not namespace:
            self.namespace = namespace
            self.listening = self.server.listening(namespace)
            self.jetstream = self.server.jetstream(namespace)
            self.sink = PlainSink(self, namespace)
        self.server.deadlines.watch(self, PING_S)

    def may(self, action: Action, topic: bytes) -> bool:
        assert self.principal is not None
        return self.server.broker.access.allows(self.principal, action, topic)

    # -- publishing ------------------------------------------------------------------------------------------------

    def _publish(self, kind: int, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if kind == commands.HPUB and not self.options.headers:
            raise WireError("")
        self.server.counters.messages_in += 1
        self.messages_in += 1
        self._ok()
        try:
            topic = topic_of_nats(subject)
        except InvalidName:
            self._no_responders(subject, reply)  # as nats-server: it goes to nobody
            return
        assert self.namespace is not None and self.jetstream is not None
        stream = self.jetstream.streams.capture(topic)
        if stream is None and is_live_only(subject):
            self._publish_live(topic, subject, reply, headers, payload)
            return
        if not self.may(Action.PUBLISH, topic):
            self.refuse_publish([subject.decode(errors="replace")], prefix="")
            return
        if stream is not None:
            self.published = True
            stored = self._stored(b"", headers)
            self.jetstream.publisher.publish(stream, topic, reply, headers, payload, stored, _key_of(headers))
            return
        self.messages += 1
        if self.namespace.refusal is not None:
            self.send(error_line(commands.QUOTA))
            return
        if reply and self.options.no_responders and not self.namespace.listened(topic):
            self._no_responders(subject, reply)
            return
        try:
            self.published = True
            self.namespace.publish(
                topic, payload, key=_key_of(headers), headers=self._stored(reply, headers), origin=Origin.NATS
            )
        except MainstemError as error:  # at most once: nobody waits for an answer
            self.server.counters.messages_dropped += 1
            logger.warning("%s: a message to %r is lost: %s", self.label(), subject, error)

    def refuse_publish(self, tokens: list[str], prefix: str = "$JS.API.") -> None:
        self.send(error_line(f'Permissions Violation for Publish to "{prefix}{".".join(tokens)}"'))

    def _stored(self, reply: bytes, headers: bytes) -> list[Header]:
        stored: list[Header] = []
        if headers:
            stored.append((b"ms-nats", headers))
        if reply:
            stored.append((b"ms-nats-reply", reply))
        if self.identity:
            stored.append((b"ms-client", self.identity))
        return stored

    def _write_published(self) -> None:
        """What it published before is delivered before what follows."""
        if self.published:
            self.published = False
            self.server.broker.ticker.write_now()

    def _publish_live(self, topic: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        assert self.listening is not None
        if subject == USER_INFO and reply:
            self._tell_user(reply)
            return
        self._write_published()
        asked = subject.startswith(JETSTREAM) and self._ask_jetstream(subject, reply, headers, payload)
        receivers = self.listening.live(topic, self)
        for one in receivers:
            one.owner.deliver_live(one, subject, reply, headers, payload)
        if not receivers and not asked:
            self._no_responders(subject, reply)

    def _ask_jetstream(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
        assert self.jetstream is not None
        try:
            return self.jetstream.handle(self, subject, reply, headers, payload)
        except NotAllowed:
            self.refuse_publish([subject.decode(errors="replace")], prefix="")
            return True

    def _tell_user(self, reply: bytes) -> None:
        assert self.principal is not None and self.listening is not None and self.namespace is not None
        data = {"user": self.principal.name, "account": self.namespace.name}
        server = {"name": "mainstem", "id": self.server.server_id, "ver": VERSION, "jetstream": True}
        answer = json.dumps({"server": server, "data": data}).encode()
        for one in self.listening.live(topic_of_nats(reply), self):
            one.owner.deliver_live(one, reply, b"", b"", answer)

    def _no_responders(self, subject: bytes, reply: bytes) -> None:
        """Its own subscription to the reply hears that nobody is there, if it asked to be told."""
        if not reply or not self.options.no_responders or self.listening is None:
            return
        status = b"NATS/1.0 503\r\nNats-Subject: " + subject + b"\r\n\r\n"
        try:
            found = self.listening.live(topic_of_nats(reply), self)
        except InvalidName:
            return
        for one in found:
            if one.owner is self and not one.queue:
                self.deliver_live(one, reply, b"", status, b"")
                return

    # -- subscribing -----------------------------------------------------------------------------------------------

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        assert self.listening is not None
        if sid in self.subscriptions.by_sid:
            self._ok()
            return
        try:
            topic_filter = filter_of_nats(subject)
        except InvalidName:
            self.send(error_line(commands.INVALID_SUBJECT))
            return
        if not self._may_listen(subject, topic_filter):
            using = f' using queue "{queue.decode(errors="replace")}"' if queue else ""
            name = subject.decode(errors="replace")
            self.send(error_line(f'Permissions Violation for Subscription to "{name}"{using}'))
            return
        if len(self.subscriptions.by_sid) >= SUBSCRIPTIONS_MAX:
            self.send(error_line(commands.SUBSCRIPTIONS))
            return
        self._write_published()
        one = Subscription(self, sid, topic_filter, queue, subject)
        self.server.subscribed_total += 1
        self.subscriptions.add(one)
        try:
            self.listening.add(one)
        except MainstemError as error:
            self.subscriptions.remove(one)
            logger.info("%s: subscription to %r refused: %s", self.label(), subject, error)
            self.send(error_line(commands.INVALID_SUBJECT))
            return
        self._ok()

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
        self._write_published()
        one = self.subscriptions.by_sid.get(sid)
        if one is not None:
            one.limit = limit
            if not limit or one.delivered >= limit:
                self._drop(one)
        self._ok()

    def _drop(self, one: Subscription) -> None:
        self.subscriptions.remove(one)
        if self.listening is not None:
            self.listening.remove(one)

    # -- delivering ------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        return self.blocked or self.out_bytes > TURN_OUT_BYTES_MAX

    def deliver(self, one: Subscription, record: RecordRef) -> bool:
        """A stored record; False where this subscription is not to have it."""
        if one.closed or record.stamp < one.start:
            return False
        if self.identity and record.origin == Origin.NATS and record.header(b"ms-client") == self.identity:
            return False
        if not self.may(Action.CONSUME, record.topic):
            return False
        found = self.server.translated(record)
        if found is None:
            return False
        self._send_message(one, *found)
        return True

    def deliver_live(self, one: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if one.closed or self.closing:
            return
        if self.unsent_bytes() > PENDING_BYTES_MAX:
            self.server.slow_consumers += 1
            logger.info("%s disconnected: slow consumer", self.label())
            self.abort()
            return
        self._send_message(one, subject, reply, headers, payload)

    def _send_message(self, one: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.send(message(subject, one.sid, reply, headers if self.options.headers else b"", payload))
        self.server.counters.messages_out += 1
        self.messages_out += 1
        if one.count():
            self._drop(one)

    def flush(self) -> None:
        super().flush()
        if not self.blocked and not self.closing:
            self._resume()

    def on_blocked(self) -> None:
        """Its commands go on: what it is owed waits in the log."""

    def on_room(self) -> None:
        self._resume()

    def _resume(self) -> None:
        """It has room: whatever waited for that is read from the log."""
        if self.sink is None or self.namespace is None or self.listening is None:
            return
        if not self.sink.live:
            self.namespace.resume(self.sink)
        for queue in {one.queue for one in self.subscriptions.by_sid.values() if one.queue}:
            group = self.listening.group(queue)
            if group is not None and not group.live:
                self.namespace.resume(group)


def _key_of(headers: bytes) -> bytes | None:
    """A client's own key; the topic where it says none."""
    if b"s-key" not in headers.lower():
        return None
    return next((value for name, value in header_lines(headers) if name.lower() == b"ms-key"), None)
