"""What all Kafka connections share: groups, transactions, producers, catalogs, and the one timer that drives them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.access import Principal
from mainstem.broker.broker import DEFAULT_NAMESPACE, Broker
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.groups.registry import Groups
from mainstem.broker.policy import Policy
from mainstem.broker.producers import Producers
from mainstem.broker.topics import Topic
from mainstem.broker.transactions import Transactions
from mainstem.protocols.connection import Server
from mainstem.protocols.kafka.answer_buffers import AnswerBuffers
from mainstem.protocols.kafka.catalog import Catalog, GroupTopics
from mainstem.protocols.kafka.markers import MarkerWork
from mainstem.protocols.kafka.plain_fetch import HEADS_BYTES
from mainstem.protocols.kafka.rules import TopicRules
from mainstem.protocols.kafka.session import READ_BYTES, Buffers
from mainstem.protocols.kafka.sessions import FetchSessions
from mainstem.protocols.kafka.shares import Shares
from mainstem.protocols.kafka.watch import Watches

if TYPE_CHECKING:
    from mainstem.broker.namespace import Namespace

logger = logging.getLogger("mainstem.kafka")

NODE_ID = 1
TICK_S = 0.1
TRIM_EVERY_TICKS = 600


class KafkaService(Server):
    def __init__(self, broker: Broker, config: Any) -> None:
        super().__init__(broker.ticker, connections_max=config.limits.connections_max)
        self.broker = broker
        self.config = config
        self.clock = broker.clock
        self.access = broker.access
        self.cluster_id = ""
        self.buffers = Buffers()
        self.answer_buffers = AnswerBuffers()
        self.answer_heads = bytearray(HEADS_BYTES)  # for all connections: an answer is made in one go
        self.read_buffer = bytearray(READ_BYTES)  # for all connections: what is read is parsed before the next read
        kafka = config.kafka
        limits = GroupLimits(
            kafka.session_timeout_min_ms,
            kafka.session_timeout_max_ms,
            kafka.group_rebalance_initial_ms,
            kafka.offsets_retention_ms,
        )
        self.groups = Groups(broker.journal, lambda: str(uuid.uuid4()), limits)
        self.producers = broker.scans.producers = Producers(broker.journal)
        self.watches = Watches()
        self.markers = MarkerWork(self)
        self.transactions = Transactions(
            broker.journal, self.markers, lambda producer_id, commit: self._finish_offsets(producer_id, commit=commit)
        )
        self.fetch_sessions = FetchSessions()
        self.shares = Shares(self)
        self.group_configs: dict[str, dict[str, str]] = {}
        self._catalogs: dict[str, Catalog] = {}
        self._rules: dict[int, tuple[Policy, dict[str, Any], TopicRules]] = {}
        self._recovered = False
        self._ticks = 0
        broker.journal.register("kafka-cluster", self._apply_cluster, self._dump_cluster)
        broker.journal.register("kafka-group-config", self._apply_group_config, self._dump_group_configs)

    # -- starting --------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """After the journal is replayed, before anyone connects."""
        if self._recovered:
            return
        self._recovered = True
        now_ms = self.now_ms()
        for log in self.broker.logs.by_id.values():
            self.producers.recover(log, now_ms)
        self.groups.resume(self.monotonic_ms())
        self.transactions.roll_forward()
        self.markers.abort_unclaimed()
        if not self.cluster_id:
            made = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
            self.cluster_id = self.config.kafka.cluster_id or made
            self.broker.journal.put("kafka-cluster", b"id", self.cluster_id.encode())

    def _apply_cluster(self, key: bytes, value: bytes | None) -> None:
        self.cluster_id = (value or b"").decode()

    def _dump_cluster(self) -> list[tuple[bytes, bytes]]:
        return [(b"id", self.cluster_id.encode())] if self.cluster_id else []

    def set_group_config(self, key: str, config: dict[str, str]) -> None:
        self.group_configs[key] = config
        self.broker.journal.put("kafka-group-config", key.encode(), json.dumps(config).encode())

    def _apply_group_config(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.group_configs.pop(key.decode(), None)
        else:
            self.group_configs[key.decode()] = json.loads(value)

    def _dump_group_configs(self) -> list[tuple[bytes, bytes]]:
        return [(key.encode(), json.dumps(config).encode()) for key, config in self.group_configs.items()]

    def _finish_offsets(self, producer_id: int, *, commit: bool) -> None:
        self.groups.finish_transaction(producer_id, commit=commit)

    # -- time ------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall time: what records and offsets carry."""
        return self.clock.now_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """For deadlines."""
        return self.clock.monotonic_ns() // 1_000_000

    async def run_deadlines(self) -> None:
        self.recover()
        loop = asyncio.get_running_loop()
        silence = loop.create_task(super().run_deadlines())
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._tick()
        finally:
            silence.cancel()

    def _tick(self) -> None:
        self._ticks += 1
        for work in (self._tick_groups, self._tick_transactions):
            try:
                work()
            except Exception:
                logger.exception("periodic work failed; it is tried again")
        if self._ticks % TRIM_EVERY_TICKS == 0:
            logs = self.broker.logs.by_id
            self.producers.trim(lambda n: logs[n].start_offset if n in logs else None, self.now_ms())

    def _tick_groups(self) -> None:
        self.groups.tick(self.monotonic_ms(), self.now_ms())

    def _tick_transactions(self) -> None:
        self.transactions.tick(self.now_ms())

    # -- tenants ---------------------------------------------------------------------------------------------------

    def namespace_of(self, principal: Principal) -> Namespace:
        found = self.broker.namespaces.get(principal.namespace)
        return found if found is not None else self.broker.namespace(DEFAULT_NAMESPACE)

    def catalog(self, namespace: Namespace) -> Catalog:
        known = self._catalogs.get(namespace.name)
        if known is None or known.namespace is not namespace:
            known = Catalog(self.broker, namespace, auto_create=self.config.topics.auto_create)
            self._catalogs[namespace.name] = known
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

    def forget_log(self, log_id: int) -> None:
        self.producers.forget_log(log_id)
        self.watches.forget(log_id)

    def forget_share_group(self, namespace: Namespace, group_id: str) -> None:
        """The group was deleted; its queues and settings go with it."""
        self.shares.forget_group(namespace, group_id)
        key = self.group_key(namespace, group_id)
        if self.group_configs.pop(key, None) is not None:
            self.broker.journal.put("kafka-group-config", key.encode(), None)

    def refresh_groups(self) -> None:
        """Topics came or went."""

        def lookup(key: str) -> GroupTopics:
            owner, mark, _ = key.rpartition("\x01")
            return GroupTopics(self.catalog(self.broker.namespace(owner if mark else DEFAULT_NAMESPACE)))

        self.groups.refresh(lookup)

    def later(self, delay_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, call)
