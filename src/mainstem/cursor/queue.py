"""The queue cursor: competing consumers over one stream of positions. Pure: no log, no socket, time is an argument.

A position is an int that only grows (a record's stamp). Where one position stands:

            enter            lease                 ack
    (not yet) ───▶ unread ─────────▶ leased ──────────────────▶ settled
                     │                │  ▲                        ▲
                     │          release  │ lease_released         │ drop
                     │         (expire)  │                        │
                     │                ▼  │        due             │
                     │             released ◀──────── delayed     │
                     │                │ ▲                         │
                     │     deliveries │ │ redrive                 │
                     │        used up ▼ │                         │
                     └── pass_over   dead ────────────────────────┘

Unread positions are not stored: they are those at or beyond `next`, `unread` of them below `head`. Below `next` only
the exceptions are stored (leased, released, delayed, dead); every other position there is settled. So the state is one
position plus exceptions, limited by their number and not by the span they lie in: a task held for hours holds one entry.

With `ordered` records of one key go to one consumer at a time (see key_order.py): then leases name key and holder, and
positions whose key another consumer holds are set aside. To everybody else, and to the journal, these are released ones.

Every delivery that does not end in an ack counts as one attempt, however it came back. Who holds a lease is the
business of the queue above; the cursor ignores settling of positions that are not leased.

Leases are journaled with the acks or a moment later, never waited for: of a broker that was killed the newest are not
known. So whatever lay below the head then is `doubtful`: it may have been delivered before, without a count.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain

from mainstem.cursor.key_order import KeyOrder
from mainstem.cursor.queue_journal import Op
from mainstem.cursor.queue_places import Dead, QueuePlaces

EXCEPTIONS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of leases that ended without an ack."""

    released: list[int]
    dead: list[int]


class QueueCursor(QueuePlaces):
    """See the file's head. `deliveries_max` = 0: a record may come back for ever."""

    def __init__(
        self,
        start: int = 0,
        *,
        deliveries_max: int = 0,
        exceptions_max: int = EXCEPTIONS_MAX,
        journaled: bool = False,
        ordered: bool = False,
    ) -> None:
        self.deliveries_max = deliveries_max
        super().__init__(start, exceptions_max, journaled, KeyOrder() if ordered else None)

    def next_event_ms(self) -> int | None:
        """When `expire` or `wake` will have something to do."""
        times = [heap[0][0] for heap in (self._deadlines, self._due, self._span_deadlines) if heap]
        return min(times, default=None)

    # -- unread positions

    def lease_many(self, positions: Iterable[int], deadline_ms: int = 0) -> None:
        """Hand out unread positions: ascending, the first at or beyond `next`, none left out in between."""
        leased = _packed(positions)
        self.hand_out(leased, 0, 0)
        if deadline_ms:
            self.extend(leased, deadline_ms)

    def lease_span(self, positions: array[int], deadline_ms: int) -> None:
        """`lease_many` of what a turn brought: the deadline is kept once for all of them."""
        self.hand_out(positions, 0, 0)
        heappush(self._span_deadlines, (deadline_ms, positions[0], positions[-1]))
        if len(self._span_deadlines) > 2 * len(self._leased) + 1024:  # leases that were acked leave theirs behind
            self._span_deadlines = [one for one in self._span_deadlines if self._leased.between(*one[1:])]
            heapify(self._span_deadlines)

    def delay_unread(self, position: int, due_ms: int) -> None:
        """Take the next unread position and keep it back until `due_ms`."""
        assert position >= self.next
        self._advance(position + 1, 1)
        self._delay(position, due_ms)
        self._note(Op.DELAY, (position, 0, due_ms))
        self._note_head()

    def apply_start(self, position: int) -> None:
        """Where a new cursor begins, before anything was journaled."""
        self.next = self.head = position

    def note_start(self) -> None:
        """Journal where the cursor begins: whoever applies its changes to a cursor that begins earlier needs it."""
        self._note(Op.PASS, (self.next, self.unread))

    def recount(self, unread: int) -> None:
        """The unread positions were looked at, and these are all there are."""
        self.unread = unread
        self._note_head()

    def admit(self, position: int) -> None:
        """A position that became known late, behind younger ones: it is the next to be handed out."""
        self._give_back(position)
        self._note(Op.DELAY, (position, 0, 0))

    # -- order by key

    def hold_key(self, position: int, key: int, holder: Hashable) -> None:
        """The position, just leased, has a key: until all its leases end, only this holder is given more of it."""
        assert self.order is not None
        self.order.lease(position, key, holder)

    def set_aside_unread(self, position: int, key: int) -> None:
        """Take the next unread position and keep it for the holder of its key."""
        assert self.order is not None and position >= self.next
        self._advance(position + 1, 1)
        self.order.set_aside(position, key)
        self._note(Op.DELAY, (position, 0, 0))
        self._note_head()

    def set_aside_released(self, position: int, key: int) -> None:
        """Take a position that was just leased again, and keep it for the holder of its key."""
        assert self.order is not None
        if self._unlease(position):
            self.order.set_aside(position, key)
            self._note(Op.DELAY, (position, self._attempts.get(position, 0), 0))

    def wake_for(self, holder: Hashable, count: int) -> int:
        """The holder has credit: up to `count` positions that waited for it are released; how many."""
        woken = self.order.wake_for(holder, count) if self.order is not None else []
        for position in woken:
            self._give_back(position)
        return len(woken)

    def wake_free(self) -> None:
        """Of each key that nobody holds, release the lowest that waits: the one woken before it left undelivered."""
        for position in self.order.wake_free() if self.order is not None else ():
            self._give_back(position)

    def _end_keys(self, positions: Iterable[int]) -> None:
        if self.order is None:
            return
        for position in positions:
            woken = self.order.end(position)
            if woken is not None:
                self._give_back(woken)

    # -- released positions

    def lease_released(self, count: int, deadline_ms: int = 0) -> list[int]:
        """Hand out released positions again, lowest first."""
        taken = self._take_released(count)
        self._leased_again.update(taken)
        if deadline_ms:
            self.extend(taken, deadline_ms)
        if taken:
            self._note(Op.LEASE_AGAIN, taken)
        return taken

    def drop_released(self, count: int) -> list[int]:
        """Settle the lowest released positions without delivering them (expired, over the length limit, purged)."""
        dropped = self._take_released(count)
        self._forget(dropped)
        return dropped

    def wake(self, now_ms: int) -> list[int]:
        """Move delayed positions that are due to the released ones; which."""
        woken = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, position = heappop(self._due)
            if self._delayed.get(position) == due_ms:
                del self._delayed[position]
                woken.append(position)
                self._give_back(position)
        if woken:
            self._note(Op.WAKE, woken)
        return woken

    # -- how a lease ends

    def ack_many(self, positions: Iterable[int]) -> list[int]:
        """Settle leases; those that were leased."""
        return list(self._ack(_packed(positions)))

    def ack_all(self, positions: array[int]) -> int:
        """`ack_many` of what a turn brought; how many were leased."""
        done = self.ack_plainly(positions)
        return done if done >= 0 else len(self._ack(positions))

    def _ack(self, positions: array[int]) -> array[int]:
        done = self._leased.take(positions)
        if self._leased_again and len(done) < len(positions):
            again = self._leased_again.intersection(positions)
            self._leased_again -= again
            done.extend(again)
        if self._deadline_of:
            for position in done:
                self._deadline_of.pop(position, None)
        self._end_keys(done)
        self._forget(done)
        return done

    def settle(self, positions: Iterable[int]) -> list[int]:
        """Settle positions wherever they are: leased, or given back and not yet leased again; those that were there."""
        done = [position for position in positions if self.holds(position)]
        for position in done:
            self._leave(position)
        self._end_keys(done)
        self._forget(done)
        return done

    def drop_unread(self) -> None:
        """Whoever reads on from `next` counts by itself."""
        self.unread = 0

    def ack_range(self, first: int, last: int) -> list[int]:
        """Settle every lease from `first` to `last`."""
        return self.ack_many([p for p in chain(self._leased, self._leased_again) if first <= p <= last])

    def release(self, positions: Iterable[int], now_ms: int, *, delay_ms: int = 0, counted: bool = True) -> Returned:
        """Give leases back; each counts as one attempt, and a position whose deliveries are used up is dead.

        The dead are still leased: the queue above dead-letters them (then `ack_many`) or keeps them (`bury`).
        """
        released, dead = [], []
        for position in positions:
            if not self.is_leased(position):
                continue
            attempts = self._attempts.get(position, 0) + counted
            if attempts:
                self._attempts[position] = attempts
            if self.deliveries_max and attempts >= self.deliveries_max:
                dead.append(position)
                self._note(Op.ATTEMPTS, (position, attempts))
                continue
            self._unlease(position)
            released.append(position)
            due_ms = now_ms + delay_ms if delay_ms > 0 else 0
            if due_ms:
                self._delay(position, due_ms)
            else:
                self._give_back(position)
            self._note(Op.DELAY, (position, attempts, due_ms))
        self._end_keys(released)
        return Returned(released, dead)

    def bury(self, positions: Iterable[int], reason: str, now_ms: int) -> list[int]:
        """Keep leases as dead letters in the queue's own state."""
        buried = []
        for position in positions:
            if self._unlease(position):
                letter = self.dead[position] = Dead(reason, self._attempts.pop(position, 0), now_ms)
                self._note(Op.BURY, (position, letter.attempts, letter.time_ms, letter.reason))
                buried.append(position)
        self._end_keys(buried)
        return buried

    def extend(self, positions: Iterable[int], deadline_ms: int) -> int:
        """Move the deadline of leases; how many there were."""
        extended = 0
        for position in positions:
            if self.is_leased(position):
                self._deadline_of[position] = deadline_ms
                heappush(self._deadlines, (deadline_ms, position))
                extended += 1
        return extended

    def expire(self, now_ms: int) -> Returned:
        """Release the leases whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, position = heappop(self._deadlines)
            if self._deadline_of.get(position) == deadline_ms:
                expired.append(position)
        while self._span_deadlines and self._span_deadlines[0][0] <= now_ms:
            _, first, last = heappop(self._span_deadlines)
            expired += [p for p in self._leased.between(first, last) if p not in self._deadline_of]
        if len(self._deadlines) > 2 * len(self._deadline_of) + 1024:  # leases that were acked leave theirs behind
            self._deadlines = [(d, p) for p, d in self._deadline_of.items()]
            heapify(self._deadlines)
        return self.release(expired, now_ms)

    # -- dead letters and purging

    def redrive(self, positions: Iterable[int] | None = None) -> list[int]:
        """Dead letters become deliverable again, their attempts forgotten."""
        back = sorted(self.dead if positions is None else (p for p in positions if p in self.dead))
        for position in back:
            del self.dead[position]
            self._give_back(position)
        if back:
            self._note(Op.REDRIVE, back)
        return back

    def drop_dead(self, positions: Iterable[int] | None = None) -> list[int]:
        """Forget dead letters for good."""
        dropped = sorted(self.dead if positions is None else (p for p in positions if p in self.dead))
        for position in dropped:
            del self.dead[position]
        self._forget(dropped)
        return dropped

    def purge(self, head: int | None = None) -> int:
        """Settle everything that is ready; leases stay. How many were ready."""
        count = self.ready
        if self.order is not None:
            self._forget(self.order.forget_waiting())
        self._forget(list(self._released))
        self._released.clear()
        self._is_released.clear()
        self.pass_over(max(self.head, head or 0), self.unread)
        return count

    # -- a start

    def recover(self, now_ms: int) -> Returned:
        """After the journal is applied: nobody holds a lease any more, each was one attempt."""
        return self.release(self.lease_positions(), now_ms)


def _packed(positions: Iterable[int]) -> array[int]:
    return positions if isinstance(positions, array) else array("q", positions)
