from __future__ import annotations

import struct
from array import array

import pytest

from mainstem.codec.control import CONTROL_FLAG, kafka_marker_batch, read_marker
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Record

LIMIT = 1 << 20
LOG_ID = 3


def batch_of(codec, count: int, attributes: int = 0) -> bytes:
    builder = codec.BatchBuilder()
    for number in range(count):
        builder.add(b"k%d" % number, b"v%d" % number, [(b"n", b"%d" % number)], 1000 + number)
    return builder.seal_batch(0, 0, attributes)


def frame_of(codec, batch: bytes, base_offset: int, *, origin: int = 2, topic_id: int = 0, kind: int = 1) -> bytes:
    return b"".join(codec.make_frame(batch, LOG_ID, base_offset, base_offset * 10, 0, origin, topic_id, 0, kind))


def refit(codec, batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, codec.crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def decode(codec, data, **options) -> list[Record]:
    return codec.decode_frames(data, LOG_ID, inflated_bytes_max=LIMIT, **options)


@pytest.mark.parametrize("attributes", range(5))
def test_offsets_times_and_stamps_are_absolute_whatever_the_compression(codec, attributes):
    data = frame_of(codec, batch_of(codec, 5, attributes), 100) + frame_of(codec, batch_of(codec, 2, attributes), 105)
    records = decode(codec, data)
    assert [record.offset for record in records] == [100, 101, 102, 103, 104, 105, 106]
    assert [record.stamp for record in records] == [1000, 1001, 1002, 1003, 1004, 1050, 1051]
    assert [record.time_ms for record in records] == [1000, 1001, 1002, 1003, 1004, 1000, 1001]
    assert records[3] == Record(b"v3", b"k3", [(b"n", b"3")], 1003, 0, 103, 1003, Origin.KAFKA, b"")


def test_start_and_end_cut_inside_frames(codec):
    data = b"".join(frame_of(codec, batch_of(codec, 5), base) for base in (0, 5, 10))
    for start in range(17):
        for end in (*range(17), None):
            found = [record.offset for record in decode(codec, data, start_offset=start, end_offset=end)]
            assert found == list(range(start, 15 if end is None else min(end, 15)))


def test_log_append_time_replaces_the_producers_times(codec):
    batch = bytearray(batch_of(codec, 3, 8))
    struct.pack_into(">q", batch, 35, 9999)
    records = codec.decode_batch(refit(codec, batch), inflated_bytes_max=LIMIT)
    assert [record.time_ms for record in records] == [9999, 9999, 9999]


def test_the_topic_is_the_frames_the_keys_or_the_headers(codec):
    builder = codec.BatchBuilder()
    builder.add(b"a/b", b"1", (), 0, RecordFlag.KEY_IS_TOPIC)
    builder.add(b"device-7", b"2", [(b"x", b"y"), (b"ms-topic", b"c/d"), (b"ms-topic", b"no")], 0, 0)
    builder.add(b"device-8", b"3")
    batch = builder.seal_batch(0)
    own = frame_of(codec, batch, 0, origin=Origin.MQTT)
    assert [record.topic for record in decode(codec, own)] == [b"a/b", b"c/d", b""]
    named = frame_of(codec, batch, 0, origin=Origin.MQTT, topic_id=12)
    assert [record.topic for record in decode(codec, named, topic_of={12: b"t"})] == [b"t"] * 3
    assert [record.topic for record in decode(codec, named)] == [b""] * 3


def test_a_kafka_clients_flags_and_ms_headers_are_not_believed(codec):
    builder = codec.BatchBuilder()
    builder.add(b"a/b", b"1", [(b"ms-topic", b"stolen")], 0, RecordFlag.KEY_IS_TOPIC | RecordFlag.RETAIN)
    (record,) = decode(codec, frame_of(codec, builder.seal_batch(0), 0, origin=Origin.KAFKA))
    assert (record.topic, record.flags, record.headers) == (b"", 0, [(b"ms-topic", b"stolen")])


def test_state_control_and_marker_frames_are_left_out_unless_asked_for(codec):
    data = frame_of(codec, batch_of(codec, 2), 0)
    data += frame_of(codec, batch_of(codec, 1), 2, kind=2, origin=0)
    data += codec.make_marker(LOG_ID, 3, 4, 30, 0)
    data += frame_of(codec, kafka_marker_batch(0, commit=False, producer_id=5, producer_epoch=1), 7)
    data += frame_of(codec, batch_of(codec, 1), 8)
    assert [record.offset for record in decode(codec, data)] == [0, 1, 8]
    everything = decode(codec, data, data_only=False)
    assert [record.offset for record in everything] == [0, 1, 2, 7, 8]
    assert [record.flags & CONTROL_FLAG for record in everything] == [0, 0, 0, CONTROL_FLAG, 0]
    assert read_marker(everything[3].key) is False


def test_a_marker_batch_lies_as_kafka_writes_it(codec):
    batch = kafka_marker_batch(77, producer_id=9, producer_epoch=2, coordinator_epoch=3, time_ms=5, leader_epoch=1)
    head = codec.read_batch_head(batch)
    assert (head.base_offset, head.count, head.control, head.transactional, head.base_sequence) == (
        77,
        1,
        True,
        True,
        -1,
    )
    (record,) = codec.decode_batch(batch, inflated_bytes_max=LIMIT)
    assert (record.key, record.value) == (bytes([0, 0, 0, 1]), bytes([0, 0, 0, 0, 0, 3]))
    assert (record.offset, record.time_ms, read_marker(record.key), read_marker(b"")) == (77, 5, True, None)


@pytest.mark.parametrize("attributes", range(5))
def test_chosen_records_are_found_and_all_others_left_alone(codec, attributes):
    data = b"".join(frame_of(codec, batch_of(codec, 10, attributes), base) for base in range(0, 100, 10))
    for chosen in ([], [0], [99], [9, 10], [3, 33, 34, 97], list(range(100)), [5, 5, 5], [-3, 50, 1000]):
        offsets = array("q", chosen)
        expected = [record for record in decode(codec, data) if record.offset in chosen]
        for form in (offsets, memoryview(offsets), memoryview(offsets).toreadonly()):
            assert codec.decode_chosen(data, LOG_ID, form, inflated_bytes_max=LIMIT) == expected


def test_offsets_that_are_no_int64_are_refused(codec):
    with pytest.raises(InvalidArgument, match="whole int64"):
        codec.decode_chosen(b"", LOG_ID, memoryview(b"1234567"), inflated_bytes_max=LIMIT)


def test_sparse_offsets_survive_and_disorder_is_corrupt(codec):
    records = [Record(b"v", None, [], 5, 0, offset) for offset in (10, 17, 40)]
    batch = codec.rebuild_batches(records, last_offset=60)
    data = b"".join(codec.make_frame(batch, LOG_ID, 10, 1, 0, 1, 0, 0))
    assert [record.offset for record in decode(codec, data)] == [10, 17, 40]
    assert [record.stamp for record in decode(codec, data)] == [1, 8, 31]
    chosen = codec.decode_chosen(data, LOG_ID, array("q", [11, 17, 60]), inflated_bytes_max=LIMIT)
    assert [record.offset for record in chosen] == [17]
    swapped = bytearray(batch)
    at = swapped.index(bytes([14, 1, 2]))  # delta 7 of the second record becomes 0
    swapped[at] = 0
    with pytest.raises(CorruptFrame, match="out of order"):
        codec.decode_batch(refit(codec, swapped), inflated_bytes_max=LIMIT)


def test_in_a_dense_batch_the_place_counts_not_what_the_producer_wrote(codec):
    batch = bytearray(batch_of(codec, 3))
    at = batch.index(b"\x04\x04k2") if b"\x04\x04k2" in batch else batch.index(b"\x04\x04\x04k2") + 1
    batch[at] = 0  # the third record claims the first one's offset delta
    data = frame_of(codec, refit(codec, batch), 50)
    assert [record.offset for record in decode(codec, data)] == [50, 51, 52]
    assert codec.decode_chosen(data, LOG_ID, array("q", [52]), inflated_bytes_max=LIMIT)[0].key == b"k2"


def test_one_clients_unreadable_batch_does_not_hide_the_others(codec):
    broken = bytearray(batch_of(codec, 3))
    broken[61] = 0xFF  # a checksum that fits over a record that does not
    bomb = codec.BatchBuilder()
    bomb.add(None, bytes(2 * LIMIT))
    data = frame_of(codec, batch_of(codec, 2), 0) + frame_of(codec, refit(codec, broken), 2)
    data += frame_of(codec, bomb.seal_batch(0, 0, 4), 5) + frame_of(codec, batch_of(codec, 1), 6)
    with pytest.raises(CorruptFrame):
        decode(codec, data)
    bad: list = []
    assert [record.offset for record in decode(codec, data, bad=bad)] == [0, 1, 6]
    assert [(offset, type(error)) for offset, error in bad] == [(2, CorruptFrame), (5, MessageTooLarge)]


def test_damage_is_never_taken_for_a_clients_fault(codec):
    data = bytearray(frame_of(codec, batch_of(codec, 2), 0))
    data[-1] ^= 1
    with pytest.raises(CorruptFrame, match="checksum"):
        decode(codec, data, bad=[])


def test_an_origin_of_a_later_version_is_not_guessed(codec):
    with pytest.raises(CorruptFrame, match="origin 200"):
        decode(codec, frame_of(codec, batch_of(codec, 1), 0, origin=200))


def test_an_empty_batch_as_compaction_leaves_it_has_no_records(codec):
    batch = bytearray(batch_of(codec, 1)[:61])
    struct.pack_into(">i", batch, 8, 49)
    struct.pack_into(">i", batch, 23, 9)
    struct.pack_into(">i", batch, 57, 0)
    data = frame_of(codec, refit(codec, batch), 0)
    assert codec.verify_frame(data, 0, LOG_ID).count == 10
    assert decode(codec, data) == []


@pytest.mark.parametrize("count", [2, 4, 1 << 30, -1])
def test_a_record_count_that_lies_is_corrupt(codec, count):
    batch = bytearray(batch_of(codec, 3))
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptFrame):
        codec.decode_batch(refit(codec, batch), inflated_bytes_max=LIMIT)
