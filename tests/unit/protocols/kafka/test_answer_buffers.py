"""Memory of answers: used again once they are sent, and remembered until then."""

from __future__ import annotations

from pathlib import Path

from mainstem.protocols.kafka.answer_buffers import BUFFERS_MAX, BUFFERS_MIN, AnswerBuffers, Stretch
from mainstem.storage.segment.segment import Segment

SEGMENTS = (Segment(Path("0.log"), 0),)
SIZE = 300_000


def a_stretch(buffers: AnswerBuffers, offset: int, next_offset: int = 20, limit: int = 100) -> Stretch:
    stretch = buffers.take(SIZE)
    stretch.segments, stretch.offset, stretch.limit, stretch.wanted = SEGMENTS, offset, limit, SIZE
    stretch.next_offset, stretch.size, stretch.records = next_offset, 1_000, 10
    return stretch


def test_a_stretch_is_found_as_long_as_a_read_would_find_the_same() -> None:
    buffers = AnswerBuffers()
    stretch = a_stretch(buffers, 10)
    assert buffers.find(SEGMENTS, 10, 100, SIZE) is stretch
    assert buffers.find(SEGMENTS, 10, 150, SIZE) is stretch  # it was full already
    assert buffers.find(SEGMENTS, 10, 21, SIZE) is stretch
    assert buffers.find(SEGMENTS, 10, 20, SIZE) is None
    assert buffers.find(SEGMENTS, 10, 15, SIZE) is None  # it reaches beyond what may be read now
    assert buffers.find(SEGMENTS, 11, 100, SIZE) is None
    assert buffers.find(SEGMENTS, 10, 100, SIZE - 1) is None


def test_a_stretch_that_ended_with_the_log_is_read_again_once_there_is_more() -> None:
    buffers = AnswerBuffers()
    stretch = a_stretch(buffers, 10, next_offset=20, limit=20)
    assert buffers.find(SEGMENTS, 10, 20, SIZE) is stretch
    assert buffers.find(SEGMENTS, 10, 21, SIZE) is None


def test_a_file_that_was_rewritten_makes_its_stretch_unknown() -> None:
    buffers = AnswerBuffers()
    a_stretch(buffers, 10)
    assert buffers.find((Segment(Path("0.1.log"), 0, 1),), 10, 100, SIZE) is None


def test_the_buffer_used_longest_ago_is_taken_again_once_nobody_looks_at_it() -> None:
    buffers = AnswerBuffers()
    stretches = [a_stretch(buffers, offset) for offset in range(BUFFERS_MIN)]
    sent = stretches[0].view()[10:20]
    assert buffers.find(SEGMENTS, 1, 100, SIZE) is stretches[1]  # now 2 is the oldest, beside 0, which is not yet sent
    assert buffers.take(SIZE) is stretches[2]
    assert buffers.find(SEGMENTS, 2, 100, SIZE) is None
    assert buffers.find(SEGMENTS, 0, 100, SIZE) is stretches[0]
    views = [a_stretch(buffers, offset).view() for offset in range(2 * BUFFERS_MAX)]
    assert len({id(view.obj) for view in [*views, sent]}) == 2 * BUFFERS_MAX + 1


def test_a_buffer_that_is_too_small_is_not_taken() -> None:
    buffers = AnswerBuffers()
    for offset in range(BUFFERS_MIN):
        a_stretch(buffers, offset)
    assert len(buffers.take(1_000_000).memory) >= 1_000_000
