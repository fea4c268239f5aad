"""Producer state: repeats, gaps, transactions, and what a restart makes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mainstem.broker.transactions.producers import BATCHES_KEPT, PartitionProducers, Verdict, join


def head(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, transactional: bool = False) -> Any:
    return SimpleNamespace(
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        transactional=transactional,
    )


def filled(batches: int = 3) -> PartitionProducers:
    state = PartitionProducers()
    for n in range(batches):
        state.add(head(n * 2, 2), n * 2, n * 2 + 2, 0)
    return state


def test_the_last_five_batches_are_recognised() -> None:
    state = filled(8)
    for n in range(8 - BATCHES_KEPT, 8):
        verdict, sent = state.check(head(n * 2, 2))
        assert verdict is Verdict.DUPLICATE
        assert sent is not None
        assert sent.base_offset == n * 2
    assert state.check(head(0, 2))[0] is Verdict.OUT_OF_ORDER


def test_state_survives_packing() -> None:
    state = filled()
    state.add(head(6, transactional=True), 6, 7, 0)
    state.end_transaction(9, 1, commit=False, offset=7, now_ms=0)
    again = PartitionProducers.unpack(state.pack())
    assert again.pack() == state.pack()
    assert again.open == {7: 6}
    assert again.check(head(4, 2))[0] is Verdict.DUPLICATE


def test_what_a_power_cut_took_is_not_called_a_repeat() -> None:
    state = filled(3)
    state.drop_from(4)  # the third batch was never durable
    assert state.check(head(4, 2))[0] is Verdict.APPEND
    assert state.check(head(2, 2))[0] is Verdict.DUPLICATE


def test_a_write_that_failed_may_be_tried_again() -> None:
    state = filled(2)
    lost = head(4, 2)
    state.add(lost, 4, 6, 0)
    state.undo(lost, 4)
    assert state.check(lost)[0] is Verdict.APPEND


def test_open_transactions_hold_back_readers_of_committed_records() -> None:
    state = PartitionProducers()
    state.add(head(0, producer=1, transactional=True), 10, 11, 0)
    state.add(head(0, producer=2, transactional=True), 11, 12, 0)
    assert state.stable_end(20) == 10
    state.end_transaction(1, 0, commit=False, offset=12, now_ms=0)
    assert state.stable_end(20) == 11
    state.end_transaction(2, 0, commit=True, offset=13, now_ms=0)
    assert state.stable_end(20) == 20
    assert [(a.producer_id, a.first_offset) for a in state.aborted_in(0, 20)] == [(1, 10)]
    assert state.aborted_in(13, 20) == []


def test_a_marker_fences_the_epoch_it_ends() -> None:
    state = PartitionProducers()
    state.add(head(0, epoch=3, transactional=True), 0, 1, 0)
    state.end_transaction(7, 4, commit=True, offset=1, now_ms=0)
    assert state.check(head(1, epoch=3))[0] is Verdict.FENCED
    assert state.check(head(0, epoch=4))[0] is Verdict.APPEND


def test_idle_producers_expire_but_not_inside_a_transaction() -> None:
    state = PartitionProducers()
    state.add(head(0, producer=1), 0, 1, 0)
    state.add(head(0, producer=2, transactional=True), 1, 2, 0)
    state.trim(0, 48 * 3_600_000)
    assert set(state.producers) == {2}


def test_a_producer_goes_on_in_the_log_that_its_topic_moved_to_and_back() -> None:
    stem, own = filled(3), PartitionProducers()  # sequences 0 to 5 at offsets 0 to 5
    own.take_over(stem)
    own.add(head(6, 2), 10, 12, 0)
    stem.take_over(own)
    assert stem.check(head(6, 2)) == (Verdict.DUPLICATE, stem.producers[7].sent[-1])
    assert stem.check(head(8, 2))[0] is Verdict.APPEND
    assert stem.check(head(2, 2))[0] is Verdict.DUPLICATE
    assert PartitionProducers.unpack(own.pack()).producers == {}, "they are kept where the partition goes on"
    own.undo(head(6, 2), 10)
    assert stem.check(head(6, 2))[0] is Verdict.APPEND


def test_of_two_epochs_of_a_producer_the_newer_one_counts() -> None:
    old, new = filled(2), PartitionProducers()
    new.add(head(0, epoch=1), 20, 21, 0)
    assert join(old.producers, new.producers)[7].epoch == 1
    assert join(new.producers, old.producers)[7].sent == new.producers[7].sent
