"""What readers ask of a log: whole frames from an offset on, and where a stamp lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.log.away import may_wait, pool, wants_large_by_thread
from mainstem.storage.engine import Engine, NotLocal, Slice


class Readable:
    """The half of a log that never changes it."""

    engine: Engine
    written: int
    _read_now: Callable[[int, int, int | None], Slice | None]

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """Whole frames from the one that holds `offset`, or from the next one stored; None at the end. On the loop: it
        never leaves this machine, and says NotLocal where it would have to (`away.py`).

        Below `start_offset` lie only records that a queue, a session or a retained pointer still holds; streams
        begin at `start_offset`.
        """
        end = self.written if end_offset is None else min(end_offset, self.written)
        if offset >= end:
            return None
        read = self.engine.read_now if wants_large_by_thread() else self._read_now
        return read(offset, bytes_max, end)

    def read_in_thread(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """The same off the loop, or before anyone is served: waits for what lies elsewhere."""
        end = self.written if end_offset is None else min(end_offset, self.written)
        return self.engine.read(offset, bytes_max, end) if offset < end else None

    def read_anywhere(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """For readers that run on the loop and in threads alike: `read_now` on a loop that serves, else it waits."""
        if self.engine.is_local or not may_wait():
            return self.read_now(offset, bytes_max, end_offset)
        return self.read_in_thread(offset, bytes_max, end_offset)

    async def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """The same awaited: at once where it can be, else by a thread."""
        try:
            return self.read_now(offset, bytes_max, end_offset)
        except NotLocal:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool(), self.read_in_thread, offset, bytes_max, end_offset)

    def offset_of_stamp(self, stamp: int) -> int:
        """Where to begin reading so that no record with a stamp >= `stamp` is missed."""
        while True:
            try:
                return self.engine.find_stamp(stamp)
            except NotLocal as missing:
                if not may_wait():
                    raise
                missing.bring()
