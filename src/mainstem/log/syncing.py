"""How what a log has written becomes durable: by a `FlushHandle`, by an engine that says so itself, or by a thread's `sync`.

Whoever begins a sync notes what the log had written by then; when the sync has ended, that is how far the log is durable.
A promise (the metadata that names the log) must be durable first, so while there is one only a thread may sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mainstem.storage.engine import Engine, FlushableEngine, PushedEngine

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.storage.flusher import Flusher, FlushHandle


class Promise(Protocol):
    """Something else that must be durable before a log's records count as such: the metadata that names the log."""

    def done(self) -> bool: ...

    def result(self) -> None:
        """Waits; raises when it will never be durable."""


class Syncing:
    """Of one log; belongs to the loop's thread, but for what says otherwise."""

    __slots__ = ("_asked", "_flushable_engine", "_handle", "_log", "_promises", "_pushed_engine")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._promises: deque[Promise] = deque()
        self._handle: FlushHandle | None = None
        self._flushable_engine: FlushableEngine | None = None
        self._pushed_engine: PushedEngine | None = None
        self._asked: deque[tuple[int, int]] = deque()  # syncs under way: number, end offset

    def use_engine(self, engine: Engine) -> None:
        self._flushable_engine = engine if isinstance(engine, FlushableEngine) else None
        self._pushed_engine = engine if isinstance(engine, PushedEngine) else None

    def promise(self, written: Promise) -> None:
        """Nothing appended from now on is durable before that is, too."""
        if self._log.durability.acks_wait:
            self._promises.append(written)

    def await_promises(self) -> None:
        """In a committer's thread."""
        while self._promises:
            self._promises[0].result()
            self._promises.popleft()

    def begin(self, flusher: Flusher) -> bool:
        """Have everything written so far synced without a committer's thread; False where `Log.sync` must be called."""
        engine = self._flushable_engine
        if engine is None or self._promises:
            return False
        if self._handle is None:
            self._handle = flusher.handle(self._log)
        number = engine.begin_sync(self._handle)
        if number:
            self._asked.append((number, self._log.written))
        return number > 0

    def end(self, handle: FlushHandle) -> int:
        """When the handle has news, on the loop: up to where the log is durable by it. Raises if it failed."""
        assert self._flushable_engine is not None
        completed, end = self._flushable_engine.end_sync(handle), 0
        while self._asked and self._asked[0][0] <= completed:
            end = self._asked.popleft()[1]
        return end

    def sync_data(self) -> None:
        """`Log.sync` without the upkeep that may be due; in a committer's thread."""
        self.await_promises()
        engine = self._flushable_engine
        if engine is not None:
            engine.sync_data()
        else:
            self._log.engine.sync()

    @property
    def upkeep_is_due(self) -> bool:
        return self._flushable_engine is not None and self._flushable_engine.upkeep_is_due

    def keep_up(self) -> None:
        """In a committer's thread, beside syncs."""
        if self._flushable_engine is not None:
            self._flushable_engine.keep_up()

    def await_flusher(self) -> None:
        """Until nothing that was begun is under way. Not on the loop."""
        if self._handle is not None:
            self._handle.wait()

    def await_push(self, told: Callable[[Log, int], None]) -> bool:
        """Where the engine says by itself when something is durable: `told(log, number)` in a thread; `end_push` follows, on
        the loop. False where it has to be asked."""
        engine, log = self._pushed_engine, self._log
        if engine is None:
            return False
        if self._asked and self._asked[-1][0] == engine.end_offset:
            self._asked.pop()
        self._asked.append((engine.end_offset, log.written))
        engine.on_durable = lambda end: told(log, end)
        if engine.durable_offset >= engine.end_offset:
            told(log, engine.end_offset)
        return True

    def end_push(self, durable: int) -> int | None:
        """Up to where the log is durable by it (0: no news); None where `Log.sync` has to wait for something else."""
        while self._promises:
            if not self._promises[0].done():
                return None
            self._promises[0].result()
            self._promises.popleft()
        end = 0
        while self._asked and self._asked[0][0] <= durable:
            end = self._asked.popleft()[1]
        return end
