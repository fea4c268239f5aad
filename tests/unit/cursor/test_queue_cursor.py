"""The queue cursor alone: every way a position can go, and that its journal repeats it exactly."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.cursor.queue import QueueCursor
from mainstem.cursor.queue_journal import Op, decode_change, encode_change
from mainstem.model.errors import CorruptFrame


def cursor_with(count: int, *, first: int = 10, step: int = 1, **options: int | bool) -> QueueCursor:
    cursor = QueueCursor(**options)  # type: ignore[arg-type]
    for index in range(count):
        cursor.enter(first + index * step)
    return cursor


def test_unread_positions_are_counted_not_stored() -> None:
    cursor = QueueCursor()
    cursor.enter(1_000_000, 1_000_000)
    assert (cursor.unread, cursor.ready, cursor.floor, cursor.room) == (1_000_000, 1_000_000, 0, 1_000_000)


def test_acking_in_order_moves_the_floor() -> None:
    cursor = cursor_with(3)
    cursor.lease_many([10, 11, 12])
    assert (cursor.floor, cursor.leased, cursor.unread) == (10, 3, 0)
    assert cursor.ack_many([10, 11]) == [10, 11]
    assert (cursor.floor, cursor.leased) == (12, 1)
    cursor.ack_many([12])
    assert cursor.floor == cursor.next == 13


def test_one_held_lease_costs_one_entry_however_many_are_acked_after_it() -> None:
    cursor = QueueCursor(exceptions_max=10)
    for position in range(1, 1001):
        cursor.enter(position)
        cursor.lease_many([position])
        if position > 1:
            cursor.ack_many([position])
    assert (cursor.floor, cursor.leased, cursor.room) == (1, 1, 9)
    assert len(cursor.snapshot()) < 40


def test_released_positions_come_back_lowest_first_and_count_an_attempt() -> None:
    cursor = cursor_with(4)
    cursor.lease_many([10, 11, 12, 13])
    cursor.release([13, 11], now_ms=0)
    assert cursor.released == 2
    assert cursor.lease_released(5) == [11, 13]
    assert (cursor.attempts(11), cursor.attempts(10)) == (1, 0)
    cursor.ack_many([11])
    assert cursor.attempts(11) == 0
    assert cursor.floor == 10


def test_a_release_may_be_delayed() -> None:
    cursor = cursor_with(1)
    cursor.lease_many([10])
    cursor.release([10], now_ms=1000, delay_ms=500)
    assert (cursor.released, cursor.delayed, cursor.next_event_ms(), cursor.floor) == (0, 1, 1500, 10)
    assert cursor.wake(1499) == []
    assert cursor.wake(1500) == [10]
    assert cursor.lease_released(1) == [10]


def test_a_lease_expires_unless_it_is_extended() -> None:
    cursor = cursor_with(2)
    cursor.lease_many([10, 11], deadline_ms=100)
    assert cursor.extend([11, 99], 200) == 1
    assert cursor.expire(100).released == [10]
    assert cursor.expire(150).released == []
    assert cursor.expire(200).released == [11]
    assert cursor.attempts(11) == 1


def test_leases_of_one_turn_have_one_deadline_but_those_that_were_extended() -> None:
    cursor = cursor_with(4)
    cursor.lease_span(array("q", [10, 11, 12, 13]), 100)
    assert cursor.next_event_ms() == 100
    cursor.ack_many([11])
    cursor.extend([12], 200)
    assert cursor.expire(99).released == []
    assert cursor.expire(100).released == [10, 13]
    assert cursor.lease_released(2, 300) == [10, 13]
    assert cursor.next_event_ms() == 200
    assert (cursor.expire(200).released, cursor.expire(300).released) == ([12], [10, 13])


def test_deadlines_of_turns_that_are_acked_do_not_pile_up() -> None:
    cursor = cursor_with(1)
    for position in range(11, 5_000):
        cursor.enter(position, 1)
        cursor.lease_span(array("q", [position]), 1_000_000)
        cursor.ack_many([position])
    assert len(cursor._span_deadlines) < 1_100


def test_a_late_ack_of_an_expired_lease_changes_nothing() -> None:
    cursor = cursor_with(1)
    cursor.lease_many([10], deadline_ms=100)
    cursor.expire(100)
    assert cursor.ack_many([10]) == []
    assert cursor.released == 1


def test_used_up_deliveries_are_reported_dead_and_can_be_kept_and_redriven() -> None:
    cursor = cursor_with(1, deliveries_max=2)
    cursor.lease_many([10])
    assert cursor.release([10], 0).released == [10]
    assert cursor.lease_released(1) == [10]
    assert cursor.release([10], 0).dead == [10]
    assert cursor.bury([10], "delivery_limit", 77) == [10]
    assert (cursor.dead[10].reason, cursor.dead[10].attempts, cursor.dead[10].time_ms) == ("delivery_limit", 2, 77)
    assert (cursor.leased, cursor.ready, cursor.floor) == (0, 0, 10)
    assert cursor.redrive() == [10]
    assert (cursor.attempts(10), cursor.ready) == (0, 1)


def test_a_release_without_fault_counts_no_attempt() -> None:
    cursor = cursor_with(1, deliveries_max=1)
    cursor.lease_many([10])
    assert cursor.release([10], 0, counted=False).released == [10]
    assert cursor.attempts(10) == 0


def test_purge_leaves_leases_and_dead_letters() -> None:
    cursor = cursor_with(5)
    cursor.lease_many([10, 11, 12])
    cursor.bury([10], "rejected", 0)
    cursor.release([11], 0)
    assert cursor.purge() == 3
    assert (cursor.ready, cursor.leased, len(cursor.dead), cursor.next) == (0, 1, 1, 15)
    cursor.ack_many([12])
    assert cursor.floor == 10
    assert cursor.drop_dead() == [10]
    assert cursor.floor == 15


def test_ack_range_settles_all_leases_in_it() -> None:
    cursor = cursor_with(5)
    cursor.lease_many([10, 11, 12, 13])
    cursor.release([11], 0)
    cursor.lease_released(1)
    assert sorted(cursor.ack_range(10, 12)) == [10, 11, 12]
    assert cursor.leased == 1


def test_recovery_gives_leases_back_with_an_attempt() -> None:
    cursor = cursor_with(2, journaled=True)
    cursor.lease_many([10, 11])
    cursor.ack_many([10])
    again = QueueCursor()
    again.apply(cursor.changes() or b"")
    assert again.recover(0).released == [11]
    assert (again.attempts(11), again.ready, again.floor) == (1, 1, 11)


def test_a_doubt_is_kept_until_everything_below_it_is_settled() -> None:
    cursor = cursor_with(3, journaled=True)
    cursor.doubt(12)
    for change in (cursor.changes(), cursor.snapshot()):
        replica = QueueCursor(10)
        replica.apply(change or b"")
        assert replica.doubtful == 12
    cursor.lease_many([10, 11, 12])
    cursor.ack_many([10, 11])
    restored = QueueCursor()
    restored.apply(cursor.snapshot())
    assert restored.doubtful == 0


def test_a_dense_batch_costs_a_few_bytes_of_journal() -> None:
    cursor = QueueCursor(journaled=True)
    positions = list(range(1_763_000_000_000_000_000, 1_763_000_000_000_010_000))
    cursor.enter(positions[-1], len(positions))
    cursor.lease_many(positions)
    cursor.ack_many(positions)
    assert len(cursor.changes() or b"") < 48


def test_a_journal_of_another_version_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="version"):
        QueueCursor().apply(b"\x07")


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50, unique=True))
def test_run_lists_round_trip(positions: list[int]) -> None:
    assert list(decode_change(encode_change([(Op.SETTLE, positions)]))) == [(Op.SETTLE, sorted(positions))]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_journal_repeats_any_history_exactly(seed: int) -> None:
    rng = random.Random(seed)
    original = QueueCursor(5, deliveries_max=rng.choice([0, 3]), journaled=True)
    replica = QueueCursor(5, deliveries_max=original.deliveries_max)
    position, now_ms, unread = 5, 0, []  # type: tuple[int, int, list[int]]
    for _ in range(120):
        now_ms += rng.randrange(50)
        leases = original.lease_positions()
        some = rng.sample(leases, rng.randint(0, len(leases)))
        match rng.randrange(10):
            case 0 | 1 | 2:
                for _ in range(rng.randint(1, 5)):
                    position += rng.choice([1, 1, 1, 7, 1000])
                    unread.append(position)
                    original.enter(position)
            case 3 | 4:
                count = rng.randint(0, len(unread))
                original.lease_many(unread[:count], rng.choice([0, now_ms + 60]))
                del unread[:count]
            case 5:
                original.ack_many(some)
            case 6:
                returned = original.release(some, now_ms, delay_ms=rng.choice([0, 0, 80]))
                original.bury(returned.dead, "delivery_limit", now_ms)
            case 7:
                original.lease_released(rng.randint(0, 3), rng.choice([0, now_ms + 60]))
            case 8:
                original.wake(now_ms)
                original.bury(original.expire(now_ms).dead, "expired", now_ms)
            case 9:
                action = rng.randrange(5)
                if action == 0:
                    original.redrive()
                elif action == 1:
                    original.drop_dead()
                elif action == 2:
                    original.purge()
                    unread.clear()
                elif action == 3 and unread:
                    original.pass_over(unread[0] + 1, 1)
                    del unread[0]
                elif unread:
                    original.delay_unread(unread.pop(0), now_ms + 40)
        if rng.random() < 0.05:  # a snapshot may already hold what is journaled after it
            replica = QueueCursor()
            replica.apply(original.snapshot())
        if rng.random() < 0.3 and (change := original.changes()):
            replica.apply(change)
            assert replica.snapshot() == original.snapshot()
            assert (replica.ready, replica.floor, replica.leased) == (original.ready, original.floor, original.leased)
            assert original.unread == len(unread)
    restored = QueueCursor()
    restored.apply(original.snapshot())
    assert restored.snapshot() == original.snapshot()
