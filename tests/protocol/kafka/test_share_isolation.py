"""share.isolation.level: what a share group is given of transactions, live and from the log, and when the level changes."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, ShareConsumer

from mainstem.protocols.kafka.messages import (
    AlterShareGroupOffsetsRequest,
    DescribeConfigsRequest,
    DescribeShareGroupOffsetsRequest,
)
from mainstem.testing import Broker, BrokerProcess
from mainstem.testing.broker import Endpoints
from tests.protocol.kafka.clients import create_topic, eventually, producer, send, unique
from tests.protocol.kafka.raw import RawClient
from tests.protocol.kafka.share_member import ACCEPT, RELEASE, Member, configure

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
GROUP_RESOURCE = 32


def transactional(broker: Endpoints) -> Producer:
    sender = producer(broker, transactional_id=unique("id"))
    sender.init_transactions(20)
    return sender


def write(sender: Producer, topic: str, count: int) -> None:
    """Within a transaction that stays open."""
    for n in range(count):
        sender.produce(topic, b"%d" % n)
    assert sender.flush(10) == 0


def group_at(broker: Endpoints, level: str, **more: str) -> str:
    group = unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest", share_isolation_level=level, **more)
    return group


def offsets_of(member: Member, **how: int) -> list[int]:
    return [offset for _, offset, _ in member.take(**how)]


def start_of(member: Member) -> int:
    wanted = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=member.group, topics=None)
    told = member.ask("DescribeShareGroupOffsets", 1, DescribeShareGroupOffsetsRequest(groups=[wanted]))
    return int(told.groups[0].topics[0].partitions[0].start_offset)


@pytest.mark.parametrize("live", [True, False])
def test_uncommitted_records_come_as_they_are_written_and_once(broker: Broker, live: bool) -> None:
    topic, sender = create_topic(broker, unique("share")), transactional(broker)
    group = group_at(broker, UNCOMMITTED)
    member = Member(broker, group, topic) if live else None
    for commit in (True, False):
        sender.begin_transaction()
        write(sender, topic, 2)
        if member is not None:
            assert offsets_of(member) == ([0, 1] if commit else [3, 4])
        sender.commit_transaction(10) if commit else sender.abort_transaction(10)
    send(broker, topic, [b"plain"])  # offsets 2 and 5 are markers
    if member is not None:
        assert offsets_of(member) == [6]
        member.close()
        return
    with Member(broker, group, topic) as late:
        assert offsets_of(late) == [0, 1, 3, 4, 6]
        assert offsets_of(late, wait_ms=200) == []


@pytest.mark.parametrize("live", [True, False])
def test_committed_records_come_when_they_are_committed_and_others_never(broker: Broker, live: bool) -> None:
    topic, sender = create_topic(broker, unique("share")), transactional(broker)
    group = group_at(broker, COMMITTED)
    member = Member(broker, group, topic) if live else None
    for commit in (True, False):
        sender.begin_transaction()
        write(sender, topic, 2)
        if member is not None:
            assert offsets_of(member, wait_ms=200) == []
        sender.commit_transaction(10) if commit else sender.abort_transaction(10)
        if member is not None:
            assert offsets_of(member, wait_ms=3_000 if commit else 200) == ([0, 1] if commit else [])
    send(broker, topic, [b"plain"])
    if member is not None:
        assert offsets_of(member) == [6]
        member.close()
        return
    with Member(broker, group, topic) as late:
        assert offsets_of(late) == [0, 1, 6]


def test_a_stock_consumer_is_given_records_of_an_open_transaction_by_default(broker: Broker) -> None:
    topic, sender, group = create_topic(broker, unique("share")), transactional(broker), unique("sg")
    configure(broker, group, share_auto_offset_reset="earliest")
    sharing = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    sharing.subscribe([topic])
    sender.begin_transaction()
    write(sender, topic, 3)
    seen: list[bytes] = []

    def three_came() -> bool:
        seen.extend(message.value() for message in sharing.poll(0.2) or () if message.error() is None)
        return len(seen) == 3

    eventually(three_came, "the records of the open transaction come")
    sender.abort_transaction(10)
    sharing.close()
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=["share.isolation.level"]
    )
    with RawClient(broker) as raw:
        shown = raw.ask("DescribeConfigs", 4, DescribeConfigsRequest(resources=[asked])).results[0].configs
    assert [one.value for one in shown] == [UNCOMMITTED]


def test_a_changed_level_passes_over_nothing_and_repeats_nothing(broker: Broker) -> None:
    topic, sender = create_topic(broker, unique("share")), transactional(broker)
    group = group_at(broker, COMMITTED)
    with Member(broker, group, topic) as member:
        sender.begin_transaction()
        write(sender, topic, 2)
        configure(broker, group, share_isolation_level=UNCOMMITTED)
        write(sender, topic, 1)
        assert offsets_of(member) == [2], "what was written before waits for its decision"
        configure(broker, group, share_isolation_level=COMMITTED)
        write(sender, topic, 1)
        assert offsets_of(member, wait_ms=200) == []
        assert member.settle(0, 2, 2, RELEASE) == 0
        assert offsets_of(member) == [2], "a record that comes back is found where it was written"
        sender.commit_transaction(10)
        assert offsets_of(member) == [0, 1, 3]
        assert member.settle(0, 0, 3, ACCEPT) == 0
        assert offsets_of(member, wait_ms=200) == []


def test_a_group_that_reads_uncommitted_records_starts_within_an_open_transaction(broker: Broker) -> None:
    topic, sender = create_topic(broker, unique("share")), transactional(broker)
    group = group_at(broker, UNCOMMITTED)
    sender.begin_transaction()
    write(sender, topic, 5)
    kind = AlterShareGroupOffsetsRequest
    part = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=3)
    asked = kind.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])
    with RawClient(broker) as raw:
        answer = raw.ask("AlterShareGroupOffsets", 0, kind(group_id=group, topics=[asked]))
        assert answer.error_code == 0
    with Member(broker, group, topic) as member:
        assert start_of(member) == 3
        assert offsets_of(member) == [3, 4]


def test_the_start_of_a_group_is_told_in_the_midst_of_a_transaction(broker: Broker) -> None:
    topic, sender = create_topic(broker, unique("share")), transactional(broker)
    group = group_at(broker, COMMITTED)
    sender.begin_transaction()
    write(sender, topic, 5)
    sender.commit_transaction(10)
    with Member(broker, group, topic) as member:
        assert offsets_of(member) == [0, 1, 2, 3, 4]
        assert member.settle(0, 0, 2, ACCEPT) == 0
        assert start_of(member) == 3
        assert member.settle(0, 3, 4, ACCEPT) == 0
        assert start_of(member) == 6, "all is read, the marker too"


def test_uncommitted_records_that_were_not_settled_come_again_after_a_kill(broker_process: BrokerProcess) -> None:
    topic, sender = create_topic(broker_process, unique("share")), transactional(broker_process)
    group = group_at(broker_process, UNCOMMITTED)
    sender.begin_transaction()
    write(sender, topic, 4)
    with Member(broker_process, group, topic) as member:
        assert offsets_of(member) == [0, 1, 2, 3]
        assert member.settle(0, 0, 1, ACCEPT) == 0
    broker_process.kill()
    broker_process.start()
    with Member(broker_process, group, topic, "second") as member:
        assert offsets_of(member) == [2, 3]
