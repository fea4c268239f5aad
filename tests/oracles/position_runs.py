"""The run lists of a queue's journal in plain Python: an oracle for `cursor/_position_runs.pyx`."""

from __future__ import annotations

from collections.abc import Sequence


def run_list(positions: Sequence[int], last: int) -> bytes:
    out = bytearray()
    runs = _runs(positions)
    _put(out, len(runs))
    for first, count, gap in runs:
        distance = first - last
        _put(out, distance << 1 if distance >= 0 else (-distance << 1) - 1)
        _put(out, count - 1)
        if count > 1:
            _put(out, gap)
        last = first + (count - 1) * gap
    return bytes(out)


def _put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _runs(positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Ascending, distinct positions as arithmetic runs (first, count, gap)."""
    runs: list[tuple[int, int, int]] = []
    first, run, gap, last = positions[0], 1, 0, positions[0]
    for position in positions[1:]:
        if run == 1:
            gap = position - last
        if position - last == gap:
            run += 1
        else:
            runs.append((first, run, gap if run > 1 else 0))
            first, run = position, 1
        last = position
    runs.append((first, run, gap if run > 1 else 0))
    return runs
