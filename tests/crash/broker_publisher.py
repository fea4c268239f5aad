"""A broker's core that publishes, journals, queues and forgets until it is killed, and tells what it may be held to.

    ready                        it is open
    sent <topic> <payload>       handed to the broker
    seen <log>@<offset> <payload>   a live subscriber got it: written, perhaps not durable
    ok <topic> <payload>         its ticket was released: it survives anything
    put <key> <number>           journaled; `kept` once that is durable
    settling <payload>           a queue's record was acknowledged; `settled` once that is durable
    retaining <topic> <payload>  a retained message was published, or removed (-number); `retained` once that is durable

Run as `python -m tests.crash.broker_publisher DIRECTORY INCARNATION`. With incarnation 0 it recovers, and does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.queues.bindings import ANYTHING, Reach
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.topics.policy import Policy
from mainstem.log.gather import Ticket
from mainstem.model.origin import Origin, RecordFlag
from mainstem.testing.ledger import seal

QUEUE, QUEUE_TOPIC = "owes", b"q/tasks"
STATE_KIND, STATE_KEYS = "crash-test", 5
RETAINED_TOPICS, REMOVED = (b"r/1", b"r/2"), "-"
TOPICS = [b"s/1", b"s/2", b"s/3", b"own/1", b"own/2", b"moves", QUEUE_TOPIC]
LAYOUTS: list[dict[str, Any]] = [
    {"layout": "dedicated"},
    {"layout": "shared"},
    {"layout": "dedicated", "engine": "rocksdb"},
]


def options(directory: Path) -> BrokerOptions:
    """Everything is kept but what the queue's own stem forgets at once; small segments, so that much is sealed."""
    rules = {"q/#": {"retention_ms": 1, "segment_bytes": 16_384}, "own/#": {"layout": "dedicated"}}
    return BrokerOptions(directory, Policy(retention_ms=-1, segment_bytes=65_536), rules)


class State:
    """A table in the journal: key → the highest number put."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        assert value is not None
        self.table[key] = value

    def dump(self) -> list[tuple[bytes, bytes]]:
        return list(self.table.items())


async def opened(directory: Path) -> tuple[Broker, State]:
    broker, state = Broker(options(directory)), State()
    await broker.open()
    broker.journal.register(STATE_KIND, state.apply, state.dump)
    broker.recover_journal()
    broker.start()
    return broker, state


class Told:
    """Tells of a ticket once it is released."""

    def __init__(self, line: str) -> None:
        self._line = line

    def released(self, ticket: Ticket) -> None:
        if ticket.stable:
            tell(self._line)


class Watcher(Sink):
    def push(self, record: RecordRef, options: Any) -> bool:
        assert record.log is not None
        if record.value is not None:
            tell(f"seen {record.log.id}@{record.offset} {record.value.decode()}")
        return True


class Work:
    def __init__(self, broker: Broker, state: State, incarnation: int) -> None:
        self.broker, self.state, self.incarnation = broker, state, incarnation
        self.rng = random.Random(incarnation)
        self.count = 0

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace("/")

    @property
    def queue(self) -> Queue:
        return self.broker.queues.of(self.namespace).get(QUEUE)

    async def run(self) -> None:
        if self.broker.queues.of(self.namespace).find(QUEUE) is None:
            _, written = self.broker.queues.of(self.namespace).declare(
                QUEUE, QueueSettings(), reaches=[Reach(ANYTHING, b"q/#")]
            )
            assert written is not None
            await written
        self.namespace.subscribe(b"#", Watcher(self.namespace), None)
        tell("ready")
        tasks: list[tuple[float, Callable[[], Any]]] = [
            (0.70, self._publish),
            (0.75, self._journal),
            (0.80, self._retain),
            (0.90, self._settle),
            (0.93, self._roll),
            (0.96, self._forget),
            (0.98, self._snapshot),
            (1.00, self._move),
        ]
        while True:
            action = self.rng.random()
            done = next(task for limit, task in tasks if action <= limit)()
            if done is not None:
                await done
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01)))

    def _publish(self) -> None:
        for _ in range(self.rng.randint(1, 20)):
            topic = self.rng.choice(TOPICS)
            self.count += 1
            payload = seal(f"{self.incarnation}.{topic.decode()}.{self.count}", self.rng.choice((0, 100, 2000)))
            tell(f"sent {topic.decode()} {payload.decode()}")
            self.namespace.publish(topic, payload).wait(Told(f"ok {topic.decode()} {payload.decode()}"))

    def _journal(self) -> None:
        self.count += 1
        key = b"k%d" % self.rng.randrange(STATE_KEYS)
        number = b"%d" % (self.incarnation * 10_000_000 + self.count)
        tell(f"put {key.decode()} {number.decode()}")
        self.state.apply(key, number)
        self.broker.journal.put(STATE_KIND, key, number).wait(Told(f"kept {key.decode()} {number.decode()}"))

    def _retain(self) -> None:
        topic, removes = self.rng.choice(RETAINED_TOPICS), self.rng.random() < 0.3
        self.count += 1
        name = f"{self.incarnation}.{topic.decode()}.{self.count}"
        payload = None if removes else seal(name)
        what = f"{topic.decode()} {payload.decode() if payload is not None else REMOVED + name}"
        tell(f"retaining {what}")
        ticket = self.namespace.publish(topic, payload, flags=RecordFlag.RETAIN, origin=Origin.MQTT)
        ticket.wait(Told(f"retained {what}"))

    def _settle(self) -> None:
        taken = self.queue.acquire(self, self.rng.randint(1, 10))
        for one in taken:
            assert one.record.value is not None
            if self.rng.random() < 0.2:
                self.queue.settle([one.position], Outcome.RELEASE)
                continue
            payload = one.record.value.decode()
            tell(f"settling {payload}")
            ticket = self.queue.settle([one.position], Outcome.ACK)
            assert ticket is not None
            ticket.wait(Told(f"settled {payload}"))

    def _roll(self) -> None:
        for log in self.broker.logs.by_id.values():
            log.engine.roll()

    async def _forget(self) -> None:
        await self.broker.maintenance.round()

    async def _snapshot(self) -> None:
        await self.broker.snapshot()

    def _move(self) -> None:
        policy = Policy(retention_ms=-1, segment_bytes=65_536).with_changes(self.rng.choice(LAYOUTS))
        topic = self.namespace.topics.get(b"moves")
        if topic is None:
            self.broker.create_topic(self.namespace, b"moves", policy)
        elif len(topic.partitions[0].spans) < 12:
            self.broker.move_topic(self.namespace, topic, policy)


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


async def main(directory: Path, incarnation: int) -> None:
    broker, state = await opened(directory)
    if incarnation:
        await Work(broker, state, incarnation).run()
    tell("ready")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
