"""What the tests of the broker's core share: a broker without listeners, and sinks that note what they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.views import ViewSlot
from mainstem.codec.batch import BatchBuilder, read_batch_head
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.model.clock import Clock
from mainstem.model.origin import Origin
from mainstem.model.record import Record

DEADLINE_S = 20.0
DAY_MS = 24 * 3_600_000

Seen = tuple[bytes, bytes | None]


class Collector(Sink):
    """Takes `room` records, then says it is full."""

    def __init__(self, namespace: Namespace, filters: Sequence[bytes], room: int = 1 << 30) -> None:
        super().__init__(namespace)
        self.wanted = list(filters)
        self.room = room
        self.seen: list[Seen] = []
        self.stamps: list[int] = []
        self.records: list[Record] = []

    def push(self, record: RecordRef, options: Any) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.seen.append((record.topic, record.value))
        self.stamps.append(record.stamp)
        self.records.append(record.copy())
        return True

    def choose(self, record: RecordRef) -> Any:
        return True

    def merge(self, options: list[Any]) -> Any:
        return options[0]

    def filters(self) -> list[bytes]:
        return self.wanted


class Released:
    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def released(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def durable(ticket: Ticket) -> Ticket:
    """Wait until the ticket is released or failed."""
    waiter = Released()
    ticket.wait(waiter)
    await until(lambda: bool(waiter.tickets))
    return ticket


async def opened(path: Path, *, clock: Clock | None = None, rules: Any = None, **policy: Any) -> Broker:
    broker = Broker(BrokerOptions(path, Policy(**policy), rules or {}), clock)
    await broker.open()
    broker.recover_journal()
    broker.start()
    return broker


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Broker]:
    broker = await opened(path, **options)
    try:
        yield broker
    finally:
        await broker.close()


def reader_of(namespace: Namespace, topic: bytes, partition: int = 0) -> PartitionReader:
    found = namespace.find_topic(topic)
    assert found is not None, topic
    return PartitionReader(found.partitions[partition], namespace.topic_of)


def everything(reader: PartitionReader | ViewSlot, offset: int = 0) -> list[Record]:
    """All records from an offset on, read piece by piece as a consumer does."""
    found: list[Record] = []
    while offset < reader.stable_offset:
        records, after = reader.records(offset, 1 << 16)
        assert after > offset, "a read must always move its reader on"
        found += records
        offset = after
    return found


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def kafka_batch(
    items: Sequence[tuple[bytes | None, bytes | None]],
    *,
    time_ms: int = 1_700_000_000_000,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch as a Kafka producer sends it."""
    builder = BatchBuilder()
    for n, (key, value) in enumerate(items):
        builder.add(key, value, (), time_ms + n, 0)
    return builder.seal_batch(0, 0, attributes, producer_id, producer_epoch, base_sequence)


def produce(namespace: Namespace, topic: bytes, batch: bytes, partition: int = 0) -> Ticket:
    """Append a Kafka client's batch to a declared topic, as the Kafka adapter does."""
    declared = namespace.topics[topic]
    route = declared.partitions[partition].route
    log: Log = declared.partitions[partition].log
    return log.append_batch(batch, read_batch_head(batch), route, origin=Origin.KAFKA, topic_id=declared.id).ticket
