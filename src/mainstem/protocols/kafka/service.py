"""What all Kafka connections share: the broker's coordinator, topics, fetch sessions and buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import DEFAULT_NAMESPACE, Broker
from mainstem.broker.rights.access import Principal
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.topic import Topic
from mainstem.protocols.connection import Server
from mainstem.protocols.kafka.answer_buffers import AnswerBuffers
from mainstem.protocols.kafka.kafka_topics import GroupTopics, KafkaTopics
from mainstem.protocols.kafka.plain_fetch import HEADS_BYTES
from mainstem.protocols.kafka.request_channel import READ_BYTES, Buffers
from mainstem.protocols.kafka.rules import TopicRules
from mainstem.protocols.kafka.sessions import FetchSessions
from mainstem.protocols.kafka.shares import Shares
from mainstem.protocols.kafka.subscription import subscribed_topics

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace

OPENERS = 2  # threads that look into batches; what one inflates is bounded by limits.inflate_bytes_max


class KafkaService(Server):
    moves_between_requests = True

    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.broker = broker
        self.config = config
        self.clock = broker.clock
        self.access = broker.access
        self.buffers = Buffers()
        self.opener = ThreadPoolExecutor(OPENERS, thread_name_prefix="open-batches")  # none before it is used
        self.answer_buffers = AnswerBuffers()
        self.answer_heads = bytearray(HEADS_BYTES)  # for all connections: an answer is made in one go
        self.read_buffer = bytearray(READ_BYTES)  # for all connections: what is read is parsed before the next read
        self.coordinator = broker.coordinator
        self.groups = self.coordinator.groups
        self.groups.subscribed = subscribed_topics
        self.producers = self.coordinator.producers
        self.watches = self.coordinator.watches
        self.markers = self.coordinator.markers
        self.transactions = self.coordinator.transactions
        self.group_configs = self.coordinator.group_configs
        self.now_ms = self.coordinator.now_ms
        self.monotonic_ms = self.coordinator.monotonic_ms
        self.fetch_sessions = FetchSessions()
        self.shares = Shares(self)
        self._topics: dict[str, KafkaTopics] = {}
        self._rules: dict[int, tuple[Policy, dict[str, Any], TopicRules]] = {}

    @property
    def node_id(self) -> int:
        return self.broker.nodes.own_id

    @property
    def cluster_id(self) -> str:
        return self.coordinator.cluster_id

    # -- tenants ---------------------------------------------------------------------------------------------------

    def namespace_of(self, principal: Principal) -> Namespace:
        """Its own or none: NotFound where that does not exist."""
        return self.broker.namespace(principal.namespace)

    def topics_of(self, namespace: Namespace) -> KafkaTopics:
        known = self._topics.get(namespace.name)
        if known is None or known.namespace is not namespace:
            known = KafkaTopics(self.broker, namespace, auto_create=self.config.topics.auto_create)
            self._topics[namespace.name] = known
        return known

    def group_key(self, namespace: Namespace, group_id: str) -> str:
        """Ids of tenants never meet: one that has the mark in it is nobody's."""
        if "\x01" in group_id:
            return f"\0{namespace.name}\0{group_id}"
        return group_id if namespace.name == DEFAULT_NAMESPACE else f"{namespace.name}\x01{group_id}"

    def group_name(self, namespace: Namespace, key: str) -> str | None:
        """The id as the tenant knows it; None for another tenant's group."""
        owner, mark, group_id = key.rpartition("\x01")
        if not mark:
            return key if namespace.name == DEFAULT_NAMESPACE else None
        return group_id if owner == namespace.name else None

    def transactional_topic(self, namespace: Namespace, name: str) -> str:
        """How a transaction names a topic: with its tenant."""
        return f"{namespace.name}\x01{name}"

    def rules_of(self, topic: Topic) -> TopicRules:
        """Kept until the topic's settings change."""
        known = self._rules.get(topic.id)
        if known is None or known[0] is not topic.policy or known[1] is not topic.config:
            rules = TopicRules.of(topic, self.config.limits.inflate_bytes_max)
            known = self._rules[topic.id] = (topic.policy, topic.config, rules)
        return known[2]

    def make_dedicated(self, namespace: Namespace, topic: Topic) -> None:
        """Transactions need a log of their own: others' records must not wait behind an open one."""
        if not topic.policy.dedicated:
            self.broker.move_topic(namespace, topic, topic.policy.with_changes({"layout": "dedicated"}))

    def forget_share_group(self, namespace: Namespace, group_id: str) -> None:
        """The group was deleted; its queues and settings go with it."""
        self.shares.forget_group(namespace, group_id)
        self.coordinator.forget_group_config(self.group_key(namespace, group_id))

    def refresh_groups(self) -> None:
        """Topics came or went."""

        def lookup(key: str) -> GroupTopics:
            owner, mark, _ = key.rpartition("\x01")
            return GroupTopics(self.topics_of(self.broker.namespace(owner if mark else DEFAULT_NAMESPACE)))

        self.groups.refresh(lookup)

    def later(self, delay_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, call)
