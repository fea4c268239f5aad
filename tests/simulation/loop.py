"""An event loop without sockets, threads or waiting: time moves when the simulation says so."""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from mainstem.model.clock import ManualClock

TURNS_MAX = 10_000  # of one `settle`: what never comes to rest is a defect of its own


class _NoSockets:
    """What the loop polls: nothing ever comes from outside."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None: ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """Callbacks run in the order they were asked for; `advance` makes timers due; threads are called at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self._selector = _NoSockets()
        self._dead = False
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.failures.append(context))

    def time(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None: ...  # type: ignore[override]

    def remove_reader(self, fd: Any) -> bool:
        return False

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    # -- what the simulation does

    def enter(self) -> None:
        asyncio.events._set_running_loop(None)
        asyncio.events._set_running_loop(self)

    def leave(self) -> None:
        """The process is gone: nothing of it runs again."""
        self._dead = True
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        asyncio.events._set_running_loop(None)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self._tasks.add(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        if self._dead:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def turn(self) -> None:
        """Everything that is ready now, once."""
        self._run_once()  # type: ignore[attr-defined]

    def settle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is ready."""
        for _ in range(TURNS_MAX):
            if not self._ready or stop():  # type: ignore[attr-defined]
                return
            self.turn()
        raise AssertionError(f"the loop did not come to rest in {TURNS_MAX} turns")

    def advance(self, seconds: float) -> None:
        self.clock.advance_ms(seconds * 1000)
        self.call_soon(lambda: None)  # so that timers are looked at

    def run(self, coroutine: Any, stop: Callable[[], bool] = lambda: False) -> Any:
        """A coroutine to its end, everything else beside it; None if `stop` came first."""
        task = self.create_task(coroutine)
        for _ in range(TURNS_MAX):
            if task.done() or stop():
                break
            self.call_soon(lambda: None)
            self.turn()
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            assert stop(), "the coroutine did not end"
            return None
        return task.result()
