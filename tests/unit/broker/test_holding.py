"""A queue that nobody empties holds what it is bound to, and no other topic."""

from __future__ import annotations

from pathlib import Path

from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.topics.policy import Policy
from mainstem.model.clock import ManualClock
from tests.unit.broker.kit import DAY_MS, durable, everything, reader_of, running


async def test_an_unread_queue_holds_its_own_topics_and_no_others(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        own = Policy(layout="dedicated", retention_ms=DAY_MS)
        topics = {name: broker.create_topic(namespace, name, own) for name in (b"orders", b"clicks")}
        _, written = broker.queues.of(namespace).declare("q", QueueSettings(), reaches=[Reach(ANYTHING, b"orders")])
        assert written is not None
        await written
        for n in range(20):
            for name in topics:
                ticket = namespace.publish(name, b"%d" % n)
                await durable(ticket)
        for topic in topics.values():
            topic.partitions[0].log.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await broker.maintenance.round()
        sizes = {name: topic.partitions[0].log.engine.stat().size_bytes for name, topic in topics.items()}
        assert sizes[b"clicks"] == 0, "its time is over, and nobody waits for it"
        assert sizes[b"orders"] > 0
        assert everything(reader_of(namespace, b"clicks")) == []
        queue = broker.queues.of(namespace).get("q")
        taken = queue.acquire(queue, 100)
        assert [one.record.value for one in taken] == [b"%d" % n for n in range(20)]
