"""CONNECT, from the login that let its client in to CONNACK: the client id, the session, what the two halves are told.

A session that stays is written down first: CONNACK leaves when it is durable.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mainstem.broker.delivery.ticket_waiters import Then
from mainstem.broker.sessions.keeper import session_key
from mainstem.broker.sessions.sessions import DONE, NEVER, Session
from mainstem.model.errors import MainstemError, QuotaExceeded
from mainstem.model.plain_text import hidden_character
from mainstem.protocols.connection import HOLD_QUEUE
from mainstem.protocols.login import keep_login
from mainstem.protocols.mqtt.outgoing.flight_journal import FlightJournal
from mainstem.protocols.mqtt.outgoing.outbound import AWAIT_PUBCOMP
from mainstem.protocols.mqtt.outgoing.redelivery import Redelivery
from mainstem.protocols.mqtt.ownership import may_take, owner_of
from mainstem.protocols.mqtt.session import MqttSession
from mainstem.protocols.mqtt.subscribing.subscriptions import Subscriptions
from mainstem.protocols.mqtt.wire.packets import V5, V31, Connect, encode_connack
from mainstem.protocols.mqtt.wire.properties import Properties, Property
from mainstem.protocols.mqtt.wire.reasons import Reason, reason_of

if TYPE_CHECKING:
    from mainstem.broker.rights.access import Principal
    from mainstem.log.gather import Ticket
    from mainstem.protocols.mqtt.adapter import MqttConnection


class Connecting:
    """Of one connection, until its CONNACK is sent."""

    __slots__ = ("_connect", "_connection")

    def __init__(self, connection: MqttConnection, connect: Connect) -> None:
        self._connection, self._connect = connection, connect

    def admit(self, principal: Principal) -> None:
        connection, connect = self._connection, self._connect
        client_id = connect.client_id
        if len(client_id) > connection.service.limits.client_id_bytes_max:
            connection.turn_away(Reason.CLIENT_ID_INVALID, f"client id of {len(client_id)} bytes")
            return
        if (hidden := hidden_character(client_id.decode(errors="replace"))) is not None:
            connection.turn_away(Reason.CLIENT_ID_INVALID, f"a client id with the character {hidden}")
            return
        if not client_id:
            if connection.version == V31 or (connection.version != V5 and not connect.clean_start):
                connection.turn_away(Reason.CLIENT_ID_INVALID, "no client id, and no clean session or MQTT 3.1")
                return
            client_id = b"ms-" + os.urandom(10).hex().encode()
        principal = connection.service.broker.access.of_client(principal, client_id.decode(errors="replace"))
        if connect.will is not None:
            try:
                connection.service.check_will(principal, connect.will)
            except MainstemError as error:
                connection.turn_away(reason_of(error), f"its will: {error.message}")
                return
        connection.principal = principal
        keep_login(connection, principal)
        connection.namespace = connection.service.namespace_of(principal)
        connection.key = session_key(connection.namespace, client_id)
        if not may_take(connection.service, connection.key, principal):
            connection.turn_away(Reason.NOT_AUTHORIZED, "this client id is another user's")
            return
        connection.expiry_seconds = self._expiry_seconds()
        properties = self._connack_properties(client_id)
        if len(encode_connack(connection.version, False, 0, properties)) > connection.outbound.packet_bytes_max:
            connection.close(f"it takes no packet above {connection.outbound.packet_bytes_max} bytes, not even CONNACK")
            return
        other = connection.service.clients.get(connection.key)
        if other is not None:
            other.be_taken_over()
            if other.metering.member is not None:
                other.metering.member.leave()  # its place is ours
        try:
            connection.service.broker.quotas.enter(
                connection.metering, connection.namespace, "" if principal.anonymous else principal.name
            )
        except QuotaExceeded as error:
            connection.turn_away(Reason.QUOTA_EXCEEDED, error.message)
            return
        starts_over = connect.clean_start or self._has_expired()
        if starts_over:
            connection.service.wills.fire(connection.key)  # the session it belongs to ends
        else:
            connection.service.wills.cancel(connection.key)
        self._open_session(client_id, properties, starts_over=starts_over)

    def _has_expired(self) -> bool:
        """The session that it could go on with: they are ended once a second, and it may come back before."""
        service = self._connection.service
        saved = service.sessions.find(self._connection.key)
        return saved is not None and saved.has_expired(service.broker.clock.now_ns())

    def _open_session(self, client_id: bytes, properties: Properties, *, starts_over: bool) -> None:
        connection, connect = self._connection, self._connect
        service, broker = connection.service, connection.service.broker
        assert connection.namespace is not None and connection.principal is not None
        saved = service.sessions.find(connection.key)
        ticket: Ticket | None = None
        if saved is not None and starts_over:
            ticket = service.end_session(saved)
            saved = None
        present = saved is not None
        session = connection.session = MqttSession(broker.stamps.next)
        session.will = connect.will
        if connection.expiry_seconds and saved is None:
            saved = service.sessions.begin(connection.key, connection.expiry_seconds, session.position)
        connection.saved = saved
        self._set_up_halves(client_id)
        connection.subscriptions = Subscriptions(connection, session, saved)
        service.clients[connection.key] = connection
        if saved is not None:
            saved.expiry_seconds, saved.left_ns, saved.hold_ended = connection.expiry_seconds, 0, False
            saved.user = owner_of(connection.principal)
            self._restore(saved, session)
            if connect.will is not None:
                service.wills.arm(
                    connection.key, connection.namespace, connect.will, client_id, connection.expiry_seconds
                )
            ticket = service.sessions.save(saved)
            saved.here = connection
        connack = encode_connack(connection.version, present, 0, properties)
        if ticket is None:
            self._accept(connack)
        else:
            connection.hold(HOLD_QUEUE)
            ticket.wait(Then(lambda done: self._accept_when_durable(done, connack)))

    def _expiry_seconds(self) -> int:
        connection, connect = self._connection, self._connect
        if connection.version != V5:
            asked = 0 if connect.clean_start else NEVER
        else:
            asked = connect.properties.get(Property.SESSION_EXPIRY, 0)
        return min(asked, connection.service.limits.session_expiry_seconds_max)

    def _set_up_halves(self, client_id: bytes) -> None:
        connection, connect = self._connection, self._connect
        limits, properties = connection.service.limits, connect.properties
        assert connection.namespace is not None and connection.principal is not None
        inbound, outbound = connection.inbound, connection.outbound
        connection.publisher = connection.service.publisher(connection.namespace, connection.principal)
        connection.problem_information = bool(properties.get(Property.REQUEST_PROBLEM_INFORMATION, 1))
        outbound.explains = connection.version == V5 and connection.problem_information
        inbound.version = connection.version
        inbound.client_id = outbound.client_id = client_id
        inbound.packet_bytes_max = limits.packet_bytes_max
        inbound.durable = outbound.durable = connection.saved is not None
        inbound.routes, inbound.publisher = connection.publisher.routes, connection.publisher
        inbound.retained = connection.service.retained(connection.namespace)
        outbound.namespace = connection.namespace
        outbound.session = connection.flights = FlightJournal(connection)
        outbound.allows = connection.allows if not connection.principal.admin else None
        outbound.window = min(properties.get(Property.RECEIVE_MAXIMUM, 65_535), limits.inflight_max)
        outbound.alias_max = min(properties.get(Property.TOPIC_ALIAS_MAXIMUM, 0), limits.alias_out_max)

    def _restore(self, saved: Session, session: MqttSession) -> None:
        """The session goes on: what was sent and not acknowledged. What was received follows when all of it is settled."""
        connection = self._connection
        connection.outbound.restore([one for one in saved.flight if one[1] != DONE])
        connection.outbound.position = session.resume(saved.position, saved.flight)
        connection.outbound.live = False

    def _connack_properties(self, client_id: bytes) -> Properties:
        connection, connect = self._connection, self._connect
        limits = connection.service.limits
        if connection.version != V5:
            return {}
        properties: Properties = {Property.MAXIMUM_PACKET_SIZE: limits.packet_bytes_max}
        if limits.receive_maximum != 65_535:
            properties[Property.RECEIVE_MAXIMUM] = limits.receive_maximum
        if limits.topic_alias_maximum:
            properties[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if connect.properties.get(Property.SESSION_EXPIRY, 0) != connection.expiry_seconds:
            properties[Property.SESSION_EXPIRY] = connection.expiry_seconds
        if client_id != connect.client_id:
            properties[Property.ASSIGNED_CLIENT_ID] = client_id
        if self._keep_alive() != connect.keep_alive_seconds:
            properties[Property.SERVER_KEEP_ALIVE] = self._keep_alive()
        return properties if connection.authentication is None else properties | connection.authentication.properties

    def _keep_alive(self) -> int:
        """What a 5.0 client is told to keep to; older ones cannot be told, so they keep what they asked for."""
        connection, connect = self._connection, self._connect
        longest = connection.service.limits.keep_alive_seconds_max
        asked = connect.keep_alive_seconds
        if connection.version != V5 or not longest:
            return asked
        return longest if asked == 0 or asked > longest else asked

    def _accept_when_durable(self, ticket: Ticket, connack: bytes) -> None:
        connection = self._connection
        if connection.closing or connection.service.unsettled_publishes.after(
            connection.saved, lambda: self._accept_when_durable(ticket, connack)
        ):
            return
        if ticket.error is not None:
            connection.turn_away(Reason.SERVER_UNAVAILABLE, str(ticket.error))
            return
        self._accept(connack)
        connection.release(HOLD_QUEUE)

    def _accept(self, connack: bytes) -> None:
        connection = self._connection
        connection.state = "on"
        connection.outbound.write(connack)
        keep_alive = self._keep_alive()
        connection.server.deadlines.watch(connection, keep_alive + (keep_alive + 1) // 2 if keep_alive else 0)
        saved = connection.saved
        if saved is not None and not connection.outbound.live:
            connection.inbound.restore_received(saved.received)
            if any(state < AWAIT_PUBCOMP for _, state, _ in saved.flight):
                connection.service.redeliveries.append(Redelivery(connection))
            connection.outbound.release([n for n, state, _ in saved.flight if state == AWAIT_PUBCOMP])
            assert connection.subscriptions is not None
            connection.subscriptions.restore()
            connection.catch_up()
