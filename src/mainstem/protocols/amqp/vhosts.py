"""What the connections of one virtual host share: its queues and exchanges, and where publishes lead."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.declaring import quoted
from mainstem.broker.queues.exchange_names import DEFAULT, topic_of
from mainstem.broker.rights.access import Action, Kind, Principal
from mainstem.codec.batch import encode_headers
from mainstem.model.errors import MainstemError
from mainstem.model.origin import RecordFlag
from mainstem.protocols.amqp.channel_declare import REPLY_TO
from mainstem.protocols.amqp.consuming import ReplyConsumer
from mainstem.protocols.amqp.faults import AccessRefused, Fault, fault_of
from mainstem.protocols.amqp.wire import Target, TargetTable


class Vhost:
    def __init__(self, broker: Broker, namespace: Namespace) -> None:
        self.broker = broker
        self.namespace = namespace
        self.name = namespace.name
        self.queues = broker.queues.of(namespace)
        self.exchanges = self.queues.exchanges
        self._publishers: dict[Principal, Publisher] = {}

    def now(self) -> int:
        """A stamp that belongs to nobody else."""
        return self.broker.stamps.take(1)

    def publisher(self, principal: Principal) -> Publisher:
        found = self._publishers.get(principal)
        if found is None:
            found = self._publishers[principal] = Publisher(self, principal)
        return found


class Publisher:
    """One principal's way from (exchange, routing key) to a topic's log, as a table that its connections share."""

    def __init__(self, vhost: Vhost, principal: Principal) -> None:
        self._vhost = vhost
        self._principal = principal
        self._seen = -1
        self.targets = TargetTable(self.resolve)

    def check(self) -> None:
        """Exchanges, bindings, rights or routes may have changed since the last read."""
        vhost = self._vhost
        seen = vhost.exchanges.version + vhost.namespace.route_clears + vhost.broker.access.version  # each only grows
        if seen != self._seen:
            self._seen = seen
            self.targets.clear()

    def resolve(self, exchange_name: bytes, key_name: bytes) -> Target:
        exchange = exchange_name.decode("utf-8", "surrogateescape")
        key = key_name.decode("utf-8", "surrogateescape")
        vhost = self._vhost
        found = vhost.exchanges.find(exchange)
        if found is None:
            raise Fault(404, f"no {quoted('exchange', exchange, vhost.name)}")
        try:
            topic = topic_of(exchange, key)
        except MainstemError as error:
            raise fault_of(error) from error
        called = exchange or "amq.default"
        if not vhost.broker.access.allows_named(self._principal, Action.PUBLISH, Kind.EXCHANGE, called, topic):
            named = quoted("exchange", exchange, vhost.name)
            text = f"write access to {named} refused for user '{self._principal.name}'"
            raise AccessRefused(text, "publish", topic.decode(errors="replace"))
        if vhost.namespace.refusal is not None:  # a transient message is confirmed unasked: it must not get so far
            raise fault_of(vhost.namespace.refusal)
        try:
            route = vhost.namespace.route(topic)
        except MainstemError as error:
            raise fault_of(error) from error
        headers = vhost.exchanges.headers_of(exchange, key, topic)
        live = not route.log.keeps
        plain = (
            not found.internal
            and not (exchange == DEFAULT and live)
            and not vhost.namespace.record_rules.policy(topic).schema
            and vhost.exchanges.is_simple(exchange, key)
            and not (exchange == DEFAULT and key.startswith(REPLY_TO))
            and not any(queue.settings.refuses for queue in vhost.exchanges.route(exchange, [key]))
        )
        flags = RecordFlag.KEY_IS_TOPIC | (RecordFlag.DEFAULT_EXCHANGE if exchange == DEFAULT else 0)
        head = encode_headers(headers) if headers else b""
        return Target(
            route, exchange, key, flags=int(flags), head=head, head_count=len(headers), plain=plain, live=live
        )


class Replies:
    """Direct reply-to: which channel waits for answers under which address."""

    def __init__(self) -> None:
        self._consumers: dict[str, ReplyConsumer] = {}

    def add(self, consumer: ReplyConsumer) -> None:
        self._consumers[consumer.address] = consumer

    def remove(self, consumer: ReplyConsumer) -> None:
        self._consumers.pop(consumer.address, None)

    def find(self, address: str) -> ReplyConsumer | None:
        return self._consumers.get(address)
