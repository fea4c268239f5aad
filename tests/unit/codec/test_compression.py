from __future__ import annotations

import contextlib
import random
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard

from mainstem.codec.compression import Codec, deflate, inflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge

CODECS = list(Codec)
PACKED = [codec for codec in Codec if codec != Codec.NONE]
LIMIT = 1 << 24


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 1_000_000])
def test_what_goes_in_comes_out(codec, size):
    data = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    packed = deflate(codec, data)
    for form in (packed, bytearray(packed), memoryview(packed)):
        assert inflate(codec, form, max(size, 1)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_exact(codec):
    packed = deflate(codec, b"z" * 100_000)
    assert len(inflate(codec, packed, 100_000)) == 100_000
    with pytest.raises(MessageTooLarge, match="more than 99999 bytes"):
        inflate(codec, packed, 99_999)


def bomb(codec: Codec) -> bytes:
    """256 MiB of zeros, packed without ever holding them here at once where the library allows."""
    zeros = bytes(1 << 20)
    if codec == Codec.ZSTD:
        packer = zstandard.ZstdCompressor(level=3).compressobj()
        return b"".join([*(packer.compress(zeros) for _ in range(256)), packer.flush()])
    if codec == Codec.LZ4:
        frame = lz4.frame.LZ4FrameCompressor()
        return b"".join([frame.begin(), *(frame.compress(zeros) for _ in range(256)), frame.flush()])
    if codec == Codec.GZIP:
        return deflate(codec, zeros) * 256
    head = deflate(codec, zeros)
    return head + head[16:] * 255


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_costs_its_limit_and_no_more(codec):
    data = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            inflate(codec, data, 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_a_snappy_block_that_declares_too_much_is_refused_before_it_is_inflated():
    with pytest.raises(MessageTooLarge):
        inflate(Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + b"x" * 10, LIMIT)


def test_snappy_is_read_raw_and_in_xerial_framing_and_written_in_xerial():
    data = b"abc" * 30_000
    assert inflate(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), LIMIT) == data
    assert deflate(Codec.SNAPPY, data).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_that_follow_each_other_are_one_stream(codec):
    assert inflate(codec, deflate(codec, b"one") + deflate(codec, b"two"), LIMIT) == b"onetwo"


def test_streams_without_a_content_size_are_read():
    data = b"log line\n" * 10_000
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    assert inflate(Codec.ZSTD, packer.compress(data) + packer.flush(), LIMIT) == data
    assert inflate(Codec.LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True), LIMIT) == data


@pytest.mark.parametrize("codec", PACKED)
def test_rubbish_is_corrupt_not_a_crash(codec):
    rng = random.Random(int(codec))
    packed = deflate(codec, b"some text, some more text " * 20)
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(CorruptFrame, MessageTooLarge):
            inflate(codec, damaged, LIMIT)
    with pytest.raises(CorruptFrame):
        inflate(codec, b"\x00rubbish that nobody packed", LIMIT)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_what_is_cut_off_is_corrupt(codec):
    packed = deflate(codec, random.Random(3).randbytes(5000))
    for size in (1, 5, 9, 12, 17, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptFrame):
            inflate(codec, packed[:size], LIMIT)


@pytest.mark.parametrize("codec", [5, 7, -1])
def test_an_unknown_compression_is_named(codec):
    with pytest.raises(InvalidArgument, match=str(codec)):
        inflate(codec, b"", LIMIT)
    with pytest.raises(InvalidArgument, match=str(codec)):
        deflate(codec, b"")
