"""A world of simulated processes: its clock, its turns and its accidents come from one seed.

What runs are the product's own coroutines. Each waits only for a `Later` of this world; whoever is due runs until it waits
again, so that two processes meet between any two of their statements. A process that is paused is given its answers when it
goes on, a dead one never: what it had sent is done or not done without it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any

Reply = Callable[[Any, BaseException | None], None]


class Later:
    """Something that will be known; awaited by one task."""

    def __init__(self) -> None:
        self._known: tuple[Any, BaseException | None] | None = None
        self._reply: Reply | None = None

    def tell(self, value: Any = None, error: BaseException | None = None) -> None:
        if self._known is None:
            self._known = value, error
            if self._reply is not None:
                self._reply(value, error)

    def then(self, reply: Reply) -> None:
        self._reply = reply
        if self._known is not None:
            reply(*self._known)

    def __await__(self) -> Generator[Later, Any, Any]:
        return (yield self)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), call))

    def sleep(self, least_s: float, most_s: float) -> Later:
        later = Later()
        self.after(self.rng.uniform(least_s, most_s), later.tell)
        return later

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end


class Process:
    """Its tasks end with it; `ended(error)` is called where one of them failed, once."""

    def __init__(self, world: World, ended: Callable[[BaseException], None]) -> None:
        self.world, self._ended = world, ended
        self.paused_until, self.dead = 0.0, False

    def start(self, coroutine: Coroutine[Later, Any, Any]) -> None:
        self.world.after(0.0, lambda: self._step(coroutine, None, None))

    def pause(self, seconds: float) -> None:
        self.paused_until = self.world.now + seconds

    def kill(self) -> None:
        self.dead = True

    def _step(self, coroutine: Coroutine[Later, Any, Any], value: Any, error: BaseException | None) -> None:
        if self.dead:
            coroutine.close()
            return
        if self.world.now < self.paused_until:
            self.world.after(self.paused_until - self.world.now, lambda: self._step(coroutine, value, error))
            return
        try:
            later = coroutine.throw(error) if error is not None else coroutine.send(value)
        except StopIteration:
            return
        except Exception as fault:
            self.dead = True
            self._ended(fault)
            return
        later.then(lambda value, error: self.world.after(0.0, lambda: self._step(coroutine, value, error)))
