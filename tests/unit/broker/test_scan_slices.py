"""Slices cover every range exactly once, whatever the parts look like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.scans.slices import SLICE_BYTES_MIN, slices_of
from mainstem.storage.engine import Part


class Layout:
    """Parts of frames, with gaps between frames and between parts, as retention and unclean stops leave them."""

    def __init__(self, drawn: list[tuple[int, list[tuple[int, int, int]]]]) -> None:
        self.parts: list[Part] = []
        self.frames: dict[str, list[tuple[int, int, int]]] = {}  # part → (position, base offset, end offset)
        offset = 0
        for gap, frames in drawn:
            offset += gap
            base, at, held = offset, 0, []
            for inner_gap, count, size in frames:
                offset += inner_gap if held else 0
                held.append((at, offset, offset + count))
                offset += count
                at += size
            name = f"{base:020d}.log"
            self.parts.append(Part(name, 0, base, offset, 0, 0, at, True))
            self.frames[name] = held
        self.end = offset

    def cuts(self, part: Part, step: int) -> Sequence[tuple[int, int]]:
        found, after = [], 0
        for at, base, _ in self.frames[part.name]:
            if at >= after:
                found.append((at, base))
                after = at + step
        return found


frames = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, SLICE_BYTES_MIN)), min_size=1, max_size=8
)
layouts = st.lists(st.tuples(st.integers(0, 20), frames), max_size=6).map(Layout)


@settings(max_examples=400, deadline=None)
@given(layouts, st.integers(0, 120), st.integers(0, 200), st.integers(1, 4 * SLICE_BYTES_MIN), st.booleans())
def test_slices_lie_end_to_end_and_hold_every_stored_offset(
    layout: Layout, start: int, length: int, slice_bytes: int, files: bool
) -> None:
    end = start + length
    found = slices_of(layout.parts, start, end, slice_bytes=slice_bytes, cuts_of=layout.cuts if files else None)
    stored = [o for held in layout.frames.values() for _, base, last in held for o in range(base, last)]
    wanted = [offset for offset in stored if start <= offset < end]
    assert [offset for piece in found for offset in wanted if piece.start <= offset < piece.end] == wanted
    for before, after in pairwise(found):
        assert before.end == after.start
    if found:
        assert (found[0].start, found[-1].end) == (start, end)
    assert bool(found) or not wanted


@settings(max_examples=400, deadline=None)
@given(layouts, st.integers(0, 120), st.integers(0, 200), st.integers(1, 4 * SLICE_BYTES_MIN))
def test_the_file_of_a_slice_holds_its_offsets_from_the_named_byte_on(
    layout: Layout, start: int, length: int, slice_bytes: int
) -> None:
    for piece in slices_of(layout.parts, start, start + length, slice_bytes=slice_bytes, cuts_of=layout.cuts):
        assert piece.part is not None
        held = layout.frames[piece.part.name]
        assert (piece.at, piece.frame_offset) in [(at, base) for at, base, _ in held]
        read = [
            o for at, base, last in held if at >= piece.at for o in range(base, last) if piece.start <= o < piece.end
        ]
        assert read == [o for _, base, last in held for o in range(base, last) if piece.start <= o < piece.end]
