"""Group commit: a few threads that sync whatever logs are dirty, one round after the other.

There is no artificial delay. While one fdatasync runs the next round collects, so that a lone publisher waits for one
disk flush and ten thousand share one. Where a sync is only that, of one file (almost always), the threads of a `Flusher`
do it, which need no interpreter; `listen` tells on which loop its ends are heard. An engine that stores elsewhere, and says
by itself when something is durable, is only listened to. Everything else is done by our own. Upkeep (checkpoints, indexes)
is theirs, too, after syncs and beside them: no acknowledgement waits for it.

A failed sync ends the process: the kernel may have dropped the pages it could
not write and would report success to a second try, so nothing that was acked afterwards could be trusted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainstem.model.errors import DiskFull
from mainstem.model.histogram import counts_histogram, times_histogram
from mainstem.storage.flusher import Flusher
from mainstem.storage.scheduling import answer_at_once

if TYPE_CHECKING:
    import asyncio

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
        self._returned: dict[Log, int] = {}  # by our threads to the loop, for the flusher
        self._upkeep: dict[Log, None] = {}  # whose upkeep is due, in order
        self._kept_up: set[Log] = set()  # by a thread, just now
        self._heard: list[tuple[Log, int]] = []  # of engines that say by themselves
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flusher: Flusher | None = None
        self.rounds = 0
        self.sync_ns = times_histogram()  # of each log's sync
        self.sync_records = counts_histogram()  # that each made durable
        self._threads = [
            threading.Thread(target=self._run, name=f"committer-{n}", daemon=True)
            for n in range(min(threads, THREADS_MAX))
        ]
        for thread in self._threads:
            thread.start()

    def listen(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[tuple[Log, int]]], None]) -> None:
        """Use a flusher, too; `deliver` is `post` on the loop itself. From here on `submit` and `stop` belong there."""
        self._loop, self._flusher, self._deliver = loop, Flusher(len(self._threads)), deliver
        loop.add_reader(self._flusher.fileno(), self._collect, self._flusher, deliver)

    def submit(self, logs: list[tuple[Log, int]]) -> None:
        """Ask for a sync of everything written below each end offset."""
        if self._loop is not None:
            logs = [one for one in logs if not one[0].syncing.await_push(self._hear)]
        with self._wake:
            free = False
            for log, end in logs:
                if self._begin(log):
                    continue
                self._dirty[log] = end
                free = free or log not in self._busy
            if free:  # else the thread that syncs it just now takes it again
                self._wake.notify()

    def _hear(self, log: Log, durable: int) -> None:
        """In any thread. News of many logs that come together are told together."""
        with self._wake:
            first = not self._heard
            self._heard.append((log, durable))
        if first and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._tell_heard)

    def _tell_heard(self) -> None:
        with self._wake:
            heard, self._heard = self._heard, []
        done: list[tuple[Log, int]] = []
        for log, durable in heard:
            try:
                end = log.syncing.end_push(durable)
            except BaseException as error:
                self._on_failure(log, error)
                continue
            if end:
                done.append((log, end))
            elif end is None:  # the metadata that names it is not durable yet: a thread waits for both
                with self._wake:
                    self._dirty[log] = log.written
                    self._wake.notify()
        if done:
            self._deliver(done)

    def forget(self, log: Log) -> None:
        """Sync it no more; returns once nobody does. Not on the loop: it may wait for one sync."""
        with self._wake:
            self._dirty.pop(log, None)
            self._returned.pop(log, None)
            self._upkeep.pop(log, None)
            while log in self._busy or log in self._kept_up:
                self._done.wait()
        if self._flusher is not None:
            log.syncing.await_flusher()

    def stop(self) -> None:
        """Finish what was submitted, then end the threads."""
        with self._wake:
            self._stopping = True
            self._dirty = {**self._returned, **self._dirty}
            self._returned.clear()
            self._upkeep.clear()  # closing a log does it
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
        flusher, self._flusher = self._flusher, None
        if flusher is not None and self._loop is not None:
            self._loop.remove_reader(flusher.fileno())
            flusher.close()
            self._collect(flusher, self._post)

    def _begin(self, log: Log) -> bool:
        """Whether the flusher does it. A log that a thread syncs is left to it, so that its rounds stay in order."""
        if self._flusher is None or log in self._busy or log in self._dirty:
            return False
        return log.syncing.begin(self._flusher)

    def collect(self) -> None:
        """What the flusher has finished, without waiting for the loop to say so."""
        if self._flusher is not None and self._flusher.has_news:
            self._collect(self._flusher, self._deliver)

    def _collect(self, flusher: Flusher, deliver: Callable[[list[tuple[Log, int]]], None]) -> None:
        done: list[tuple[Log, int]] = []
        for handle in flusher.finished():
            log: Log = handle.owner
            syncs, sync_ns = handle.take_times()  # first: what these made durable is among what `end` tells
            try:
                end = log.syncing.end(handle)
            except BaseException as error:
                self._on_failure(log, error)
                continue
            self._count(syncs, sync_ns, max(end - log.stable, 0))
            self._look_at_upkeep(log)
            if end:  # else it was told already, with one that ended while its end was looked at
                done.append((log, end))
        if done:
            deliver(done)

    def _count(self, syncs: int, sync_ns: int, records: int) -> None:
        """Several that ended between two looks share what they took, to the last record."""
        with self._wake:
            self.rounds += syncs
            for number in range(syncs):
                self.sync_ns.add(sync_ns // syncs)
                self.sync_records.add(records * (number + 1) // syncs - records * number // syncs)

    def _look_at_upkeep(self, log: Log) -> None:
        if log.syncing.upkeep_is_due:
            with self._wake:
                if not self._stopping and log not in self._kept_up:  # else it is looked at again when that is done
                    self._upkeep[log] = None
                    self._wake.notify()

    def _take_upkeep(self) -> Log | None:
        """One thread is left to sync, if there are two."""
        if not self._upkeep or len(self._kept_up) >= max(1, len(self._threads) - 1):
            return None
        log = next(iter(self._upkeep))
        del self._upkeep[log]
        self._kept_up.add(log)
        return log

    def _keep_up(self, log: Log) -> None:
        try:
            log.syncing.keep_up()
        except DiskFull as error:
            logger.warning("log %d: its upkeep was put off: %s", log.id, error)
        except BaseException as error:
            self._on_failure(log, error)
        with self._wake:
            self._kept_up.discard(log)
            self._done.notify_all()
            if self._upkeep:
                self._wake.notify()

    def _run(self) -> None:
        answer_at_once()
        while True:
            with self._wake:
                kept = None
                while not (ready := self._take()) and (kept := self._take_upkeep()) is None and not self._stopping:
                    self._wake.wait()
                if not ready and kept is None:
                    return
            if kept is not None:
                self._keep_up(kept)
                continue
            done = []
            taken: list[tuple[int, int]] = []
            for log, end in ready:
                began_ns, records = time.monotonic_ns(), end - log.stable
                if self._sync(log):
                    done.append((log, end))
                    taken.append((time.monotonic_ns() - began_ns, records))
            with self._wake:
                self._busy.difference_update(log for log, _ in ready)
                self._return(ready)
                self.rounds += 1
                for sync_ns, records in taken:
                    self.sync_ns.add(sync_ns)
                    self.sync_records.add(records)
                self._done.notify_all()
            if done:
                self._post(done)
            for log, _ in done:
                self._look_at_upkeep(log)

    def _return(self, synced: list[tuple[Log, int]]) -> None:
        """What came for them meanwhile: the flusher takes it, or it would be ours as long as there is always more."""
        if self._loop is None or self._stopping:
            return
        again = {log: self._dirty.pop(log) for log, _ in synced if log in self._dirty}
        if again:
            self._returned.update(again)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._submit_returned)

    def _submit_returned(self) -> None:
        with self._wake:
            returned, self._returned = self._returned, {}
        self.submit([(log, log.written) for log in returned if not log.removed])

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
            log.syncing.sync_data()
        except BaseException as error:
            self._on_failure(log, error)
            return False
        return True
