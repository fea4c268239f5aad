from mainstem.codec._batch import Buffer

class Bulk:
    """Memory that a connection received a message into: whoever has it owns it, and nothing of it was copied."""

    def __len__(self) -> int: ...

class LargeRecord:
    front: bytearray
    value: bytes | Bulk
    back: bytes
    size: int
    time_ms: int
    flags: int

    def __init__(self, key: bytes, value: bytes | Bulk, encoded: bytes, count: int, time_ms: int, flags: int) -> None:
        """`encoded`: its `count` headers (`encode_headers`)."""

    @property
    def pieces(self) -> list[Buffer]:
        """The frame, in order."""

    def close(self) -> None:
        """Fill the batch's head and its checksum, which cover neither offset nor epoch. For a thread: the lock is free."""

    def place(self, log_id: int, base_offset: int, stamp: int, durable_offset: int, origin: int, epoch: int) -> None:
        """Its place is known: the frame's head, and what the batch's says of it."""
