from array import array

from mainstem.log._topic_chunks import ColumnChunk, PackedChunk
from mainstem.log.topic_index_format import UNLIMITED, Buffer
from mainstem.model.topic_tries import TopicTrie

class IndexCore:
    """All chunks of one log, by their number (offset // 2^20), and for each topic the offset of its last record."""

    topics: TopicTrie
    start_offset: int
    covered_end: int
    chunks: dict[int, ColumnChunk | PackedChunk]
    waiting: list[int]
    lost: set[int]
    open_id: int
    def __init__(self, topics: TopicTrie) -> None: ...
    def add(self, base_offset: int, numbers: memoryview | array[int]) -> None:
        """One number per offset from `base_offset` on, 0 for a record without a topic. What is known already stays."""
    def add_packed(self, base_offset: int, numbers: bytes) -> None:
        """The same, four bytes for each, as the machine orders them."""
    def pack_first(self) -> None:
        """Pack the chunk that has waited longest, in memory; an index with files writes it there instead."""
    def end_of(self, chunk_id: int) -> int:
        """Up to where the chunk's offsets are covered."""
    def last_offset(self, number: int) -> int:
        """The offset of the topic's last record, -1 if there is none. After a crash possibly a little too far on."""
    def count_topics(self, offset: int) -> int:
        """How many topics have a record at or beyond an offset."""
    def find_one(self, number: int, start: int, end: int, limit: int = UNLIMITED) -> array[int]:
        """The offsets of one topic's records: cost follows what is found."""
    def find_many(self, bitmap: Buffer, start: int, end: int, limit: int = UNLIMITED) -> tuple[array[int], int]:
        """The offsets of the records of all topics whose bit is set, and up to where was searched."""
    def count_one(self, number: int, start: int, end: int) -> int: ...
    def count(self, bitmap: Buffer, start: int, end: int) -> int: ...
    def trim(self, before_offset: int) -> list[int]:
        """Forget all offsets below; returns the topics of which nothing is left."""
    def memory_bytes(self) -> int:
        """Without the trie of topics."""
    def lose(self, chunk_id: int) -> None:
        """A chunk turned out to be damaged: it must be added again."""
    def take_fresh(self) -> array[int]:
        """The topics that came (again) since the last call."""
    def last_offsets(self) -> array[int]: ...
    def restore(self, last_offsets: array[int]) -> None: ...
    def put_chunk(self, chunk: PackedChunk, *, checked: bool) -> None: ...
    def reopen(self, chunk_id: int) -> None:
        """Go on adding to the last chunk."""
    def forget_beyond(self, end: int) -> None:
        """No topic's last record is known to be at `end` or further on."""
    def unseen(self, numbers_end: int) -> list[int]:
        """Numbers below `numbers_end` without a record."""
    def learn_last(self, chunk_id: int) -> None:
        """Take from a chunk's topics that their last record is no further back than its end."""
