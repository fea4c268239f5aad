"""Consumer groups, idempotent producers and transactions, kept and driven whether or not a Kafka listener is open.

Other readers depend on them: aborted records stay hidden and open transactions hold back what is committed in every
protocol, so a transaction must also time out when no Kafka client can reach the broker.

    kind "kafka-cluster"       key "id": the cluster's id, made once
    kind "kafka-group-config"  key = group: JSON of the settings that its group was given
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mainstem.broker.delivery.watch import Watches
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.groups.registry import Groups
from mainstem.broker.rights.rules import Kind
from mainstem.broker.transactions.markers import MarkerWork
from mainstem.broker.transactions.producers import Producers
from mainstem.broker.transactions.transactions import Transactions
from mainstem.model.errors import Overloaded

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.topics.topic import Topic

logger = logging.getLogger("mainstem.broker")

TICK_S = 0.1
TRIM_EVERY_TICKS = 600
MOVE_WAIT_S = 10.0  # a topic is not moved under an open transaction; so long it waits for one to end
MOVE_POLL_S = 0.02
CLUSTER = "kafka-cluster"
GROUP_CONFIG = "kafka-group-config"


class Coordinator:
    def __init__(self, broker: Broker, limits: GroupLimits, cluster_id: str) -> None:
        self._broker = broker
        self._given_id = cluster_id
        journal = broker.journal
        self._cluster_id = ""
        self.watches = Watches()
        self.groups = Groups(journal, lambda: str(uuid.uuid4()), limits)
        self.group_configs: dict[str, dict[str, str]] = {}
        self.producers = Producers(journal)
        self.markers = MarkerWork(broker, self)
        self.transactions = Transactions(
            journal, self.markers, lambda producer_id, commit: self._finish_offsets(producer_id, commit=commit)
        )
        self._ticks = 0
        self._moving: set[int] = set()  # ids of topics: no transaction begins in them
        journal.register(CLUSTER, self._apply_cluster, self._dump_cluster)
        journal.register(GROUP_CONFIG, self._apply_group_config, self._dump_group_configs)

    # -- starting --------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """After the journal is replayed, before anything is read: what is aborted must be known by then."""
        now_ms = self.now_ms()
        for log in self._broker.logs.by_id.values():
            self.producers.recover(log, now_ms)
        for namespace in self._broker.namespaces.values():
            for topic in namespace.topics.values():
                for partition in topic.partitions:
                    if len(partition.spans) > 1:
                        self.producers.recover_moved(partition)

    def resume(self) -> None:
        """Groups wait for their members, decided transactions end, and those that a crash left open are aborted."""
        self.groups.resume(self.monotonic_ms())
        self.transactions.roll_forward()
        self.markers.abort_unclaimed()

    @property
    def cluster_id(self) -> str:
        """Made when it is first asked for, and kept."""
        if not self._cluster_id:
            made = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
            self._cluster_id = self._given_id or made
            self._broker.journal.put(CLUSTER, b"id", self._cluster_id.encode())
        return self._cluster_id

    # -- time ------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall time: what records and offsets carry."""
        return self._broker.clock.now_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """For deadlines."""
        return self._broker.clock.monotonic_ns() // 1_000_000

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        self._ticks += 1
        for work in (self._tick_groups, self._tick_transactions):
            try:
                work()
            except Exception:
                logger.exception("periodic work of groups and transactions failed; it is tried again")
        if self._ticks % TRIM_EVERY_TICKS == 0:
            self.producers.keep_floors()
            logs = self._broker.logs.by_id
            self.producers.trim(lambda n: logs[n].start_offset if n in logs else None, self.now_ms())
            self._trim_owners()

    def _trim_owners(self) -> None:
        """Groups and transactional ids that are gone have no owner any more."""

        def key(namespace: str, name: str) -> str:
            return name if namespace == "/" else f"{namespace}\x01{name}"

        groups, owners = self.groups, self._broker.owners
        owners.trim(Kind.GROUP, lambda n, name: key(n, name) in groups.groups or key(n, name) in groups.offsets)
        owners.trim(Kind.TRANSACTION, lambda n, name: key(n, name) in self.transactions.by_id)

    def _tick_groups(self) -> None:
        self.groups.tick(self.monotonic_ms(), self.now_ms())

    def _tick_transactions(self) -> None:
        self.transactions.tick(self.now_ms())

    # -- changes ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def without_transactions(self, topic: Topic) -> AsyncIterator[None]:
        """While a topic moves: transactions that wrote to it end first, and none begins in it. So each lies in one log."""
        name = topic.name.decode(errors="replace")
        if topic.id in self._moving:
            raise Overloaded(f"{name!r} is being moved; try again")
        self._moving.add(topic.id)
        try:
            deadline_ms = self.monotonic_ms() + int(MOVE_WAIT_S * 1_000)
            while (open_one := self.markers.transaction_in(topic)) is not None:
                if self.monotonic_ms() > deadline_ms:
                    raise Overloaded(
                        f"{name!r} cannot move: transaction {open_one!r} is open in it",
                        fix="end it, or wait until its time is up (transaction.timeout.ms), and try again",
                    )
                await asyncio.sleep(MOVE_POLL_S)
            yield
        finally:
            self._moving.discard(topic.id)

    def may_begin(self, transaction_id: str, topic: Topic) -> bool:
        """Whether a transaction may write to the topic now: not while it moves, unless the move waits for that one."""
        return topic.id not in self._moving or self.markers.takes_part(transaction_id, topic)

    def forget_log(self, log_id: int) -> None:
        """The log was deleted, by whichever protocol."""
        self.producers.forget_log(log_id)
        self.watches.forget(log_id)

    def group_count(self, namespace: str) -> int:
        start = f"{namespace}\x01"
        return sum(key.startswith(start) for key in self.groups.groups)

    def forget_namespace(self, name: str) -> Iterator[None]:
        """It is removed: its groups with their offsets, its transactional ids."""
        start = f"{name}\x01"
        yield from self.groups.forget(start)
        yield from self.transactions.forget(start)
        for key in [one for one in self.group_configs if one.startswith(start)]:
            self.forget_group_config(key)
            yield

    def set_group_config(self, key: str, config: dict[str, str]) -> None:
        self.group_configs[key] = config
        self._broker.journal.put(GROUP_CONFIG, key.encode(), json.dumps(config).encode())

    def forget_group_config(self, key: str) -> None:
        if self.group_configs.pop(key, None) is not None:
            self._broker.journal.put(GROUP_CONFIG, key.encode(), None)

    def _finish_offsets(self, producer_id: int, *, commit: bool) -> None:
        self.groups.finish_transaction(producer_id, commit=commit)

    # -- journal ---------------------------------------------------------------------------------------------------

    def _apply_cluster(self, key: bytes, value: bytes | None) -> None:
        self._cluster_id = (value or b"").decode()

    def _dump_cluster(self) -> Iterator[tuple[bytes, bytes]]:
        if self._cluster_id:
            yield b"id", self._cluster_id.encode()

    def _apply_group_config(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.group_configs.pop(key.decode(), None)
        else:
            self.group_configs[key.decode()] = json.loads(value)

    def _dump_group_configs(self) -> Iterator[tuple[bytes, bytes]]:
        for key, config in list(self.group_configs.items()):
            yield key.encode(), json.dumps(config).encode()
