"""Where libfaketime leaves the monotonic clock alone, its `clock_nanosleep` (0.9.10) refuses every absolute sleep, which is
what `time.sleep` asks for: EINVAL. Waiting for nothing takes as long."""

from __future__ import annotations

import select
import time


def sleep(seconds: float) -> None:
    select.select((), (), (), seconds)


time.sleep = sleep
