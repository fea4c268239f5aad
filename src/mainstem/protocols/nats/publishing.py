"""Publishes that the hot path leaves to us: live-only subjects, streams, requests to which perhaps nobody listens.

Inboxes and subjects that begin with `$` are live only: they go straight to who listens by NATS, and are never stored.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import Route
from mainstem.broker.rights.access import Action, Principal
from mainstem.model.crossing_nats import client_fields
from mainstem.model.errors import InvalidName, InvalidRecord, MainstemError
from mainstem.model.origin import Origin
from mainstem.model.record import Header
from mainstem.model.topic import topic_of_nats
from mainstem.protocols.nats import commands
from mainstem.protocols.nats.answering import refuses_answer
from mainstem.protocols.nats.commands import WireError
from mainstem.protocols.nats.jetstream.api import PREFIX as JETSTREAM
from mainstem.protocols.nats.jetstream.errors import NotAllowed
from mainstem.protocols.nats.jetstream.scheduling import may_schedule
from mainstem.protocols.nats.listening import is_live_only
from mainstem.protocols.nats.wire import RouteTable, error_line

if TYPE_CHECKING:
    from mainstem.protocols.nats.adapter import NatsConnection
    from mainstem.protocols.nats.jetstream.api import JetStream
    from mainstem.protocols.nats.jetstream.pubacks import Gate

logger = logging.getLogger("mainstem.nats")

USER_INFO = b"$SYS.REQ.USER.INFO"
GATES_MAX = 1 << 18  # as many as routes
DECIDE = 1  # of a subject in the table: not one whose publishes just go to their topic
STREAM = 1  # its mark: publishes go through a stream's gate


class Publisher:
    """One principal's right to publish, as a table of routes that its connections share."""

    def __init__(self, jetstream: JetStream, principal: Principal) -> None:
        self._jetstream, self._namespace, self._principal = jetstream, jetstream.namespace, principal
        self._access = self._namespace.broker.access
        self._seen = self._now()
        self.routes = RouteTable(self.resolve)
        self.gates: dict[bytes, Gate] = {}  # by subject, of those that a stream captures

    def _now(self) -> tuple[int, int]:
        return self._namespace.route_clears, self._access.version

    def check(self) -> bool:
        """Once per read: routes that the namespace forgot must not be used again. False: somebody must look at each."""
        seen = self._now()
        if seen != self._seen:
            self._seen = seen
            self.routes.clear()
            self.gates.clear()
        return self._namespace.refusal is None

    def resolve(self, subject: bytes) -> tuple[Route | None, int, int, int]:
        """(route, reason why not, marks, largest message) of a subject that is published to for the first time."""
        try:
            topic = topic_of_nats(subject)
            stream = self._jetstream.streams.capture(topic)
            live = stream is None and is_live_only(subject)
            if live or not self._access.allows(self._principal, Action.PUBLISH, topic):
                return None, DECIDE, 0, 0
            policy = self._namespace.record_rules.policy(topic)
            if policy.schema or (stream is not None and not stream.takes_plain):
                return None, DECIDE, 0, 0
            route = self._namespace.route(topic)
            if stream is None:
                return route, 0, 0, policy.message_bytes_max
            if len(self.gates) >= GATES_MAX:
                self.routes.clear()
                self.gates.clear()
            self.gates[subject] = self._jetstream.publisher.gate(stream)
            return route, 0, STREAM, policy.message_bytes_max
        except MainstemError:
            return None, DECIDE, 0, 0


def publish(
    connection: NatsConnection, kind: int, subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> None:
    """One that somebody must look at."""
    if kind == commands.HPUB and not connection.options.headers:
        raise WireError("")
    connection.inbound.messages_in += 1
    connection.inbound.bytes_in += len(headers) + len(payload)
    try:
        topic = topic_of_nats(subject)
    except InvalidName:
        connection.ok()
        no_responders(connection, subject, reply)  # as nats-server: it goes to nobody
        return
    assert connection.namespace is not None and connection.jetstream is not None
    stream = connection.jetstream.streams.capture(topic)
    if stream is None and is_live_only(subject):
        connection.ok()
        _publish_live(connection, topic, subject, reply, headers, payload)
        return
    if not connection.may(Action.PUBLISH, topic):
        connection.refuse_publish([subject.decode(errors="replace")], prefix="")
        return
    if stream is not None and refuses_answer(connection, reply):
        return
    connection.ok()
    if stream is not None:
        connection.inbound.messages += 1
        connection.inbound.published = True
        stored = _stored(connection, b"", headers)
        if not may_schedule(connection, headers):
            connection.refuse_publish([subject.decode(errors="replace")], prefix="")
            return
        connection.jetstream.publisher.publish(
            stream, topic, reply, headers, payload, stored, client_fields(headers)[0]
        )
        return
    _publish_stored(connection, topic, subject, reply, headers, payload)


def _publish_stored(
    connection: NatsConnection, topic: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> None:
    namespace = connection.namespace
    assert namespace is not None
    connection.inbound.messages += 1
    if namespace.refusal is not None:
        connection.send(error_line(commands.QUOTA))
        return
    if reply and connection.options.no_responders and not namespace.listened(topic):
        no_responders(connection, subject, reply)
        return
    try:
        connection.inbound.published = True
        stored = _stored(connection, reply, headers)
        key, time_ms = client_fields(headers)
        namespace.publish(topic, payload, key=key, headers=stored, time_ms=time_ms, origin=Origin.NATS)
    except InvalidRecord as error:
        connection.refuse_publish([subject.decode(errors="replace")], prefix="", why=error.message)
    except MainstemError as error:  # at most once: nobody waits for an answer
        connection.server.counters.messages_dropped += 1
        logger.warning("%s: a message to %r is lost: %s", connection.label(), subject, error)


def _stored(connection: NatsConnection, reply: bytes, headers: bytes) -> list[Header]:
    found = ((b"ms-nats", headers), (b"ms-nats-reply", reply), (b"ms-client", connection.inbound.identity))
    return [(name, value) for name, value in found if value]


def _publish_live(
    connection: NatsConnection, topic: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> None:
    assert connection.listening is not None
    if subject == USER_INFO and reply:
        if not refuses_answer(connection, reply):
            _tell_user(connection, reply)
        return
    connection.write_published()
    asked = subject.startswith(JETSTREAM) and _ask_jetstream(connection, subject, reply, headers, payload)
    receivers = connection.listening.live(topic, connection)
    for one in receivers:
        one.owner.deliver_live(one, subject, reply, headers, payload)
    if not receivers and not asked:
        no_responders(connection, subject, reply)


def _ask_jetstream(connection: NatsConnection, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bool:
    assert connection.jetstream is not None
    try:
        return connection.jetstream.handle(connection, subject, reply, headers, payload)
    except NotAllowed:
        connection.refuse_publish([subject.decode(errors="replace")], prefix="")
        return True


def _tell_user(connection: NatsConnection, reply: bytes) -> None:
    assert connection.principal is not None and connection.listening is not None and connection.namespace is not None
    data = {"user": connection.principal.name, "account": connection.namespace.name}
    answer = json.dumps({"server": connection.server.identity(), "data": data}).encode()
    for one in connection.listening.live(topic_of_nats(reply), connection):
        one.owner.deliver_live(one, reply, b"", b"", answer)


def no_responders(connection: NatsConnection, subject: bytes, reply: bytes) -> None:
    """Its own subscription to the reply hears that nobody is there, if it asked to be told."""
    if not reply or not connection.options.no_responders or connection.listening is None:
        return
    status = b"NATS/1.0 503\r\nNats-Subject: " + subject + b"\r\n\r\n"
    try:
        found = connection.listening.live(topic_of_nats(reply), connection)
    except InvalidName:
        return
    for one in found:
        if one.owner is connection and not one.queue:
            connection.deliver_live(one, reply, b"", status, b"")
            return
