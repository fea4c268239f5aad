"""What recovery derives is written down: a second crash, with only recovery before it, finds no less than the first."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from mainstem.broker.broker import Broker
from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.queue import Outcome
from mainstem.broker.queues.settings import QueueSettings
from mainstem.broker.sessions.sessions import DONE, Sessions
from mainstem.broker.transactions.producers import PartitionProducers, Producers, Verdict
from mainstem.codec.batch import read_batch_head
from mainstem.model.clock import ManualClock
from mainstem.protocols.mqtt.session import MqttSession
from tests.unit.broker.kit import Collector, durable, kafka_batch, produce, running, until
from tests.unit.protocols.kafka.journals import MemoryJournal

ME = b"/\0me"


# -- sessions


def sessions(crashed: MemoryJournal | None = None) -> tuple[Sessions, MemoryJournal]:
    journal = MemoryJournal()
    made = Sessions(journal)  # type: ignore[arg-type]
    if crashed is not None:
        crashed.replay_into(journal)
        journal.entries = list(crashed.entries)
    return made, journal


def test_an_identifier_that_a_record_told_of_is_known_after_a_second_crash() -> None:
    first, journal = sessions()
    first.save(first.begin(ME, 100, 0))
    second, journal = sessions(journal)
    second.recover_received(ME, 7, stamp=50)
    second.write_derived(60, more=False)
    third, _ = sessions(journal)
    session = third.find(ME)
    assert third.checkpoint == 60, "the record is not looked at again"
    assert session is not None and session.received == {7}


def test_an_identifier_released_before_the_first_crash_is_free_after_the_second() -> None:
    first, journal = sessions()
    session = first.begin(ME, 100, 0)
    first.save(session)
    first.save_released(session, [7], 55)
    second, journal = sessions(journal)
    second.recover_received(ME, 7, stamp=50)
    second.write_derived(60, more=False)
    second.recovered(1)
    snapshot = MemoryJournal()
    third = Sessions(snapshot)  # type: ignore[arg-type]
    journal.snapshot_into(snapshot)  # as a clean stop right after the start takes it
    assert third.checkpoint == 60, "else the record would be looked at again, and its identifier be pending"
    found = third.find(ME)
    assert found is not None and found.received == set()


def test_a_delivery_whose_identifier_was_given_out_again_is_completed() -> None:
    first, journal = sessions()
    session = first.begin(ME, 100, 10)
    first.save(session)
    first.save_flight(session, [(1, 20), (2, 30)], [])
    first.save_flight(session, [], [1])
    first.save_flight(session, [(1, 40)], [])  # so the client had completed the first
    again = sessions(journal)[0].find(ME)
    assert again is not None
    assert again.flight == [(0, DONE, 20), (2, 2, 30), (1, 2, 40)]


def test_what_a_client_completes_before_catching_up_has_passed_it_stays_known() -> None:
    session = MqttSession(100)
    session.resume(10, [(0, DONE, 15), (1, 3, 20), (2, 3, 30)])
    assert session.done_beyond(10, [(2, 3, 30)]) == [(0, DONE, 15), (0, DONE, 20)]
    assert session.done_beyond(16, []) == [(0, DONE, 20), (0, DONE, 30)]
    assert session.done_beyond(31, []) == []


# -- queues


async def test_a_dead_letter_is_not_written_again_after_a_second_crash(tmp_path: Path) -> None:
    data, copy, third = tmp_path / "data", tmp_path / "copy", tmp_path / "third"
    async with running(data) as broker:
        queues = broker.queues.of(broker.namespace("/"))
        _, written = queues.declare("dead", QueueSettings(), reaches=[queues.exchanges.default_reach("dead", NOW)])
        settings = QueueSettings(dead_letter_exchange="", dead_letter_key="dead")
        queue, _ = queues.declare("q", settings, reaches=[Reach(ANYTHING, b"q/#")])
        assert written is not None
        await written
        await durable(broker.namespace("/").publish(b"q/1", b"1"))
        await until(lambda: queue.ready == 1)
        told: list[int] = []
        queue.dead_lettered = lambda level, positions: told.extend(positions)  # type: ignore[method-assign]
        queue.settle([one.position for one in queue.acquire(queue, 1)], Outcome.REJECT)
        await until(lambda: len(told) == 1)
        shutil.copytree(data, copy)
    async with running(copy) as broker:
        broker.queues._on_checkpoint()
        assert list(broker.queues.dead_letter_marks._dump()) == []
        broker.ticker.drain()
        shutil.copytree(copy, third)
    async with running(third) as broker:
        queues = broker.queues.of(broker.namespace("/"))
        assert queues.get("dead").ready == 1
        assert queues.get("q").ready == 0


# -- delayed messages


async def test_a_delayed_message_that_was_published_is_not_published_again_after_a_stop(tmp_path: Path) -> None:
    clock = ManualClock()
    for _ in range(3):
        async with running(tmp_path, clock=clock) as broker:
            namespace = broker.namespace("/")
            if not _count(broker, b"later"):
                broker.delayed.add(namespace, b"later", b"x", due_ms=clock.now_ns() // 1_000_000)
                await until(lambda: _count(broker, b"later") == 1)
                await until(lambda: not len(broker.delayed))
            seen = Collector(namespace, [b"later"])
            namespace.subscribe(b"later", seen, None)
            await durable(namespace.publish(b"other", b"y"))
            assert _count(broker, b"later") == 1
            assert not len(broker.delayed) and not seen.seen


def _count(broker: Broker, topic: bytes) -> int:
    stem = broker.namespace("/").stem(broker.options.defaults)
    assert stem.index is not None
    number = stem.index.topics.find(topic)
    return len(stem.index.find_one(number, 0, stem.written)) if number else 0


async def test_a_delayed_message_is_owed_until_what_it_became_is_durable(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        due_ms = clock.now_ns() // 1_000_000 + 3_600_000
        await durable(broker.delayed.add(broker.namespace("/"), b"later", b"x", due_ms=due_ms))
        await until(lambda: len(broker.delayed) == 1)
        clock.advance_ms(3_600_001)
        broker.delayed._on_time()
        assert len(list(_entries(broker))) == 1, "a snapshot taken now would lose it"
        await until(lambda: not list(_entries(broker)))


def _entries(broker: Broker) -> list[bytes]:
    return [key for key, _ in broker.delayed._dump() if int.from_bytes(key[:8], "big")]


# -- producers


async def test_a_topic_that_never_journaled_its_producers_keeps_them_beside_one_that_did(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    journal = MemoryJournal()
    async with running(data) as broker:
        producers = Producers(journal)
        namespace = broker.namespace("/")
        for name in (b"quiet", b"busy"):
            broker.create_topic(namespace, name, broker.options.defaults)
        stem = namespace.topics[b"quiet"].partitions[0].log
        producers.recover(stem, 0)
        for name, producer_id in ((b"quiet", 7), (b"busy", 8)):
            batch = kafka_batch([(b"k", b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            ticket = await durable(produce(namespace, name, batch))
            state = producers.of(stem, namespace.topics[name].id)
            state.add(read_batch_head(batch), ticket.base_offset, ticket.end_offset, 0)
        busy = namespace.topics[b"busy"].id
        journal.put(Producers.KIND, f"{stem.id}/{busy}".encode(), producers.of(stem, busy).pack())
        shutil.copytree(data, copy)
    async with running(copy) as broker:
        after = MemoryJournal()
        again = Producers(after)
        journal.replay_into(after)
        topic = broker.namespace("/").topics[b"quiet"]
        again.recover(topic.partitions[0].log, 0)
        head: Any = SimpleNamespace(producer_id=7, producer_epoch=0, base_sequence=0, last_offset_delta=0)
        assert again.of(topic.partitions[0].log, topic.id).check(head)[0] is Verdict.DUPLICATE


async def test_a_start_reads_a_log_only_from_where_a_snapshot_saw_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        journal = MemoryJournal()
        producers = Producers(journal)
        stem = broker.namespace("/").stem(broker.options.defaults)
        await durable(broker.namespace("/").publish(b"a", b"x"))
        producers.recover(stem, 0)
        floors = {
            key: PartitionProducers.unpack(value).scanned_end for key, value in journal.owners[Producers.KIND][1]()
        }
        assert floors == {f"{stem.id}/-1".encode(): stem.written}


def test_a_place_that_was_journaled_before_is_read() -> None:
    made, journal = sessions()
    made.save(made.begin(ME, 100, 0))
    journal.owners["place"][0](ME, msgspec.msgpack.encode((5, [(1, 1, 4)])))
    session = made.find(ME)
    assert session is not None and (session.position, session.flight) == (5, [(1, 1, 4)])
