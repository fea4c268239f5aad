"""Bytes of state an ack, with 10, 1,000 and 50,000 in flight, and the journal's share of the disk: python -m bench state

One ack alone in its tick, and each of 16 in one; frames and all. A share group is a queue. Producers write no entry for what
they produce: their partition's state is kept every 64 MiB of it, and what that costs a record of 1 KiB is computed.

Targets: 200 bytes alone, 100 together, however much is in flight.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from mainstem.broker.transactions.producers import KEEP_EVERY_BYTES, PRODUCERS_MAX, PartitionProducers, Producer, Sent
from mainstem.testing.state_bytes import FULL_TICK, journal_share, measure

IN_FLIGHT = (10, 1_000, 50_000)
ALONE_MAX, TOGETHER_MAX = 200, 100
ACKED = 100_000


def producers_bytes(count: int) -> int:
    """Of the kept state of a partition to which so many producers wrote."""
    state = PartitionProducers()
    for n in range(count):
        state.producers[n] = Producer(0, 1_700_000_000_000, [Sent(i, i, 5 * n + i, 5 * n + i + 1) for i in range(5)])
    return len(state.pack())


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(Path(directory) / "data", IN_FLIGHT))
        state, total = asyncio.run(journal_share(Path(directory) / "acked", ACKED))
    print(f"{'state of a':12} {'in flight':>10} {'one ack alone':>15} {f'each of {FULL_TICK}':>12}   bytes an ack")
    for one in found:
        reached = "reached" if one.alone <= ALONE_MAX and one.together <= TOGETHER_MAX else "MISSED"
        print(f"{one.kind:12} {one.in_flight:>10,} {one.alone:>15.0f} {one.together:>12.1f}   {reached}")
    print()
    for count in (*IN_FLIGHT[:2], PRODUCERS_MAX):
        size = producers_bytes(count)
        each = size * 1024 / KEEP_EVERY_BYTES
        print(f"{'producers':12} {count:>10,} of a partition: {size:,} bytes every 64 MiB, {each:.2f} a record")
    print(
        f"\n{ACKED:,} messages of 100 bytes published to a queue and acked, 16 a tick, no two neighbours: the journal has "
        f"{state:,} of {total:,} bytes, {state / total:.1%} ({state / ACKED:.0f} bytes a message)"
    )


if __name__ == "__main__":
    main()
