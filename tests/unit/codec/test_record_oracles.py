"""What two independent Kafka clients write, we read; what we write, they read."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.default_records import _DefaultRecordBatchPy as AiokafkaPlainBatch

from mainstem.codec.control import kafka_marker_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas through importlib's old way
    from kafka.codec import has_snappy
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

LIMIT = 1 << 24
CONTENT = [
    (b"key", b"value", [("h", b"1"), ("h", b"2"), ("empty", b"")], 1_700_000_000_000),
    (None, b"", [], 1_700_000_000_005),
    (b"", None, [("null", None)], 1_699_999_999_000),
    (b"k" * 300, b"v" * 100_000, [("ünïcode", "wérte".encode())], 1_700_000_000_000),
]
BUILDERS = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}
READERS = {"aiokafka": AiokafkaBatch, "aiokafka plain": AiokafkaPlainBatch, "kafka-python": KafkaPythonBatch}


def need_library(client: str, compression: int) -> None:
    if client == "kafka-python" and compression == 2 and not has_snappy():
        pytest.skip("kafka-python needs python-snappy for this: pip install python-snappy")


def as_headers(headers: list) -> list:
    return [(name.encode(), value) for name, value in headers]


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize("client", BUILDERS)
def test_a_clients_batch_passes_the_check_and_decodes(codec, client, compression):
    need_library(client, compression)
    builder = BUILDERS[client](
        magic=2, compression_type=compression, is_transactional=0, producer_id=7, producer_epoch=1, base_sequence=4,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, (key, value, headers, time_ms) in enumerate(CONTENT):
        assert builder.append(offset, time_ms, key, value, headers) is not None
    batch = bytes(builder.build())
    head = codec.check_batch(batch, bytes_max=LIMIT)
    assert (head.count, head.codec, head.producer_id, head.producer_epoch, head.base_sequence) == (
        4, compression, 7, 1, 4,
    )  # fmt: skip
    assert (head.first_time_ms, head.max_time_ms) == (CONTENT[0][3], CONTENT[1][3])
    decoded = codec.decode_batch(batch, inflated_bytes_max=LIMIT)
    assert [(r.key, r.value, r.headers, r.time_ms) for r in decoded] == [
        (key, value, as_headers(headers), time_ms) for key, value, headers, time_ms in CONTENT
    ]


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize("client", READERS)
def test_our_batch_is_read_by_the_client(codec, client, compression):
    need_library(client, compression)
    builder = codec.BatchBuilder()
    for key, value, headers, time_ms in CONTENT:
        builder.add(key, value, as_headers(headers), time_ms, 8)
    batch = READERS[client](builder.seal_batch(4000, 2, compression))
    assert batch.validate_crc()
    assert batch.base_offset == 4000
    found = [(r.offset, r.key, r.value, list(r.headers), r.timestamp) for r in batch]
    assert found == [
        (4000 + i, key, value, headers, time_ms) for i, (key, value, headers, time_ms) in enumerate(CONTENT)
    ]


@pytest.mark.parametrize("client", READERS)
def test_sparse_offsets_and_the_covered_stretch_reach_the_client(codec, client):
    builder = codec.BatchBuilder()
    for number in range(5):
        builder.add(None, b"%d" % number)
    kept = codec.decode_batch(builder.seal_batch(100), inflated_bytes_max=LIMIT)[::2]
    batch = READERS[client](codec.rebuild_batches(kept, last_offset=900))
    assert [(r.offset, r.value) for r in batch] == [(100, b"0"), (102, b"2"), (104, b"4")]
    assert batch.next_offset == 901 if hasattr(batch, "next_offset") else batch.last_offset_delta == 800


@pytest.mark.parametrize("client", READERS)
def test_a_marker_batch_is_a_control_batch_to_the_client(client):
    batch = READERS[client](kafka_marker_batch(77))
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    (record,) = list(batch)
    assert (record.offset, record.key) == (77, bytes([0, 0, 0, 1]))
