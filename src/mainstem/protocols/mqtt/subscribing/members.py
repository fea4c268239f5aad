"""MQTT clients as consumers of queues: `$share/<group>/<filter>` and `$queue/<name>[/<filter>]`.

PUBACK settles a delivery: a reason below 0x80 acks it. Of a named queue, 0x83 and 0x99 reject it (poison) and any other
reason gives it back, as a lost connection does; of a shared group any such reason rejects it, for MQTT says that it must
not be sent to another member then [MQTT-4.8.2-6].

A shared group is a queue of its own that begins with its first subscription and ends with its last session, unless a
named queue of the group's name and exactly its filter exists: then it is that queue.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.opening import check_joiner
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.queue_sink import Taker
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.rights.access import Action, Kind
from mainstem.broker.sessions.sessions import Subscription
from mainstem.model.errors import InvalidArgument, InvalidName, NotAuthorized, NotFound
from mainstem.model.origin import Origin
from mainstem.protocols.mqtt.outgoing.outbound import Grant
from mainstem.protocols.mqtt.session import grant_of
from mainstem.protocols.mqtt.subscribing.filters import Asked
from mainstem.protocols.mqtt.wire.properties import Property, encode_property
from mainstem.protocols.mqtt.wire.reasons import Reason

if TYPE_CHECKING:
    from mainstem.protocols.mqtt.adapter import MqttConnection

UNUSED_MS_MAX = 7 * 86_400_000  # then a queue made by `$queue/<name>/<filter>` is removed
CREDIT = 1 << 30  # room is asked for each record; credit only says that there may be some
ORDER = b"queue-order"
SHARE_PREFIX = "$share/"
POISON = (Reason.IMPLEMENTATION_SPECIFIC, Reason.PAYLOAD_FORMAT_INVALID)
GIVEN_BACK = 0x100  # no reason code: the client was lost


def join_group(connection: MqttConnection, asked: Asked, properties: dict[bytes, bytes]) -> Queue:
    assert connection.namespace is not None
    queues = connection.service.broker.queues.of(connection.namespace)
    assert connection.principal is not None
    access = connection.service.broker.access
    if access.denies_some(
        connection.principal, Action.CONSUME, asked.filter
    ):  # passed over, its records would stay there
        shown = asked.filter.decode(errors="replace")
        raise NotAuthorized(f"of {shown!r} a rule denies user {connection.principal.name} some; nobody can share it")
    named = queues.find(asked.name)
    if named is not None and _only_filter(named) == asked.filter:
        check_joiner(access, connection.principal, named)
        return named
    name = f"{SHARE_PREFIX}{asked.name}/{asked.filter.decode()}"  # as session_keeper.share_name
    queue = queues.find(name)
    if queue is None:
        queue = _declare(connection, name, asked.filter, QueueSettings())
    connection.service.keeper.join_share(name, connection.key)
    return queue


def join_queue(connection: MqttConnection, asked: Asked, properties: dict[bytes, bytes]) -> Queue:
    assert connection.namespace is not None and connection.principal is not None
    queues = connection.service.broker.queues.of(connection.namespace)
    queue = queues.find(asked.name)
    if queue is None:
        if not asked.filter:
            raise NotFound(f"no queue {asked.name!r}", fix=f"subscribe to $queue/{asked.name}/<filter> to make it")
        order = properties.get(ORDER, b"").decode()
        if order not in ("", "key"):
            raise InvalidArgument(f"queue-order {order[:60]!r} is not known; it may be key")
        if not connection.service.broker.access.allows_all(connection.principal, Action.CONSUME, asked.filter):
            # Here each delivery is asked for; by AMQP and Kafka who may consume the queue's name gets what is in it.
            raise NotAuthorized(f"user {connection.principal.name} may not consume all of {asked.filter.decode()!r}")
        if (
            connection.service.broker.access.judges(connection.principal, Action.CREATE, Kind.QUEUE, asked.name)
            is False
        ):
            raise NotAuthorized(f"user {connection.principal.name} may not create queue {asked.name!r}")
        settings = QueueSettings(expires_ms=UNUSED_MS_MAX, arguments={"order": order} if order else {})
        return _declare(connection, asked.name, asked.filter, settings)
    check_joiner(connection.service.broker.access, connection.principal, queue)  # before anything is said of it
    if asked.filter and _only_filter(queue) != asked.filter:
        filters = ", ".join(one.decode(errors="replace") for one in queue.filters) or "bindings of its own"
        raise InvalidName(f"queue {asked.name!r} is over {filters}; join it as $queue/{asked.name}")
    return queue


def _declare(connection: MqttConnection, name: str, topic_filter: bytes, settings: QueueSettings) -> Queue:
    assert connection.namespace is not None
    broker = connection.service.broker
    queues = broker.queues.of(connection.namespace)
    broker.ticker.write_now()  # what was published before belongs before
    queue, _ = queues.declare(name, settings, reaches=[Reach(ANYTHING, topic_filter, start=NOW)])
    return queue


def _only_filter(queue: Queue) -> bytes | None:
    reaches = list(queue.reaches.open_ones())
    return reaches[0].filter if len(reaches) == 1 and reaches[0].kind == ANYTHING else None


class Held:
    """One delivery that is not settled yet."""

    __slots__ = ("_key", "_position", "member")

    def __init__(self, member: Member, position: int, key: bytes | None) -> None:
        self.member = member
        self._position = position
        self._key = key

    def settle(self, reason: int) -> None:
        self.member.settled(self._position, self._key, reason)

    def give_back(self) -> None:
        """The client is gone: another may have it."""
        self.member.settled(self._position, self._key, GIVEN_BACK)


class Member(Taker):
    """One client's share of a queue. `forced`: every record is delivered with the subscription's own QoS."""

    def __init__(self, connection: MqttConnection, queue: Queue, subscription: Subscription, *, forced: bool) -> None:
        super().__init__(credit=CREDIT, no_ack=subscription.qos == 0)
        self._connection = connection
        self._grant = grant_of(subscription)
        self._forced = forced
        self._by_key = queue.settings.arguments.get("order") == "key"
        self._busy = connection.service.busy_keys(queue) if self._by_key else set()
        self._filter = subscription.filter
        queue.attach(self)

    @property
    def connection(self) -> MqttConnection:
        """Whose it is."""
        return self._connection

    @property
    def unacked(self) -> int:
        held = self._connection.outbound.unsettled_sources()
        return sum(1 for one in held if isinstance(one, Held) and one.member is self)

    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        outbound = self._connection.outbound
        if not self.may_have(record.topic):
            return self._pass_by(record)
        if not outbound.room:
            self.credit = 0
            return False
        key = record.key if self._by_key else None
        if key is not None and key in self._busy:
            return False  # an earlier record of this key is not settled yet
        grant = self._grant
        if redelivered:
            count = encode_property(Property.USER_PROPERTY, (b"ms-delivery-count", b"%d" % max(attempts, 1)))
            grant = Grant(grant.qos, identifiers=grant.identifiers + count, meta=grant.meta)
        if grant.qos == 0:
            return bool(outbound.offer(record, Grant(0, identifiers=grant.identifiers, meta=grant.meta)))
        if not self._forced and record.origin != Origin.KAFKA and not record.flags & 3:
            taken = bool(outbound.offer(record, grant))  # published with QoS 0: delivered so, and done
            if taken:
                self._ack(record.stamp)
            return taken
        before = outbound.inflight
        taken = bool(outbound.offer(record, grant, False, Held(self, record.stamp, key)))
        if taken and outbound.inflight == before:  # expired, or too large for this client: nothing will be acknowledged
            self._ack(record.stamp)
        elif taken and key is not None:
            self._busy.add(key)
        return taken

    def may_have(self, topic: bytes) -> bool:
        """A filter may overlap topics that its subscriber may not read: each delivery is checked."""
        allows = self._connection.outbound.allows
        return allows is None or bool(allows(topic))

    def _pass_by(self, record: RecordRef) -> bool:
        """Not ours to read. A queue keeps it for who may; for a group none of whose members may, it never was."""
        queue: Queue = self.queue
        others = any(not isinstance(one, Member) or one.may_have(record.topic) for one in queue.takers)
        if self._forced or others:
            return False
        if not self.no_ack:
            self._ack(record.stamp)
        return True

    def _ack(self, position: int) -> None:
        """What nobody will acknowledge is done; told once the sink's turn is over."""
        asyncio.get_running_loop().call_soon(self.settled, position, None, 0)

    def settled(self, position: int, key: bytes | None, reason: int) -> None:
        queue: Queue = self.queue
        if key is not None:
            self._busy.discard(key)
            queue.wake()
        if queue.deleted:
            return
        if reason < 0x80:
            if queue.sink.ack(position):
                queue.queues.touch(queue)
            self._connection.service.flush_settled_soon()
        elif reason != GIVEN_BACK and (not self._forced or reason in POISON):
            queue.settle([position], Outcome.REJECT)
        else:
            queue.settle([position], Outcome.RELEASE)

    def room(self) -> None:
        if self.credit == 0 and self._connection.outbound.room:
            self.credit = CREDIT
            self.queue.wake()

    def close(self, *, ended: bool) -> None:
        queue: Queue = self.queue
        queue.detach(self)
        if ended and queue.name.startswith(SHARE_PREFIX):
            connection = self._connection
            assert connection.namespace is not None
            connection.service.keeper.leave_share(connection.namespace, queue.name, connection.key)

    def on_queue_deleted(self) -> None:
        """The queue is gone; nothing more comes."""
