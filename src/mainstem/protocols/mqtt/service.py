"""What all MQTT clients of a broker share, whichever listener they came by: sessions, retained messages, wills, routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from mainstem.broker.broker import Broker
from mainstem.broker.delivery.live import Route
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.queue import Queue
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.sessions.keeper import Unreleased
from mainstem.broker.sessions.sessions import PLACE_MS, PLACES_PER_ROUND_MAX, Session
from mainstem.broker.sessions.wills import Will
from mainstem.log.gather import Ticket
from mainstem.log.live_log import not_stored
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header
from mainstem.model.topic_filter import check_topic
from mainstem.protocols.connection import Counters
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.outgoing.crossing import describe, translate
from mainstem.protocols.mqtt.outgoing.outbound import Encoder, Outbound
from mainstem.protocols.mqtt.outgoing.redelivery import Redelivery
from mainstem.protocols.mqtt.subscribing.sys_topics import SysTopics
from mainstem.protocols.mqtt.unsettled_publishes import UnsettledPublishes
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation, reason_of
from mainstem.protocols.mqtt.wire.wire import MARK_CHECKED, MARK_CLIENT_WANTED, MARK_LIVE, RouteTable

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

logger = logging.getLogger("mainstem.mqtt")

_services: WeakKeyDictionary[Broker, ref[MqttService]] = WeakKeyDictionary()  # each is kept by its listeners


class Publisher:
    """One principal's right to publish, as a table of routes that its connections share."""

    def __init__(self, service: MqttService, namespace: Namespace, principal: Principal) -> None:
        self._service = service
        self._namespace = namespace
        self._principal = principal
        self._clears = namespace.route_clears
        self.routes = RouteTable(self.resolve)

    def check(self) -> None:
        """Once per read: routes that the namespace forgot must not be used again."""
        if self._clears != self._namespace.route_clears:
            self._clears = self._namespace.route_clears
            self.routes.clear()

    def resolve(self, topic: bytes) -> tuple[Route | None, int, int, int]:
        """(route, reason why not, marks, largest message) of a topic that is published to for the first time."""
        self._service.check_topic_bytes(topic)
        try:
            limits = self._service.limits
            check_topic(topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
            if not self._service.broker.access.allows(self._principal, Action.PUBLISH, topic):
                return None, Reason.NOT_AUTHORIZED, 0, 0
            route = self._namespace.route(topic)
        except MainstemError as error:
            logger.info("publish to %r refused: %s", topic[:100], error)
            return None, reason_of(error), 0, 0
        wanted = self._service.no_local.match(topic)
        policy = self._namespace.record_rules.policy(topic)
        marks = (MARK_CLIENT_WANTED if wanted else 0) | (MARK_CHECKED if policy.schema else 0)
        marks |= 0 if route.log.keeps else MARK_LIVE
        return route, 0, marks, policy.message_bytes_max


class MqttService:
    def __init__(self, broker: Broker, config: Any) -> None:
        self.broker = broker
        self.now_ns = broker.clock.now_ns
        self.limits = _limits(config)
        self.config = config
        self.keeper = keeper = broker.session_keeper
        self.sessions, self.wills, self.held, self.no_local = (
            keeper.sessions,
            keeper.wills,
            keeper.held,
            keeper.no_local,
        )
        self.retained, self.publish, self.end_session = keeper.retained, keeper.publish, keeper.end_session
        keeper.on_no_local = self._forget_routes
        keeper.unreleased = self._unreleased
        self.clients: dict[bytes, MqttConnection] = {}
        self.encoder = Encoder(translate, describe)
        self.encoder.now_ns = broker.clock.now_ns()
        self._publishers: dict[tuple[Namespace, Principal], Publisher] = {}
        self.unsettled_publishes = UnsettledPublishes(self.sessions)
        self.redeliveries: list[Redelivery] = []
        self.closed = False
        self._busy_keys: dict[Queue, set[bytes]] = {}
        self._flush_planned = False
        self._begun: list[Session] = []
        self.counters: list[Counters] = []  # of each listener
        self._sent_before = self._dropped_before = 0  # by connections that are gone
        self.sys_topics = SysTopics(self, interval_seconds=config.mqtt.sys_interval_ms / 1000)
        broker.access.listeners.append(self._rights_changed)

    @classmethod
    def of(cls, broker: Broker, config: Any) -> MqttService:
        known = _services.get(broker)
        found = known() if known is not None else None
        if found is None:
            found = cls(broker, config)
            _services[broker] = ref(found)
        return found

    def close_when_empty(self) -> None:
        """A listener closed its connections. After the last client has left nothing is journaled any more."""
        if self.clients:
            return
        self.keeper.close()
        self.closed = self.unsettled_publishes.closed = True

    # -- namespaces, rights and routes

    def namespace_of(self, principal: Principal) -> Namespace:
        """Its own or none: NotFound where that does not exist."""
        return self.broker.namespace(principal.namespace)

    def publisher(self, namespace: Namespace, principal: Principal) -> Publisher:
        found = self._publishers.get((namespace, principal))
        if found is None:
            found = self._publishers[namespace, principal] = Publisher(self, namespace, principal)
        return found

    def check_topic_bytes(self, topic: bytes) -> None:
        """What is not a topic name at all breaks the protocol; what is merely refused is answered."""
        if b"+" in topic or b"#" in topic:
            raise Violation(Reason.TOPIC_NAME_INVALID, "a topic name with wildcards")
        if b"\0" in topic:
            raise Violation(Reason.MALFORMED_PACKET, "a topic name with U+0000")
        try:
            topic.decode()
        except UnicodeDecodeError:
            raise Violation(Reason.MALFORMED_PACKET, "a topic name that is not UTF-8") from None

    def check_will(self, principal: Principal, will: Will) -> None:
        limits = self.limits
        self.wills.check(principal, will.topic, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        if (will.qos or will.retain) and not self.namespace_of(principal).stores(will.topic):
            raise not_stored(will.topic)

    def _rights_changed(self) -> None:
        self._publishers.clear()
        for connection in list(self.clients.values()):
            connection.rights_changed()

    def _forget_routes(self) -> None:
        for publisher in self._publishers.values():
            publisher.routes.clear()

    # -- delayed messages

    def delay(
        self,
        namespace: Namespace,
        due_ms: int,
        topic: bytes,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        properties: bytes,
        key: bytes | None,
        headers: Sequence[Header],
        time_ms: int | None,
    ) -> Ticket:
        """Publish when it is due, also after a restart; the ticket is the promise's."""
        flags = qos | (RecordFlag.RETAIN if retain else 0)
        namespace.record_rules.check(topic, payload, flags)
        stored = [*headers, (b"ms-mqtt", properties)] if properties else list(headers)
        return self.broker.delayed.add(
            namespace,
            topic,
            None if retain and not payload else payload,
            due_ms=due_ms,
            key=key,
            headers=stored,
            time_ms=time_ms,
            flags=flags,
            origin=Origin.MQTT,
        )

    # -- sessions

    def session_moved(self, session: Session) -> None:
        if self.sessions.mark_moved(session):
            asyncio.get_running_loop().call_later(PLACE_MS / 1000, self._save_places)

    def _save_places(self) -> None:
        if not self.closed and self.sessions.save_places():
            asyncio.get_running_loop().call_later(PLACE_MS / 1000, self._save_places)

    def flight_begun(self, session: Session) -> None:
        """A session was given its first QoS 1 identifier since its place was written: that is written with this tick."""
        if not self._begun:
            self.broker.ticker.after_tick(self._save_begun)
        self._begun.append(session)

    def _save_begun(self) -> None:
        """Before the tick's packets leave. Of very many sessions in one tick the rest takes its turn with the places."""
        begun, self._begun = self._begun, []
        if self.closed:
            return
        self.sessions.save_begun(begun[:PLACES_PER_ROUND_MAX])
        for session in begun[PLACES_PER_ROUND_MAX:]:
            self.session_moved(session)
        self.broker.ticker.write_gathered()

    def resume(self, outbound: Outbound, filters: list[bytes], *, changed: bool = False) -> None:
        """Go on serving a subscriber from the log; `changed` filters begin a new reading at its position."""
        if changed:
            self.broker.pump.stop(outbound)
        self.encoder.now_ns = self.broker.clock.now_ns()
        if filters:
            self.broker.pump.resume(outbound, filters)
        else:
            outbound.live = True

    # -- queues

    def busy_keys(self, queue: Queue) -> set[bytes]:
        """Keys of unsettled records of a queue that is ordered by key; all its members share them."""
        return self._busy_keys.setdefault(queue, set())

    def flush_settled_soon(self) -> None:
        """Acks collect until the end of the loop's turn."""
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush_settled)

    def _flush_settled(self) -> None:
        self._flush_planned = False
        if self.closed:
            return
        self.broker.queues.flush_settled()

    # -- figures

    def subscription_count(self) -> int:
        _, absent = self.sessions.absent()
        present = sum(len(one.subscriptions.by_filter) for one in self.clients.values() if one.subscriptions)
        return absent + present

    def delivered(self) -> tuple[int, int]:
        """Publishes sent to clients, and dropped on the way, since the start."""
        sent = self._sent_before + sum(one.outbound.messages for one in self.clients.values())
        return sent, self._dropped_before + sum(one.outbound.dropped for one in self.clients.values())

    def count_gone(self, outbound: Outbound, counters: Counters) -> None:
        self._sent_before += outbound.messages
        self._dropped_before += outbound.dropped
        counters.messages_out += outbound.messages
        counters.messages_dropped += outbound.dropped
        counters.bytes_out += outbound.bytes_sent

    # -- every second

    def tick_second(self) -> None:
        if self.closed:
            return
        now_ns = self.broker.clock.now_ns()
        self.encoder.now_ns = now_ns
        self.redeliveries = [one for one in self.redeliveries if not one.go_on()]

    def _unreleased(self) -> list[Unreleased]:
        """Of clients that wait for their CONNACK the sessions themselves know, and have written it down."""
        return [
            (connection.saved, connection.inbound.received_ids(True))
            for connection in self.clients.values()
            if connection.saved is not None
            and connection.state == "on"
            and (connection.inbound.received_count or connection.saved.received)
        ]


def _limits(config: Any) -> Limits:
    mqtt, limits = config.mqtt, config.limits
    return Limits(
        packet_bytes_max=config.topics.message_bytes_max + 128 * 1024,
        connect_bytes_max=limits.frame_bytes_max_before_login,
        connect_timeout_seconds=max(1, limits.login_ms // 1000),
        topic_bytes_max=limits.topic_bytes_max,
        topic_levels_max=limits.topic_levels_max,
        user_properties_max=limits.headers_max,
        subscriptions_max=mqtt.subscriptions_max,
        receive_maximum=mqtt.receive_max,
        inflight_max=mqtt.receive_max,
        topic_alias_maximum=mqtt.topic_alias_max,
        keep_alive_seconds_max=mqtt.keep_alive_max_s,
        session_expiry_seconds_max=min(0xFFFFFFFF, mqtt.session_expiry_max_ms // 1000),
        connections_max=limits.connections_max,
        retained_max=mqtt.retained_max,
    )
