"""What every turn does with a queue's cursor, in plain Python: the oracle of `cursor/_queue_core.pyx`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainstem.cursor._leases import Leases
from mainstem.cursor.queue_journal import Change, Op

if TYPE_CHECKING:
    from mainstem.cursor.key_order import KeyOrder
    from mainstem.cursor.queue_places import Dead


class QueueCore:
    def __init__(self, start: int, exceptions_max: int, journaled: bool, order: KeyOrder | None) -> None:
        self.exceptions_max = exceptions_max
        self.journaled = journaled
        self.order = order
        self._pending: list[Change] = []
        self._reset(start)

    def _reset(self, start: int) -> None:
        self.next = self.head = start
        self.unread = 0
        self.dead: dict[int, Dead] = {}
        self._leased = Leases()  # first leases
        self._leased_again: set[int] = set()  # leases of released positions
        self._deadline_of: dict[int, int] = {}  # position -> deadline in ms, only leases that have one
        self._deadlines: list[tuple[int, int]] = []  # heap of (deadline, position)
        self._released: list[int] = []  # heap
        self._delayed: dict[int, int] = {}  # position -> due ms
        self._due: list[tuple[int, int]] = []  # heap of (due, position)
        self._attempts: dict[int, int] = {}  # only where at least one attempt failed

    @property
    def ready(self) -> int:
        """What a consumer could get now: unread and released, and what waits for its key."""
        return self.unread + len(self._released) + self.waiting

    @property
    def waiting(self) -> int:
        """Set aside until the holder of their key takes them, or the key becomes free."""
        return self.order.waiting if self.order is not None else 0

    @property
    def room(self) -> int:
        """How many more positions may be leased before the exceptions reach their limit; below 0 over it."""
        more = len(self._leased_again) + len(self._released) + len(self._delayed) + len(self.dead) + self.waiting
        return self.exceptions_max - len(self._leased) - more

    @property
    def timed(self) -> bool:
        """Whether any lease has a deadline or any position waits for its time."""
        return bool(self._deadlines or self._due)

    def enter(self, last: int, count: int = 1) -> None:
        """`count` further positions exist, the newest is `last`."""
        assert last >= self.head, "positions only grow"
        self.head = last + 1
        self.unread += count
        self._note_head()

    def hand_out(self, leased: array[int], passed: int, end: int) -> None:
        """Take the unread positions below `end`: lease some, settle the `passed` others, which nobody will ack.

        They are ascending, the first at or beyond `next`, none left out in between.
        """
        if leased:
            assert leased[0] >= self.next, "an unread position lies at or beyond next"
            self._leased.add(leased)
            self._advance(leased[-1] + 1, len(leased))
            self._note(Op.LEASE, leased)
            self._note_head()
        if passed:
            self.pass_over(end, passed)

    def pass_over(self, position: int, count: int) -> None:
        """Settle the `count` unread positions below `position` without a lease: expired, dropped, or sent with no ack."""
        if count or position > self.next:
            self._advance(max(position, self.next), count)
            self._note(Op.PASS, (self.next, self.unread))

    def ack_plainly(self, positions: array[int]) -> int:
        """Settle leases where there are none but first ones; how many there were. -1: there are others, do it in full."""
        if self._leased_again or self._deadline_of or self._attempts or self.order is not None:
            return -1
        done = self._leased.take(positions)
        if done:
            self._note(Op.SETTLE, done)
        return len(done)

    def _advance(self, position: int, count: int) -> None:
        self.next = position
        self.head = max(self.head, position)
        self.unread = max(0, self.unread - count)

    def _note_head(self) -> None:
        if self._pending and self._pending[-1][0] is Op.HEAD:
            self._pending.pop()  # only the newest counts
        self._note(Op.HEAD, (self.head, self.unread))

    def _note(self, op: Op, arguments: Sequence[int] | tuple[int, int, int, str]) -> None:
        if self.journaled:
            self._pending.append((op, arguments))
