from array import array

from mainstem.log.topic_index_format import Buffer, ChunkHead

class ColumnChunk:
    base_offset: int
    def __init__(self, base_offset: int) -> None: ...
    @property
    def places(self) -> int: ...
    def numbers_between(self, start: int, end: int) -> array[int]:
        """The topics of these places; each at least once."""
    def memory_bytes(self) -> int: ...
    def pack(self, covered_end: int, generation: int, names_end: int) -> bytes: ...

class PackedChunk:
    head: ChunkHead
    base_offset: int
    places: int
    def __init__(self, data: Buffer) -> None: ...
    def check(self) -> None:
        """Raise CorruptFrame unless the whole chunk is as it was written."""
    def unpack(self) -> ColumnChunk:
        """The same as a chunk that records can be added to."""
    def numbers_between(self, start: int, end: int) -> array[int]: ...
    def memory_bytes(self) -> int: ...
