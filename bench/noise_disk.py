"""What the disk alone takes beside a noise: `python -m bench.noise_disk DIRECTORY`.

A hundred times a second a few bytes are appended to a file and synced, which nothing but the disk and the file system's
journal can delay (it waits for no core, where it may ask for that); each counts from when it was due. It says when it
begins. Once its input is closed it prints of each when it was due, in seconds of the monotonic clock, and how many
milliseconds it took.
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
from pathlib import Path

from bench.machine import come_first
from bench.standstill import Wait

PERIOD_S = 0.01
BYTES = 128


@contextlib.contextmanager
def beside(folder: Path) -> Iterator[list[Wait]]:
    """Measure as long as the block lasts; the waits are there after it."""
    found: list[Wait] = []
    command = [sys.executable, "-m", "bench.noise_disk", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it takes the core that whoever is measured needs
        try:
            yield found
        finally:
            told = [float(one) for one in process.communicate()[0].split()]
    found += [Wait(due, ms) for due, ms in zip(told[::2], told[1::2], strict=True)]


def main() -> int:
    waits: list[Wait] = []
    with come_first(), tempfile.NamedTemporaryFile(dir=sys.argv[1], buffering=0) as file:
        print("begins", flush=True)
        due = time.monotonic()
        while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            file.write(bytes(BYTES))
            os.fdatasync(file.fileno())
            waits.append(Wait(due, (time.monotonic() - due) * 1000))
            due += PERIOD_S
    print(*(f"{wait.due_s:.6f} {wait.ms:.3f}" for wait in waits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
