"""Order by key: one consumer at a time has a key, in the order of positions, and nothing is left behind."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.cursor.queue import QueueCursor


class Model:
    """Serves a cursor as a queue does: released positions first, then unread ones; keys known per position."""

    def __init__(self, keys: list[int], consumers: int, waiting_max: int) -> None:
        self.keys = dict(enumerate(keys))
        self.cursor = QueueCursor(ordered=True, journaled=True)
        assert self.cursor.order is not None
        self.order = self.cursor.order
        self.order.waiting_max = waiting_max
        self.cursor.enter(len(keys) - 1, len(keys))
        self.credit = dict.fromkeys(range(consumers), 0)
        self.held: dict[int, int] = {}  # position → consumer
        self.given: dict[int, list[int]] = defaultdict(list)  # key → positions in the order they were given first
        self.settled: set[int] = set()

    def serve(self) -> None:
        for consumer, credit in self.credit.items():
            if credit:
                self.cursor.wake_for(consumer, credit)
        if not self.cursor.released:
            self.cursor.wake_free()
        while any(self.credit.values()):
            if self.cursor.released:
                position = self.cursor.lease_released(1)[0]
                if not self._give(position):
                    self.cursor.set_aside_released(position, self.keys[position])
            elif self.cursor.unread and not self.order.full:
                position = self.cursor.next
                if self._willing(position) is None:
                    self.cursor.set_aside_unread(position, self.keys[position])
                else:
                    self.cursor.lease_many([position])
                    assert self._give(position)
            else:
                return

    def _willing(self, position: int) -> int | None:
        key = self.keys[position]
        if self.order.must_wait(key, position):
            return None
        holder = self.order.holder(key)
        return next((c for c, credit in self.credit.items() if credit and holder in (None, c)), None)

    def _give(self, position: int) -> bool:
        consumer = self._willing(position)
        if consumer is None:
            return False
        key = self.keys[position]
        others = {c for p, c in self.held.items() if self.keys[p] == key}
        assert others <= {consumer}, "another consumer has the key"
        self.credit[consumer] -= 1
        self.cursor.hold_key(position, key, consumer)
        self.held[position] = consumer
        if position not in self.given[key]:
            assert not self.given[key] or position > max(self.given[key]), "overtaken"
            self.given[key].append(position)
        return True

    def end(self, position: int, *, acked: bool) -> None:
        del self.held[position]
        if acked:
            self.cursor.ack_many([position])
            self.settled.add(position)
        else:
            self.cursor.release([position], 0)

    def drop_first_released(self) -> None:
        """As an expired one does: it leaves without having been anybody's."""
        self.settled.update(self.cursor.drop_released(1))

    def check_state(self) -> None:
        again = QueueCursor()
        again.apply(self.cursor.snapshot())
        again.recover(0)
        ready = again.ready
        assert ready == self.cursor.ready + self.cursor.leased
        assert again.floor == self.cursor.floor


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 1 << 32),
)
def test_no_two_consumers_have_a_key_and_everything_is_settled_in_the_end(
    keys: list[int], consumers: int, waiting_max: int, seed: int
) -> None:
    model, rng = Model(keys, consumers, waiting_max), random.Random(seed)
    for _ in range(5_000):
        if len(model.settled) == len(keys):
            break
        for consumer in model.credit:
            model.credit[consumer] = rng.randint(0, 3)
        model.serve()
        assert model.order.waiting <= waiting_max + len(model.held) + 64
        for position in list(model.held):
            if rng.random() < 0.6:
                model.end(position, acked=rng.random() < 0.8)
        if rng.random() < 0.1:
            model.drop_first_released()
        model.check_state()
    assert len(model.settled) == len(keys)
    assert (model.cursor.ready, model.cursor.leased, model.order.waiting) == (0, 0, 0)
    assert not model.order._free
    assert not model.order._keys and not model.order._waits_for and not model.order._key_of


def test_what_waits_is_ready_purged_and_released_after_a_crash() -> None:
    cursor = QueueCursor(ordered=True, journaled=True)
    cursor.enter(2, 3)
    cursor.lease_many([0])
    cursor.hold_key(0, 7, "a")
    cursor.set_aside_unread(1, 7)
    assert (cursor.ready, cursor.waiting, cursor.unread, cursor.floor) == (2, 1, 1, 0)
    again = QueueCursor()
    again.apply(cursor.changes() or b"")
    assert again.released_positions() == [1]
    assert cursor.wake_for("b", 5) == 0
    assert cursor.wake_for("a", 5) == 1
    assert cursor.lease_released(1) == [1]
    cursor.set_aside_released(1, 7)
    cursor.ack_many([0])
    assert (cursor.released_positions(), cursor.waiting) == ([1], 0)
    cursor.purge()
    assert cursor.ready == 0
