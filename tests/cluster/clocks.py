"""Wall clocks of their own for brokers, by Debian's libfaketime; what takes time is measured by another clock."""

from __future__ import annotations

import os
from pathlib import Path

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
INSTALLED = FAKETIME.exists()
READ_AGAIN_S = 1.5  # libfaketime has looked at the file again by then
JUMPS = ("+3600s", "-3600s")
PATH = os.pathsep.join(filter(None, (str(Path(__file__).parent / "clock_site"), os.environ.get("PYTHONPATH", ""))))
MONOTONIC_LEFT_ALONE = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "PYTHONPATH": PATH}


class Clocks:
    """One file says what the clock of a broker and its children is."""

    def __init__(self, directory: Path, *names: str) -> None:
        self._files = {name: directory / f"clock-{name}" for name in names}
        for name in names:
            self.set(name, "+0s")

    def set(self, name: str, offset: str) -> None:
        self._files[name].write_text(offset)

    def environment(self, name: str) -> dict[str, str]:
        told = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._files[name])}
        return {**told, "FAKETIME_CACHE_DURATION": "1", **MONOTONIC_LEFT_ALONE}
