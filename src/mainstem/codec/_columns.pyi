from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mainstem.codec.columns import TopicRow
from mainstem.model.record import Header

OFFSET_MAX = (1 << 63) - 1

class ColumnDecoder:
    """See columns.py for the contract."""

    position: int
    finished: bool
    def __init__(
        self,
        columns: int,
        resolve: Callable[[bytes | int], TopicRow | None],
        inflate: Callable[[int, bytes], bytes],
        *,
        start: int = 0,
        end: int = OFFSET_MAX,
        topic: bytes | None = None,
        log_id: int | None = None,
        aborted: Iterable[tuple[int, int, int]] = (),
        translate: Callable[[int, int, bytes], Sequence[Header]] | None = None,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def consumed(self) -> int: ...
    def feed(self, data: bytes | bytearray | memoryview) -> None: ...
    def decode(self, rows_max: int, bytes_max: int) -> bool: ...
    def pass_unreadable(self) -> tuple[bytes, int]:
        """After UnreadableBatch: the frame's bytes and the first offset that could not be read; decoding goes on behind."""
    def take(self) -> dict[int, tuple[Any, ...]]: ...
