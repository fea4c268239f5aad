"""Fair shares of the loop: work that grows with data is cut into slices, and each turn of the loop has room for one.

Whoever has such work awaits a turn before each slice, and says for which tenant (namespace; "" is the broker itself).
Turns go to tenants by their shares (stride scheduling): while several wait, one with a share of 3 gets three for each one
of another with 1, however much of it waits. Within a tenant they are given in the order they were asked for. So one that
reads everything there is with a thousand clients takes turns with one that reads a little, and all with the sockets.

    while more:
        await turns.turn(namespace.name)
        more = work for about SLICE_NS

or, where it is a list that is long only sometimes,

    work = turns.slices(namespace.name)
    for item in items:
        if work.over:
            await work.next()
        ...

A tenant's next turn is due a stride (1 / share) after its last; it does not save up what it did not ask for.

While clients are about that say little (`company_until_ns`), a slice is a quarter as long: an ack waits for two turns of the
loop, one that reads its publish and one that hears of its sync. Whoever begins something longer in the middle of the loop's
turn (a megabyte of a Kafka client, a flood's next slice, the next of thousands who connect or leave) lets them in first
(`let_in`): they wait for one such piece, not for all that the loop has before it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("mainstem.broker")

SLICE_NS = 1_000_000
SHORT_SLICE_NS = 250_000  # while others wait for little; what stands around a slice is a tenth of it
COMPANY_NS = 200_000_000  # for so long after a client had little to say it is expected to say more
REMEMBERED_MAX = 10_000  # tenants that do not wait and had a turn lately


class Turns:
    def __init__(self, share_of: Callable[[str], int] = lambda tenant: 1) -> None:
        self.share_of = share_of
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._order: list[
            tuple[float, int, str]
        ] = []  # a heap: when each tenant that waits is due, since when it waits
        self._due: dict[str, float] = {}  # of those that do not wait: when their next turn would be
        self._now = 0.0  # when the turn was due that was given last
        self._asked_total = 0
        self._planned = False
        self.company_until_ns = 0  # monotonic: until then clients are about that say little and wait for the answer
        self.quick: list[Callable[[], None]] = []  # each serves such clients, or hears what they wait for
        self._letting_in = False

    @property
    def in_company(self) -> bool:
        """Whether clients are about that say little and wait for the answer."""
        return time.monotonic_ns() < self.company_until_ns

    @property
    def slice_ns(self) -> int:
        """How long a slice is at present."""
        return SHORT_SLICE_NS if self.in_company else SLICE_NS

    def slice_end_ns(self) -> int:
        """Of one that begins now (monotonic)."""
        now_ns = time.monotonic_ns()
        return now_ns + (SHORT_SLICE_NS if now_ns < self.company_until_ns else SLICE_NS)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def soon(self, call: Callable[[], None], tenant: str = "") -> None:
        """Call it when it is its turn."""
        queue = self._waiting.get(tenant)
        if queue is not None:
            queue.append(call)
            return
        self._waiting[tenant] = deque((call,))
        self._enter(tenant, max(self._now, self._due.pop(tenant, 0.0)))
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._give)

    async def turn(self, tenant: str = "") -> None:
        """Until it is our turn; whoever waits alone has the next."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give() -> None:
            if not future.done():  # else who asked is gone
                future.set_result(None)

        self.soon(give, tenant)
        await future

    def let_in(self) -> None:
        if not self._letting_in and self.in_company:
            self._letting_in = True
            try:
                for serve in self.quick:
                    serve()
            except Exception:  # not that of whoever lets them in
                logger.exception("clients that say little could not be served between two long pieces of work")
            finally:
                self._letting_in = False

    def slices(self, tenant: str = "") -> Slices:
        """Of work that begins now."""
        return Slices(self, tenant)

    def _enter(self, tenant: str, due: float) -> None:
        self._asked_total += 1
        heapq.heappush(self._order, (due, self._asked_total, tenant))

    def _give(self) -> None:
        """One in each turn of the loop: between two of them it reads sockets."""
        self._now, _, tenant = heapq.heappop(self._order)
        queue = self._waiting[tenant]
        call = queue.popleft()
        due = self._now + 1 / max(1, self.share_of(tenant))
        if queue:
            self._enter(tenant, due)
        else:
            del self._waiting[tenant]
            if len(self._due) >= REMEMBERED_MAX:
                self._due.clear()
            self._due[tenant] = due
        self._planned = bool(self._waiting)
        if self._planned:
            asyncio.get_running_loop().call_soon(self._give)
        call()


class Slices:
    """Of one piece of work."""

    def __init__(self, turns: Turns, tenant: str) -> None:
        self._turns, self._tenant = turns, tenant
        self._until_ns = turns.slice_end_ns()

    @property
    def over(self) -> bool:
        return time.monotonic_ns() >= self._until_ns

    async def next(self) -> None:
        await self._turns.turn(self._tenant)
        self._until_ns = self._turns.slice_end_ns()
