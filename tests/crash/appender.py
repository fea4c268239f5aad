"""A process that appends to a log until it is killed, and tells on its output what it may be held to.

    ready <end offset>          the log is open
    seen <offset> <payload>     a record that a reader could have seen, synced or not
    ok <end offset>             everything below survives anything

Run as `python -m tests.crash.appender ENGINE DIRECTORY INCARNATION`.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from mainstem.storage.engines import EngineOptions, open_engine
from mainstem.storage.reservation import Reservation
from mainstem.testing.frames import Writer
from mainstem.testing.ledger import seal

LOG_ID = 11


def main(engine_name: str, directory: Path, incarnation: str) -> None:
    rng = random.Random(incarnation)
    engine = open_engine(engine_name, directory, LOG_ID, options=EngineOptions(segment_bytes=64 << 10))
    reservation = Reservation.open(directory)
    writer = Writer(engine, LOG_ID)
    if not engine.stat().clean:
        writer.next_offset = max(writer.next_offset, reservation.end_offset)
    tell(f"ready {writer.next_offset}")
    while True:
        if writer.next_offset + 100 > reservation.end_offset:
            reservation.extend(writer.next_offset + 1000)
        for _ in range(rng.randint(1, 5)):
            first = writer.next_offset
            sizes = [rng.choice((0, 50, 500, 5000)) for _ in range(rng.randint(1, 4))]
            values = [seal(f"{incarnation}.{first + i}", size) for i, size in enumerate(sizes)]
            writer.append(values)
            tell("".join(f"seen {first + i} {value.decode()}\n" for i, value in enumerate(values)).rstrip())
        action = rng.random()
        if action < 0.03:
            engine.roll()
        elif action < 0.05:
            engine.trim(writer.next_offset - 2000)
        engine.sync()
        tell(f"ok {writer.next_offset}")


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
