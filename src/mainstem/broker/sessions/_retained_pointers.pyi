from array import array

from mainstem.model.topic_tries import TopicTrie

class Pointers:
    """Where the retained messages of a namespace lie, by their topics' numbers: 20 bytes each."""
    def __len__(self) -> int: ...
    def put(self, number: int, log_id: int, offset: int, stamp: int) -> int: ...
    def get(self, number: int) -> tuple[int, int, int] | None:
        """(log, offset, stamp), or None."""
    def remove(self, number: int) -> None: ...
    def next_number(self, number: int) -> int:
        """The first number from this one on that has a pointer; 0 if there is none."""
    def offsets_in(self, log_id: int) -> array[int]:
        """The offsets that lie in one log, ascending."""
    def pack(self, topics: TopicTrie, prefix: bytes, number: int, entries_max: int) -> tuple[bytes, int]:
        """(entries of a snapshot from `number` on, the number to go on with or 0); a name is `prefix` and the topic."""
    def load(self, topics: TopicTrie, data: bytes, at: int, end: int, prefix: bytes) -> tuple[int, int]:
        """Take entries of a snapshot for as long as their names begin with `prefix`: (where it stopped, how many)."""
