"""What a log will need of the disk soon, done in a thread before the loop would have to wait for it.

Two things grow with what is published and end in an fsync: the next block of offsets (`reservation.py`), and a file for
each million records of a topic index (`topic_index.py`). The broker looks at all logs each second. A flood needs them more
often, so the ticker asks after each write. One thread at a time works for a log; after a failure it waits a second.
"""

from __future__ import annotations

import asyncio
import logging

from mainstem.log.log import Log
from mainstem.model.errors import DiskFull

logger = logging.getLogger("mainstem.broker")

AGAIN_S = 1.0  # after a failure


class Ahead:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._busy: set[Log] = set()  # a thread works for them, or failed just now

    def look(self, log: Log) -> None:
        """After a write, on the loop."""
        if log.is_low or (log.index is not None and log.index.has_full(log.stable)):
            if log in self._busy:
                return
            self._busy.add(log)
            future = self._loop.run_in_executor(None, _work, log)
            future.add_done_callback(lambda done: self._end(log, done))

    def _end(self, log: Log, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._busy.discard(log)
            return
        if not log.removed and not isinstance(error, DiskFull):  # publishes meet a full disk, too, and are told
            logger.error("preparing log %d failed; it is tried again", log.id, exc_info=error)
        self._loop.call_later(AGAIN_S, self._busy.discard, log)


def _work(log: Log) -> None:
    """In a thread."""
    if log.removed:
        return
    log.reserve_ahead()
    if log.index is not None and log.index.has_full(log.stable) and not log.index.checkpoint(log.stable):
        raise DiskFull(f"log {log.id}: its topic index was not saved")  # the reason is logged where it was met
