"""What the frames of a shared log say of their records' topics: the index of topics is made of it, and objects carry it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.codec.batch import KIND_DATA, FrameHead, frame_heads, note_topics

INFLATED_BYTES_MAX = 64 << 20
EMPTY_MAX = 1 << 20  # offsets without a topic that one column covers: a marker may lie over billions


class TopicColumn(NamedTuple):
    """The topics of some frames, one small number per offset: `names[number]`, and 0 for a record without a topic."""

    base_offset: int
    numbers: array[int]
    names: list[bytes]

    def between(self, start: int, end: int) -> TopicColumn:
        """Its part in [start, end)."""
        first, last = max(start - self.base_offset, 0), max(end - self.base_offset, 0)
        if first == 0 and last >= len(self.numbers):
            return self
        return TopicColumn(self.base_offset + first, self.numbers[first:last], self.names)


def empty_column(base_offset: int, count: int, start: int = 0) -> TopicColumn:
    """Of offsets without a topic, from `start` on if that is within."""
    first = max(base_offset, start)
    return TopicColumn(first, array("I", bytes(4 * min(max(base_offset + count - first, 0), EMPTY_MAX))), [b""])


def frame_column(
    head: FrameHead, frame: memoryview, log_id: int, topic_of: dict[int, bytes], known: dict[bytes, int]
) -> array[int]:
    """Of one frame with records. `known` says which number a topic has, and new ones join."""
    numbers = array("I", bytes(4 * head.count))
    note_topics(frame, log_id, numbers, known, inflated_bytes_max=INFLATED_BYTES_MAX, topic_of=topic_of)
    return numbers


def frame_columns(data: memoryview, log_id: int, start: int, topic_of: dict[int, bytes]) -> Iterator[TopicColumn]:
    """Of whole frames, those that reach beyond `start`."""
    at = 0
    for head in frame_heads(data, log_id):
        frame = data[at : at + head.size]
        at += head.size
        if head.base_offset + head.count <= start:
            continue
        if head.kind != KIND_DATA:
            yield empty_column(head.base_offset, head.count, start)
            continue
        known = {b"": 0}
        numbers = frame_column(head, frame, log_id, topic_of, known)
        yield TopicColumn(head.base_offset, numbers, list(known))
