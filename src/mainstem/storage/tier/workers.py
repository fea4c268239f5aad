"""A few threads that wait for the object store, so that nobody else has to. The process never waits for them to end."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
SOON, LATER = 0, 1  # what someone waits for goes before what someone may want


class Workers:
    """Threads are made when there is work. `close` leaves what waits undone, and what runs to itself."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads_max = name, threads
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: queue.PriorityQueue[tuple[int, int, Callable[[], Any] | None, Future[Any]]]
        self._waiting = queue.PriorityQueue()
        self._threads = self._idle = 0
        self.closed = False

    def submit(self, work: Callable[[], T], priority: int = SOON) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self.closed:
                future.cancel()
                return future
            self._waiting.put((priority, next(self._numbers), work, future))
            if self._threads < self._threads_max and not self._idle:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for _ in range(self._threads):
                self._waiting.put((LATER, next(self._numbers), None, Future()))

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            _, _, work, future = self._waiting.get()
            with self._lock:
                self._idle -= 1
            if work is None:
                return
            if self.closed:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del work, future  # a thread that waits keeps nothing of what it did
