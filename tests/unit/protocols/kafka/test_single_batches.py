"""Produce requests of one batch: both readers find the same, and the answer is what the schema says."""

from __future__ import annotations

import random

import pytest

from mainstem.codec.batch import BatchBuilder
from mainstem.protocols.kafka import single_batch as compiled
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import ProduceRequest
from tests.oracles import single_batch as plain

READERS = [plain, compiled]
VERSIONS = range(3, 14)


def a_request(version: int, *, name: str = "orders", acks: int = -1, partitions: int = 1, topics: int = 1) -> bytes:
    builder = BatchBuilder()
    builder.add(b"key", b"value", (), 1_700_000_000_000)
    batch = bytes(builder.seal_batch(0))
    parts = [ProduceRequest.PartitionProduceData(index=3 + n, records=batch) for n in range(partitions)]
    line = ProduceRequest.TopicProduceData(name=name, topic_id=b"0123456789abcdef", partition_data=parts)
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[line] * topics)
    return b"".join(wire.encode_request("ProduceRequest", version, request, correlation=77, client_id="me"))[4:]


def told(reader: object, data: bytes) -> tuple[object, ...] | None:
    found = reader.read_single(memoryview(data))  # type: ignore[attr-defined]
    if found is None:
        return None
    return found.version, found.correlation, found.name, found.index, found.start, found.end, found.key()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reader", READERS)
def test_a_request_of_one_batch_is_found(reader: object, version: int) -> None:
    data = a_request(version)
    found = reader.read_single(memoryview(data))  # type: ignore[attr-defined]
    body = wire.decode("ProduceRequest", version, data, wire.decode_head(memoryview(data)).body_at)
    assert found.name == (b"orders" if version < 13 else b"0123456789abcdef")
    assert (found.version, found.correlation, found.index) == (version, 77, 3)
    assert data[found.start : found.end] == bytes(body.topic_data[0].partition_data[0].records)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reader", READERS)
def test_any_other_request_is_left_to_the_ordinary_handler(reader: object, version: int) -> None:
    others = [
        a_request(version, acks=0),
        a_request(version, partitions=2),
        a_request(version, topics=2),
        a_request(version, partitions=0),
        b"\0\1" + a_request(version)[2:],
    ]
    assert [told(reader, data) for data in others] == [None] * len(others)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("error", [0, 56])
@pytest.mark.parametrize("reader", READERS)
def test_the_answer_is_what_the_schema_says(reader: object, error: int, version: int) -> None:
    found = reader.read_single(memoryview(a_request(version, name="n" * 200)))  # type: ignore[attr-defined]
    found.base_offset, found.start_offset = 1 << 40, 12
    answer = found.answer(error)
    assert int.from_bytes(answer[:4]) == len(answer) - 4
    assert int.from_bytes(answer[4:8]) == 77
    body = wire.decode("ProduceResponse", version, answer, 9 if version >= 9 else 8)
    (line,) = body.responses
    assert (line.topic_id if version >= 13 else line.name.encode()) == found.name
    (part,) = line.partition_responses
    assert (part.index, part.error_code, part.base_offset) == (3, error, 1 << 40)
    if version >= 5:
        assert part.log_start_offset == 12


def test_both_readers_agree_on_damaged_requests() -> None:
    rng = random.Random(5)
    for _ in range(20_000):
        data = bytearray(a_request(rng.choice(VERSIONS)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(min(len(data), 60))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        del data[rng.randrange(len(data)) if rng.random() < 0.3 else len(data) :]
        assert told(plain, bytes(data)) == told(compiled, bytes(data)), bytes(data).hex()
