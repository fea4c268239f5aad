"""Bytes of state an ack, with 10, 1,000 and 50,000 in flight: python bench/state.py"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from mainstem.testing.state_bytes import FULL_TICK, measure

IN_FLIGHT = (10, 1_000, 50_000)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(Path(directory) / "data", IN_FLIGHT))
    print(f"{'state of a':12} {'in flight':>10} {'one ack alone':>15} {f'each of {FULL_TICK}':>12}   bytes an ack")
    for one in found:
        print(f"{one.kind:12} {one.in_flight:>10,} {one.alone:>15.0f} {one.together:>12.1f}")


if __name__ == "__main__":
    main()
