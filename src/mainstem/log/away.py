"""Reading frames that may lie on another machine, without ever making the loop wait.

A reader on the loop is ordinary synchronous code over `Log.read_now`. Where that meets frames that lie elsewhere it raises
`NotLocal`; whoever started the reader has them brought by a thread of a pool of its own and runs it again:

    on the loop, awaited        await when_local(lambda: reader.records(offset, size))
    on the loop, called back    except NotLocal as missing: bring(missing, self.go_on)
    in a thread, at the start   Log.read_anywhere waits

An engine keeps what it brought long enough for the second run. For local engines none of this costs anything.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from mainstem.model.errors import CorruptFrame, MainstemError, Overloaded
from mainstem.storage.engine import NotLocal

logger = logging.getLogger("mainstem.log")

THREADS = 8  # that bring; readers beyond wait for them, the loop for none
RUNS_MAX = 1_000  # of one reader: each brings at least one frame more
AGAIN_S = 1.0

T = TypeVar("T")

_pool: ThreadPoolExecutor | None = None
_starting = 0


class _Patience(threading.local):
    on = False


_patience = _Patience()


@contextmanager
def large_by_thread() -> Iterator[None]:
    """Reads in here meet large frames of local engines as if they lay elsewhere: whoever asks for it handles NotLocal."""
    before, _patience.on = _patience.on, True
    try:
        yield
    finally:
        _patience.on = before


def wants_large_by_thread() -> bool:
    return _patience.on


@contextmanager
def reads_may_wait() -> Iterator[None]:
    """While the broker opens nobody is served: readers wait where they stand."""
    global _starting
    _starting += 1
    try:
        yield
    finally:
        _starting -= 1


def may_wait() -> bool:
    """Not on a loop that serves."""
    return _starting > 0 or asyncio._get_running_loop() is None


def pool() -> ThreadPoolExecutor:
    """Apart from the loop's own: readers that lag never keep maintenance or a login waiting."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="away")
    return _pool


async def brought(missing: NotLocal) -> None:
    await asyncio.get_running_loop().run_in_executor(missing.threads or pool(), missing.bring)


async def when_local(read: Callable[[], T]) -> T:
    """Run a reader on the loop until it misses nothing. It must change nothing before it has read."""
    damaged = False
    for _ in range(RUNS_MAX):
        try:
            with large_by_thread():
                return read()
        except NotLocal as missing:
            try:
                await brought(missing)
            except CorruptFrame:
                if damaged:
                    raise
                damaged = True  # the next run meets it, too, and returns what lies before it
    raise Overloaded(f"one read needs more than {RUNS_MAX} downloads from the object store", fix="read less at once")


def bring(missing: NotLocal, again: Callable[[], None]) -> None:
    """For code that is called back: `again` runs on the loop once the frames are here, or after a while if they cannot be
    had; a reader that still misses some comes back."""

    async def run() -> None:
        try:
            await brought(missing)
        except MainstemError as error:
            logger.error("what lies elsewhere could not be read, tried again in %d s: %s", AGAIN_S, error)
            await asyncio.sleep(AGAIN_S)
        again()

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_tasks: set[asyncio.Task[None]] = set()  # the loop holds its tasks weakly
