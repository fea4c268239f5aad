"""Retention in a running broker: holders, the journal's snapshot, the dictionary, the clock; compaction by policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.log.topic_index_format import CHUNK_RECORDS
from mainstem.model.clock import ManualClock
from tests.unit.broker.kit import (
    DAY_MS,
    Collector,
    durable,
    everything,
    kafka_batch,
    produce,
    reader_of,
    running,
    until,
    values,
)


async def publish(broker: Broker, topic: bytes, first: int, count: int = 10) -> int:
    """Returns the stamp of the first."""
    namespace = broker.namespace("/")
    for n in range(first, first + count):
        ticket = namespace.publish(topic, b"%d" % n)
    await durable(ticket)
    return ticket.stamp


async def a_day_later(broker: Broker, clock: ManualClock, *, roll: bool = True) -> None:
    namespace = broker.namespace("/")
    for log in broker.logs.by_id.values():
        if roll:
            log.engine.roll()
    clock.advance_ms(2 * DAY_MS)
    await durable(namespace.publish(b"keeps/the/log/open", b""))
    await broker.snapshot()
    await broker.maintenance.round()


async def test_time_forgets_and_topics_leave_the_dictionary(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        await publish(broker, b"old", 0)
        await a_day_later(broker, clock)
        assert namespace.find_topic(b"old") is None
        stem = namespace.stem(namespace.defaults)
        assert stem.index is not None
        assert len(stem.index.topics) == 1
        await publish(broker, b"old", 10)
        assert values(everything(reader_of(namespace, b"old"))) == [b"%d" % n for n in range(10, 20)]


async def test_a_forgotten_topics_number_is_never_mistaken_for_anothers(tmp_path: Path) -> None:
    """Published again in the very turn in which its last record went, through a route that was kept."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        declared = broker.create_topic(namespace, b"declared", Policy(retention_ms=DAY_MS))
        for topic in (b"x", b"y", b"declared"):
            await publish(broker, topic, 0, 1)
        stem = namespace.stem(namespace.defaults)
        stem.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await durable(namespace.publish(b"z", b""))
        await broker.snapshot()
        namespace.publish(b"x", b"gathered before, written after")
        await broker.maintenance.round()
        for topic in (b"new/1", b"new/2", b"y", b"declared"):
            ticket = namespace.publish(topic, topic)
        await durable(ticket)
        assert declared.partitions[0].route.number != 0
        assert values(everything(reader_of(namespace, b"x"))) == [b"gathered before, written after"]
        for topic in (b"new/1", b"new/2", b"y", b"declared"):
            assert values(everything(reader_of(namespace, topic))) == [topic]


async def test_size_limits_a_topic_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        policy = Policy(retention_bytes=20_000, segment_bytes=8_192)
        topic = broker.create_topic(namespace, b"t", policy)
        assert policy.dedicated
        for n in range(100):
            ticket = namespace.publish(b"t", b"%d" % n + b"." * 1000)
            broker.ticker.tick()
        await durable(ticket)
        await broker.maintenance.round()
        log = topic.partitions[0].log
        assert 20_000 <= log.engine.stat().size_bytes < 40_000
        records = everything(reader_of(namespace, b"t"))
        assert records[-1].value == b"99" + b"." * 1000
        assert records[0].offset == topic.partitions[0].start_offset > 0


async def test_what_a_holder_holds_stays_until_it_lets_go(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        await publish(broker, b"q", 0)
        held_from = await publish(broker, b"q", 10)
        holds = Holds(from_stamp=held_from)
        broker.maintenance.holders["test"] = lambda log: holds
        await a_day_later(broker, clock)
        assert everything(reader_of(namespace, b"q")) == [], "a stream begins after what was forgotten"
        sink = Collector(namespace, [b"q"])
        sink.live, sink.position = False, held_from
        namespace.resume(sink)
        await until(lambda: sink.live)
        assert [value for _, value in sink.seen] == [b"%d" % n for n in range(10, 20)]
        assert broker.maintenance.held_bytes > 0
        holds.from_stamp = Holds().from_stamp
        await broker.maintenance.round()
        assert broker.maintenance.held_bytes == 0


async def test_the_start_does_not_go_back_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        await publish(broker, b"q", 0)
        broker.maintenance.holders["test"] = lambda log: Holds(from_stamp=0)
        await a_day_later(broker, clock)
        namespace = broker.namespace("/")
        start = namespace.stem(namespace.defaults).start_offset
        assert start == 10
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        assert namespace.stem(namespace.defaults).start_offset == start


async def test_state_is_kept_until_a_snapshot_covers_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        state: dict[bytes, bytes | None] = {}
        broker.journal.register("test", state.__setitem__, lambda: [(k, v) for k, v in state.items() if v is not None])
        state[b"k"] = b"v"
        await durable(broker.journal.put("test", b"k", b"v"))
        broker.journal.stem.engine.roll()
        clock.advance_ms(2 * DAY_MS)
        await publish(broker, b"x", 0)
        await broker.maintenance.round()
        assert broker.journal.stem.engine.stat().start_offset == 0, "no snapshot covers it yet"
        await broker.snapshot()
        await broker.maintenance.round()
        assert broker.journal.stem.engine.stat().start_offset > 0
    broker = Broker(broker.options, clock)
    await broker.open()
    found: dict[bytes, bytes | None] = {}
    broker.journal.register("test", found.__setitem__, lambda: [])
    broker.recover_journal()
    assert found == {b"k": b"v"}
    await broker.close()


async def test_a_jump_of_the_clock_forgets_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class JumpingClock(ManualClock):
        def jump_ms(self, ms: int) -> None:
            self._now_ns += ms * 1_000_000

    clock = JumpingClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        await publish(broker, b"a", 0)
        namespace.stem(namespace.defaults).engine.roll()
        await publish(broker, b"b", 0)
        await broker.snapshot()
        clock.jump_ms(365 * DAY_MS)
        for _ in range(3):
            await broker.maintenance.round()
        assert values(everything(reader_of(namespace, b"a"))) == [b"%d" % n for n in range(10)]
        assert "the wall clock jumped" in caplog.text
        clock.advance_ms(2 * 3_600_000)
        await broker.maintenance.round()
        assert namespace.find_topic(b"a") is None, "an hour later the clock is believed"


async def test_an_old_part_is_sealed_so_that_retention_can_reach_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS, segment_ms=DAY_MS // 2) as broker:
        namespace = broker.namespace("/")
        await publish(broker, b"a", 0)
        clock.advance_ms(DAY_MS)
        await broker.maintenance.round()
        assert namespace.stem(namespace.defaults).engine.stat().parts[-1].sealed
        await a_day_later(broker, clock, roll=False)
        assert namespace.find_topic(b"a") is None


async def test_a_compacted_topic_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        namespace = broker.namespace("/")
        topic = broker.create_topic(namespace, b"t", Policy(cleanup="compact"))
        for n in range(50):
            ticket = produce(namespace, b"t", kafka_batch([(b"k%d" % (n % 5), b"%d" % n)]))
        await durable(ticket)
        before = {record.offset: record.value for record in everything(reader_of(namespace, b"t"))}
        topic.partitions[0].log.engine.roll()
        clock.advance_ms(1_000)
        await broker.maintenance.round()
        after = {record.offset: record.value for record in everything(reader_of(namespace, b"t"))}
        assert after == {offset: value for offset, value in before.items() if offset >= 45}
        fetched = reader_of(namespace, b"t").read(0, 1 << 20)
        assert fetched.parts and fetched.next_offset == 50, "a fetch in the gap returns the next there is"


async def test_work_that_fails_for_one_log_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, retention_ms=DAY_MS) as broker:
        namespace = broker.namespace("/")
        for name in (b"bad", b"good"):
            broker.create_topic(namespace, name, Policy(layout="dedicated", retention_ms=DAY_MS))
            await publish(broker, name, 0)
        bad = namespace.topics[b"bad"].partitions[0].log
        real = Log.trim

        def trim(self: Log, before_offset: int) -> int:
            if self is bad:
                raise OSError("this one is broken")
            return real(self, before_offset)

        monkeypatch.setattr(Log, "trim", trim)
        await a_day_later(broker, clock)
        good = namespace.topics[b"good"].partitions[0].log.engine.stat()
        assert good.start_offset == good.end_offset == 10


async def test_a_search_by_time_in_a_running_broker(tmp_path: Path) -> None:
    async with running(tmp_path, segment_bytes=8_192) as broker:
        namespace = broker.namespace("/")
        broker.create_topic(namespace, b"own", Policy(layout="dedicated", segment_bytes=8_192))
        offsets: dict[bytes, list[int]] = {b"own": [], b"shared": []}
        for n in range(60):
            for topic, found in offsets.items():
                ticket = namespace.publish(topic, b"." * 1000, time_ms=1_000 + (n * 7) % 60)
                broker.ticker.tick()
                found.append(ticket.base_offset)
        await broker.ticker.settle(list(broker.logs.by_id.values()))
        await broker.maintenance.round()
        times = [1_000 + (n * 7) % 60 for n in range(60)]
        for topic, found in offsets.items():
            for asked in (0, 1_000, 1_030, 1_059, 1_060):
                expected = next(((found[n], t) for n, t in enumerate(times) if t >= asked), None)
                assert reader_of(namespace, topic).find_time(asked) == expected


async def test_a_damaged_topic_index_is_built_again_while_its_readers_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        await publish(broker, b"a", 0)
        namespace.stem(namespace.defaults).skip_to(CHUNK_RECORDS)
        await publish(broker, b"a", 10)
    (chunk,) = tmp_path.glob("logs/*/topics/0000000000.chunk")
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    async with running(tmp_path) as broker:
        reader = Collector(broker.namespace("/"), [b"a"])
        reader.live, reader.position = False, 0
        broker.pump.resume(reader, [b"a"])
        await until(lambda: len(reader.seen) == 20)
        assert reader.seen == [(b"a", b"%d" % n) for n in range(20)]
