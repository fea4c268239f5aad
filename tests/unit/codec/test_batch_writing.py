from __future__ import annotations

import itertools
import struct

import pytest

from mainstem.model.errors import CorruptFrame, InvalidArgument
from mainstem.model.record import Record

LIMIT = 1 << 24


def test_a_sealed_frame_lies_byte_by_byte_as_drawn(codec):
    builder = codec.BatchBuilder()
    builder.add(b"k", b"v", [(b"h", None)], 1000, 9)
    builder.add(None, b"", (), 1003)
    frame = bytes(builder.seal_frame(7, 100, 5000, 90, 1, 1, 3, 0x01020304))

    records = bytes([22, 9, 0, 0, 2, 0x6B, 2, 0x76, 2, 2, 0x68, 1]) + bytes([12, 0, 6, 2, 1, 0, 0])
    covered = struct.pack(">hiqqqhii", 0, 1, 1000, 1003, -1, -1, -1, 2) + records
    batch = struct.pack(">qiibI", 100, len(covered) + 9, 0x01020304, 2, codec.crc32c(covered)) + covered
    head = struct.pack(">4sBBBBIIqqqI", b"MSF1", 1, 1, 1, 0x01 ^ 0x02 ^ 0x03 ^ 0x04, len(batch), 3, 100, 5000, 90, 2)
    head_crc = codec.crc32c(head, codec.crc32c(struct.pack(">Qq", 7, 100)))
    assert frame == head + struct.pack(">I", head_crc) + batch


def test_sealing_empties_the_builder_and_the_frame_lives_on_alone(codec):
    builder = codec.BatchBuilder()
    assert builder.add(b"a", b"1") == 0
    assert builder.add(b"b", b"2") == 1
    first = builder.seal_frame(1, 0, 10, 0, 1, 0, 0, 0)
    assert (builder.count, first.count, first.base_offset, first.stamp) == (0, 2, 0, 10)
    before = bytes(first)
    assert builder.add(b"c", b"3") == 0
    second = builder.seal_frame(1, 2, 12, 0, 1, 0, 0, 0)
    del builder
    assert bytes(first) == before
    both = b"".join([first, second])
    assert [record.key for record in codec.decode_frames(both, 1, inflated_bytes_max=LIMIT)] == [b"a", b"b", b"c"]


def test_a_sealed_frame_is_a_read_only_buffer(codec):
    builder = codec.BatchBuilder()
    builder.add(b"a", b"1")
    frame = builder.seal_frame(1, 0, 10, 0, 1, 0, 0, 0)
    view = memoryview(frame)
    assert view.readonly
    assert view.nbytes == len(frame) == frame.size
    del frame
    assert bytes(view[:4]) == b"MSF1"
    with pytest.raises(TypeError):
        view[0] = 1


def test_positions_tell_where_each_record_begins(codec):
    builder = codec.BatchBuilder()
    for number in range(300):
        builder.add(None, b"v" * number)
    frame = builder.seal_frame(1, 0, 1, 0, 1, 0, 0, 0)
    positions = frame.positions
    assert positions[0] == 109
    assert len(positions) == 300 == frame.count
    for at, after in zip(positions, [*positions[1:], len(frame)], strict=True):
        length, body = 0, at
        for shift in range(0, 35, 7):
            length |= (memoryview(frame)[body] & 127) << shift
            body += 1
            if memoryview(frame)[body - 1] < 128:
                break
        assert body + (length >> 1) == after


def test_a_buffer_grows_from_one_byte_to_many_mebibytes(codec):
    builder = codec.BatchBuilder()
    values = [b"x" * size for size in (0, 1, 4000, 5000, 3 << 20, 10)]
    for value in values:
        builder.add(b"", value)
    frame = builder.seal_frame(1, 0, 1, 0, 1, 0, 0, 0)
    assert [record.value for record in codec.decode_frames(frame, 1, inflated_bytes_max=LIMIT)] == values


def test_nothing_cannot_be_sealed(codec):
    builder = codec.BatchBuilder()
    with pytest.raises(InvalidArgument, match="no record"):
        builder.seal_frame(1, 0, 1, 0, 1, 0, 0, 0)
    with pytest.raises(InvalidArgument, match="no record"):
        builder.seal_batch(0)


def test_times_before_the_first_and_at_the_ends_of_int64_come_back(codec):
    times = [5, -1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63), 0]
    builder = codec.BatchBuilder()
    for time_ms in times:
        builder.add(None, None, (), time_ms)
    batch = builder.seal_batch(0)
    assert codec.read_batch_head(batch).max_time_ms == (1 << 63) - 1
    assert [record.time_ms for record in codec.decode_batch(batch, inflated_bytes_max=LIMIT)] == times


def test_headers_keep_order_duplicates_null_and_empty(codec):
    headers = [(b"a", b"1"), (b"a", None), (b"", b""), (b"z" * 300, b"y" * 70_000)]
    encoded = codec.encode_headers(headers)
    assert codec.decode_headers(encoded, 4) == headers
    assert codec.decode_headers(b"", 0) == []
    for wrong_count in (3, 5):
        with pytest.raises(CorruptFrame):
            codec.decode_headers(encoded, wrong_count)


def test_more_than_63_headers_need_a_longer_count(codec):
    headers = [(b"h%d" % number, b"") for number in range(200)]
    builder = codec.BatchBuilder()
    builder.add(b"k", b"v", headers)
    builder.add(b"l", b"w", headers[:64])
    first, second = codec.decode_batch(builder.seal_batch(0), inflated_bytes_max=LIMIT)
    assert first.headers == headers
    assert second.headers == headers[:64]


def test_a_ready_batch_is_framed_by_patching_offset_and_epoch_alone(codec):
    builder = codec.BatchBuilder()
    for number in range(3):
        builder.add(b"k", b"%d" % number)
    batch = builder.seal_batch(0, -1)
    head, framed = codec.make_frame(memoryview(batch), 9, 1234, 55, 1000, 2, 17, 6)
    assert (framed[8:12], framed[16:]) == (batch[8:12], batch[16:])
    assert struct.unpack(">qii", framed[:16]) == (1234, len(batch) - 12, 6)
    found = codec.verify_frame(head + framed, 0, 9)
    assert (found.kind, found.origin, found.topic_id, found.base_offset, found.stamp) == (1, 2, 17, 1234, 55)
    assert (found.durable_offset, found.count, found.payload_size, found.size) == (1000, 3, len(batch), 48 + len(batch))


def test_a_batch_whose_length_lies_is_not_framed(codec):
    builder = codec.BatchBuilder()
    builder.add(b"k", b"v")
    batch = builder.seal_batch(0)
    for wrong in (batch + b"x", batch[:-1], batch[:60], b""):
        with pytest.raises(CorruptFrame):
            codec.make_frame(wrong, 9, 0, 1, 0, 2, 0, 0)


def test_a_marker_covers_lost_offsets_without_a_payload(codec):
    marker = codec.make_marker(9, 100, 900, 77, 50)
    head = codec.verify_frame(marker, 0, 9)
    assert (len(marker), head.kind, head.base_offset, head.count, head.payload_size) == (48, 3, 100, 900, 0)
    assert codec.decode_frames(marker, 9, data_only=False, inflated_bytes_max=LIMIT) == []
    for count in (0, -1, 1 << 32):
        with pytest.raises(InvalidArgument):
            codec.make_marker(9, 100, count, 77, 50)


def sparse(*offsets: int, size: int = 1) -> list[Record]:
    return [Record(b"x" * size, b"k", [(b"h", b"1")], 1000 + offset % 7, 4, offset) for offset in offsets]


@pytest.mark.parametrize("attributes", range(5))
def test_rebuilt_batches_hold_the_records_at_their_own_offsets(codec, attributes):
    records = sparse(10, 11, 400, 2_000_000)
    batch = codec.rebuild_batches(records, attributes=attributes, last_offset=2_000_500, leader_epoch=4)
    head = codec.read_batch_head(batch)
    assert (head.base_offset, head.count, head.last_offset_delta, head.leader_epoch) == (10, 4, 2_000_490, 4)
    assert head.codec == attributes
    assert head.size == len(batch)
    assert codec.decode_batch(batch, inflated_bytes_max=LIMIT) == records


def test_rebuilding_splits_at_a_mebibyte_and_at_offsets_beyond_int32(codec):
    records = sparse(*range(0, 90, 3), size=100_000)
    parts = codec.split_batches(codec.rebuild_batches(records))
    assert len(parts) == 3
    assert all(len(part) < (1 << 20) + 101_000 for part in parts)
    assert [r for part in parts for r in codec.decode_batch(part, inflated_bytes_max=LIMIT)] == records
    heads = [codec.read_batch_head(part) for part in parts]
    for head, after in itertools.pairwise(heads):
        assert head.base_offset + head.last_offset_delta + 1 == after.base_offset

    far = sparse(5, 6 + (1 << 31), 7 + (1 << 40))
    parts = codec.split_batches(codec.rebuild_batches(far, last_offset=1 << 50))
    assert [codec.read_batch_head(part).base_offset for part in parts] == [record.offset for record in far]
    assert all(codec.read_batch_head(part).last_offset_delta == (1 << 31) - 1 for part in parts)


def test_rebuilding_nothing_gives_nothing_and_disorder_is_refused(codec):
    assert codec.rebuild_batches([]) == b""
    with pytest.raises(InvalidArgument, match="offset 4 does not follow 4"):
        codec.rebuild_batches(sparse(3, 4, 4))
    assert codec.read_batch_head(codec.rebuild_batches(sparse(1 << 40), last_offset=3)).last_offset_delta == 0
