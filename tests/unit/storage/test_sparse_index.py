"""The sparse index: which frame is near, and how it is kept beside a segment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.segment.index import HEAD_SIZE, INTERVAL_BYTES, SparseIndex, Summary, read_summary

frames = st.lists(st.tuples(st.integers(48, 9000), st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=80)


def build(sizes: list[tuple[int, int, int]], base: int) -> tuple[SparseIndex, list[tuple[int, int, int]]]:
    """An index over frames of (size, count, stamp step), and the frames as (position, offset, stamp)."""
    index = SparseIndex(base)
    placed: list[tuple[int, int, int]] = []
    position, offset, stamp = 0, base, 10
    for size, count, step in sizes:
        index.add(position, offset, stamp)
        placed.append((position, offset, stamp))
        position, offset, stamp = position + size, offset + count, stamp + step
    return index, placed


@given(frames, st.integers(0, 10**12))
def test_every_look_up_lands_on_a_frame_at_or_before_the_wanted_one(
    sizes: list[tuple[int, int, int]], base: int
) -> None:
    index, placed = build(sizes, base)
    starts = {position for position, _, _ in placed}
    for position, offset, stamp in placed:
        for found in (index.before_offset(offset), index.before_stamp(stamp), index.before_end(offset + 1)):
            assert found in starts
            assert found <= position
            assert position - found < INTERVAL_BYTES
        assert index.boundary(position) in starts
        assert index.boundary(position) <= position
    assert index.before_stamp(0) == 0


@given(frames)
def test_entries_lie_at_least_an_interval_apart(sizes: list[tuple[int, int, int]]) -> None:
    index, placed = build(sizes, 0)
    assert 1 <= len(index) <= placed[-1][0] // INTERVAL_BYTES + 1


@given(frames)
def test_a_saved_index_reads_back_the_same(sizes: list[tuple[int, int, int]]) -> None:
    index, placed = build(sizes, 100)
    summary = Summary(9, 100, 5000, 10, placed[-1][2], 123456)
    data = index.encode(summary)
    assert read_summary(data[:HEAD_SIZE]) == summary
    decoded = SparseIndex.decode(data)
    assert decoded is not None
    assert decoded[1] == summary
    for position, offset, stamp in placed:
        assert decoded[0].before_offset(offset) == index.before_offset(offset)
        assert decoded[0].before_stamp(stamp) == index.before_stamp(stamp)
        assert decoded[0].boundary(position) == index.boundary(position)


def test_any_damaged_byte_of_a_saved_index_is_noticed() -> None:
    index, _ = build([(5000, 3, 5)] * 6, 0)
    data = index.encode(Summary(1, 0, 18, 10, 35, 30_000))
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 64]) + data[position + 1 :]
        assert SparseIndex.decode(damaged) is None
        assert SparseIndex.decode(data[:position]) is None
