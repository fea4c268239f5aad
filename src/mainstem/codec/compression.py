"""The four compressions of Kafka batches. Inflating is bounded while it runs: a bomb costs its limit, not the memory.

1 gzip     RFC 1952, members may follow each other
2 snappy   one raw block (librdkafka, kafka-python), or xerial framing (Java): 82 "SNAPPY" 00, i32 version,
           i32 compatible version, then blocks of (i32 size, raw block)
3 lz4      the LZ4 frame format, frames may follow each other
4 zstd     RFC 8878, frames may follow each other
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

from mainstem.model.errors import CorruptFrame, InvalidArgument, MainstemError, MessageTooLarge

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEAD = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
XERIAL_BLOCK_BYTES = 32 * 1024
CHUNK_BYTES_MIN = 64 * 1024
CHUNK_BYTES_MAX = 4 * 1024 * 1024
FRAMES_MAX = 64  # gzip members or lz4 frames of one batch; producers write one, and each costs a copy of the rest
ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def inflate(codec: int, data: Buffer, bytes_max: int) -> bytes:
    """The records of a compressed batch; MessageTooLarge beyond `bytes_max`, CorruptFrame if they do not inflate."""
    try:
        match codec:
            case Codec.NONE:
                return _bounded(bytes(data), bytes_max)
            case Codec.GZIP:
                return _inflate_gzip(bytes(data), bytes_max)
            case Codec.SNAPPY:
                return _inflate_snappy(memoryview(data), bytes_max)
            case Codec.LZ4:
                return _inflate_lz4(bytes(data), bytes_max)
            case Codec.ZSTD:
                return _inflate_zstd(bytes(data), bytes_max)
    except MainstemError:
        raise
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptFrame(f"the batch's {Codec(codec).name.lower()} data does not inflate: {error}") from error
    raise InvalidArgument(f"compression {codec} is not one of 0 to 4")


def deflate(codec: int, data: Buffer) -> bytes:
    """What a producer would have sent. Levels are the ones whose speed pays (see docs/format.md)."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(6, zlib.DEFLATED, 31)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _deflate_xerial(memoryview(data))
        case Codec.LZ4:
            return lz4.frame.compress(bytes(data), store_size=False)  # type: ignore[no-any-return]
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3).compress(data)
    raise InvalidArgument(f"compression {codec} is not one of 0 to 4")


def _bounded(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    return data


def _too_large(bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(f"the batch inflates to more than {bytes_max} bytes")


def _chunk_bytes(data: bytes) -> int:
    return min(max(4 * len(data), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def _inflate_gzip(data: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data:
        if len(parts) == FRAMES_MAX:
            raise ValueError(f"more than {FRAMES_MAX} members")
        member = zlib.decompressobj(31)
        part = member.decompress(data, bytes_max - size + 1)
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not member.eof:
            raise EOFError("cut off")
        parts.append(part)
        data = member.unused_data
    return b"".join(parts)


def _inflate_snappy(data: memoryview, bytes_max: int) -> bytes:
    if data[:8] != XERIAL_MAGIC:
        return _inflate_block(data, 0, bytes_max)
    parts: list[bytes] = []
    size, at = 0, len(XERIAL_HEAD)
    if len(data) < at:
        raise EOFError("cut off")
    while at < len(data):
        block_size = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + block_size]
        if len(data) < at + 4 or len(block) < block_size:
            raise EOFError("cut off")
        parts.append(_inflate_block(block, size, bytes_max))
        size += len(parts[-1])
        at += 4 + block_size
    return b"".join(parts)


def _inflate_block(block: memoryview, size_before: int, bytes_max: int) -> bytes:
    """A raw block says its size first: refuse before anything is allocated for it."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    else:
        raise EOFError("cut off")
    if size_before + size > bytes_max:
        raise _too_large(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _inflate_lz4(data: bytes, bytes_max: int) -> bytes:
    """In chunks: the library allocates its `max_length` before it looks at the data."""
    parts: list[bytes] = []
    size, frames, chunk_bytes = 0, 0, _chunk_bytes(data)
    while data:
        frames += 1
        if frames > FRAMES_MAX:
            raise ValueError(f"more than {FRAMES_MAX} frames")
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            part = frame.decompress(data, max_length=min(chunk_bytes, bytes_max - size + 1))
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            if not part and not frame.eof and frame.needs_input:
                raise EOFError("cut off")
            parts.append(part)
            data = b""
        data = frame.unused_data or b""
    return b"".join(parts)


def _inflate_zstd(data: bytes, bytes_max: int) -> bytes:
    """What is cut off ends early without an error here; the batch's record count tells."""
    parts: list[bytes] = []
    size, chunk_bytes = 0, _chunk_bytes(data)
    inflater = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    with inflater.stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(min(chunk_bytes, bytes_max - size + 1)):
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            parts.append(part)
    return b"".join(parts)


def _deflate_xerial(data: memoryview) -> bytes:
    """Java reads raw blocks too, but only xerial framing is what every client expects."""
    parts = [XERIAL_HEAD]
    for at in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)
