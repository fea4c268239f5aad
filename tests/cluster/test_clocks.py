"""A process whose wall clock jumps still sleeps, and its other clock goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.clocks import INSTALLED, Clocks

HOUR_S = 3600
SAID = "import time; a = time.monotonic(); time.sleep(0.2); print(time.time(), time.monotonic() - a, time.monotonic())"


@pytest.mark.skipif(not INSTALLED, reason="apt install libfaketime")
def test_only_the_wall_clock_jumps(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, "a")
    for offset in (0, HOUR_S, -HOUR_S):
        clocks.set("a", f"{offset:+d}s")
        environment = {**os.environ, **clocks.environment("a")}
        done = subprocess.run([sys.executable, "-c", SAID], env=environment, check=True, capture_output=True, text=True)
        wall, slept, monotonic = map(float, done.stdout.split())
        assert abs(wall - offset - time.time()) < 60
        assert 0.19 < slept < 10
        assert abs(monotonic - time.monotonic()) < 60
