"""MQTT words to broker words: one connection, from CONNECT to its last packet.

Bytes are `wire`'s and `outbound`'s matter, subscriptions `subscriptions`', what clients share `service`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.rights.refusals import OTHER_NAMES
from mainstem.broker.sessions.sessions import Flight, Session
from mainstem.model.errors import MainstemError
from mainstem.protocols.connection import LOGIN_ENDED, Connection
from mainstem.protocols.login import tell_refused
from mainstem.protocols.mqtt.authentication import Authentication
from mainstem.protocols.mqtt.login import log_in
from mainstem.protocols.mqtt.metering import MqttMetering
from mainstem.protocols.mqtt.outgoing.flight_journal import FlightJournal
from mainstem.protocols.mqtt.outgoing.outbound import Outbound
from mainstem.protocols.mqtt.publishing import publish_large, publish_special
from mainstem.protocols.mqtt.service import Publisher
from mainstem.protocols.mqtt.session import MqttSession
from mainstem.protocols.mqtt.subscribing.subscriptions import Subscriptions
from mainstem.protocols.mqtt.wire.packets import (
    PINGRESP,
    V5,
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

    metered_by = MqttMetering

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

    def note_unsent(self) -> None:
        super().note_unsent()
        if self.meter is not None and not hasattr(self.transport, "stop_hearing"):  # the reactor's tell it themselves
            sent, self.metered_bytes = self.outbound.bytes_sent - self.metered_bytes, self.outbound.bytes_sent
            self.meter.wrote(sent)

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
        self.catch_up()

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
            self.catch_up()
        elif self.subscriptions is not None:
            self.subscriptions.room()

    def catch_up(self) -> None:
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
            self.say_goodbye(violation.reason, violation.message)
        elif violation.told_in:
            self.version = self.outbound.version = violation.told_in
            self.turn_away(violation.reason, violation.message)
        else:
            self.close(violation.message)

    def say_goodbye(self, reason: int, why: str) -> None:
        if self.version == V5 and self.state == "on" and not self.closing:
            words = why if self.problem_information else ""
            self.outbound.write(self.explained(lambda found: encode_disconnect(reason, found), words))
        self.close(f"{why} ({Reason(reason).name.lower()})", linger=True)

    def fail(self, error: Exception) -> None:
        """What was promised cannot be kept (the disk is full): the client must try again elsewhere or later."""
        self.say_goodbye(Reason.QUOTA_EXCEEDED, str(error))

    def close(self, reason: str = "", *, linger: bool = False) -> None:
        if reason == "the broker is shutting down" and not self.closing and self.version == V5 and self.state == "on":
            self.outbound.write(encode_disconnect(Reason.SERVER_SHUTTING_DOWN))
        super().close(reason, linger=linger)
        self.outbound.transport = None  # whatever is still collected has nowhere to go
        self._leave()  # now, not when the last byte is gone: a will or a session must not wait for a slow goodbye

    def on_silence(self) -> None:
        if self.state == "on":
            self.say_goodbye(Reason.KEEP_ALIVE_TIMEOUT, "silent for one and a half times its keep-alive")
        else:
            self.close("no CONNECT in time")

    def cut_off(self, reason: str) -> None:
        if self.version == V5 and self.state == "on" and not self.closing:
            self.outbound.write(encode_disconnect(Reason.QUOTA_EXCEEDED))
        self.close(reason)  # without waiting for its side: what it keeps with us is freed now

    def be_taken_over(self) -> None:
        """Another connection uses our client id: the session goes on there."""
        self.say_goodbye(Reason.SESSION_TAKEN_OVER, "another connection took the client id over")

    def logged_in(self) -> Principal | None:
        return self.principal

    def refused_publish(self, topic: bytes | None, times: int = 1) -> None:
        tell_refused(self, self.service.broker.audit, "publish", OTHER_NAMES if topic is None else topic, times=times)

    def end_login(self) -> None:
        self.say_goodbye(Reason.NOT_AUTHORIZED, LOGIN_ENDED)

    def end_namespace(self, name: str) -> None:
        if self.session is not None:
            self.session.will = None  # nobody is left to read it
        self.say_goodbye(Reason.ADMINISTRATIVE_ACTION, f"namespace {name} was removed")

    def rights_changed(self) -> None:
        assert self.namespace is not None and self.principal is not None
        client_id = self.key.partition(b"\0")[2].decode(errors="replace")
        self.principal = self.service.broker.access.of_client(self.principal, client_id)
        self.outbound.allows = self.allows if not self.principal.admin else None
        self.publisher = self.service.publisher(self.namespace, self.principal)
        self.inbound.routes, self.inbound.publisher = self.publisher.routes, self.publisher

    def allows(self, topic: bytes) -> bool:
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
