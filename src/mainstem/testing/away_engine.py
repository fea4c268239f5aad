"""An engine whose frames lie far away: every first read of a stretch takes its time, and none may make the loop wait.

It stands in front of any engine. `read` sleeps, then keeps the frames near; `read_now` answers what is near, else NotLocal,
which a thread may bring. A read on a thread that runs a loop is noted as a mistake.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from mainstem.log.log import Log
from mainstem.storage.engine import Engine, NotLocal, Slice

NEAR_MAX = 256  # slices kept


class AwayEngine:
    is_local = False

    def __init__(self, engine: Engine, delay_s: float) -> None:
        self._engine = engine
        self._delay_s = delay_s
        self._near: list[Slice] = []
        self._lock = threading.Lock()
        self.reads = 0
        self.mistakes = 0  # reads that would have stopped a loop

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        if asyncio._get_running_loop() is not None:
            self.mistakes += 1
        self.reads += 1
        time.sleep(self._delay_s)
        found = self._engine.read(offset, max(bytes_max, 1 << 16), end_offset)
        if found is not None:
            with self._lock:
                self._near = [found, *self._near][:NEAR_MAX]
        return found

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        with self._lock:
            near = any(one.base_offset <= offset < one.end_offset for one in self._near)
        if not near:
            raise NotLocal(self, offset, bytes_max, end_offset)
        return self._engine.read(offset, 1, end_offset)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return 0  # `read` has to look further

    def find_stamp(self, stamp: int) -> int:
        found = self._engine.find_stamp(stamp)
        self.read_now(found, 1)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def move_away(log: Log, delay_s: float) -> AwayEngine:
    """From now on the log's frames lie far away."""
    engine = AwayEngine(log.engine, delay_s)
    log.use_engine(engine)
    return engine
