"""Writing batches and frames in plain Python: the oracle of `_batch.pyx`."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

import crc32c as crc32c_library

from mainstem.codec.compression import deflate
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge
from mainstem.model.record import Header, Record

Buffer = bytes | bytearray | memoryview

FRAME_HEAD = struct.Struct(">IBBBBIIqqqII")
BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
FRAME_MAGIC = 0x4D534631
FRONT_SIZE = FRAME_HEAD.size + BATCH_HEAD.size
BUFFER_BYTES_MAX = 1 << 30
REBUILT_BATCH_BYTES_MAX = 1 << 20
OFFSET_DELTA_MAX = 0x7FFFFFFF
KIND_MARKER = 3


def crc32c(data: Buffer, seed: int = 0, *, by_table: bool = False) -> int:
    """CRC-32C of any bytes-like object; `seed` is the checksum of what came before. `by_table` is for tests."""
    return crc32c_library.crc32c(data, seed)


def varint(value: int) -> bytes:
    """Zigzag, then seven bits a byte, lowest first."""
    rest = (value << 1) ^ (value >> 63)
    rest &= 0xFFFFFFFFFFFFFFFF
    result = bytearray()
    while rest >= 128:
        result.append(rest & 127 | 128)
        rest >>= 7
    result.append(rest)
    return bytes(result)


def read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """The zigzag number at `at` and the position behind it; CorruptFrame if it is cut off or beyond 64 bits."""
    raw = shift = 0
    while at < end and shift <= 63:
        byte = data[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            if raw > 0xFFFFFFFFFFFFFFFF:
                break
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise CorruptFrame("a number is cut off or longer than 64 bits")


def signed(value: int) -> int:
    """Wraps to int64, as the compiled twin's arithmetic does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def read_sized(data: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at, end)
    if length < -1 or length > end - at:
        raise CorruptFrame(f"a length of {length} where {end - at} bytes are left")
    return (None, at) if length < 0 else (bytes(data[at : at + length]), at + length)


def encode_headers(headers: Iterable[Header]) -> bytes:
    """(name, value or None) pairs as Kafka writes them in a record, without the count in front."""
    result = bytearray()
    for name, value in headers:
        if name is None:
            raise InvalidArgument("a record header needs a name")
        result += sized(name)
        result += sized(value)
    return bytes(result)


def decode_headers(data: Buffer, count: int) -> list[Header]:
    """The inverse of `encode_headers`; CorruptFrame unless `data` is exactly `count` headers."""
    result: list[Header] = []
    at = 0
    for number in range(count):
        name, at = read_sized(data, at, len(data))
        if name is None:
            raise CorruptFrame(f"record header {number} of {count} is malformed")
        value, at = read_sized(data, at, len(data))
        result.append((name, value))
    if at != len(data):
        raise CorruptFrame(f"{len(data) - at} bytes follow the last of {count} record headers")
    return result


class SealedFrame(bytes):
    """A finished frame: bytes that know what they hold. (Python 3.11 lets only bytes be a buffer.)"""

    count: int  # type: ignore[assignment]
    kind: int
    origin: int
    topic_id: int
    base_offset: int
    stamp: int
    first_time_ms: int
    max_time_ms: int
    positions: list[int]

    @property
    def size(self) -> int:
        return len(self)


class BatchBuilder:
    """An open batch: records are encoded into it one by one, until it is sealed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the records."""
        self._records = bytearray()
        self._positions = array("I")
        self.first_time_ms = self.max_time_ms = 0
        self.last_offset_delta = -1

    @property
    def count(self) -> int:
        return len(self._positions)

    @property
    def size(self) -> int:
        return FRONT_SIZE + len(self._records)

    def add(
        self, key: bytes | None, value: bytes | None, headers: Sequence[Header] = (), time_ms: int = 0, flags: int = 0
    ) -> int:
        """Adds a record at the next offset; returns its index in the batch."""
        return self._add(self.last_offset_delta + 1, key, value, headers, time_ms, flags)

    def _add(
        self,
        offset_delta: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        time_ms: int,
        flags: int,
    ) -> int:
        first_time_ms = self.first_time_ms if self._positions else time_ms
        body = bytearray((flags,))
        body += varint(signed(time_ms - first_time_ms))
        body += varint(offset_delta)
        body += sized(key)
        body += sized(value)
        body += varint(len(headers))
        body += encode_headers(headers)
        if self.size + len(body) + 5 > BUFFER_BYTES_MAX:
            raise MessageTooLarge(
                f"the open batch would reach {self.size + len(body) + 5} bytes, limit {BUFFER_BYTES_MAX}"
            )
        self.max_time_ms = max(self.max_time_ms, time_ms) if self._positions else time_ms
        self.first_time_ms = first_time_ms
        self._positions.append(self.size)
        self._records += varint(len(body)) + body
        self.last_offset_delta = offset_delta
        return len(self._positions) - 1

    def seal_frame(
        self,
        log_id: int,
        base_offset: int,
        stamp: int,
        durable_offset: int,
        kind: int,
        origin: int,
        topic_id: int,
        leader_epoch: int,
        attributes: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> SealedFrame:
        """Puts both heads in front of the records; the builder is empty again."""
        count, last_delta = self.count, self.last_offset_delta
        first_time_ms, max_time_ms, positions = self.first_time_ms, self.max_time_ms, self._positions.tolist()
        batch = self.seal_batch(base_offset, leader_epoch, attributes, producer_id, producer_epoch, base_sequence)
        check = epoch_check(leader_epoch)
        head = frame_head(
            log_id, kind, origin, check, len(batch), topic_id, base_offset, stamp, durable_offset, last_delta + 1
        )
        frame = SealedFrame(head + batch)
        frame.count, frame.kind, frame.origin, frame.topic_id = count, kind, origin, topic_id
        frame.base_offset, frame.stamp, frame.positions = base_offset, stamp, positions
        frame.first_time_ms, frame.max_time_ms = first_time_ms, max_time_ms
        return frame

    def seal_batch(
        self,
        base_offset: int,
        leader_epoch: int = 0,
        attributes: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        last_offset: int | None = None,
    ) -> bytes:
        """The bare batch, records compressed as `attributes` says; the builder is empty again.

        `last_offset` lets the batch cover offsets behind its last record.
        """
        if not self._positions:
            raise InvalidArgument("there is no record to seal")
        last_delta = self.last_offset_delta
        if last_offset is not None:
            last_delta = max(last_delta, min(last_offset - base_offset, OFFSET_DELTA_MAX))
        records = deflate(attributes & 7, self._records)
        fields = (base_offset, BATCH_HEAD.size - 12 + len(records), leader_epoch, 2)
        covered = (attributes, last_delta, self.first_time_ms, self.max_time_ms, producer_id, producer_epoch)
        batch = bytearray(BATCH_HEAD.pack(*fields, 0, *covered, base_sequence, self.count))
        batch += records
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        self.clear()
        return bytes(batch)


def epoch_check(leader_epoch: int) -> int:
    """The XOR of the epoch's four bytes: the one field of a batch that no checksum covers, so the frame's head does."""
    check = 0
    for byte in struct.pack(">i", leader_epoch):
        check ^= byte
    return check


def frame_head(
    log_id: int,
    kind: int,
    origin: int,
    check: int,
    payload_size: int,
    topic_id: int,
    base_offset: int,
    stamp: int,
    durable_offset: int,
    count: int,
) -> bytes:
    fields = (kind, origin, check, payload_size, topic_id, base_offset, stamp, durable_offset, count)
    head = bytearray(FRAME_HEAD.pack(FRAME_MAGIC, 1, *fields, 0))
    struct.pack_into(">I", head, 44, frame_head_crc(head, 0, log_id, base_offset))
    return bytes(head)


def frame_head_crc(data: Buffer, pos: int, log_id: int, base_offset: int) -> int:
    place = struct.pack(">Qq", log_id, base_offset)
    return crc32c(memoryview(data)[pos : pos + 44], crc32c(place))


def make_frame(
    batch: Buffer,
    log_id: int,
    base_offset: int,
    stamp: int,
    durable_offset: int,
    origin: int,
    topic_id: int,
    leader_epoch: int,
    kind: int = 1,
    in_place: bool = False,
) -> tuple[bytes, Buffer]:
    """The frame of a ready batch, as (head, batch): base offset and leader epoch are patched in the one copy made.

    With `in_place` the batch lies in a writable buffer that is nobody else's: it is patched there and not copied.
    """
    if len(batch) < BATCH_HEAD.size:
        raise CorruptFrame(f"a batch of {len(batch)} bytes is shorter than its head of {BATCH_HEAD.size}")
    size = struct.unpack_from(">I", batch, 8)[0] + 12
    if size != len(batch):
        raise CorruptFrame(f"the batch says {size} bytes but has {len(batch)}")
    copy = batch if in_place and not isinstance(batch, bytes) else bytearray(batch)
    (last_delta,) = struct.unpack_from(">i", copy, 23)
    if last_delta < 0:
        raise CorruptFrame(f"the batch's last offset delta is {last_delta}")
    struct.pack_into(">q", copy, 0, base_offset)
    struct.pack_into(">i", copy, 12, leader_epoch)
    check = epoch_check(leader_epoch)
    head = frame_head(
        log_id, kind, origin, check, len(copy), topic_id, base_offset, stamp, durable_offset, last_delta + 1
    )
    return head, copy if in_place else bytes(copy)


def make_marker(log_id: int, base_offset: int, count: int, stamp: int, durable_offset: int) -> bytes:
    """A frame without payload that covers `count` lost offsets."""
    if not 1 <= count <= 0xFFFFFFFF:
        raise InvalidArgument(f"a marker covers 1 to {0xFFFFFFFF} offsets, not {count}")
    return frame_head(log_id, KIND_MARKER, 0, 0, 0, 0, base_offset, stamp, durable_offset, count)


def rebuild_batches(
    records: list[Record], *, attributes: int = 0, last_offset: int | None = None, leader_epoch: int = 0
) -> bytes:
    """One batch (or several, when 1 MiB or an int32 of offsets is exceeded) of exactly these records at their offsets.

    The last batch covers offsets up to `last_offset`, so that a client goes on behind what was scanned for it.
    """
    builder = BatchBuilder()
    parts: list[bytes] = []
    base = -1
    for record in records:
        offset = record.offset
        if builder.count and offset <= base + builder.last_offset_delta:
            raise InvalidArgument(f"offset {offset} does not follow {base + builder.last_offset_delta}")
        if builder.count and (builder.size > REBUILT_BATCH_BYTES_MAX or offset - base > OFFSET_DELTA_MAX):
            parts.append(builder.seal_batch(base, leader_epoch, attributes, last_offset=offset - 1))
        if not builder.count:
            base = offset
        builder._add(offset - base, record.key, record.value, record.headers, record.time_ms, record.flags & 0xFF)
    if builder.count:
        parts.append(builder.seal_batch(base, leader_epoch, attributes, last_offset=last_offset))
    return b"".join(parts)
