"""What all MQTT clients of a broker share, whichever listener they came by: sessions, retained messages, wills, routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mainstem.broker.access import Action, Principal
from mainstem.broker.broker import DEFAULT_NAMESPACE, Broker
from mainstem.broker.delayed import TOPIC as DELAYED_TOPIC
from mainstem.broker.live import Route
from mainstem.broker.namespace import Namespace
from mainstem.broker.queues.queue import Queue
from mainstem.broker.retained import Retained
from mainstem.broker.sessions import PLACE_MS, Session, Sessions, Subscription
from mainstem.codec.batch import decode_frames
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header, Record
from mainstem.model.topic_filter import check_topic, literal_filter
from mainstem.model.topic_tries import FilterTrie
from mainstem.protocols.connection import Counters
from mainstem.protocols.mqtt.crossing import describe, translate
from mainstem.protocols.mqtt.filters import share_name
from mainstem.protocols.mqtt.held import HeldLimits
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.outbound import Encoder, Outbound
from mainstem.protocols.mqtt.reasons import Reason, Violation, reason_of
from mainstem.protocols.mqtt.redelivery import Redelivery
from mainstem.protocols.mqtt.settling import Settling
from mainstem.protocols.mqtt.sys_topics import SysTopics
from mainstem.protocols.mqtt.wills import Wills
from mainstem.protocols.mqtt.wire import MARK_CLIENT_WANTED, RouteTable

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

logger = logging.getLogger("mainstem.mqtt")

TAIL_READ_BYTES = 4 << 20
INFLATED_BYTES_MAX = 64 << 20
NS_PER_MS = 1_000_000
QOS_2_IDENTITY = b"ms-qos2"  # packet identifier and client id of a publish that a session may repeat
QOS_2_DELAYED = b"ms-qos2-delayed"  # the same of a delayed one, which counts where it waits, not where it ends up

_services: WeakKeyDictionary[Broker, MqttService] = WeakKeyDictionary()


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
        return route, 0, MARK_CLIENT_WANTED if wanted else 0, self._namespace.message_bytes_max(topic)


class MqttService:
    def __init__(self, broker: Broker, config: Any) -> None:
        self.broker = broker
        self.now_ns = broker.clock.now_ns
        self.limits = _limits(config)
        self.config = config
        self.sessions = Sessions(broker.journal, sessions_max=self.limits.sessions_max)
        self.clients: dict[bytes, MqttConnection] = {}
        self.no_local = FilterTrie()  # filters of No Local subscriptions, present or absent
        self.encoder = Encoder(translate, describe)
        self.encoder.now_ns = broker.clock.now_ns()
        self._retained: dict[str, Retained] = {}
        self._publishers: dict[Principal, Publisher] = {}
        self._recovered = False
        self._candidate: tuple[int, list[tuple[Log, int]]] | None = None
        self.wills = Wills(self)
        self.settling = Settling(self.sessions)
        self.redeliveries: list[Redelivery] = []
        self.held = HeldLimits(
            broker,
            ms_max=config.mqtt.session_held_ms_max,
            messages_max=config.mqtt.session_held_messages_max,
            bytes_max=config.mqtt.session_held_bytes_max,
        )
        self.held.on_over = self.sessions.end_hold
        self.closed = False
        self._shares: dict[str, set[bytes]] = {}  # shared group's queue → keys of the sessions that subscribe to it
        self._busy_keys: dict[Queue, set[bytes]] = {}
        self._flush_planned = False
        self.counters: list[Counters] = []  # of each listener
        self.expired_total = 0
        self._sent_before = self._dropped_before = 0  # by connections that are gone
        self.sys_topics = SysTopics(self, interval_seconds=config.mqtt.sys_interval_ms / 1000)
        broker.journal.register("retained", self._apply_retained, self._dump_retained)
        broker.access.listeners.append(self._rights_changed)
        broker.maintenance.holders.update(sessions=self.session_holds, retained=self.retained_holds)

    @classmethod
    def of(cls, broker: Broker, config: Any) -> MqttService:
        found = _services.get(broker)
        if found is None:
            found = _services[broker] = cls(broker, config)
        return found

    def close_when_empty(self) -> None:
        """A listener closed its connections. After the last client has left nothing is journaled any more."""
        if self.clients:
            return
        while self.sessions.save_places():
            pass
        self.wills.close()
        self.closed = self.settling.closed = True

    # -- namespaces, rights and routes

    def namespace_of(self, principal: Principal) -> Namespace:
        name = principal.namespace
        return self.broker.namespace(name if name in self.broker.namespaces else DEFAULT_NAMESPACE)

    def publisher(self, namespace: Namespace, principal: Principal) -> Publisher:
        found = self._publishers.get(principal)
        if found is None:
            found = self._publishers[principal] = Publisher(self, namespace, principal)
        return found

    def retained(self, namespace: Namespace) -> Retained:
        found = self._retained.get(namespace.name)
        if found is None:
            found = Retained(namespace, self.broker.journal, self.broker.ticker, retained_max=self.limits.retained_max)
            self._retained[namespace.name] = found
            namespace.on_retained = found.note
        return found

    def check_topic_bytes(self, topic: bytes) -> None:
        """What is no topic name at all breaks the protocol; what is merely refused is answered."""
        if b"+" in topic or b"#" in topic:
            raise Violation(Reason.TOPIC_NAME_INVALID, "a topic name with wildcards")
        if b"\0" in topic:
            raise Violation(Reason.MALFORMED_PACKET, "a topic name with U+0000")
        try:
            topic.decode()
        except UnicodeDecodeError:
            raise Violation(Reason.MALFORMED_PACKET, "a topic name that is not UTF-8") from None

    def _rights_changed(self) -> None:
        self._publishers.clear()
        for connection in list(self.clients.values()):
            connection.rights_changed()

    def want_client(self, topic_filter: bytes, holder: object) -> None:
        """A No Local subscription: publishers to these topics say from now on who they are."""
        self.no_local.add(literal_filter(topic_filter), holder)
        self._forget_routes()

    def unwant_client(self, topic_filter: bytes, holder: object) -> None:
        self.no_local.remove(literal_filter(topic_filter), holder)
        self._forget_routes()

    def _forget_routes(self) -> None:
        for publisher in self._publishers.values():
            publisher.routes.clear()

    # -- publishing for a client: wills, delayed messages, publishes with `ms-` properties

    def publish(
        self,
        namespace: Namespace,
        topic: bytes,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        properties: bytes = b"",
        client_id: bytes = b"",
        key: bytes | None = None,
        headers: tuple[Header, ...] = (),
        time_ms: int | None = None,
    ) -> Ticket:
        stored = list(headers)
        if properties:
            stored.append((b"ms-mqtt", properties))
        if client_id and self.no_local.match(topic):
            stored.append((b"ms-client", client_id))
        self.retained(namespace)
        return namespace.publish(
            topic,
            None if retain and not payload else payload,
            key=key,
            headers=stored,
            time_ms=time_ms,
            flags=qos | (RecordFlag.RETAIN if retain else 0),
            origin=Origin.MQTT,
        )

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
        namespace.check_size(topic, payload)
        stored = [*headers, (b"ms-mqtt", properties)] if properties else list(headers)
        return self.broker.delayed.add(
            namespace,
            topic,
            None if retain and not payload else payload,
            due_ms=due_ms,
            key=key,
            headers=stored,
            time_ms=time_ms,
            flags=qos | (RecordFlag.RETAIN if retain else 0),
            origin=Origin.MQTT,
        )

    # -- sessions

    def session_key(self, namespace: Namespace, client_id: bytes) -> bytes:
        return namespace.name.encode() + b"\0" + client_id

    def session_moved(self, session: Session) -> None:
        if self.sessions.mark_moved(session):
            asyncio.get_running_loop().call_later(PLACE_MS / 1000, self._save_places)

    def _save_places(self) -> None:
        if not self.closed and self.sessions.save_places():
            asyncio.get_running_loop().call_later(PLACE_MS / 1000, self._save_places)

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

    def join_share(self, name: str, key: bytes) -> None:
        self._shares.setdefault(name, set()).add(key)

    def leave_share(self, namespace: Namespace, name: str, key: bytes) -> None:
        """A group ends with its last session."""
        members = self._shares.get(name, set())
        members.discard(key)
        if not members:
            self._shares.pop(name, None)
            queues = self.broker.queues.of(namespace)
            queue = queues.find(name)
            if queue is not None:
                queues.delete(queue)

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

    @property
    def all_retained(self) -> list[bytes]:
        return [topic for retained in self._retained.values() for topic in retained.topics]

    def retained_count(self) -> int:
        return sum(map(len, self._retained.values()))

    def retained_refused(self) -> int:
        return sum(one.refused for one in self._retained.values())

    def subscription_count(self) -> int:
        absent = sum(len(session.subscriptions) for session in self.sessions if session.here is None)
        present = sum(len(one.subscriptions.by_filter) for one in self.clients.values() if one.subscriptions)
        return absent + present

    def share_count(self) -> int:
        return sum(len(members) for members in self._shares.values())

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
        for session in self.sessions.expired(now_ns):
            self.expired_total += 1
            self.end_session(session)
        self.redeliveries = [one for one in self.redeliveries if not one.go_on()]
        self._checkpoint()

    def end_session(self, session: Session) -> Ticket | None:
        """Its time is over, or its client wants a clean start: nothing of it is owed any more."""
        for subscription in session.subscriptions.values():
            if subscription.no_local:
                self.unwant_client(subscription.filter, session)
            if subscription.filter.startswith(b"$share/"):
                self._end_share(session, subscription)
        self.wills.fire(session.key)
        return self.sessions.end(session)

    def _end_share(self, session: Session, subscription: Subscription) -> None:
        namespace = self.broker.namespaces.get(session.key.partition(b"\0")[0].decode())
        if namespace is not None:
            self.leave_share(namespace, share_name(subscription.filter), session.key)

    def _checkpoint(self) -> None:
        """Once everything below a past head is stable, state derived from records below it is journaled, then it."""
        head = self.broker.ticker.head_stamp
        if self._candidate is None:
            if head > self.sessions.checkpoint:
                self._candidate = head, [(log, log.written) for log in self.broker.logs.by_id.values()]
            return
        stamp, logs = self._candidate
        if all(log.stable >= written for log, written in logs):
            self._candidate = None
            pending = [
                (connection.saved, connection.inbound.received_ids(True))
                for connection in self.clients.values()
                if connection.saved is not None and (connection.inbound.received_count or connection.saved.received)
            ]
            self.sessions.save_checkpoint(stamp, pending)

    # -- recovery and retention

    def ensure_recovered(self) -> None:
        """Before the first client: what records beyond the checkpoint say of identifiers and retained messages."""
        if self._recovered:
            return
        self._recovered = True
        for namespace in self.broker.namespaces.values():
            logs = set(namespace.stems.values())
            logs.update(span.log for topic in namespace.topics.values() for p in topic.partitions for span in p.spans)
            for log in logs:
                self._recover_log(namespace, log)
        self.sessions.recovered(self.broker.clock.now_ns(), self._recover_session)
        self.wills.start()
        for namespace in self.broker.namespaces.values():
            queues = self.broker.queues.of(namespace)
            for queue in [one for one in queues if one.name.startswith("$share/") and one.name not in self._shares]:
                queues.delete(queue)  # its members were connections, and are gone

    def _recover_session(self, session: Session) -> None:
        for subscription in session.subscriptions.values():
            if subscription.no_local:
                self.no_local.add(literal_filter(subscription.filter), session)
            if subscription.filter.startswith(b"$share/"):
                self.join_share(share_name(subscription.filter), session.key)

    def _recover_log(self, namespace: Namespace, log: Log) -> None:
        checkpoint = self.sessions.checkpoint
        if log.last_stamp < checkpoint:
            return
        offset = log.offset_of_stamp(checkpoint)
        while (piece := log.read(offset, TAIL_READ_BYTES)) is not None:
            records = decode_frames(
                piece.data, log.id, inflated_bytes_max=INFLATED_BYTES_MAX, topic_of=namespace.topic_of
            )
            for record in records:
                if record.stamp >= checkpoint and (record.origin == Origin.MQTT or record.topic == DELAYED_TOPIC):
                    self._recover_record(namespace, log, record)
            offset = piece.end_offset

    def _recover_record(self, namespace: Namespace, log: Log, record: Record) -> None:
        if record.flags & RecordFlag.RETAIN:
            self.retained(namespace).recover(record.topic, log, record)
        name = QOS_2_DELAYED if record.topic == DELAYED_TOPIC else QOS_2_IDENTITY
        identity = record.header(name) if name == QOS_2_DELAYED or record.flags & RecordFlag.QOS_2 else None
        if identity is not None:
            key = self.session_key(namespace, identity[2:])
            self.sessions.recover_received(key, int.from_bytes(identity[:2], "big"), record.stamp)

    def _apply_retained(self, key: bytes, value: bytes | None) -> None:
        name, _, topic = key.partition(b"\0")
        namespace = self.broker.namespaces.get(name.decode())
        if namespace is not None:
            self.retained(namespace).apply(topic, value)

    def _dump_retained(self) -> Any:
        for retained in self._retained.values():
            yield from retained.dump()

    def session_holds(self, log: Log) -> Holds:
        """What persistent sessions still need of a log."""
        for session in self.held.check(self.sessions.holders()):  # the one furthest behind first
            namespace = self.broker.namespaces.get(session.key.partition(b"\0")[0].decode())
            filters = (literal_filter(one.filter) for one in session.subscriptions.values() if one.qos)
            if namespace is not None and namespace.may_hold(log, filters):
                return Holds(from_stamp=session.oldest())
        return Holds()

    def retained_holds(self, log: Log) -> Holds:
        """The records of a log that retained pointers name."""
        return Holds(offsets=sorted(offset for one in self._retained.values() for offset in one.held_offsets(log)))


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
