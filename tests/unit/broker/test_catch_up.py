"""Sinks that stall, fall behind and come back: nothing is lost, nothing comes twice, and order is by stamp."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.delivery import catch_up
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log
from mainstem.model.topic_filter import matches
from tests.unit.broker.kit import Collector, durable, kafka_batch, opened, produce, running, until

TRANSACTIONAL = 0x10


@dataclass
class World:
    """A broker with logs of all kinds, random publishers, and the truth about what became visible and when."""

    broker: Broker
    seed: int
    rng: random.Random = field(init=False)
    visible: list[tuple[bytes, bytes]] = field(default_factory=list)
    open: dict[bytes, tuple[int, list[bytes]]] = field(default_factory=dict)  # topic → first offset, values
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        namespace = self.namespace
        engines = ["segment", "memory"]
        for n in range(3):
            self.broker.create_topic(
                namespace, b"own/%d" % n, Policy(layout="dedicated", engine=self.rng.choice(engines))
            )
        self.broker.create_topic(namespace, b"kafka/shared", Policy())

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace("/")

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count + b"." * self.rng.choice((0, 0, 50, 3000))

    def act(self) -> None:
        action = self.rng.random()
        if action < 0.5:
            self._publish()
        elif action < 0.7:
            self._produce()
        elif action < 0.8:
            self._begin()
        elif action < 0.9:
            self._end()
        else:
            self.broker.ticker.tick()

    def _publish(self) -> None:
        """Records of one gather are visible in the order of their logs' ticks, so each tick holds one topic here."""
        topic = self.rng.choice([b"s/1", b"s/2", b"other", b"own/0", b"own/1"])
        for _ in range(self.rng.randint(1, 5)):
            value = self.value()
            self.namespace.publish(topic, value)
            self.visible.append((topic, value))
        self.broker.ticker.tick()

    def _produce(self) -> None:
        topic = self.rng.choice([b"own/0", b"own/2", b"kafka/shared"])
        items = [self.value() for _ in range(self.rng.randint(1, 4))]
        codec = self.rng.choice((0, 1, 3))
        produce(self.namespace, topic, kafka_batch([(None, value) for value in items], attributes=codec))
        self.visible += [(topic, value) for value in items]
        self.broker.ticker.tick()

    def _begin(self) -> None:
        topic = self.rng.choice([b"own/0", b"own/1", b"own/2"])
        items = [self.value() for _ in range(self.rng.randint(1, 4))]
        batch = kafka_batch(
            [(None, value) for value in items],
            attributes=TRANSACTIONAL,
            producer_id=int(topic[-1:]) + 1,
            producer_epoch=0,
            base_sequence=0,
        )
        base = produce(self.namespace, topic, batch).base_offset
        _first, values = self.open.setdefault(topic, (base, []))
        values += items

    def _end(self) -> None:
        if not self.open:
            return
        topic = self.rng.choice(sorted(self.open))
        first, values = self.open.pop(topic)
        commit = self.rng.random() < 0.7
        partition = self.namespace.topics[topic].partitions[0]
        partition.log.append_marker(
            partition.route,
            commit=commit,
            producer_id=int(topic[-1:]) + 1,
            producer_epoch=0,
            first_offset=first,
            count=len(values),
        )
        if commit:
            self.visible += [(topic, value) for value in values]
        self.broker.ticker.tick()

    def expected(self, filters: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        return [(t, v) for t, v in self.visible if any(matches(f, t) for f in filters)]


def check(sink: Collector, world: World, filters: Sequence[bytes]) -> None:
    assert sink.seen == world.expected(filters)
    assert sink.stamps == sorted(set(sink.stamps)), "order is by stamp, and no stamp comes twice"


@pytest.mark.parametrize("seed", range(12))
async def test_random_stalls_lose_nothing_repeat_nothing_and_keep_the_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(catch_up, "CHUNK_BYTES", rng.choice((1, 2_000, 1 << 20)))
    monkeypatch.setattr(catch_up, "MATCHES_MAX", rng.choice((1, 7, 4_096)))
    monkeypatch.setattr(catch_up, "SCAN_OFFSETS_MAX", rng.choice((5, 100, 1 << 20)))
    async with running(tmp_path, segment_bytes=4096) as broker:
        world = World(broker, seed)
        choices = [[b"#"], [b"s/#", b"own/0"], [b"own/+"], [b"s/1"], [b"kafka/shared", b"other"], [b"+/1"]]
        sinks = [(Collector(world.namespace, filters, rng.choice((0, 1, 5, 50))), filters) for filters in choices]
        for sink, filters in sinks:
            for topic_filter in filters:
                world.namespace.subscribe(topic_filter, sink, None)
        for step in range(400):
            world.act()
            if step % 3 == 0:
                await asyncio.sleep(0)
            sink, _ = rng.choice(sinks)
            if rng.random() < 0.3:
                sink.room = rng.choice((0, 1, 3, 20))
                world.namespace.resume(sink)
            elif rng.random() < 0.05:
                world.namespace.detach(sink)
        for sink, filters in sinks:
            sink.room = 1 << 30
            await until(lambda sink=sink: sink not in broker.pump._tasks)
            world.namespace.resume(sink)
            await until(lambda sink=sink: sink.live)
            check(sink, world, filters)
        late = Collector(world.namespace, [b"#"])
        late.live, late.position = False, 0
        world.namespace.resume(late)
        await until(lambda: late.live)
        check(late, world, [b"#"])


@pytest.mark.parametrize("seed", range(4))
async def test_positions_stay_right_over_restarts_clean_or_not(tmp_path: Path, seed: int) -> None:
    """The broker of an unclean stop is abandoned, not closed; what it synced is there for the next."""
    rng, seen, position = random.Random(seed), list[tuple[bytes, bytes | None]](), 0
    published: list[tuple[bytes, bytes]] = []
    for run in range(4):
        broker = await opened(tmp_path)
        namespace = broker.namespace("/")
        sink = Collector(namespace, [b"r/#"], rng.choice((3, 10, 1000)))
        sink.live, sink.position = False, position
        namespace.subscribe(b"r/#", sink, None)
        namespace.resume(sink)
        for n in range(rng.randint(1, 30)):
            topic, value = b"r/%d" % (n % 3), b"%d.%d" % (run, n)
            ticket = namespace.publish(topic, value)
            published.append((topic, value))
            if rng.random() < 0.3:
                await durable(ticket)
        await durable(ticket)
        await until(lambda sink=sink: sink.live or sink.room == 0)
        namespace.detach(sink)
        seen += sink.seen
        position = sink.position
        if rng.random() < 0.5:
            await broker.close()
        else:
            await abandon(broker)
    async with running(tmp_path) as broker:
        sink = Collector(broker.namespace("/"), [b"r/#"])
        sink.live, sink.position = False, position
        sink.namespace.resume(sink)
        await until(lambda: sink.live)
        assert seen + sink.seen == published


async def abandon(broker: Broker) -> None:
    """Stop it as a kill would: nothing is written or marked any more. Its threads end."""
    for task in broker._background:
        task.cancel()
    await asyncio.gather(*broker._background, return_exceptions=True)
    await broker.pump.close()
    broker.queues.close()
    broker.delayed.close()
    broker.ticker.stop()
    broker.store.close()


async def test_a_sink_goes_on_inside_a_frame_with_more_matches_than_one_search_returns(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        sink = Collector(namespace, [b"x"], room=9_000)
        namespace.subscribe(b"x", sink, None)
        for n in range(15_000):
            ticket = namespace.publish(b"x", b"%d" % n)
        await durable(ticket)
        await until(lambda: not sink.live)
        assert len(sink.seen) == 9_000
        sink.room = 1 << 30
        namespace.resume(sink)
        await until(lambda: sink.live)
        assert [value for _, value in sink.seen] == [b"%d" % n for n in range(15_000)]


async def test_catching_up_reads_what_it_needs_and_not_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        for n in range(3_000):
            ticket = namespace.publish(b"rare" if n % 1_000 == 500 else b"often/%d" % (n % 50), b"x" * 300)
            if n % 10 == 9:
                broker.ticker.tick()
        await durable(ticket)
        read: list[int] = []
        real = Log.read_now

        def noted(self: Log, offset: int, bytes_max: int, end_offset: int | None = None):  # type: ignore[no-untyped-def]
            piece = real(self, offset, bytes_max, end_offset)
            read.append(len(piece.data) if piece is not None else 0)
            return piece

        monkeypatch.setattr(Log, "read_now", noted)
        sink = Collector(namespace, [b"rare"])
        sink.live, sink.position = False, 0
        namespace.resume(sink)
        await until(lambda: sink.live)
        assert len(sink.seen) == 3
        assert sum(read) < 60_000, "of a million bytes"


async def test_a_topic_deleted_while_a_sink_catches_up_leaves_the_sink_alive(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"gone", Policy(layout="dedicated"))
        for n in range(100):
            namespace.publish(b"gone", b"%d" % n)
            ticket = namespace.publish(b"stays", b"%d" % n)
            broker.ticker.tick()
        await durable(ticket)
        sink = Collector(namespace, [b"gone", b"stays"], room=10)
        sink.live, sink.position = False, 0
        namespace.subscribe(b"gone", sink, None)
        namespace.subscribe(b"stays", sink, None)
        namespace.resume(sink)
        await until(lambda: sink.room == 0)
        await broker.delete_topic(namespace, b"gone")
        await until(lambda: sink not in broker.pump._tasks)
        sink.room = 1 << 30
        namespace.resume(sink)
        await until(lambda: sink.live)
        stays = [value for topic, value in sink.seen if topic == b"stays"]
        assert stays == [b"%d" % n for n in range(100)]


async def test_a_detached_sink_gets_what_came_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        sink = Collector(namespace, [b"x"])
        namespace.subscribe(b"x", sink, None)
        await durable(namespace.publish(b"x", b"1"))
        namespace.detach(sink)
        await durable(namespace.publish(b"x", b"2"))
        assert len(sink.seen) == 1
        namespace.resume(sink)
        await until(lambda: sink.live)
        await durable(namespace.publish(b"x", b"3"))
        assert [value for _, value in sink.seen] == [b"1", b"2", b"3"]
