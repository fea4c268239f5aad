"""Large records: a thread checksums and writes them beside their log, and nobody else waits for that.

    on the loop     `append_large`: the publisher is read no further until the record has its place, so its order holds
    in a thread     checksum, write and sync of the whole frame, in a file of its own (`storage/segment/prepared.py`)
    on the loop     offset and stamp are given, the file joins the log with this tick; `placed` is called

Offset and stamp come last: readers that go by stamp never pass a record that is still being written. What small ones wait
for stays small: their log's next sync finds the large bytes on the disk already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mainstem.codec.large_record import LargeRecord
from mainstem.log.gather import Ticket, TopicRef
from mainstem.log.log import Log
from mainstem.model.errors import Overloaded, StorageFault

logger = logging.getLogger("mainstem.log")

THREADS = 2  # that write; others wait for them, each with one record in memory
HELD_AGAIN_S = 0.01  # until a log whose metadata is being committed is looked at again

_pool: ThreadPoolExecutor | None = None


def large_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="large")
    return _pool


def takes_large(log: Log) -> bool:
    """Whether a record may go that way; else it is gathered like any other."""
    return log.preparing_engine is not None and not log.held and log.refusal is None


def append_large(
    record: LargeRecord, resolve: Callable[[], TopicRef], origin: int, placed: Callable[[], None]
) -> Ticket:
    """`resolve` says where it goes, twice: its topic may move while it is written. `placed` is called in any case."""
    large = _Large(record, resolve, origin, placed, asyncio.get_running_loop(), Ticket(resolve().log))
    large.begin()
    return large.ticket


@dataclass(slots=True)
class _Large:
    record: LargeRecord
    resolve: Callable[[], TopicRef]
    origin: int
    placed: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    ticket: Ticket

    def begin(self) -> None:
        large_pool().submit(self._write, self.ticket.log).add_done_callback(self._written)

    def _write(self, log: Log) -> Path:
        engine = log.preparing_engine
        assert engine is not None
        self.record.close()
        return engine.prepare(self.record.pieces)

    def _written(self, done: Future[Path]) -> None:
        try:
            self.loop.call_soon_threadsafe(self._place, done)
        except RuntimeError:  # the loop is closed: the publisher was never told that it is kept
            logger.debug("a large record was written after the loop had ended")

    def _place(self, done: Future[Path]) -> None:
        log: Log = self.ticket.log
        if log.held and not log.removed:
            self.loop.call_later(HELD_AGAIN_S, self._place, done)
            return
        try:
            prepared = done.result()
            joined = False
            try:
                if self._moved(log):
                    self.begin()
                    return
                log.append_large(self.record, prepared, self.resolve(), self.ticket, self.origin)
                joined = True
            finally:
                if not joined:
                    with contextlib.suppress(OSError):  # what stays is removed by the next start
                        prepared.unlink()
        except Exception as error:
            if not isinstance(error, Overloaded | StorageFault):
                logger.exception("a large record of %d bytes could not be placed", self.record.size)
            self.ticket.fail(error)
        self.placed()

    def _moved(self, log: Log) -> bool:
        """Whether it has to be written once more, elsewhere."""
        if log.refusal is not None:
            raise log.refusal
        now = self.resolve().log
        if now is log and not log.removed:
            return False
        if now.removed or now.preparing_engine is None:
            raise Overloaded("the topic was deleted or moved while a large message was written; publish it again")
        self.ticket.log = now
        return True
