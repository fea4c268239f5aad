"""Group commit: a few threads that sync whatever logs are dirty, one round after the other.

There is no artificial delay. While one fdatasync runs the next round collects, so that a lone publisher waits for one
disk flush and ten thousand share one. A failed sync ends the process: the kernel may have dropped the pages it could
not write and would report success to a second try, so nothing that was acked afterwards could be trusted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.model.histogram import counts_histogram, times_histogram

if TYPE_CHECKING:
    from mainstem.log.log import Log

EXIT_STORAGE_FAILED = 74  # EX_IOERR
THREADS_MAX = 4

logger = logging.getLogger("mainstem.log")


def end_process(log: Log, error: BaseException) -> None:
    """A write or sync failed for another reason than a full disk."""
    logger.critical(
        "log %d could not be written: %s. Nothing more can be promised; the process ends. "
        "Check the disk (dmesg), then start again: recovery keeps every acked record",
        log.id,
        error,
    )
    logging.shutdown()
    os._exit(EXIT_STORAGE_FAILED)


class Committer:
    """`post` hands a list of (log, end offset) that became durable back to the loop, once per round."""

    def __init__(
        self,
        post: Callable[[list[tuple[Log, int]]], None],
        *,
        threads: int = 1,
        on_failure: Callable[[Log, BaseException], None] = end_process,
    ) -> None:
        self._post = post
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._dirty: dict[Log, int] = {}
        self._busy: set[Log] = set()
        self._stopping = False
        self.rounds = 0
        self.sync_ns = times_histogram()  # of each log's sync
        self.sync_records = counts_histogram()  # that each made durable
        self._threads = [
            threading.Thread(target=self._run, name=f"committer-{n}", daemon=True)
            for n in range(min(threads, THREADS_MAX))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, logs: list[tuple[Log, int]]) -> None:
        """Ask for a sync of everything written below each end offset."""
        with self._wake:
            free = False
            for log, end in logs:
                self._dirty[log] = end
                free = free or log not in self._busy
            if free:  # else the thread that syncs it just now takes it again
                self._wake.notify()

    def forget(self, log: Log) -> None:
        """Sync it no more; returns once nobody does. Not on the loop: it may wait for one sync."""
        with self._wake:
            self._dirty.pop(log, None)
            while log in self._busy:
                self._done.wait()

    def stop(self) -> None:
        """Finish what was submitted, then end the threads."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (ready := self._take()) and not self._stopping:
                    self._wake.wait()
                if not ready:
                    return
            done = []
            taken: list[tuple[int, int]] = []
            for log, end in ready:
                began_ns, records = time.monotonic_ns(), end - log.stable
                if self._sync(log):
                    done.append((log, end))
                    taken.append((time.monotonic_ns() - began_ns, records))
            with self._wake:
                self._busy.difference_update(log for log, _ in ready)
                self.rounds += 1
                for sync_ns, records in taken:
                    self.sync_ns.add(sync_ns)
                    self.sync_records.add(records)
                self._done.notify_all()
            if done:
                self._post(done)

    def _take(self) -> list[tuple[Log, int]]:
        """A thread's share of the dirty logs. Two threads never sync one log, so that its watermark only grows."""
        ready = [(log, end) for log, end in self._dirty.items() if log not in self._busy]
        share = -(-len(ready) // len(self._threads))
        if share < len(ready):
            self._wake.notify()
        ready = ready[:share]
        for log, _ in ready:
            del self._dirty[log]
            self._busy.add(log)
        return ready

    def _sync(self, log: Log) -> bool:
        try:
            log.sync()
        except BaseException as error:
            self._on_failure(log, error)
            return False
        return True
