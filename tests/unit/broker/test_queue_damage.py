"""A batch that cannot be read is left out of queues, counted and told once; what lies around it comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.topics.policy import Policy
from mainstem.codec.batch import crc32c
from tests.unit.broker.kit import durable, kafka_batch, produce, running

BATCH_HEAD_SIZE = 61


def nonsense() -> bytes:
    """A batch whose checksum is right and whose records are not."""
    batch = bytearray(kafka_batch([(None, b"a record that does not decode")]))
    batch[BATCH_HEAD_SIZE:] = b"\xff" * (len(batch) - BATCH_HEAD_SIZE)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


async def test_an_undecodable_batch_is_left_out_counted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"t", Policy(layout="dedicated"))
        queues = broker.queues.of(namespace)
        queue, _ = queues.declare("q", QueueSettings(), reaches=[Reach(ANYTHING, b"t")])
        other, _ = queues.declare("other", QueueSettings(), reaches=[Reach(ANYTHING, b"t")])
        for batch in (kafka_batch([(None, b"before")]), nonsense(), kafka_batch([(None, b"1"), (None, b"2")])):
            ticket = produce(namespace, b"t", batch)
            broker.ticker.tick()
        await durable(ticket)
        for one in (queue, other):
            taken = one.acquire(one, 10)
            assert [item.record.value for item in taken] == [b"before", b"1", b"2"]
            assert one.ready == 0
        assert broker.queues.undecodable >= 2
        assert caplog.text.count("no queue can read this batch") == 1
