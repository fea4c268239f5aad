"""Fetches that are answered at once where they are read: the bytes are those of the ordinary handler, whatever is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from mainstem.broker.delivery import turns
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.adapter import KafkaConnection
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import FetchRequest, MetadataRequest
from mainstem.testing import Broker
from tests.protocol.kafka.clients import admin, create_topic, unique
from tests.protocol.kafka.raw import RawClient, batch_of

VERSIONS = range(4, 19)
Place = tuple[int, int, int]  # partition, offset, bytes at most


class Quick:
    """Which requests were taken at once; `on` false leaves all to the ordinary handler."""

    def __init__(self) -> None:
        self.on = True
        self.taken: list[bool] = []


def set_slice(monkeypatch: pytest.MonkeyPatch, slice_ns: int) -> None:
    monkeypatch.setattr(turns, "SLICE_NS", slice_ns)
    monkeypatch.setattr(turns, "SHORT_SLICE_NS", slice_ns)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Quick:
    switch, ordinary = Quick(), KafkaConnection._take_quickly

    def take(connection: KafkaConnection, request: memoryview) -> bool:
        switch.taken.append(switch.on and ordinary(connection, request))
        return switch.taken[-1]

    monkeypatch.setattr(KafkaConnection, "_take_quickly", take)
    set_slice(monkeypatch, 60 * 10**9)  # on a busy machine the ordinary handler would answer with less
    return switch


@pytest.fixture(scope="module")
def filled(broker: Broker) -> tuple[str, str]:
    """Two topics of three partitions: small batches, large batches, and none."""
    names = unique("plain-fetch-a"), unique("plain-fetch-b")
    with RawClient(broker) as raw:
        for name in names:
            create_topic(broker, name, partitions=3)
            for number in range(30):
                raw.produce(name, batch_of([b"s" * (number + 1)] * (number % 3 + 1)))
                raw.produce(name, batch_of([b"L" * 9_000 + bytes([number])] * 2), partition=1)
    return names


def a_fetch(raw: RawClient, version: int, topics: dict[str, list[Place]], committed: bool, **more: int) -> bytes:
    ids: dict[str, bytes] = {}
    if version >= 13:
        named = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        ids = {one.name: one.topic_id for one in raw.ask("Metadata", 12, MetadataRequest(topics=named)).topics}
    lines = [
        FetchRequest.FetchTopic(
            topic=name,
            topic_id=ids.get(name, bytes(16)),
            partitions=[
                FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size)
                for index, offset, size in places
            ],
        )
        for name, places in topics.items()
    ]
    request = FetchRequest(
        min_bytes=1, session_epoch=-1, isolation_level=int(committed), topics=lines, rack_id="here", **more
    )
    return b"".join(wire.encode_request("FetchRequest", version, request, correlation=9, client_id="me"))


def both_ways(raw: RawClient, quick: Quick, request: bytes) -> tuple[bytes, bytes]:
    answers = []
    for on in (True, False):
        quick.on = on
        raw.send_bytes(request)
        answers.append(raw.receive_bytes())
    return answers[0], answers[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("committed", [False, True])
def test_the_answer_is_that_of_the_ordinary_handler_byte_for_byte(
    broker: Broker, filled: tuple[str, str], quick: Quick, version: int, committed: bool
) -> None:
    first, second = filled
    asked: list[dict[str, list[Place]]] = [
        {first: [(0, 0, 1 << 20)]},
        {first: [(0, 7, 1 << 20)]},
        {first: [(0, 3, 400)]},
        {first: [(0, 3, 1)]},
        {first: [(1, 1, 30_000)]},
        {first: [(1, 59, 1 << 24)]},
        {first: [(0, 5, 1 << 20), (1, 8, 50_000), (2, 0, 1_000)], second: [(2, 0, 1_000), (1, 0, 1 << 20)]},
        {second: [(2, 0, 1_000)], first: [(2, 0, 1_000), (0, 0, 300)]},
    ]
    with RawClient(broker) as raw:
        for topics in asked:
            request = a_fetch(raw, version, topics, committed)
            quick.taken.clear()
            ours, ordinary = both_ways(raw, quick, request)
            assert ours == ordinary, topics
            assert quick.taken == [True, False]
        request = a_fetch(raw, version, asked[6], committed, max_bytes=21_000)
        ours, ordinary = both_ways(raw, quick, request)
        assert ours == ordinary


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_what_has_nothing_to_send_or_an_error_to_tell_is_left_to_the_ordinary_handler(
    broker: Broker, filled: tuple[str, str], quick: Quick, version: int
) -> None:
    first = filled[0]
    with RawClient(broker) as raw:
        for topics in (
            {first: [(2, 0, 1_000)]},
            {first: [(0, 0, 1_000), (1, 10_000, 1_000)]},
            {first: [(7, 0, 1_000)]},
        ):
            request = a_fetch(raw, version, topics, committed=False)
            quick.taken.clear()
            ours, ordinary = both_ways(raw, quick, request)
            assert ours == ordinary
            assert quick.taken == [False, False]


def test_many_empty_partitions_beside_a_full_one_are_all_told_of(
    broker: Broker, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_slice(monkeypatch, 0)  # looking through the empty ones takes longer than a slice
    name = unique("plain-fetch-wide")
    create_topic(broker, name, partitions=60)
    with RawClient(broker) as raw:
        raw.produce(name, batch_of([b"v" * 40_000]), partition=57)
        request = a_fetch(raw, 12, {name: [(index, 0, 1 << 20) for index in range(60)]}, committed=True)
        quick.taken.clear()
        ours, ordinary = both_ways(raw, quick, request)
        assert ours == ordinary
        assert quick.taken == [True, False]


def test_a_large_answer_survives_the_ones_made_while_it_is_unread(broker: Broker) -> None:
    """Its buffer is used again only once the socket has taken all of it."""
    name = unique("plain-fetch-unread")
    create_topic(broker, name)
    with RawClient(broker) as slow, RawClient(broker) as other:
        for number in range(40):
            other.produce(name, batch_of([bytes([number]) * 100_000]))
        for number in range(40):
            slow.send_bytes(a_fetch(slow, 11, {name: [(0, number, 1 << 20)]}, committed=False))
        for number in range(40):
            other.fetch(name, number)
        for number in range(40):
            answer = wire.decode("FetchResponse", 11, slow.receive_bytes()[4:])
            records = answer.responses[0].partitions[0].records
            assert int.from_bytes(records[:8]) == number
            for at, kept in enumerate(range(number, min(number + 10, 40))):
                size = len(batch_of([bytes(100_000)]))
                assert bytes(records[(at + 1) * size - 1_000 : (at + 1) * size - 10]) == bytes([kept]) * 990


def test_what_was_fetched_before_is_sent_again_with_a_head_of_its_own(broker: Broker, quick: Quick) -> None:
    name = unique("plain-fetch-again")
    create_topic(broker, name, partitions=2)
    with RawClient(broker) as one, RawClient(broker) as other:
        for number in range(30):
            one.produce(name, batch_of([bytes([number]) * 50_000]), partition=number % 2)
        request = a_fetch(one, 12, {name: [(0, 2, 300_000), (1, 2, 300_000), (0, 2, 300_000)]}, committed=False)
        for _ in range(5):
            one.send_bytes(request)
            other.send_bytes(request)
        answers = [raw.receive_bytes() for _ in range(5) for raw in (one, other)]
        assert set(answers) == {both_ways(one, quick, request)[1]}
        end = a_fetch(one, 12, {name: [(0, 12, 1 << 20)]}, committed=True)
        before = both_ways(one, quick, end)
        one.produce(name, batch_of([b"more" * 10_000]))
        after = both_ways(one, quick, end)
        assert before[0] == before[1] != after[0] == after[1]


def test_what_was_sent_from_memory_to_several_is_read_as_it_was_after_the_memory_was_used_again(broker: Broker) -> None:
    """It was sent without a copy: their queues hold the very pages."""
    name = unique("plain-fetch-lent")
    create_topic(broker, name)
    with RawClient(broker) as one, RawClient(broker) as slow, RawClient(broker) as slower:
        for number in range(40):
            one.produce(name, batch_of([bytes([number]) * 100_000]))
        request = a_fetch(one, 11, {name: [(0, 0, 320_000)]}, committed=False)
        one.send_bytes(request)
        expected = one.receive_bytes()
        for raw in (slow, slower):
            raw.send_bytes(request)
        for number in range(1, 40):
            assert one.fetch(name, number)
        assert slow.receive_bytes() == slower.receive_bytes() == expected


def a_megabyte(broker: Broker, raw: RawClient, prefix: str) -> str:
    """A topic of twenty batches of one record each."""
    name = unique(prefix)
    create_topic(broker, name)
    for number in range(20):
        raw.produce(name, batch_of([bytes([number]) * 50_000]))
    return name


def test_records_that_were_deleted_are_not_sent_from_memory(tmp_path: Path, quick: Quick) -> None:
    with Broker(engine="segment", data=tmp_path) as broker, RawClient(broker) as raw:
        name = a_megabyte(broker, raw, "plain-fetch-deleted")
        requests = [a_fetch(raw, 12, {name: [(0, offset, 1 << 20)]}, committed=False) for offset in (0, 12)]
        for request in requests * 2:
            ours, ordinary = both_ways(raw, quick, request)
            assert ours == ordinary
        client, place = admin(broker), TopicPartition(name, 0, 10)
        client.delete_records([place])[place].result(10)
        for request, code in zip(requests, (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE), strict=True):
            ours, ordinary = both_ways(raw, quick, request)
            assert ours == ordinary
            (part,) = wire.decode("FetchResponse", 12, ours[5:]).responses[0].partitions
            assert part.error_code == code


def only_segment(data: Path) -> Path:
    """Of the topic that was made last."""
    return max(data.rglob("*.log"), key=lambda path: path.stat().st_ctime_ns)


@pytest.mark.parametrize("version", [11, 13])
def test_a_segment_that_is_cut_from_outside_gives_what_is_left_or_an_error(tmp_path: Path, version: int) -> None:
    with Broker(engine="segment", data=tmp_path) as broker, RawClient(broker) as raw:
        name = a_megabyte(broker, raw, "plain-fetch-cut")
        path = only_segment(tmp_path)
        os.truncate(path, 500_000)
        for offset in range(20):
            raw.send_bytes(a_fetch(raw, version, {name: [(0, offset, 1 << 20)]}, committed=False))
            answer = wire.decode("FetchResponse", version, raw.receive_bytes()[5 if version >= 12 else 4 :])
            (part,) = answer.responses[0].partitions
            if offset < 9:
                assert (part.error_code, int.from_bytes(part.records[:8])) == (ErrorCode.NONE, offset)
            else:
                assert part.error_code == ErrorCode.CORRUPT_MESSAGE
        assert raw.produce(name, batch_of([b"on"])).error_code == ErrorCode.NONE


def test_of_a_topic_that_is_deleted_while_it_is_fetched_nothing_is_sent_any_more(broker: Broker, quick: Quick) -> None:
    name = unique("plain-fetch-gone")
    create_topic(broker, name)
    client = admin(broker)
    with RawClient(broker) as raw:
        for _ in range(10):
            raw.produce(name, batch_of([b"v" * 50_000]))
        request = a_fetch(raw, 11, {name: [(0, 0, 1 << 20)]}, committed=False)
        raw.send_bytes(request)
        assert len(raw.receive_bytes()) > 500_000
        assert quick.taken[-1]
        for _ in range(5):
            raw.send_bytes(request)
        client.delete_topics([name])[name].result(10)
        for _ in range(5):
            assert len(raw.receive_bytes()) > 40
        raw.send_bytes(request)
        answer = wire.decode("FetchResponse", 11, raw.receive_bytes()[4:])
        (part,) = answer.responses[0].partitions
        assert part.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # it may be made again
        assert not part.records
        assert not quick.taken[-1]
