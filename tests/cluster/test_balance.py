"""Which cell is moved to whom: decided from what the tables say, never more than one at a time."""

from __future__ import annotations

from dataclasses import replace

from mainstem.cluster.balance import ASKED_S, SETTLE_S, Balance, Move
from mainstem.cluster.membership import BrokerFacts, CellFacts, View


def view(owned: dict[str, list[int]], **changes: BrokerFacts) -> View:
    brokers = {
        name: BrokerFacts(name, number, "127.0.0.1", 1, {}, "1", False, True, 0.0)
        for number, name in enumerate(owned, 1)
    }
    owner = {cell: name for name, cells in owned.items() for cell in cells}
    cells = {one: CellFacts(one, f"c{one}", owner[one], None, 1, 5.0, "", 0, 0) for one in sorted(owner)}
    return View({**brokers, **changes}, cells)


def decide(seen: View, balance: Balance | None = None) -> Move | None:
    balance = balance or Balance()
    assert balance.look(seen, 100.0) is None, "never at the first look"
    return balance.look(seen, 100.0 + SETTLE_S)


def test_a_broker_that_owns_nothing_gets_a_cell_of_the_one_that_owns_most_and_never_the_first() -> None:
    move = decide(view({"a": [1, 2, 3], "b": [4], "c": []}))
    assert move is not None
    assert (move.cell.cell_id, move.target) == (2, "c")
    assert move.reason == "a carries 3.0, c 0.0"


def test_two_brokers_that_differ_by_one_cell_are_left_alone() -> None:
    assert decide(view({"a": [1, 2], "b": [3]})) is None
    assert decide(view({"a": [1], "b": []})) is None, "the first cell stays"


def test_nothing_moves_while_a_cell_is_on_its_way_or_has_no_owner_nor_just_after() -> None:
    seen = view({"a": [1, 2, 3], "b": []})
    for change in ({"wanted": "b"}, {"lease_s": -1.0}, {"owner": None}):
        cells = {**seen.cells, 3: replace(seen.cells[3], **change)}
        balance = Balance()
        assert decide(View(seen.brokers, cells), balance) is None
        assert balance.look(seen, 200.0) is None, "it has only just settled"
        assert balance.look(seen, 200.0 + SETTLE_S) is not None


def test_a_cell_that_did_not_get_there_is_left_alone_for_minutes() -> None:
    seen, balance = view({"a": [1, 2], "b": []}), Balance()
    move = decide(seen, balance)
    assert move is not None
    assert balance.look(seen, 120.0) is None, "its target did not take it, and would not now"
    assert balance.look(seen, 100.0 + SETTLE_S + ASKED_S) is not None


def test_a_broker_that_drains_or_is_away_gets_nothing() -> None:
    for change in ({"draining": True}, {"alive": False}, {"owns": False}):
        seen = view({"a": [1, 2, 3], "b": []})
        brokers = {**seen.brokers, "b": replace(seen.brokers["b"], **change)}
        assert decide(View(brokers, seen.cells)) is None


def test_a_busy_cell_weighs_more_than_several_idle_ones() -> None:
    seen = view({"a": [1, 2, 3], "b": [4, 5]})
    balance = Balance()
    balance.look(seen, 0.0)
    busy = View(seen.brokers, {**seen.cells, 2: replace(seen.cells[2], wal_seq=60_000)})  # 1,000 rows a second
    move = balance.look(busy, 60.0)
    assert move is not None
    assert (move.cell.cell_id, move.target) == (3, "b"), "what narrows the gap: the busy one would only change sides"
