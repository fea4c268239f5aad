"""Consumer groups, classic and KIP-848: joining, rebalancing under load, static members, offsets, administration."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KpTopicPartition

from mainstem.testing import Broker
from tests.protocol.kafka.clients import admin, consumer, create_topic, eventually, producer, send, take, unique

PROTOCOLS = ["classic", "consumer"]
LOST_TO_A_REBALANCE = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,
)


def member(broker: Broker, group: str, protocol: str, **settings: Any) -> Consumer:
    if protocol == "consumer":
        settings["group_protocol"] = "consumer"
    return consumer(broker, group_id=group, **settings)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_goes_on_where_it_committed(broker: Broker, protocol: str) -> None:
    topic, group = create_topic(broker, unique("resume"), 2), unique("g")
    send(broker, topic, [b"%d" % n for n in range(10)])
    first = member(broker, group, protocol)
    first.subscribe([topic])
    early = [message.value() for message in take(first, 6)]
    first.commit(asynchronous=False)
    first.close()
    second = member(broker, group, protocol)
    second.subscribe([topic])
    late = [message.value() for message in take(second, 4)]
    second.close()
    assert sorted(early + late) == sorted(b"%d" % n for n in range(10))


class Worker:
    """A member on a thread of its own that commits what it took."""

    def __init__(self, broker: Broker, topic: str, group: str, protocol: str, **settings: Any) -> None:
        self.seen: list[bytes] = []
        self.owned: set[int] = set()
        self.failures: list[KafkaException] = []
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._stop = threading.Event()
        if protocol == "classic":
            settings["session_timeout_ms"] = 6_000
        self._source = member(broker, group, protocol, **settings)
        self._source.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = [message for message in self._source.consume(50, 0.1) if not message.error()]
            self.owned = {one.partition for one in self._source.assignment()}
            self.seen += [message.value() for message in messages]
            self._ends.update({m.partition(): m.offset() + 1 for m in messages})
            self._ends = {partition: end for partition, end in self._ends.items() if partition in self.owned}
            self._commit()
        self._source.close()

    def _commit(self) -> None:
        """What a rebalance kept from being committed is tried again, as long as the partition is ours."""
        ends = [TopicPartition(self._topic, partition, end) for partition, end in self._ends.items()]
        try:
            if ends:
                self._source.commit(offsets=ends, asynchronous=False)
            self._ends.clear()
        except KafkaException as error:
            if error.args[0].code() not in LOST_TO_A_REBALANCE:
                self.failures.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.mark.parametrize(
    ("protocol", "strategy"),
    [pytest.param("classic", "range", marks=pytest.mark.slow), ("classic", "cooperative-sticky"), ("consumer", None)],
)
def test_three_members_rebalance_under_load_and_nothing_is_lost(
    broker: Broker, protocol: str, strategy: str | None
) -> None:
    topic, group = create_topic(broker, unique("rebalance"), 6), unique("g")
    settings = {"partition_assignment_strategy": strategy} if strategy else {}
    sender, stop = producer(broker, linger_ms=5), threading.Event()
    sent: list[bytes] = []

    def load() -> None:
        while not stop.is_set():
            value = b"%d" % len(sent)
            sender.produce(topic, value, key=value)
            sent.append(value)
            sender.poll(0)
            stop.wait(0.002)

    loader = threading.Thread(target=load)
    loader.start()
    workers = [Worker(broker, topic, group, protocol, **settings)]
    eventually(lambda: len(workers[0].owned) == 6, "one member has all partitions")
    workers += [Worker(broker, topic, group, protocol, **settings) for _ in range(2)]
    eventually(lambda: sorted(len(w.owned) for w in workers) == [2, 2, 2], "three members have two each")
    workers.pop().stop()
    eventually(lambda: sorted(len(w.owned) for w in workers) == [3, 3], "two members have three each")
    stop.set()
    loader.join()
    assert sender.flush(20) == 0
    eventually(lambda: _all_committed(broker, topic, group, len(sent)), "everything sent was committed", 60)
    for worker in workers:
        worker.stop()
        assert not worker.failures


def _all_committed(broker: Broker, topic: str, group: str, count: int) -> bool:
    client = admin(broker)
    (future,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    offsets = {one.partition: one.offset for one in future.result(10).topic_partitions if one.topic == topic}
    return sum(offsets.values()) == count


def test_a_static_member_comes_back_without_a_rebalance(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("static"), 2), unique("g")
    send(broker, topic, [b"%d" % n for n in range(4)])
    rebalances: list[str] = []
    settings = {"group_instance_id": "instance-1", "session_timeout_ms": 20_000}
    other = consumer(broker, group_id=group, group_instance_id="instance-2", session_timeout_ms=20_000)
    one = consumer(broker, group_id=group, **settings)
    one.subscribe([topic])
    other.subscribe([topic], on_assign=lambda *_: rebalances.append("assigned"))

    def both_assigned() -> bool:
        one.poll(0.1)
        other.poll(0.1)
        return len(one.assignment()) == len(other.assignment()) == 1

    eventually(both_assigned, "each has one partition")
    before = len(rebalances)
    mine = one.assignment()
    one.close()  # a static member does not leave
    again = consumer(broker, group_id=group, **settings)
    again.subscribe([topic])
    eventually(lambda: bool(again.poll(0.1)) or len(again.assignment()) == 1, "it is back")
    other.poll(0.5)
    assert {(p.topic, p.partition) for p in again.assignment()} == {(p.topic, p.partition) for p in mine}
    assert len(rebalances) == before
    again.close()
    other.close()


def test_two_instances_of_one_id_fence_each_other(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("fence")), unique("g")
    send(broker, topic, [b"v"])
    first = consumer(broker, group_id=group, group_instance_id="same")
    first.subscribe([topic])
    take(first, 1)
    second = consumer(broker, group_id=group, group_instance_id="same")
    second.subscribe([topic])
    take(second, 1)

    def fenced() -> bool:
        message = first.poll(0.2)
        return message is not None and message.error() and message.error().code() == KafkaError._FATAL

    eventually(fenced, "the first one is told")
    second.close()
    first.close()


@pytest.mark.parametrize("strategy", [pytest.param("range", marks=pytest.mark.slow), "cooperative-sticky"])
def test_the_members_of_a_group_are_upgraded_one_by_one_and_back(broker: Broker, strategy: str) -> None:
    topic, group = create_topic(broker, unique("mixed"), 4), unique("g")
    members: list[Consumer] = []
    seen: list[bytes] = []

    def add(protocol: str) -> Consumer:
        settings = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 300}
        made = member(broker, group, protocol, **(settings if protocol == "classic" else {}))
        made.subscribe([topic])
        members.append(made)
        return made

    def shared() -> bool:
        for one in members:
            message = one.poll(0.1)
            if message is not None and message.error() is None:
                seen.append(message.value())
                one.commit(message, asynchronous=False)
        parts = [p.partition for one in members for p in one.assignment()]
        return sorted(parts) == [0, 1, 2, 3] and all(one.assignment() for one in members)

    def drop(one: Consumer) -> None:
        members.remove(one)
        one.close()

    steps = [("classic", 0), ("classic", 0), ("consumer", 1), ("classic", 1)]
    for number, (protocol, dropped) in enumerate(steps):
        add(protocol)
        eventually(shared, f"step {number}: the four partitions are shared with the new {protocol} member")
        if dropped:
            drop(members[0])
            eventually(shared, f"step {number}: the others take over")
        send(broker, topic, [b"%d" % number])
        eventually(lambda number=number: (shared(), b"%d" % number in seen)[1], f"step {number}: a record arrives")
    for one in list(members):
        drop(one)
    assert sorted(seen) == [b"%d" % number for number in range(len(steps))]


async def test_aiokafka_joins_a_group(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("aio"), 2), unique("g")
    send(broker, topic, [b"%d" % n for n in range(10)])
    reader = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    await reader.start()
    values = sorted([(await reader.getone()).value for _ in range(10)])
    await reader.commit()
    await reader.stop()
    assert values == [b"%d" % n for n in range(10)]
    assert _all_committed(broker, topic, group, 10)


def test_kafka_python_joins_a_group_and_keeps_metadata_with_offsets(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("kp")), unique("g")
    send(broker, topic, [b"a", b"b"])
    reader = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert [next(reader).value for _ in range(2)] == [b"a", b"b"]
    at = KpTopicPartition(topic, 0)
    reader.commit({at: OffsetAndMetadata(1, "half way", -1)})
    assert reader.committed(at, metadata=True)[:2] == (1, "half way")
    reader.close()


def test_offsets_of_an_unknown_group_are_simply_not_there(broker: Broker) -> None:
    topic = create_topic(broker, unique("unknown"))
    reader = consumer(broker, group_id=unique("nobody"))
    (at,) = reader.committed([TopicPartition(topic, 0)], timeout=10)
    assert at.offset == -1001
    assert at.error is None
    reader.close()


def test_groups_are_listed_described_and_deleted(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("admin")), unique("g")
    send(broker, topic, [b"v"])
    reader = consumer(broker, group_id=group, client_id="the-client")
    reader.subscribe([topic])
    take(reader, 1)
    reader.commit(asynchronous=False)
    client = admin(broker)
    assert group in {one.group_id for one in client.list_consumer_groups().result(10).valid}
    described = client.describe_consumer_groups([group])[group].result(10)
    assert described.state == ConsumerGroupState.STABLE
    assert [m.client_id for m in described.members] == ["the-client"]
    assert [p.topic for p in described.members[0].assignment.topic_partitions] == [topic]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        client.delete_consumer_groups([group])[group].result(10)
    reader.close()
    client.delete_consumer_groups([group])[group].result(10)
    assert group not in {one.group_id for one in client.list_consumer_groups().result(10).valid}


def test_offsets_are_altered_and_deleted_by_administrators(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("alter"), 2), unique("g")
    send(broker, topic, [b"%d" % n for n in range(8)], partition=1)
    client = admin(broker)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 5)])
    client.alter_consumer_group_offsets([asked])[group].result(10)
    reader = consumer(broker, group_id=group)
    reader.subscribe([topic])
    assert [message.value() for message in take(reader, 3)] == [b"5", b"6", b"7"]
    reader.close()


def test_members_that_vanish_lose_their_partitions(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("vanish"), 2), unique("g")
    send(broker, topic, [b"%d" % n for n in range(4)])
    from tests.protocol.kafka.raw_member import join_and_vanish

    join_and_vanish(broker, topic, group, session_ms=1_500)
    reader = consumer(broker, group_id=group)
    reader.subscribe([topic])
    began = time.monotonic()
    take(reader, 4)
    assert time.monotonic() - began < 30
    reader.close()
