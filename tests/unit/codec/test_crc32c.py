from __future__ import annotations

import random

import crc32c as library


def test_the_check_value_of_castagnoli(codec):
    assert codec.crc32c(b"123456789") == 0xE3069283
    assert codec.crc32c(b"") == 0


def test_every_length_around_the_interleaving_borders_agrees_with_the_library(codec):
    data = random.Random(1).randbytes(3 * 8192 * 2 + 4096)
    lengths = [*range(0, 260), *range(3 * 256 - 9, 3 * 256 + 9), *range(3 * 8192 - 9, 3 * 8192 + 9), len(data)]
    for length in lengths:
        view = memoryview(data)[length % 8 : length % 8 + length]
        expected = library.crc32c(view)
        assert codec.crc32c(view) == expected
        assert codec.crc32c(view, by_table=True) == expected


def test_a_checksum_goes_on_where_another_ended(codec):
    data = random.Random(2).randbytes(100_000)
    for cut in (0, 1, 7, 44, 50_000, 99_999, 100_000):
        assert codec.crc32c(data[cut:], codec.crc32c(data[:cut])) == codec.crc32c(data)
        assert codec.crc32c(data[cut:], codec.crc32c(data[:cut]), by_table=True) == codec.crc32c(data)


def test_any_bytes_like_object_is_taken_without_a_copy(codec):
    assert codec.crc32c(bytearray(b"abc")) == codec.crc32c(memoryview(b"xabcx")[1:4]) == codec.crc32c(b"abc")
