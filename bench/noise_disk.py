"""What the disk alone takes beside a noise: `python -m bench.noise_disk DIRECTORY`.

A hundred times a second a few bytes are appended to a file and synced, which nothing but the disk and the file system's
journal can delay; each counts from when it was due. It says when it begins. Once its input is closed it prints, in
milliseconds, the median, the 99th percentile and the longest.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mainstem.storage.scheduling import answer_at_once

PERIOD_S = 0.01
BYTES = 128


@dataclass(slots=True)
class Bare:
    """Milliseconds of a bare append and sync."""

    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[Bare]:
    """Measure as long as the block lasts; the figures are there after it."""
    found = Bare()
    command = [sys.executable, "-m", "bench.noise_disk", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it takes the core that whoever is measured needs
        try:
            yield found
        finally:
            told = process.communicate()[0].split()
    found.p50, found.p99, found.longest = map(float, told)


def main() -> int:
    took: list[float] = []
    answer_at_once()  # as the broker's threads that sync: it is the disk that is measured
    with tempfile.NamedTemporaryFile(dir=sys.argv[1], buffering=0) as file:
        print("begins", flush=True)
        due = time.monotonic()
        while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            file.write(bytes(BYTES))
            os.fdatasync(file.fileno())
            took.append((time.monotonic() - due) * 1000)
            due += PERIOD_S
    took.sort()
    print(took[len(took) // 2], took[int(len(took) * 0.99)], took[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
