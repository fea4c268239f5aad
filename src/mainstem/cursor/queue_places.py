"""Where each position of a queue stands, what can be asked of it, and how it is written down.

`QueueCursor` (queue.py) decides which position moves where; this is what it moves them in. Applying the changes of one
cursor to a new one gives an equal one: that is what a journal and a snapshot are made of.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain

from mainstem.cursor.queue_core import QueueCore
from mainstem.cursor.queue_journal import Change, Op, decode_change, encode_change


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter that stays in the queue's state: why, when and after how many attempts."""

    reason: str
    attempts: int
    time_ms: int


class QueuePlaces(QueueCore):
    """Unread, leased, released, delayed or dead; whatever lies below `next` and is none of these is settled."""

    estimated: bool  # whether `unread` is only known not to be too low
    doubtful: int  # what lies below it may have been delivered by a run that did not say so

    def _reset(self, start: int) -> None:
        super()._reset(start)
        self._is_released: set[int] = set()  # what `_released` holds
        self._span_deadlines: list[
            tuple[int, int, int]
        ] = []  # of first leases that have none of their own: ms, first, last
        self.estimated = False  # whether `unread` is only known not to be too low
        self.doubtful = 0  # what lies below it may have been delivered by a run that did not say so

    @property
    def leased(self) -> int:
        return len(self._leased) + len(self._leased_again)

    @property
    def released(self) -> int:
        return len(self._released)

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def floor(self) -> int:
        """Everything below is settled: what a retention pass may drop as far as this queue is concerned."""
        floor = self.next
        lowest = self._leased.lowest
        if lowest is not None:
            floor = min(floor, lowest)
        if self._released:
            floor = min(floor, self._released[0])
        waiting = self.order.waiting_positions() if self.order is not None else ()
        return min(chain((floor,), self._leased_again, self._delayed, self.dead, waiting))

    @property
    def unread_span(self) -> tuple[int, int, int]:
        """The unread positions lie from the first on and below the second; how many there are."""
        return self.next, self.head, self.unread

    def attempts(self, position: int) -> int:
        """How many deliveries of it have failed so far."""
        return self._attempts.get(position, 0)

    def attempted(self) -> list[int]:
        """Those of which a delivery has failed."""
        return list(self._attempts)

    def is_leased(self, position: int) -> bool:
        return position in self._leased or position in self._leased_again

    def lease_positions(self) -> list[int]:
        return sorted(chain(self._leased, self._leased_again))

    def released_first(self) -> int | None:
        """The position that `lease_released` would give first."""
        return self._released[0] if self._released else None

    def released_positions(self) -> list[int]:
        return sorted(self._released)

    def holds(self, position: int) -> bool:
        """Whether it was handed out and is not settled."""
        return self.is_leased(position) or position in self._is_released or position in self._delayed

    # -- journal: see queue_journal.py for the bytes

    def changes(self) -> bytes | None:
        """What happened since the last call, or None. Applying all changes in order gives an equal cursor."""
        if not self._pending:
            return None
        pending, self._pending = self._pending, []
        return encode_change(pending)

    def snapshot(self) -> bytes:
        """The whole state as one change, to be applied to a new cursor."""
        state: list[Change] = [(Op.RESET, (self.next, self.head, self.unread))]
        waiting = self.order.waiting_positions() if self.order is not None else ()
        for op, positions in (
            (Op.RESTORE_LEASED, self.lease_positions()),
            (Op.RESTORE_RELEASED, sorted(chain(self._released, waiting))),
        ):
            if positions:
                state.append((op, positions))
        state.extend((Op.DELAY, (p, self._attempts.get(p, 0), due)) for p, due in sorted(self._delayed.items()))
        state.extend((Op.BURY, (p, d.attempts, d.time_ms, d.reason)) for p, d in sorted(self.dead.items()))
        if self.doubtful > self.floor:
            state.append((Op.DOUBT, (self.doubtful,)))
        if self.estimated:
            state.append((Op.ESTIMATED, (1,)))
        state.extend((Op.ATTEMPTS, (p, count)) for p, count in sorted(self._attempts.items()) if p not in self._delayed)
        return encode_change(state)

    def apply(self, change: bytes) -> None:
        """Repeat a change of a journal or take over a snapshot."""
        for op, arguments in decode_change(change):
            self._apply(op, arguments)

    def estimate(self, estimated: bool) -> None:
        if estimated != self.estimated:
            self.estimated = estimated
            self._note(Op.ESTIMATED, (int(estimated),))

    def doubt(self, position: int) -> None:
        """The run before did not end well: what lies below, and is not settled, may have been delivered."""
        if position > self.doubtful:
            self.doubtful = position
            self._note(Op.DOUBT, (position,))

    def _apply(self, op: Op, a: Sequence[int] | tuple[int, int, int, str]) -> None:
        """Repeating an op whose effect is there already changes nothing: a snapshot may hold what is journaled after it."""
        match op:
            case Op.RESET:
                self._reset(int(a[0]))
                self.head, self.unread = int(a[1]), int(a[2])
            case Op.HEAD:
                self.head, self.unread = max(self.head, int(a[0])), int(a[1])
            case Op.PASS:
                self.next, self.unread = max(self.next, int(a[0])), int(a[1])
                self.head = max(self.head, self.next)
            case Op.LEASE:
                self._leased.add(array("q", [int(p) for p in a if int(p) >= self.next]))
                self.next = max(self.next, int(a[-1]) + 1)
                self.head = max(self.head, self.next)
            case Op.RESTORE_LEASED:
                self._leased.add(array("q", [int(p) for p in a]))
            case Op.RESTORE_RELEASED:
                for position in a:
                    self._give_back(int(position))
            case Op.LEASE_AGAIN | Op.WAKE | Op.REDRIVE | Op.SETTLE:
                self._apply_moves(op, {int(p) for p in a})
            case Op.DELAY:
                self._apply_return(int(a[0]), int(a[1]), int(a[2]))
            case Op.BURY:
                self._leave(int(a[0]))
                self._attempts.pop(int(a[0]), None)
                self.dead[int(a[0])] = Dead(str(a[3]), int(a[1]), int(a[2]))
            case Op.ATTEMPTS:
                self._attempts[int(a[0])] = int(a[1])
            case Op.DOUBT:
                self.doubtful = max(self.doubtful, int(a[0]))
            case Op.ESTIMATED:
                self.estimated = bool(a[0])

    def _apply_moves(self, op: Op, positions: set[int]) -> None:
        if op is Op.WAKE or op is Op.REDRIVE:
            holder: dict[int, int] | dict[int, Dead] = self._delayed if op is Op.WAKE else self.dead
            for position in positions & holder.keys():
                del holder[position]
                self._give_back(position)
            return
        if op is Op.LEASE_AGAIN:
            positions &= self._is_released
            self._leased_again |= positions
        else:
            for position in positions:
                self._unlease(position)
                self._attempts.pop(position, None)
                self.dead.pop(position, None)
        if positions & self._is_released:
            self._is_released -= positions
            self._released = sorted(self._is_released)

    def _apply_return(self, position: int, attempts: int, due_ms: int) -> None:
        self._leave(position)
        if position >= self.next:
            self.next = position + 1
            self.head = max(self.head, self.next)
        if attempts:
            self._attempts[position] = attempts
        if due_ms:
            self._delay(position, due_ms)
        else:
            self._give_back(position)

    # -- the moves everything is made of

    def _leave(self, position: int) -> None:
        """Wherever it is."""
        self._unlease(position)
        self._delayed.pop(position, None)
        if position in self._is_released:
            self._is_released.discard(position)
            self._released = sorted(self._is_released)

    def _give_back(self, position: int) -> None:
        if position not in self._is_released:
            self._is_released.add(position)
            heappush(self._released, position)

    def _take_released(self, count: int) -> list[int]:
        taken = [heappop(self._released) for _ in range(min(count, len(self._released)))]
        self._is_released.difference_update(taken)
        return taken

    def _delay(self, position: int, due_ms: int) -> None:
        self._delayed[position] = due_ms
        heappush(self._due, (due_ms, position))

    def _unlease(self, position: int) -> bool:
        if not self._leased.discard(position):
            if position not in self._leased_again:
                return False
            self._leased_again.remove(position)
        self._deadline_of.pop(position, None)
        return True

    def _forget(self, positions: Sequence[int]) -> None:
        if not positions:
            return
        if self._attempts:
            for position in positions:
                self._attempts.pop(position, None)
        self._note(Op.SETTLE, positions)
