"""Share groups (KIP-932): members compete for records; accept, release, reject, lock expiry; one queue with AMQP."""

from __future__ import annotations

import sqlite3
import threading

import pika
import pytest
from confluent_kafka import ShareConsumer

from mainstem.protocols.kafka.messages import (
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ListGroupsRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
)
from mainstem.testing import Broker, BrokerProcess
from tests.protocol.kafka.clients import create_topic, eventually, send, unique
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.kafka.share_member import ACCEPT, REJECT, RELEASE, RENEW, Member, configure

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
INVALID_REQUEST = 42


@pytest.fixture
def filled(broker: Broker) -> tuple[str, str]:
    """A topic with five records and a share group that begins at the first."""
    topic, group = create_topic(broker, unique("share")), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    send(broker, topic, [b"%d" % n for n in range(5)])
    return topic, group


def test_members_compete_and_each_record_goes_to_one(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic, "a") as a, Member(broker, group, topic, "b") as b:
        mine, yours = a.take(3), b.take(3)
        assert sorted(offset for _, offset, _ in mine + yours) == [0, 1, 2, 3, 4]
        assert {count for _, _, count in mine + yours} == {1}


def in_batches(broker: Broker, partitions: int = 1) -> tuple[str, str]:
    """Ten records in each partition, in two batches of a producer's, and a share group that begins at the first."""
    topic, group = create_topic(broker, unique("batches"), partitions), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    with RawClient(broker) as raw:
        for batch in range(2):
            for partition in range(partitions):
                raw.produce(topic, batch_of([b"%d" % (5 * batch + n) for n in range(5)]), partition=partition)
    return topic, group


def offsets(taken: list[tuple[int, int, int]]) -> list[int]:
    return [offset for _, offset, _ in taken]


def test_a_limit_of_records_is_kept_where_the_member_asks_for_it(broker: Broker) -> None:
    """KIP-1206, `share.acquire.mode=record_limit`: batches are cut, also those that come back."""
    topic, group = in_batches(broker)
    with Member(broker, group, topic) as member:
        assert offsets(member.take(6, mode=RECORD_LIMIT)) == [0, 1, 2, 3, 4, 5]
        assert member.settle(0, 0, 5, RELEASE) == 0
        assert offsets(member.take(1, mode=RECORD_LIMIT)) == [0]
        assert offsets(member.take(6, mode=RECORD_LIMIT)) == [1, 2, 3, 4, 5, 6]
        assert offsets(member.take(6, mode=RECORD_LIMIT)) == [7, 8, 9]


@pytest.mark.parametrize("mode", [None, BATCH_OPTIMIZED])
def test_without_it_whole_batches_come_as_in_kafka(broker: Broker, mode: int | None) -> None:
    """KIP-1206's own example: batches of 5, at most 6 records asked for, 10 acquired. And what came back may be cut."""
    topic, group = in_batches(broker)
    with Member(broker, group, topic) as member:
        assert offsets(member.take(6, mode=mode)) == list(range(10))
        assert member.settle(0, 3, 9, RELEASE) == 0
        assert offsets(member.take(4, mode=mode)) == [3, 4, 5, 6, 7, 8, 9]
        assert member.settle(0, 0, 9, ACCEPT) == 0
        assert member.take(wait_ms=200, mode=mode) == []


def test_whole_batches_keep_to_the_locks_a_group_may_hold(broker: Broker) -> None:
    topic, group = in_batches(broker)
    configure(broker, group, share_partition_max_record_locks="7")
    with Member(broker, group, topic) as member:
        assert offsets(member.take(6, mode=BATCH_OPTIMIZED)) == list(range(7))


def test_several_partitions_end_with_whole_batches(broker: Broker) -> None:
    topic, group = in_batches(broker, 2)
    with Member(broker, group, topic) as member:
        taken = member.take(7, mode=BATCH_OPTIMIZED)
        assert sorted(taken) == [(partition, offset, 1) for partition in range(2) for offset in range(5)]
        taken = member.take(7, mode=RECORD_LIMIT)
        assert len(taken) == 7


def test_a_way_of_acquiring_that_nobody_knows_is_refused(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        assert member.ask_for(1, 100, mode=7).error_code == INVALID_REQUEST


def test_released_records_come_back_and_count(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        member.take()
        assert member.settle(0, 0, 2, ACCEPT) == 0
        assert member.settle(0, 3, 4, RELEASE) == 0
        assert member.take() == [(0, 3, 2), (0, 4, 2)]
        assert member.settle(0, 3, 4, ACCEPT) == 0
        assert member.take(wait_ms=300) == []


def test_rejected_records_do_not_come_back(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        member.take()
        assert member.settle(0, 0, 4, REJECT) == 0
        assert member.take(wait_ms=300) == []


def test_a_lock_that_expires_gives_the_record_to_another(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    configure(broker, group, share_record_lock_duration_ms="500")
    with Member(broker, group, topic, "slow") as slow, Member(broker, group, topic, "fast") as fast:
        assert len(slow.take()) == 5
        assert [(offset, count) for _, offset, count in fast.take()] == [(n, 2) for n in range(5)]
        assert slow.settle(0, 0, 4, ACCEPT) == 121
        assert fast.settle(0, 0, 4, ACCEPT) == 0


def test_a_lock_can_be_renewed(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    configure(broker, group, share_record_lock_duration_ms="1500")
    with Member(broker, group, topic, "slow") as slow, Member(broker, group, topic, "fast") as fast:
        slow.take()
        for _ in range(3):
            assert fast.take(wait_ms=700) == []
            assert slow.settle(0, 0, 4, RENEW) == 0
        assert slow.settle(0, 0, 4, ACCEPT) == 0


def test_a_lost_connection_gives_back_what_it_held(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic, "gone") as gone:
        assert len(gone.take()) == 5
    with Member(broker, group, topic, "heir") as heir:
        assert len(heir.take()) == 5


def test_attempts_end(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("poison")), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest", share_delivery_count_limit="2")
    send(broker, topic, [b"poison"])
    with Member(broker, group, topic) as member:
        for attempt in (1, 2):
            assert member.take() == [(0, 0, attempt)]
            assert member.settle(0, 0, 0, RELEASE) == 0
        assert member.take(wait_ms=300) == []


def test_session_epochs_are_checked(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        member.take(1)
        request = ShareFetchRequest(group_id=group, member_id=member.name, share_session_epoch=9, max_bytes=1)
        assert member.ask("ShareFetch", 1, request).error_code == 123
        request.member_id = "somebody"
        assert member.ask("ShareFetch", 1, request).error_code == 122


def test_share_groups_are_listed_described_and_have_offsets(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        member.take()
        member.settle(0, 0, 1, ACCEPT)
        listed = member.ask("ListGroups", 5, ListGroupsRequest(types_filter=["share"]))
        assert group in {one.group_id for one in listed.groups}
        described = member.ask("ShareGroupDescribe", 1, ShareGroupDescribeRequest(group_ids=[group])).groups[0]
        assert (described.group_state, len(described.members)) == ("Stable", 1)
        asked = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
        offsets = member.ask("DescribeShareGroupOffsets", 1, DescribeShareGroupOffsetsRequest(groups=[asked]))
        assert [one.topic_name for one in offsets.groups[0].topics] == [topic]
        assert offsets.groups[0].topics[0].partitions[0].lag == 3
        assert member.beat(-1).error_code == 0
    with RawClient(broker) as raw:
        gone = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
        answer = raw.ask("DeleteShareGroupOffsets", 0, DeleteShareGroupOffsetsRequest(group_id=group, topics=[gone]))
        assert (answer.error_code, answer.responses[0].error_code) == (0, 0)


def test_the_start_of_a_group_is_told_in_the_midst_of_a_batch(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("share")), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    with RawClient(broker) as raw:
        assert raw.produce(topic, batch_of([b"%d" % n for n in range(10)])).error_code == 0
    with Member(broker, group, topic) as member:
        member.take()
        member.settle(0, 0, 3, ACCEPT)
        asked = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
        offsets = member.ask("DescribeShareGroupOffsets", 1, DescribeShareGroupOffsetsRequest(groups=[asked]))
        partition = offsets.groups[0].topics[0].partitions[0]
        assert (partition.start_offset, partition.lag) == (4, 6)


def test_a_group_holds_as_many_records_as_it_may_and_goes_on_when_it_has_settled(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("share")), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest", share_partition_max_record_locks="4")
    send(broker, topic, [b"%d" % n for n in range(10)])
    with Member(broker, group, topic, "first") as first, Member(broker, group, topic, "second") as second:
        assert [offset for _, offset, _ in first.take()] == [0, 1, 2, 3]
        assert second.take(wait_ms=200) == []
        assert first.settle(0, 0, 1, ACCEPT) == 0
        assert [offset for _, offset, _ in second.take()] == [4, 5]


def test_the_brokers_own_limit_of_locks_holds_where_a_group_says_nothing() -> None:
    with Broker("kafka.share_locks_max=3") as running:
        topic, group = create_topic(running, unique("share")), unique("sg")
        configure(running, group, share_auto_offset_reset="earliest")
        send(running, topic, [b"%d" % n for n in range(10)])
        with Member(running, group, topic) as member:
            assert len(member.take()) == 3


class Worker:
    """confluent-kafka's ShareConsumer on a thread."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.seen: list[bytes] = []
        self._stop = threading.Event()
        self._consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.poll(0.2) or ():
                if message.error() is None:
                    self.seen.append(message.value())
        self._consumer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


def test_the_brokers_own_lock_time_holds_where_a_group_says_nothing() -> None:
    with Broker("kafka.share_lock_ms=300ms") as running:
        topic, group = create_topic(running, unique("share")), unique("sg")
        configure(running, group, share_auto_offset_reset="earliest")
        send(running, topic, [b"0"])
        with Member(running, group, topic, "slow") as slow, Member(running, group, topic, "fast") as fast:
            assert slow.take() == [(0, 0, 1)]
            assert fast.take() == [(0, 0, 2)], "the lock ran out"


def test_a_group_that_has_begun_obeys_another_delivery_limit(broker: Broker, filled: tuple[str, str]) -> None:
    topic, group = filled
    with Member(broker, group, topic) as member:
        assert member.take(1, mode=RECORD_LIMIT) == [(0, 0, 1)]
        configure(broker, group, share_delivery_count_limit="2")
        assert member.settle(0, 0, 0, RELEASE) == 0
        assert member.take(1, mode=RECORD_LIMIT) == [(0, 0, 2)]
        assert member.settle(0, 0, 0, RELEASE) == 0
        assert member.take(1, mode=RECORD_LIMIT) == [(0, 1, 1)], "it was delivered as often as the group allows now"


def test_share_consumers_of_librdkafka_share_the_work(broker: Broker) -> None:
    topic, group = create_topic(broker, unique("rdk-share"), 2), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    send(broker, topic, [b"%d" % n for n in range(200)])
    workers = [Worker(broker, group, topic) for _ in range(2)]
    eventually(lambda: len({v for w in workers for v in w.seen}) == 200, "all records are taken")
    send(broker, topic, [b"late-%d" % n for n in range(50)])
    eventually(lambda: len({v for w in workers for v in w.seen}) == 250, "the late ones too")
    for worker in workers:
        worker.stop()
    seen = [value for worker in workers for value in worker.seen]
    assert len(seen) == len(set(seen)) == 250


def test_amqp_and_kafka_consumers_compete_for_one_queue(broker: Broker) -> None:
    name = unique("tasks")
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    for n in range(10):
        channel.basic_publish("", name, b"task %d" % n)
    taken: list[bytes] = []
    with Member(broker, name, name) as member:
        held = member.take(4)
        assert len(held) == 4
        for _ in range(6):
            method, _, body = channel.basic_get(name)
            taken.append(body)
            channel.basic_ack(method.delivery_tag)
        assert channel.basic_get(name)[0] is None
        for partition, offset, _ in held[:3]:
            assert member.settle(partition, offset, offset, ACCEPT) == 0
        partition, offset, _ = held[3]
        assert member.settle(partition, offset, offset, RELEASE) == 0
    method, _, body = channel.basic_get(name)
    assert body not in taken
    assert method.redelivered
    channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(name)[0] is None
    connection.close()


def test_group_settings_are_checked(broker: Broker) -> None:
    group = unique("sg")
    with pytest.raises(AssertionError):
        configure(broker, group, share_auto_offset_reset="yesterday")
    with pytest.raises(AssertionError):
        configure(broker, group, share_record_lock_duration_ms="-1")


def test_a_member_is_in_its_group_once_the_groups_queue_is_durable(broker_process: BrokerProcess) -> None:
    """After a kill that came before, the queue was made anew: accepted records came again, and a group that begins at the
    end of its topic missed what had been produced meanwhile."""
    topic, group = create_topic(broker_process, unique("share")), unique("sg")
    configure(broker_process, group, share_auto_offset_reset="earliest")
    send(broker_process, topic, [b"x"])
    metadata = sqlite3.connect(broker_process.data / "metadata.sqlite", isolation_level=None)
    metadata.execute("BEGIN IMMEDIATE")
    joined = threading.Event()

    def join() -> None:
        with Member(broker_process, group, topic) as member:
            joined.set()
            assert offsets(member.take()) == [0]

    thread = threading.Thread(target=join)
    thread.start()
    try:
        assert not joined.wait(1)
    finally:
        metadata.execute("ROLLBACK")
        metadata.close()
    assert joined.wait(10)
    thread.join(10)
