"""A very large transaction that commits into a queue: its records are read as they are asked for, not all at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome
from mainstem.broker.queues.settings import QueueSettings
from tests.unit.broker.kit import DEADLINE_S, kafka_batch, produce, running, until

BATCHES, RECORDS, VALUE_BYTES = 40, 500, 1_024
CREDIT = 50
READ_AT_MOST = 4 << 20  # of 20 MB
TRANSACTIONAL = 0x10


async def test_what_a_queue_keeps_of_a_large_transaction_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"k", namespace.defaults.with_changes({"layout": "dedicated"}))
        queue, _ = broker.queues.of(namespace).declare("q", QueueSettings(), reaches=[Reach(ANYTHING, b"k")])
        await until(lambda: b"k" in namespace.topics)
        partition = namespace.topics[b"k"].partitions[0]
        first = partition.log.next_offset
        for n in range(BATCHES):
            values = [(None, b"%06d" % (n * RECORDS + m) + bytes(VALUE_BYTES)) for m in range(RECORDS)]
            produce(
                namespace,
                b"k",
                kafka_batch(
                    values, attributes=TRANSACTIONAL, producer_id=9, producer_epoch=0, base_sequence=n * RECORDS
                ),
            )
            broker.ticker.tick()
        assert not queue.ready, "nothing of it is seen before it commits"
        partition.log.append_marker(
            partition.route, commit=True, producer_id=9, producer_epoch=0, first_offset=first, count=0
        )
        broker.ticker.drain()
        await until(lambda: queue.ready == BATCHES * RECORDS)
        taken, most = list[int](), 0
        async with asyncio.timeout(DEADLINE_S):
            while len(taken) < BATCHES * RECORDS:
                found = queue.acquire(queue, CREDIT)
                most = max(most, sum(level.read_ahead_bytes for level in queue.levels))
                taken += [int(bytes(one.record.value or b"")[:6]) for one in found]
                queue.settle([one.position for one in found], Outcome.ACK)
                await asyncio.sleep(0)
        assert taken == list(range(BATCHES * RECORDS)), "all of it, in order"
        assert 0 < most <= READ_AT_MOST
