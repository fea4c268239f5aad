"""What a producer may send, and in which words it is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.codec.batch import BATCH_HEAD_SIZE, BatchBuilder, decode_batch, keyless_records
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge


def produced(codec, **fields: int) -> bytearray:
    """A batch of three records with some head fields overwritten and the checksum made to fit again."""
    builder = codec.BatchBuilder()
    for number in range(3):
        builder.add(b"k", b"%d" % number, (), 1000)
    batch = bytearray(builder.seal_batch(0))
    places = {
        "attributes": (">H", 21),
        "last_offset_delta": (">i", 23),
        "producer_id": (">q", 43),
        "producer_epoch": (">h", 51),
        "base_sequence": (">i", 53),
        "count": (">i", 57),
    }
    for name, value in fields.items():
        form, at = places[name]
        struct.pack_into(form, batch, at, value)
    struct.pack_into(">I", batch, 17, codec.crc32c(memoryview(batch)[21:]))
    return batch


def test_a_good_batch_passes_and_its_head_is_read(codec):
    batch = produced(codec, attributes=0x13, producer_id=9, producer_epoch=2, base_sequence=70)
    head = codec.check_batch(batch, bytes_max=len(batch))
    assert (head.base_offset, head.size, head.count, head.last_offset_delta) == (0, len(batch), 3, 2)
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (9, 2, 70)
    assert (head.codec, head.transactional, head.control, head.log_append_time) == (3, True, False, False)
    assert (head.first_time_ms, head.max_time_ms, head.attributes) == (1000, 1000, 0x13)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"count": 2}, "2 records"),
        ({"count": 0, "last_offset_delta": -1}, "0 records"),
        ({"count": -1, "last_offset_delta": -2}, "-1 records"),
        ({"count": -(1 << 31), "last_offset_delta": (1 << 31) - 1}, "records"),
        ({"attributes": 5}, "compression 5"),
        ({"attributes": 8}, "0x0008"),
        ({"attributes": 0x20, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, "0x0020"),
        ({"attributes": 0x40}, "0x0040"),
        ({"attributes": 0x8000}, "0x8000"),
        ({"attributes": 0x10}, "without a producer id"),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, "epoch -1"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, "sequence -1"),
    ],
)
def test_a_head_that_makes_no_sense_is_the_producers_fault(codec, fields, why):
    with pytest.raises(InvalidArgument, match=why):
        codec.check_batch(produced(codec, **fields), bytes_max=1 << 20)


def test_more_records_than_a_compressed_batch_can_hold_are_the_producers_fault(codec):
    count = (1 << 24) + 1
    with pytest.raises(InvalidArgument, match="the limit is 16777216"):
        codec.check_batch(produced(codec, attributes=1, count=count, last_offset_delta=count - 1), bytes_max=1 << 20)


def holding(codec, records: bytes, count: int = 1) -> bytes:
    """A batch whose checksum fits, whatever its records are."""
    tail = struct.pack(">HiqqqhiI", 0, count - 1, 1000, 1000, -1, -1, -1, count) + records
    return struct.pack(">qiiBI", 0, 9 + len(tail), -1, 2, codec.crc32c(tail)) + tail


RECORD = bytes((16, 0, 0, 0, 2)) + b"k" + bytes((2,)) + b"v" + bytes((0,))


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (RECORD, 2),
        (RECORD, (1 << 31) - 1),
        (RECORD * 2, 1),
        (RECORD + b"zz", 1),
        (bytes((18,)) + RECORD[1:], 1),
        (bytes((14,)) + RECORD[1:], 1),
        (RECORD[:4] + bytes((3,)) + RECORD[5:], 1),
        (RECORD[:6] + bytes((100,)) + RECORD[7:], 1),
        (RECORD[:-1] + bytes((1,)), 1),
        (RECORD[:-1] + bytes((6,)), 1),
        (bytes((20,)) + RECORD[1:-1] + bytes((2, 1, 1)), 1),
        (bytes((20,)) + RECORD[1:-1] + bytes((0, 1, 1)), 1),
        (bytes((255,) * 11), 1),
    ],
)
def test_records_that_are_not_what_they_say_are_the_producers_fault(codec, records, count):
    codec.check_batch(holding(codec, RECORD), bytes_max=1 << 20)
    with pytest.raises(InvalidArgument, match=f"does not hold the {count} records"):
        codec.check_batch(holding(codec, records, count), bytes_max=1 << 20)


def test_damage_is_told_from_a_fault(codec):
    batch = produced(codec)
    batch[-1] ^= 1
    with pytest.raises(CorruptFrame, match="checksum"):
        codec.check_batch(batch, bytes_max=1 << 20)


def test_lengths_are_held_against_what_was_sent(codec):
    batch = produced(codec)
    for size in range(len(batch)):
        with pytest.raises(CorruptFrame):
            codec.check_batch(batch[:size], bytes_max=1 << 20)
    with pytest.raises(CorruptFrame, match="were sent"):
        codec.check_batch(batch + b"x", bytes_max=1 << 20)
    for length in (-1, -(1 << 31), 48, (1 << 31) - 1):
        struct.pack_into(">i", batch, 8, length)
        with pytest.raises(CorruptFrame):
            codec.check_batch(batch, bytes_max=1 << 20)


def test_a_batch_beyond_the_limit_is_too_large(codec):
    batch = produced(codec)
    with pytest.raises(MessageTooLarge, match=f"{len(batch)} bytes, limit {len(batch) - 1}"):
        codec.check_batch(batch, bytes_max=len(batch) - 1)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_older_and_newer_formats_are_named(codec, magic):
    batch = produced(codec)
    batch[16] = magic
    with pytest.raises(InvalidArgument, match=f"magic {magic}"):
        codec.check_batch(batch, bytes_max=1 << 20)


def test_a_records_field_is_split_into_views_of_its_batches(codec):
    batches = [produced(codec), produced(codec, attributes=2), produced(codec, attributes=4)]
    field = b"".join(batches)
    parts = codec.split_batches(field)
    assert [bytes(part) for part in parts] == batches
    assert all(part.obj is field for part in parts)
    assert codec.split_batches(b"") == []
    for size in range(1, len(batches[0])):
        with pytest.raises(CorruptFrame):
            codec.split_batches(field[:-size])


@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=1, max_size=300), places_max=st.integers(0, 200)
)
def test_records_without_a_key_are_found_as_decoding_finds_them(keys, places_max):
    builder = BatchBuilder()
    for key in keys:
        builder.add(key, b"v", (), 1000)
    batch = bytes(builder.seal_batch(0))
    expected = [place for place, one in enumerate(decode_batch(batch, inflated_bytes_max=1 << 20)) if one.key is None]
    found = keyless_records(batch[BATCH_HEAD_SIZE:], len(keys), len(keys) - 1, places_max)
    assert found == (len(expected), expected[: min(places_max, 128)])


def test_records_that_do_not_decode_have_no_places():
    batch = bytes(produced_of(BatchBuilder()))[BATCH_HEAD_SIZE:]
    for cut in range(len(batch)):
        with pytest.raises(CorruptFrame):
            keyless_records(batch[:cut], 3, 2, 10)
    with pytest.raises(CorruptFrame, match="bytes follow"):
        keyless_records(batch + b"\0", 3, 2, 10)


def produced_of(builder: BatchBuilder) -> bytearray:
    for number in range(3):
        builder.add(None, b"%d" % number, (), 1000)
    return builder.seal_batch(0)
