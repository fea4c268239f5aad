"""The transaction coordinator: what a crash between any two steps leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from mainstem.broker.groups.registry import Commit, Groups
from mainstem.broker.transactions.transactions import (
    MarkersOf,
    Transaction,
    TransactionFault,
    Transactions,
    TransactionState,
)
from mainstem.log.gather import Ticket
from tests.unit.protocols.kafka.journals import MemoryJournal

AT = ("/\x01t", 0)


class World:
    """Logs that are synced at once, or when told; markers as they were written."""

    def __init__(self) -> None:
        self.markers: list[tuple[int, int, bool]] = []
        self.syncing: list[Callable[[], None]] = []
        self.ids = 1_000
        self.unsynced: list[Any] = []  # tickets of markers
        self.lost: set[int] = set()  # offsets that a power cut took
        self.marked: set[tuple[str, int]] = set()  # partitions where the producer has written since the decision

    def sync_logs(self, partitions: set[tuple[str, int]], done: Callable[[], None]) -> None:
        self.syncing.append(done)

    def write_markers(self, transaction: Transaction, *, commit: bool) -> dict[tuple[str, int], Any]:
        self.markers += [(transaction.marker_producer_id, transaction.marker_epoch, commit)] * len(
            transaction.partitions
        )
        made = {at: Ticket(SimpleNamespace(id=5)) for at in transaction.partitions}  # type: ignore[arg-type]
        for ticket in made.values():
            ticket.base_offset = ticket.stamp = len(self.markers)
        self.unsynced += made.values()
        return made

    def is_marked(self, at: tuple[str, int], transaction: Transaction) -> bool:
        return transaction.decided_stamp == 7 and at in self.marked

    def write_marker_again(self, at: tuple[str, int], log_id: int, offset: int, end: MarkersOf) -> Any:
        if offset not in self.lost:
            return None
        self.markers.append((end.producer_id, end.epoch, end.commit))
        ticket = Ticket(SimpleNamespace(id=log_id))  # type: ignore[arg-type]
        ticket.base_offset = ticket.stamp = 100 + len(self.markers)
        self.unsynced.append(ticket)
        return ticket

    def next_producer_id(self) -> int:
        self.ids += 1
        return self.ids

    def next_stamp(self) -> int:
        return 7

    def sync(self) -> None:
        waiting, self.syncing = self.syncing, []
        for done in waiting:
            done()


class Coordinator:
    def __init__(self, *, holding: bool = False) -> None:
        self.journal, self.world = MemoryJournal(holding=holding), World()
        self.groups = Groups(self.journal, lambda: "id")
        self.transactions = Transactions(
            self.journal, self.world, lambda pid, commit: self.groups.finish_transaction(pid, commit=commit)
        )
        self.answers: list[tuple[Any, ...]] = []

    def initialise(self, name: str = "t", producer_id: int = -1, epoch: int = -1) -> tuple[int, int]:
        self.transactions.initialise(name, 60_000, producer_id, epoch, 0, lambda *a: self.answers.append(a))
        assert self.answers[-1][0] is TransactionFault.NONE
        return self.answers[-1][1], self.answers[-1][2]

    def begin(self) -> tuple[int, int]:
        who = self.initialise()
        assert self.transactions.add("t", *who, 0, partitions=[AT])[0] is TransactionFault.NONE
        self.transactions.add("t", *who, 0, group="g")
        self.groups.commit_pending(who[0], "g", {("t", 0): Commit(7)})
        return who

    def end(self, who: tuple[int, int], *, commit: bool = True, bump: bool = False) -> list[tuple[Any, ...]]:
        replies: list[tuple[Any, ...]] = []
        self.transactions.end("t", *who, 0, commit=commit, bump=bump, reply=lambda *a: replies.append(a))
        return replies


def restarted(
    crashed: Coordinator, entries: int | None = None, *, marked: Iterable[tuple[str, int]] = ()
) -> Coordinator:
    again = Coordinator()
    again.world.marked.update(marked)
    crashed.journal.replay_into(again.journal, entries)
    again.transactions.roll_forward()
    return again


def test_a_commit_waits_for_the_logs_and_then_for_its_decision() -> None:
    one = Coordinator(holding=True)
    who = one.begin()
    one.journal.settle()
    replies = one.end(who)
    assert not replies
    one.world.sync()
    assert not replies, "the decision is not yet durable"
    assert not one.world.markers
    one.journal.settle()
    assert replies == [(TransactionFault.NONE, *who)]
    assert one.world.markers == [(*who, True)]
    assert one.groups.offset("g", ("t", 0)) == Commit(7)


def test_a_crash_before_the_decision_leaves_the_transaction_open() -> None:
    one = Coordinator(holding=True)
    who = one.begin()
    before = len(one.journal.entries)
    one.end(who)
    again = restarted(one, before)
    assert again.transactions.by_id["t"].state is TransactionState.ONGOING
    assert again.groups.offset("g", ("t", 0)) is None
    assert not again.world.markers


@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_after_the_decision_is_rolled_forward(commit: bool) -> None:
    one = Coordinator()
    who = one.begin()
    before = len(one.journal.entries)
    one.end(who, commit=commit)
    one.world.sync()
    again = restarted(one, before + 1)  # the decision, without the note that it is done
    assert again.world.markers == [(*who, commit)]
    assert (again.groups.offset("g", ("t", 0)) is not None) == commit
    assert again.transactions.by_id["t"].state.startswith("Complete")


def test_a_decision_whose_marker_is_followed_by_the_next_transaction_gets_no_second_one() -> None:
    one = Coordinator()
    who = one.begin()
    before = len(one.journal.entries)
    one.end(who)
    one.world.sync()
    again = restarted(one, before + 1, marked=[AT])
    assert not again.world.markers  # it would end what the producer has begun since
    assert again.groups.offset("g", ("t", 0)) is not None
    assert again.transactions.by_id["t"].state.startswith("Complete")


def test_a_snapshot_never_tells_of_a_decision_that_was_not_made() -> None:
    one = Coordinator()
    who = one.begin()
    one.end(who)  # the logs are not synced yet
    again = Coordinator()
    one.journal.snapshot_into(again.journal)
    again.transactions.roll_forward()
    assert not again.world.markers
    assert again.transactions.by_id["t"].state is TransactionState.ONGOING


def test_initialising_aborts_what_is_open_and_fences_its_writer() -> None:
    one = Coordinator()
    who = one.begin()
    one.transactions.initialise("t", 60_000, -1, -1, 0, lambda *a: one.answers.append(a))
    assert len(one.answers) == 1, "it waits for the abort"
    one.world.sync()
    fault, producer_id, epoch, _ = one.answers[-1]
    assert (fault, producer_id) == (TransactionFault.NONE, who[0])
    assert epoch > who[1]
    assert one.world.markers == [(who[0], who[1] + 1, False)]
    assert one.transactions.check("t", *who) is TransactionFault.PRODUCER_FENCED


def test_a_transaction_past_its_time_is_aborted() -> None:
    one = Coordinator()
    who = one.begin()
    one.transactions.tick(59_999)
    assert one.transactions.by_id["t"].state is TransactionState.ONGOING
    one.transactions.tick(60_000)
    one.world.sync()
    assert one.world.markers == [(who[0], who[1] + 1, False)]


def test_while_it_ends_nothing_joins() -> None:
    one = Coordinator()
    who = one.begin()
    one.end(who)
    fault, _ = one.transactions.add("t", *who, 0, partitions=[("/\x01u", 0)])
    assert fault is TransactionFault.CONCURRENT_TRANSACTIONS


def test_epochs_end_and_a_new_producer_id_begins() -> None:
    one = Coordinator()
    who = one.begin()
    one.transactions.by_id["t"].epoch = 32_766
    replies = one.end((who[0], 32_766), bump=True)
    one.world.sync()
    (fault, producer_id, epoch) = replies[0]
    assert (fault, epoch) == (TransactionFault.NONE, 0)
    assert producer_id != who[0]
    assert one.world.markers == [(who[0], 32_766, True)]


def test_ending_what_never_began_is_an_error() -> None:
    one = Coordinator()
    who = one.initialise()
    assert one.end(who)[0][0] is TransactionFault.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_is_repeated_too_early_is_told_to_wait_and_the_other_end_is_refused(commit: bool) -> None:
    one = Coordinator()
    who = one.begin()
    one.end(who, commit=commit, bump=True)
    assert one.end(who, commit=commit, bump=True) == [(TransactionFault.CONCURRENT_TRANSACTIONS, -1, -1)]
    one.world.sync()
    assert one.end(who, commit=commit, bump=True) == [(TransactionFault.NONE, who[0], who[1] + 1)]
    assert one.end(who, commit=not commit, bump=True) == [(TransactionFault.INVALID_TXN_STATE, -1, -1)]


def test_the_abort_of_nothing_can_be_repeated_after_a_commit() -> None:
    one = Coordinator()
    who = one.begin()
    one.end(who, bump=True)
    one.world.sync()
    who = (who[0], who[1] + 1)
    for _ in range(2):
        assert one.end(who, commit=False, bump=True) == [(TransactionFault.NONE, who[0], who[1] + 1)]


def test_a_producer_whose_time_was_up_may_abort_and_begin_anew_until_another_took_its_id() -> None:
    one = Coordinator()
    who = one.begin()
    one.transactions.tick(60_000)
    one.world.sync()
    assert one.world.markers == [(who[0], who[1] + 1, False)]
    assert one.transactions.add("t", *who, 0, partitions=[AT])[0] is TransactionFault.PRODUCER_FENCED
    assert one.end(who, bump=True) == [(TransactionFault.INVALID_TXN_STATE, -1, -1)]
    assert one.end(who, commit=False, bump=True) == [(TransactionFault.NONE, who[0], who[1] + 1)]
    assert one.initialise(producer_id=who[0], epoch=who[1])[1] > who[1] + 1
    one.initialise()
    one.transactions.initialise("t", 60_000, *who, 0, lambda *a: one.answers.append(a))
    assert one.answers[-1][0] is TransactionFault.PRODUCER_FENCED


def test_a_committed_transaction_whose_markers_a_power_cut_took_is_committed_again() -> None:
    one = Coordinator()
    who = one.begin()
    replies = one.end(who)
    one.world.sync()
    assert replies and one.world.markers == [(*who, True)]
    again = Coordinator()
    one.journal.replay_into(again.journal)
    again.world.lost = {1}
    again.transactions.roll_forward()
    assert again.world.markers == [(*who, True)], "its end is journaled, its marker is not in the log"
    third = Coordinator()
    one.journal.replay_into(third.journal)
    again.journal.replay_into(third.journal)
    third.world.lost = {101}
    third.transactions.roll_forward()
    assert third.world.markers == [(*who, True)], "the second crash took the marker that was written again"


def test_markers_that_are_durable_are_not_written_again() -> None:
    one = Coordinator()
    one.end(one.begin())
    one.world.sync()
    for ticket in one.world.unsynced:
        ticket.release()
    again = Coordinator()
    one.journal.replay_into(again.journal)
    again.world.lost = {1}
    again.transactions.roll_forward()
    assert not again.world.markers
