from collections.abc import Iterable, Sequence

from mainstem.model.record import Header, Record

Buffer = bytes | bytearray | memoryview

class BatchBuilder:
    """An open batch: records are encoded into it one by one, until it is sealed."""

    first_time_ms: int
    max_time_ms: int
    def __init__(self) -> None: ...
    def clear(self) -> None:
        """Forget the records."""
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def add(
        self, key: bytes | None, value: bytes | None, headers: Sequence[Header] = (), time_ms: int = 0, flags: int = 0
    ) -> int:
        """Adds a record at the next offset; returns its index in the batch."""
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
    def size(self) -> int: ...

def crc32c(data: Buffer, seed: int = 0, *, by_table: bool = False) -> int:
    """CRC-32C of any bytes-like object; `seed` is the checksum of what came before. `by_table` is for tests."""

def decode_headers(data: Buffer, count: int) -> list[Header]:
    """The inverse of `encode_headers`; CorruptFrame unless `data` is exactly `count` headers."""

def encode_headers(headers: Iterable[Header]) -> bytes:
    """(name, value or None) pairs as Kafka writes them in a record, without the count in front."""

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

def make_marker(log_id: int, base_offset: int, count: int, stamp: int, durable_offset: int) -> bytes:
    """A frame without payload that covers `count` lost offsets."""

def rebuild_batches(
    records: list[Record], *, attributes: int = 0, last_offset: int | None = None, leader_epoch: int = 0
) -> bytes:
    """One batch (or several, when 1 MiB or an int32 of offsets is exceeded) of exactly these records at their offsets.

    The last batch covers offsets up to `last_offset`, so that a client goes on behind what was scanned for it.
    """
