"""Fair shares of the loop: work that grows with data is cut into slices, and each turn of the loop has room for one.

Whoever has such work awaits a turn before each slice. Turns are given in the order they were asked for, so that ten who
read everything there is take turns with each other and all together with the sockets, whatever each of them still has to do.

    while more:
        await turns.turn()
        more = work for about SLICE_NS
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

SLICE_NS = 1_000_000


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._asked = False

    def __len__(self) -> int:
        return len(self._waiting)

    def soon(self, call: Callable[[], None]) -> None:
        """Call it when it is its turn."""
        self._waiting.append(call)
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._give)

    async def turn(self) -> None:
        """Until it is our turn; whoever waits alone has the next."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give() -> None:
            if not future.done():  # else who asked is gone
                future.set_result(None)

        self.soon(give)
        await future

    def _give(self) -> None:
        """One in each turn of the loop: between two of them it reads sockets."""
        call = self._waiting.popleft()
        self._asked = bool(self._waiting)
        if self._asked:
            asyncio.get_running_loop().call_soon(self._give)
        call()
