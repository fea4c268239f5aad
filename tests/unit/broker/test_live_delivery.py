"""What reaches a sink at the head, and the same through catching up: a client's batch as the log counted it."""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker
from mainstem.broker.delivery.live import RecordRef
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.codec.batch import Codec, crc32c, read_batch_head
from mainstem.log.log import Log
from mainstem.model.errors import CorruptFrame
from mainstem.model.origin import Origin, RecordFlag
from tests.unit.broker.kit import Collector, durable, everything, kafka_batch, opened, produce, reader_of, until

TRANSACTIONAL, APPEND_TIME = 0x10, 0x08


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await opened(tmp_path)
    yield broker
    await broker.close()


@pytest.fixture
def namespace(broker: Broker) -> Namespace:
    namespace = broker.namespace("/")
    broker.create_topic(namespace, b"k", Policy(layout="dedicated"))
    broker.create_topic(namespace, b"shared", Policy())
    return namespace


async def both_ways(broker: Broker, namespace: Namespace, topic: bytes, publish: Callable[[], Any]) -> Collector:
    """The records of one publish, live; a second sink that catches up must get exactly the same."""
    position = broker.stamps.next
    live = Collector(namespace, [topic])
    namespace.subscribe(topic, live, None)
    ticket = publish()
    broker.ticker.tick()
    await durable(ticket)
    late = Collector(namespace, [topic])
    late.live, late.position = False, position
    namespace.subscribe(topic, late, None)
    namespace.resume(late)
    await until(lambda: late.live)
    assert late.records == live.records
    namespace.unsubscribe(topic, live)
    namespace.unsubscribe(topic, late)
    return live


def resealed(batch: bytes, **changes: tuple[str, int, int]) -> bytes:
    """The batch with some fields changed (format, position, value) and a checksum to fit."""
    copy = bytearray(batch)
    for form, at, value in changes.values():
        struct.pack_into(form, copy, at, value)
    struct.pack_into(">I", copy, 17, crc32c(memoryview(copy)[21:]))
    return bytes(copy)


@pytest.mark.parametrize("topic", [b"k", b"shared"])
@pytest.mark.parametrize("codec", list(Codec))
async def test_a_kafka_batch_reaches_sinks_record_by_record(
    broker: Broker, namespace: Namespace, topic: bytes, codec: Codec
) -> None:
    batch = kafka_batch([(b"a", b"1"), (None, b"2"), (b"c", None)], attributes=int(codec))
    sink = await both_ways(broker, namespace, topic, lambda: produce(namespace, topic, batch))
    assert sink.seen == [(topic, b"1"), (topic, b"2"), (topic, None)]
    assert sink.stamps == list(range(sink.stamps[0], sink.stamps[0] + 3))
    assert [record.time_ms for record in sink.records] == [1_700_000_000_000 + n for n in range(3)]


async def test_flags_of_a_kafka_record_are_not_believed(broker: Broker, namespace: Namespace) -> None:
    """Bit 3 in a broker's record says that the key is the topic; a Kafka client could write anything there."""
    batch = bytearray(kafka_batch([(b"other/topic", b"v")]))
    at = 61 + 1
    assert batch[at] == 0
    batch[at] = RecordFlag.KEY_IS_TOPIC | RecordFlag.RETAIN | RecordFlag.QOS_2
    sink = await both_ways(broker, namespace, b"k", lambda: produce(namespace, b"k", resealed(bytes(batch))))
    assert [(r.topic, r.flags, r.origin) for r in sink.records] == [(b"k", 0, Origin.KAFKA)]


async def test_flags_of_the_brokers_own_records_are(broker: Broker, namespace: Namespace) -> None:
    flags = RecordFlag.RETAIN | RecordFlag.QOS_1
    sink = await both_ways(
        broker, namespace, b"m", lambda: namespace.publish(b"m", b"v", flags=flags, origin=Origin.MQTT)
    )
    assert sink.records[0].flags == flags | RecordFlag.KEY_IS_TOPIC


@pytest.mark.parametrize("value", [None, b"", bytes(1000)])
async def test_an_outline_is_a_record_without_its_value(
    broker: Broker, namespace: Namespace, value: bytes | None
) -> None:
    class Outlines(Collector):
        def push(self, record: RecordRef, options: Any) -> bool:
            self.outline = record.outline()
            return super().push(record, options)

    sink = Outlines(namespace, [b"k"])
    namespace.subscribe(b"k", sink, None)
    produce(namespace, b"k", kafka_batch([(b"key", value)]))
    broker.ticker.tick()
    whole, outline = sink.records[0], sink.outline
    assert whole.value == value
    assert outline.value == (None if value is None else b"")
    whole.value = outline.value
    assert outline == whole


async def test_a_batch_without_gaps_is_counted_by_place_whatever_its_records_say(
    broker: Broker, namespace: Namespace
) -> None:
    batch = bytearray(kafka_batch([(None, b"a"), (None, b"b"), (None, b"c")]))
    at = 61
    for _ in range(3):
        size = batch[at] >> 1
        batch[at + 3] = 14  # the stored offset delta, zigzag: 7 for every record
        at += 1 + size
    sink = await both_ways(broker, namespace, b"k", lambda: produce(namespace, b"k", resealed(bytes(batch))))
    first = sink.records[0].offset
    assert [r.offset for r in sink.records] == [first, first + 1, first + 2]
    assert sink.stamps == list(range(sink.stamps[0], sink.stamps[0] + 3))
    assert [r.offset for r in everything(reader_of(namespace, b"k"))] == [r.offset for r in sink.records]


async def test_log_append_time_is_the_batchs_newest_time(broker: Broker, namespace: Namespace) -> None:
    batch = resealed(kafka_batch([(None, b"a"), (None, b"b")]), a=(">H", 21, APPEND_TIME), t=(">q", 35, 42))
    sink = await both_ways(broker, namespace, b"k", lambda: produce(namespace, b"k", batch))
    assert [r.time_ms for r in sink.records] == [42, 42]


def nonsense() -> list[bytes]:
    """Batches whose checksum fits and whose records do not decode."""
    good = kafka_batch([(b"k", b"v"), (b"k", b"w")])
    truncated = bytearray(good)
    truncated[61] = 0x7E  # a first record that would be longer than the batch
    headers = bytearray(good)
    headers[61 + 1 + (good[61] >> 1) - 1] = 2  # of the first record: one header, which is not there
    trailing = resealed(good + b"\0\0", s=(">i", 8, len(good) + 2 - 12))
    squeezed = resealed(good, a=(">H", 21, int(Codec.GZIP)))
    return [resealed(bytes(truncated)), resealed(bytes(headers)), trailing, squeezed]


@pytest.mark.parametrize("which", range(4))
async def test_a_clients_batch_that_cannot_be_read_is_counted_and_keeps_nobody_waiting(
    broker: Broker, namespace: Namespace, which: int
) -> None:
    def publish() -> Any:
        produce(namespace, b"k", kafka_batch([(None, b"before")]))
        produce(namespace, b"k", nonsense()[which])
        namespace.publish(b"k", b"other origin")
        return produce(namespace, b"k", kafka_batch([(None, b"after")]))

    sink = await both_ways(broker, namespace, b"k", publish)
    assert sorted(value or b"" for _, value in sink.seen) == [b"after", b"before", b"other origin"]
    assert broker.dispatcher.undecodable == 2, "once live, once from the log"
    assert [r.value for r in everything(reader_of(namespace, b"k")) if r.value != b"other origin"] == [
        b"before",
        b"after",
    ]


async def test_a_sink_that_breaks_breaks_alone(broker: Broker, namespace: Namespace) -> None:
    class Broken(Collector):
        def push(self, record: RecordRef, options: Any) -> bool:
            if record.value == b"2":
                raise RuntimeError("a bug of this sink")
            return super().push(record, options)

    broken, well = Broken(namespace, [b"x"]), Collector(namespace, [b"x"])
    namespace.subscribe(b"x", broken, None)
    namespace.subscribe(b"x", well, None)
    tickets = [namespace.publish(b"x", b"%d" % n) for n in range(4)]
    await durable(tickets[-1])
    assert [value for _, value in well.seen] == [b"0", b"1", b"2", b"3"]
    assert [value for _, value in broken.seen] == [b"0", b"1"]
    assert not broken.live
    assert broken.position == well.stamps[2], "it stays where it was"
    assert broker.dispatcher.failures == 1


async def test_damage_in_the_log_is_refused_and_named(broker: Broker, namespace: Namespace) -> None:
    ticket = namespace.publish(b"d", b"payload that is damaged")
    await durable(ticket)
    log: Log = ticket.log
    piece = log.read_now(ticket.base_offset, 1)
    assert piece is not None
    for at in (10, 30, 100, len(piece.data) - 1):
        damaged = bytearray(piece.data)
        damaged[at] ^= 1
        with pytest.raises(CorruptFrame, match=f"log {log.id}"):
            broker.dispatcher.replay(Collector(namespace, [b"d"]), log, memoryview(damaged), array("q"), 0, 1 << 62, {})
    with pytest.raises(CorruptFrame, match=f"offset {ticket.base_offset}"):
        broker.dispatcher.replay(Collector(namespace, [b"d"]), log, memoryview(damaged), array("q"), 0, 1 << 62, {})


# -- transactions ------------------------------------------------------------------------------------------------------


def transactional(values: list[bytes], producer_id: int = 9) -> bytes:
    return kafka_batch(
        [(None, value) for value in values],
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def end(namespace: Namespace, topic: bytes, first: int, *, commit: bool, producer_id: int = 9) -> Any:
    partition = namespace.topics[topic].partitions[0]
    return partition.log.append_marker(
        partition.route, commit=commit, producer_id=producer_id, producer_epoch=0, first_offset=first, count=0
    ).ticket


async def test_a_transaction_is_seen_when_it_commits_and_in_order_with_everything_else(
    broker: Broker, namespace: Namespace
) -> None:
    def publish() -> Any:
        first = produce(namespace, b"k", transactional([b"t1", b"t2"])).base_offset
        broker.ticker.tick()
        namespace.publish(b"k", b"in between")
        broker.ticker.tick()
        produce(namespace, b"k", transactional([b"t3"]))
        broker.ticker.tick()
        ticket = end(namespace, b"k", first, commit=True)
        namespace.publish(b"k", b"after")
        return ticket

    sink = await both_ways(broker, namespace, b"k", publish)
    assert [value for _, value in sink.seen] == [b"in between", b"t1", b"t2", b"t3", b"after"]
    assert sink.stamps == sorted(set(sink.stamps))


async def test_an_aborted_transaction_is_never_seen(broker: Broker, namespace: Namespace) -> None:
    def publish() -> Any:
        first = produce(namespace, b"k", transactional([b"t1"])).base_offset
        broker.ticker.tick()
        return end(namespace, b"k", first, commit=False)

    assert (await both_ways(broker, namespace, b"k", publish)).seen == []


async def test_two_transactions_that_overlap_are_kept_apart(broker: Broker, namespace: Namespace) -> None:
    def publish() -> Any:
        one = produce(namespace, b"k", transactional([b"a1"], 1)).base_offset
        two = produce(namespace, b"k", transactional([b"b1"], 2)).base_offset
        produce(namespace, b"k", transactional([b"a2"], 1))
        broker.ticker.tick()
        end(namespace, b"k", two, commit=True, producer_id=2)
        broker.ticker.tick()
        return end(namespace, b"k", one, commit=True, producer_id=1)

    sink = await both_ways(broker, namespace, b"k", publish)
    assert [value for _, value in sink.seen] == [b"b1", b"a1", b"a2"]


@pytest.mark.parametrize("room", range(5))
async def test_a_sink_that_stalls_inside_a_committed_transaction_goes_on_exactly_there(
    broker: Broker, namespace: Namespace, room: int
) -> None:
    sink = Collector(namespace, [b"k"], room)
    namespace.subscribe(b"k", sink, None)
    first = produce(namespace, b"k", transactional([b"t0", b"t1"])).base_offset
    produce(namespace, b"k", transactional([b"t2", b"t3"]))
    broker.ticker.tick()
    await durable(end(namespace, b"k", first, commit=True))
    assert len(sink.seen) == min(room, 4)
    sink.room = 1
    for _ in range(4 - room):
        await until(lambda: sink not in broker.pump._tasks)
        namespace.resume(sink)
        await until(lambda: sink.room == 0 or sink.live)
        sink.room = 1
    await until(lambda: sink not in broker.pump._tasks)
    sink.room = 100
    namespace.resume(sink)
    await until(lambda: sink.live)
    assert [value for _, value in sink.seen] == [b"t0", b"t1", b"t2", b"t3"]


async def test_a_position_inside_the_last_frame_is_served_after_a_restart(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    for n in range(10):
        ticket = namespace.publish(b"x", b"%d" % n)
    await durable(ticket)
    position = ticket.stamp + 7
    await broker.close()
    broker = await opened(tmp_path)
    namespace = broker.namespace("/")
    sink = Collector(namespace, [b"x"])
    sink.live, sink.position = False, position
    namespace.resume(sink)
    await until(lambda: sink.live)
    assert [value for _, value in sink.seen] == [b"7", b"8", b"9"]
    await broker.close()


async def test_a_delivery_that_declares_a_topic_does_not_disturb_the_others(
    broker: Broker, namespace: Namespace
) -> None:
    """A sink that publishes to a new dedicated topic makes the broker write in the middle of its tick."""

    class Forwarder(Collector):
        def push(self, record: RecordRef, options: Any) -> bool:
            name = b"out/" + (record.value or b"")
            self.namespace.broker.create_topic(self.namespace, name, Policy(layout="dedicated"))
            self.namespace.publish(name, record.value)
            return super().push(record, options)

    forwarder, plain, out = (
        Forwarder(namespace, [b"in"]),
        Collector(namespace, [b"in"]),
        Collector(namespace, [b"out/+"]),
    )
    for one in (forwarder, plain, out):
        namespace.subscribe(one.wanted[0], one, None)
    for n in range(5):
        namespace.publish(b"in", b"%d" % n)
    await until(lambda: len(out.seen) == 5)
    expected = [b"%d" % n for n in range(5)]
    assert [value for _, value in plain.seen] == expected
    assert [value for _, value in forwarder.seen] == expected
    assert [value for _, value in out.seen] == expected


async def test_one_tick_writes_delivers_and_flushes_and_leaves_no_empty_one_behind(
    broker: Broker, namespace: Namespace
) -> None:
    class Connection(Collector):
        flushed_at = 0

        def push(self, record: RecordRef, options: Any) -> bool:
            broker.ticker.mark_dirty(self)
            return super().push(record, options)

        def flush(self) -> None:
            self.flushed_at = broker.ticker.ticks

    connection = Connection(namespace, [b"t"])
    namespace.subscribe(b"t", connection, None)
    await asyncio.sleep(0)
    before = broker.ticker.ticks
    namespace.publish(b"t", b"1")
    for _ in range(3):
        await asyncio.sleep(0)
    assert connection.seen == [(b"t", b"1")]
    assert connection.flushed_at == broker.ticker.ticks == before + 1


def test_what_the_log_counts_is_what_a_batch_says(tmp_path: Path) -> None:
    """The helper of these tests makes what a producer would."""
    head = read_batch_head(kafka_batch([(None, b"a"), (None, b"b")]))
    assert (head.count, head.last_offset_delta) == (2, 1)


class Lossy(Collector):
    def may_drop(self, options: Any) -> bool:
        return bool(options == "lossy")


async def test_what_a_blocked_sink_may_miss_goes_past_it_and_is_counted(broker: Broker, namespace: Namespace) -> None:
    lossy, exact = Lossy(namespace, [b"shared"]), Lossy(namespace, [b"shared"])
    namespace.subscribe(b"shared", lossy, "lossy")
    namespace.subscribe(b"shared", exact, "exact")
    for number, blocked in enumerate((False, True, True, False)):
        lossy.blocked = exact.blocked = blocked
        ticket = namespace.publish(b"shared", b"%d" % number)
        broker.ticker.tick()
        await durable(ticket)
    assert [value for _, value in lossy.seen] == [b"0", b"3"] and lossy.dropped == 2 and lossy.live
    assert [value for _, value in exact.seen] == [b"0", b"1", b"2", b"3"] and exact.dropped == 0
