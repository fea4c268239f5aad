"""Threads that sync descriptors, in plain Python. See `flusher.py`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from mainstem.storage.disk import sync_data

ONE = (1).to_bytes(8, "little")


class FlushLine:
    def __init__(self, flusher: Flusher, owner: Any) -> None:
        self.flusher = flusher
        self.owner = owner
        self._completed = 0
        self._error = 0
        self._requested = 0
        self._fd = -1
        self._running = False
        self._syncs, self._sync_ns = 0, 0

    def outcome(self) -> tuple[int, int]:
        """The last request that is done, and the line's error, 0 if it has none."""
        with self.flusher.lock:
            return self._completed, self._error

    def request(self, fd: int) -> int:
        """Sync what was written to `fd` so far. The request's number; 0 if it is not taken: the line failed, another
        file's sync is under way, or the flusher is closed."""
        with self.flusher.lock:
            if self._error or self.flusher.stopping or (self._requested > self._completed and self._fd != fd):
                return 0
            self._fd = fd
            self._requested += 1
            if not self._running and self not in self.flusher.queue:
                self.flusher.queue.append(self)
                self.flusher.wake.notify()
            return self._requested

    def wait(self) -> int:
        """Until all that was requested is done. The line's error, 0 if it has none."""
        with self.flusher.lock:
            while self._completed < self._requested:
                self.flusher.done.wait()
            return self._error

    def take_times(self) -> tuple[int, int]:
        """How many syncs there were since it was last asked, and their nanoseconds together."""
        with self.flusher.lock:
            taken, self._syncs, self._sync_ns = (self._syncs, self._sync_ns), 0, 0
            return taken

    def begin(self) -> tuple[int, int]:
        self._running = True
        return self._requested, self._fd

    def finish(self, target: int, error: int, took_ns: int) -> None:
        self._running = False
        self._syncs += 1
        self._sync_ns += took_ns
        self._error = error
        self._completed = (
            self._requested if error else target
        )  # what was asked for since is not tried: see `flusher.py`
        if self._requested > self._completed:
            self.flusher.queue.append(self)


class Flusher:
    def __init__(self, threads: int) -> None:
        self.lock = threading.Lock()
        self.wake, self.done = threading.Condition(self.lock), threading.Condition(self.lock)
        self.queue: deque[FlushLine] = deque()
        self.stopping = False
        self._news: dict[FlushLine, None] = {}
        self._reading_fd, self._notice_fd = os.pipe()
        os.set_blocking(self._reading_fd, False)
        self._threads = [threading.Thread(target=self._run, name=f"flusher-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        """Becomes readable when `finished` has something to tell."""
        return self._reading_fd

    def line(self, owner: Any) -> FlushLine:
        return FlushLine(self, owner)

    def finished(self) -> list[FlushLine]:
        """The lines on which anything was done or failed since it was last asked."""
        if self._threads:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reading_fd, 8)
        with self.lock:
            news, self._news = self._news, {}
            return list(news)

    def close(self) -> None:
        """Finish what was requested and end the threads; `finished` tells of it. What is requested later is not taken."""
        with self.lock:
            self.stopping = True
            self.wake.notify_all()
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._threads = []
            os.close(self._reading_fd)
            os.close(self._notice_fd)

    def _run(self) -> None:
        with self.lock:
            while True:
                while not self.queue and not self.stopping:
                    self.wake.wait()
                if not self.queue:
                    return
                line = self.queue.popleft()
                target, fd = line.begin()
                self.lock.release()
                began_ns, error = time.monotonic_ns(), 0
                try:
                    sync_data(fd)
                except OSError as failed:
                    error = failed.errno or 5
                finally:
                    self.lock.acquire()
                line.finish(target, error, time.monotonic_ns() - began_ns)
                if not self._news:
                    os.write(self._notice_fd, ONE)
                self._news[line] = None
                self.done.notify_all()
