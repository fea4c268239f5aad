from array import array

from mainstem.model.topic_dump import TOPICS_MAX

class FilterTrie:
    """Which of many filters mean this topic?"""
    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """How many (filter, value) pairs there are."""
    def add(self, topic_filter: bytes, value: object) -> None: ...
    def remove(self, topic_filter: bytes, value: object) -> bool:
        """Whether the pair was there."""
    def match(self, topic: bytes) -> list[object]:
        """The values of all filters that mean the topic: each once per filter it was added with."""

class TopicTrie:
    """Which of many topics does this filter mean? Gives each topic a small number."""

    topics_max: int
    def __init__(self, topics_max: int = TOPICS_MAX) -> None: ...
    def __len__(self) -> int: ...
    @property
    def numbers_end(self) -> int:
        """One more than the largest number ever given: the size of an array indexed by number."""
    def number(self, topic: bytes) -> int:
        """The topic's number, from 1; a topic that is not yet there is added."""
    def find(self, topic: bytes) -> int:
        """The topic's number, or 0."""
    def name(self, number: int) -> bytes: ...
    def remove(self, number: int) -> None:
        """Forget the topic; its number may be given to another."""
    def put(self, number: int, topic: bytes) -> None:
        """Add a topic under the number it had before; whoever has either now is removed."""
    def put_all(self, packed: bytes | bytearray | memoryview) -> bool:
        """The same for many: per topic u32 number, u16 length, the name, little-endian. False if that does not add up."""
    def match(self, topic_filter: bytes) -> array[int]:
        """The numbers of all topics that the filter means, in no particular order."""
    def bitmap(self, topic_filter: bytes) -> bytearray:
        """The same as bits: number n is bit n % 8 of byte n // 8."""
    def reserve(self, count: int, names_bytes: int) -> None:
        """So many topics are about to come, with names of so many bytes."""
    def memory_bytes(self) -> int:
        """All that it holds."""
    def dump(self) -> bytes: ...
    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Replace everything by what `dump` wrote. Raises CorruptFrame for anything else, and is then empty."""
