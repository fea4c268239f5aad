from mainstem.storage.engine import Buffer

def token_hashes(text: bytes) -> list[int]:
    """Of each word in it."""

def holds_all(lines: Buffer, hashes: list[int]) -> bool:
    """Whether all these tokens may be in the block; False is certain. Without lines nothing is known: True."""

class BlockTokens:
    """The distinct words of a block that is being read, and the extent of it."""

    tokens: int
    raw_bytes: int
    unknown: bool
    escapes: bool
    crossed: bool
    first_offset: int
    end_offset: int
    first_stamp: int
    time_min_ms: int
    time_max_ms: int
    def clear(self) -> None: ...
    def add_frames(self, data: Buffer, size: int) -> tuple[int, list[tuple[int, int]], bool]:
        """Whole frames: (bytes taken, compressed batches as (position, size), whether no frame stood where one should)."""
    def add_records(self, head: Buffer, records: Buffer) -> None:
        """The records of a compressed batch, inflated; `head` is the batch's."""
    def give_up(self) -> None:
        """What it holds is not known: it is always read."""
    def lines(self, count: int) -> bytes:
        """A filter of so many lines over the tokens."""
