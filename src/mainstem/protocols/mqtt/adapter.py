"""MQTT words to broker words: one connection, from CONNECT to its last packet.

Bytes are `wire`'s and `outbound`'s matter, subscriptions `subscriptions`', what clients share `service`'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.ticket_waiters import Then
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.namespaces.quotas import Member
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.rights.refusals import OTHER_NAMES
from mainstem.broker.sessions.keeper import session_key
from mainstem.broker.sessions.sessions import DONE, NEVER, Flight, Session
from mainstem.log.gather import Ticket
from mainstem.model.errors import MainstemError, QuotaExceeded
from mainstem.model.plain_text import hidden_character
from mainstem.protocols.connection import HOLD_QUEUE, LOGIN_ENDED, Connection
from mainstem.protocols.mqtt.authentication import Authentication
from mainstem.protocols.mqtt.login import log_in
from mainstem.protocols.mqtt.outgoing.flight_journal import FlightJournal
from mainstem.protocols.mqtt.outgoing.outbound import AWAIT_PUBCOMP, Outbound
from mainstem.protocols.mqtt.outgoing.redelivery import Redelivery
from mainstem.protocols.mqtt.ownership import may_take, owner_of
from mainstem.protocols.mqtt.publishing import publish_large, publish_special
from mainstem.protocols.mqtt.service import Publisher
from mainstem.protocols.mqtt.session import MqttSession
from mainstem.protocols.mqtt.subscribing.subscriptions import Subscriptions
from mainstem.protocols.mqtt.wire.packets import (
    PINGRESP,
    V5,
    V31,
    Auth,
    Connect,
    Disconnect,
    Event,
    LargePublish,
    Pause,
    Pingreq,
    Publish,
    Subscribe,
    Unsubscribe,
    encode_connack,
    encode_disconnect,
)
from mainstem.protocols.mqtt.wire.properties import Properties, Property
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of
from mainstem.protocols.mqtt.wire.wire import Inbound

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.server import MqttServer, MqttWebSocketServer

logger = logging.getLogger("mainstem.mqtt")

NS_PER_MS = 1_000_000
WHY_MAX = 500  # characters of a reason string


class MqttConnection(Connection):
    """One client."""

    __slots__ = (
        "authentication",
        "draining",
        "expiry_seconds",
        "flights",
        "inbound",
        "key",
        "metered_bytes",
        "namespace",
        "outbound",
        "principal",
        "problem_information",
        "publisher",
        "saved",
        "service",
        "session",
        "state",
        "subscriptions",
        "version",
    )

    def __init__(self, server: MqttServer | MqttWebSocketServer) -> None:
        super().__init__(server)
        service = self.service = server.service
        self.version, self.key, self.expiry_seconds, self.metered_bytes = 0, b"", 0, 0
        self.authentication: Authentication | None = None
        self.namespace: Namespace | None = None
        self.principal: Principal | None = None
        self.publisher: Publisher | None = None
        self.saved: Session | None = None
        self.flights: FlightJournal | None = None
        self.session: MqttSession | None = None
        self.subscriptions: Subscriptions | None = None
        self.problem_information, self.draining = True, False
        self.state = "new"  # new, deciding (CONNACK is not sent yet), on, gone
        outbound = self.outbound = Outbound(None, service.encoder, server.ticker)
        self.inbound, outbound.connection = Inbound(outbound, service.limits), self
        self.inbound.connection, self.inbound.server, self.inbound.now_ns = self, server, service.now_ns

    # -- bytes

    def on_open(self) -> None:
        self.outbound.transport = self.transport
        self.server.deadlines.watch(self, self.service.limits.connect_timeout_seconds, however=True)

    @property
    def data_received(self) -> Callable[[bytes], None]:
        """Bytes go straight to the compiled half, which calls `on_data` and `on_event` where it must."""
        return self.inbound.data_received if self.meter is None else self._metered

    def _metered(self, data: bytes) -> None:
        self.inbound.data_received(data)
        if self.meter is not None:
            self.meter.read(len(data))

    def set_meter(self, meter: Member | None) -> None:
        before, self.meter = self.meter, meter
        self.metered_bytes = self.outbound.bytes_sent
        if (before is None) != (meter is None) and hasattr(self.transport, "set_protocol"):
            self.transport.set_protocol(self)  # the loop's own (TLS) keeps `data_received` as it was

    def note_unsent(self) -> None:
        super().note_unsent()
        if self.meter is not None and not hasattr(self.transport, "stop_hearing"):  # a reactor's line tells it itself
            sent, self.metered_bytes = self.outbound.bytes_sent - self.metered_bytes, self.outbound.bytes_sent
            self.meter.wrote(sent)

    def published_count(self) -> int:
        return self.inbound.messages

    def end_for_quota(self, error: QuotaExceeded) -> None:
        self._say_goodbye(Reason.QUOTA_EXCEEDED, error.message)

    def on_data(self, data: bytes) -> None:
        if self.held or self.draining:
            self.inbound.receive(data)
        else:
            self.on_event(None, self.inbound.messages, data=data)

    def on_released(self) -> None:
        if not self.draining:
            self.on_event(None, self.inbound.messages)

    def on_event(
        self, event: Event | None, before: int, error: Exception | None = None, data: bytes | None = None
    ) -> None:
        """Handle packets until none is left, or one of them must be decided elsewhere first."""
        inbound = self.inbound
        self.draining = True
        try:
            if error is not None:
                raise error
            if self.publisher is not None:
                self.publisher.check()
            time_ms = self.service.now_ns() // NS_PER_MS
            if data is not None:
                event = inbound.feed(data, time_ms)
            elif event is None:
                event = inbound.next(time_ms)
            while event is not None:
                self._handle(event)
                if self.held or self.closing:
                    break
                event = inbound.next(time_ms)
        except Violation as violation:
            self.refuse(violation)
        except MainstemError as error:
            self.refuse(Violation(reason_of(error), error.message))
        except Exception:
            self.break_off()
        finally:
            self.draining = False
        if inbound.messages != before:
            self.server.counters.messages_in += inbound.messages - before
            ticker: Any = self.server.ticker
            if ticker.pressed:
                ticker.press(self)
        if inbound.waiting:
            self._release_received()
        if self.outbound.progress:
            self.on_progress()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Publish):
            publish_special(self, event)
        elif isinstance(event, LargePublish):
            publish_large(self, event)
        elif isinstance(event, Pingreq):
            self.outbound.write(PINGRESP)
        elif isinstance(event, Subscribe):
            assert self.subscriptions is not None
            self.subscriptions.subscribe(event)
        elif isinstance(event, Unsubscribe):
            assert self.subscriptions is not None
            self.subscriptions.unsubscribe(event)
        elif isinstance(event, Pause):
            self.wait_for_turn()
        elif isinstance(event, Connect):
            self._connect(event)
        elif isinstance(event, Disconnect):
            self._disconnect(event)
        elif isinstance(event, Auth):
            if self.authentication is None:
                raise Violation(Reason.PROTOCOL_ERROR, "AUTH, although no authentication method was agreed on")
            self.authentication.receive(event)

    def send(self, data: bytes) -> None:
        self.outbound.write(data)

    def flush(self) -> None:
        self.outbound.flush()

    def on_blocked(self) -> None:
        self.outbound.blocked = True

    def on_room(self) -> None:
        self.outbound.blocked = False
        self._catch_up()

    # -- CONNECT

    def _connect(self, connect: Connect) -> None:
        self.version = self.outbound.version = connect.version
        self.outbound.packet_bytes_max = connect.properties.get(Property.MAXIMUM_PACKET_SIZE, 268_435_460)
        self.state = "deciding"
        if Property.AUTHENTICATION_METHOD in connect.properties:
            self.authentication = Authentication(self, connect)
            self.authentication.begin()
            return
        log_in(self, connect)

    def admit(self, connect: Connect, principal: Principal) -> None:
        client_id = connect.client_id
        if len(client_id) > self.service.limits.client_id_bytes_max:
            self.turn_away(Reason.CLIENT_ID_INVALID, f"client id of {len(client_id)} bytes")
            return
        if (hidden := hidden_character(client_id.decode(errors="replace"))) is not None:
            self.turn_away(Reason.CLIENT_ID_INVALID, f"a client id with the character {hidden}")
            return
        if not client_id:
            if self.version == V31 or (self.version != V5 and not connect.clean_start):
                self.turn_away(Reason.CLIENT_ID_INVALID, "no client id, and no clean session or MQTT 3.1")
                return
            client_id = b"ms-" + os.urandom(10).hex().encode()
        principal = self.service.broker.access.of_client(principal, client_id.decode(errors="replace"))
        if connect.will is not None:
            try:
                self.service.check_will(principal, connect.will)
            except MainstemError as error:
                self.turn_away(reason_of(error), f"its will: {error.message}")
                return
        self.principal = principal
        self.keep_login(principal)
        self.namespace = self.service.namespace_of(principal)
        self.key = session_key(self.namespace, client_id)
        if not may_take(self.service, self.key, principal):
            self.turn_away(Reason.NOT_AUTHORIZED, "this client id is another user's")
            return
        self.expiry_seconds = self._expiry_of(connect)
        properties = self._connack_properties(connect, client_id)
        if len(encode_connack(self.version, False, 0, properties)) > self.outbound.packet_bytes_max:
            self.close(f"it takes no packet above {self.outbound.packet_bytes_max} bytes, not even CONNACK")
            return
        other = self.service.clients.get(self.key)
        if other is not None:
            other.be_taken_over()
            if other.member is not None:
                other.member.leave()  # its place is ours
        try:
            self.service.broker.quotas.enter(self, self.namespace, "" if principal.anonymous else principal.name)
        except QuotaExceeded as error:
            self.turn_away(Reason.QUOTA_EXCEEDED, error.message)
            return
        if connect.clean_start:
            self.service.wills.fire(self.key)  # the session it belongs to ends
        else:
            self.service.wills.cancel(self.key)
        self._open_session(connect, client_id, properties)

    def _open_session(self, connect: Connect, client_id: bytes, properties: Properties) -> None:
        service, broker = self.service, self.service.broker
        assert self.namespace is not None and self.principal is not None
        saved = service.sessions.find(self.key)
        ticket: Ticket | None = None
        if saved is not None and connect.clean_start:
            ticket = service.end_session(saved)
            saved = None
        present = saved is not None
        session = self.session = MqttSession(broker.stamps.next)
        session.will = connect.will
        if self.expiry_seconds and saved is None:
            saved = service.sessions.begin(self.key, self.expiry_seconds, session.position)
        self.saved = saved
        self._set_up_halves(connect, client_id)
        self.subscriptions = Subscriptions(self, session, saved)
        service.clients[self.key] = self
        if saved is not None:
            saved.expiry_seconds, saved.left_ns, saved.hold_ended = self.expiry_seconds, 0, False
            saved.user = owner_of(self.principal)
            self._restore(saved, session)
            if connect.will is not None:
                service.wills.arm(self.key, self.namespace, connect.will, client_id, self.expiry_seconds)
            ticket = service.sessions.save(saved)
            saved.here = self
        connack = encode_connack(self.version, present, 0, properties)
        if ticket is None:
            self._accept(connack, connect)
        else:
            self.hold(HOLD_QUEUE)
            ticket.wait(Then(lambda done: self._accept_when_durable(done, connack, connect)))

    def _expiry_of(self, connect: Connect) -> int:
        if self.version != V5:
            asked = 0 if connect.clean_start else NEVER
        else:
            asked = connect.properties.get(Property.SESSION_EXPIRY, 0)
        return min(asked, self.service.limits.session_expiry_seconds_max)

    def _set_up_halves(self, connect: Connect, client_id: bytes) -> None:
        limits, properties = self.service.limits, connect.properties
        assert self.namespace is not None and self.principal is not None
        inbound, outbound = self.inbound, self.outbound
        self.publisher = self.service.publisher(self.namespace, self.principal)
        self.problem_information = bool(properties.get(Property.REQUEST_PROBLEM_INFORMATION, 1))
        outbound.explains = self.version == V5 and self.problem_information
        inbound.version = self.version
        inbound.client_id = outbound.client_id = client_id
        inbound.packet_bytes_max = limits.packet_bytes_max
        inbound.durable = outbound.durable = self.saved is not None
        inbound.routes, inbound.publisher = self.publisher.routes, self.publisher
        inbound.retained = self.service.retained(self.namespace)
        outbound.namespace = self.namespace
        outbound.session = self.flights = FlightJournal(self)
        outbound.allows = self._allows if not self.principal.admin else None
        outbound.window = min(properties.get(Property.RECEIVE_MAXIMUM, 65_535), limits.inflight_max)
        outbound.alias_max = min(properties.get(Property.TOPIC_ALIAS_MAXIMUM, 0), limits.alias_out_max)

    def _restore(self, saved: Session, session: MqttSession) -> None:
        """The session goes on: what was sent and not acknowledged. What was received follows when all of it is settled."""
        self.outbound.restore([one for one in saved.flight if one[1] != DONE])
        self.outbound.position = session.resume(saved.position, saved.flight)
        self.outbound.live = False

    def _connack_properties(self, connect: Connect, client_id: bytes) -> Properties:
        limits = self.service.limits
        if self.version != V5:
            return {}
        properties: Properties = {Property.MAXIMUM_PACKET_SIZE: limits.packet_bytes_max}
        if limits.receive_maximum != 65_535:
            properties[Property.RECEIVE_MAXIMUM] = limits.receive_maximum
        if limits.topic_alias_maximum:
            properties[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if connect.properties.get(Property.SESSION_EXPIRY, 0) != self.expiry_seconds:
            properties[Property.SESSION_EXPIRY] = self.expiry_seconds
        if client_id != connect.client_id:
            properties[Property.ASSIGNED_CLIENT_ID] = client_id
        if self._keep_alive(connect) != connect.keep_alive_seconds:
            properties[Property.SERVER_KEEP_ALIVE] = self._keep_alive(connect)
        return properties if self.authentication is None else properties | self.authentication.properties

    def _keep_alive(self, connect: Connect) -> int:
        """What a 5.0 client is told to keep to; older ones cannot be told, so they keep what they asked for."""
        longest = self.service.limits.keep_alive_seconds_max
        asked = connect.keep_alive_seconds
        if self.version != V5 or not longest:
            return asked
        return longest if asked == 0 or asked > longest else asked

    def _accept_when_durable(self, ticket: Ticket, connack: bytes, connect: Connect) -> None:
        if self.closing or self.service.unsettled_publishes.after(
            self.saved, lambda: self._accept_when_durable(ticket, connack, connect)
        ):
            return
        if ticket.error is not None:
            self.turn_away(Reason.SERVER_UNAVAILABLE, str(ticket.error))
            return
        self._accept(connack, connect)
        self.release(HOLD_QUEUE)

    def _accept(self, connack: bytes, connect: Connect) -> None:
        self.state = "on"
        self.outbound.write(connack)
        keep_alive = self._keep_alive(connect)
        self.server.deadlines.watch(self, keep_alive + (keep_alive + 1) // 2 if keep_alive else 0)
        saved = self.saved
        if saved is not None and not self.outbound.live:
            self.inbound.restore_received(saved.received)
            if any(state < AWAIT_PUBCOMP for _, state, _ in saved.flight):
                self.service.redeliveries.append(Redelivery(self))
            self.outbound.release([n for n, state, _ in saved.flight if state == AWAIT_PUBCOMP])
            assert self.subscriptions is not None
            self.subscriptions.restore()
            self._catch_up()

    def turn_away(self, reason: Reason, why: str) -> None:
        """CONNACK with a reason, then close."""
        self.server.counters.refused_total += 1
        version = self.version or 4
        self.outbound.write(self.explained(lambda words: encode_connack(version, False, reason, words), why))
        self.state = "gone"
        self.close(why, linger=True)

    def explained(self, encode: Callable[[Properties], bytes], why: str) -> bytes:
        """A packet with its reason in words; without them, or none at all, where the client takes no packet so large."""
        words: Properties = {Property.REASON_STRING: why[:WHY_MAX].encode()} if why and self.version == V5 else {}
        fitting = (packet for packet in (encode(words), encode({})) if len(packet) <= self.outbound.packet_bytes_max)
        return next(fitting, b"")

    # -- acknowledgements and positions

    def _release_received(self) -> None:
        """PUBRELs came: PUBCOMP must wait until the releases are durable."""
        saved = self.saved
        assert saved is not None
        service = self.service
        ticket = service.sessions.save_released(saved, self.inbound.released_ids(), service.broker.stamps.next)
        self.inbound.complete(ticket)

    def on_progress(self) -> None:
        """An acknowledgement freed room or changed what a session keeps."""
        self.outbound.progress = False
        if self.saved is not None:
            self.service.session_moved(self.saved)
        if not self.outbound.live:
            self._catch_up()
        elif self.subscriptions is not None:
            self.subscriptions.room()

    def _catch_up(self) -> None:
        outbound, session = self.outbound, self.session
        if (
            not outbound.live
            and session is not None
            and self.state == "on"
            # What is sent again has its place in the window already.
            and (outbound.room or (session.redelivers(outbound.position) and not outbound.blocked))
        ):
            self.service.resume(outbound, session.filters)
        if self.subscriptions is not None:
            self.subscriptions.room()

    def position(self) -> int:
        """For the session's journal: everything below was offered to the client."""
        ticker = self.service.broker.ticker
        position = ticker.head_stamp if self.outbound.live else self.outbound.position
        assert self.session is not None
        return max(position, self.session.position)

    def place(self) -> tuple[int, list[Flight]]:
        assert self.session is not None
        position, flight = self.position(), self.outbound.flight()
        return position, flight + self.session.done_beyond(position, flight)

    def moves(self) -> tuple[int, list[int], list[tuple[int, int]]]:
        if self.flights is not None:
            self.flights.write_assigned()
        return (self.position(), *self.outbound.take_moves())

    # -- the end

    def _disconnect(self, event: Disconnect) -> None:
        if event.session_expiry_seconds is not None:
            if self.expiry_seconds == 0 and event.session_expiry_seconds:
                raise Violation(Reason.PROTOCOL_ERROR, "a session that expires at once cannot be prolonged")
            self.expiry_seconds = min(event.session_expiry_seconds, self.service.limits.session_expiry_seconds_max)
            if self.saved is not None:
                self.saved.expiry_seconds = self.expiry_seconds
        if self.session is not None and event.reason == Reason.SUCCESS:
            self.session.will = None
        self.close()

    def refuse(self, violation: Violation) -> None:
        """The peer broke the protocol: say so if it can be said, then close."""
        if self.state not in ("new", "deciding"):
            self._say_goodbye(violation.reason, violation.message)
        elif violation.told_in:
            self.version = self.outbound.version = violation.told_in
            self.turn_away(violation.reason, violation.message)
        else:
            self.close(violation.message)

    def _say_goodbye(self, reason: int, why: str) -> None:
        if self.version == V5 and self.state == "on" and not self.closing:
            words = why if self.problem_information else ""
            self.outbound.write(self.explained(lambda found: encode_disconnect(reason, found), words))
        self.close(f"{why} ({Reason(reason).name.lower()})", linger=True)

    def fail(self, error: Exception) -> None:
        """What was promised cannot be kept (the disk is full): the client must try again elsewhere or later."""
        self._say_goodbye(Reason.QUOTA_EXCEEDED, str(error))

    def close(self, reason: str = "", *, linger: bool = False) -> None:
        if reason == "the broker is shutting down" and not self.closing and self.version == V5 and self.state == "on":
            self.outbound.write(encode_disconnect(Reason.SERVER_SHUTTING_DOWN))
        super().close(reason, linger=linger)
        self.outbound.transport = None  # whatever is still collected has nowhere to go
        self._leave()  # now, not when the last byte is gone: a will or a session must not wait for a slow goodbye

    def on_silence(self) -> None:
        if self.state == "on":
            self._say_goodbye(Reason.KEEP_ALIVE_TIMEOUT, "silent for one and a half times its keep-alive")
        else:
            self.close("no CONNECT in time")

    def cut_off(self, reason: str) -> None:
        if self.version == V5 and self.state == "on" and not self.closing:
            self.outbound.write(encode_disconnect(Reason.QUOTA_EXCEEDED))
        self.close(reason)  # without waiting for its side: what it keeps with us is freed now

    def be_taken_over(self) -> None:
        """Another connection uses our client id: the session goes on there."""
        self._say_goodbye(Reason.SESSION_TAKEN_OVER, "another connection took the client id over")

    def logged_in(self) -> Principal | None:
        return self.principal

    def refused_publish(self, topic: bytes | None, times: int = 1) -> None:
        self.tell_refused(self.service.broker.audit, "publish", OTHER_NAMES if topic is None else topic, times=times)

    def end_login(self) -> None:
        self._say_goodbye(Reason.NOT_AUTHORIZED, LOGIN_ENDED)

    def end_namespace(self, name: str) -> None:
        if self.session is not None:
            self.session.will = None  # nobody is left to read it
        self._say_goodbye(Reason.ADMINISTRATIVE_ACTION, f"namespace {name} was removed")

    def rights_changed(self) -> None:
        assert self.namespace is not None and self.principal is not None
        client_id = self.key.partition(b"\0")[2].decode(errors="replace")
        self.principal = self.service.broker.access.of_client(self.principal, client_id)
        self.outbound.allows = self._allows if not self.principal.admin else None
        self.publisher = self.service.publisher(self.namespace, self.principal)
        self.inbound.routes, self.inbound.publisher = self.publisher.routes, self.publisher

    def _allows(self, topic: bytes) -> bool:
        """A filter may overlap topics that its subscriber may not read: each delivery is checked."""
        assert self.principal is not None
        return self.service.broker.access.allows(self.principal, Action.CONSUME, topic)

    def on_lost(self) -> None:
        self.outbound.transport = None
        self._leave()
        self.inbound.forget()

    def _leave(self) -> None:
        """Give everything back; the session stays if it may."""
        if self.state == "gone" or self.session is None:
            self.state = "gone"
            return
        accepted, self.state = self.state == "on", "gone"
        service, session, saved = self.service, self.session, self.saved
        if service.clients.get(self.key) is self:
            del service.clients[self.key]
        service.broker.pump.stop(self.outbound)
        service.count_gone(self.outbound, self.server.counters)
        for held in self.outbound.take_sources():
            held.give_back()
        assert self.subscriptions is not None
        self.subscriptions.close()
        if saved is not None:
            if session.will is None:
                service.wills.disarm(self.key)
            else:
                service.wills.lose(self.key)
            if accepted:  # before that the session itself has what was received
                service.unsettled_publishes.leave(saved, self.inbound)
            service.sessions.leave(saved, service.broker.clock.now_ns())
            if not self.expiry_seconds:
                service.end_session(saved)
        self._send_will(session)

    def _send_will(self, session: MqttSession) -> None:
        will, session.will = session.will, None
        assert self.principal is not None
        if will is not None and self.service.wills.allows(self.principal, will.topic):
            assert self.namespace is not None
            delay_seconds = min(will.delay_seconds, self.expiry_seconds)
            self.service.wills.plan(self.key, self.namespace, will, self.outbound.client_id, delay_seconds)
        else:
            self.service.wills.drop(self.key)

    def label(self) -> str:
        client_id = self.outbound.client_id.decode(errors="backslashreplace")
        return f"MQTT client {client_id!r} ({super().label()})"
