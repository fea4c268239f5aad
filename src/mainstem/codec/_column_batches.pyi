from typing import Any

Buffer = Any
BinaryColumn = tuple[Buffer | None, Buffer, Buffer, int]
HeaderColumn = tuple[Buffer | None, Buffer, int, BinaryColumn, BinaryColumn]
TimeColumn = tuple[Buffer | None, Buffer, int]

def encode_rows(
    rows: Buffer | None,
    start: int,
    stop: int,
    *,
    key: BinaryColumn | None = None,
    value: BinaryColumn | None = None,
    headers: HeaderColumn | None = None,
    times: TimeColumn | None = None,
    now_ms: int = 0,
    batch_bytes_max: int = 1 << 20,
    record_bytes_max: int = 1 << 20,
    compression: int = 0,
    topic: bytes | None = None,
) -> list[tuple[int, bytes]]:
    """(record count, batch with base offset 0) of the rows `start` to `stop` of `rows` (int32), or of the columns.

    A column is (validity or None, int32 offsets, data, first row); headers are a list of (name, value) pairs;
    times are microseconds, `now_ms` where null. A batch ends before it exceeds `batch_bytes_max`. With `topic` each record
    names it (header `ms-topic`), as records of shared logs do.
    """

def key_partitions(rows: int, key: BinaryColumn, partitions: int) -> bytes:
    """The partition (int32) that Kafka's producers choose for each row's key; -1 where it is null."""

class FrameRebuilder:
    """Rows of a raw table back to stored frames, some rows a call; what is built is `take`n.

    Binary columns and headers as in `encode_rows`; `offsets` and `times` (µs) are int64, `flags` int32, all from row 0 on.
    """

    def __init__(
        self,
        *,
        batch: BinaryColumn,
        offsets: Buffer,
        times: Buffer,
        flags: Buffer,
        key: BinaryColumn,
        value: BinaryColumn,
        headers: HeaderColumn,
        stored_headers: BinaryColumn,
    ) -> None: ...
    def add(self, start: int, stop: int) -> None:
        """A row with a head begins a frame: the head as stored, then its records; one kept whole has no others."""
    def take(self) -> bytes:
        """What was built since the last call."""
