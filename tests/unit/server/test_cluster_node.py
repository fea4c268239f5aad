"""A broker of a cluster while PostgreSQL goes away at a bad moment: it starts over and waits, it never ends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainstem.cluster.membership import BrokerFacts, CellFacts, View
from mainstem.cluster.wal import Fenced
from mainstem.model.errors import CorruptFrame, MainstemError, Overloaded
from mainstem.server.cell_serving import Serving
from mainstem.server.cell_taking import Reason
from mainstem.server.cluster_node import Node
from mainstem.server.listeners import Taken
from mainstem.server.settings import Config

CELL = CellFacts(1, "main", None, None, 4, -1.0, "", 0, 0)


class _Membership:
    """PostgreSQL took the cell for us, and answers nothing from then on."""

    name = "a"

    def take(self, *_: object, **__: object) -> int:
        return 5

    def release(self, *_: object) -> None:
        raise Overloaded("PostgreSQL does not answer")


def node_that_fails(error: MainstemError, started_over: list[str]) -> Node:
    config = Config()
    config.cluster.name = "a"
    node = Node(config, lambda: config)
    serving = Serving(config, _Membership(), None, Path(), started_over.append)  # type: ignore[arg-type]

    async def start(*_: Any) -> None:
        raise error

    serving.start = start  # type: ignore[method-assign]
    node._membership, node._serving = _Membership(), serving  # type: ignore[assignment]
    node._lost = started_over.append  # type: ignore[method-assign]
    return node


@pytest.mark.parametrize("error", [Overloaded("PostgreSQL does not answer"), Fenced("another broker took cell 1")])
async def test_a_taker_whose_postgresql_goes_away_or_that_is_overtaken_while_it_rebuilds_starts_over(
    error: MainstemError,
) -> None:
    started_over: list[str] = []
    node = node_that_fails(error, started_over)
    await node._take_first(CELL, Reason("nobody owned it"), Taken(), [])
    assert len(started_over) == 1
    assert error.message in started_over[0]


async def test_a_taker_that_finds_damage_ends_and_says_so_although_postgresql_is_away_by_then() -> None:
    node = node_that_fails(CorruptFrame("row 7 is missing"), [])
    with pytest.raises(CorruptFrame, match="row 7 is missing"):
        await node._take_first(CELL, Reason("nobody owned it"), Taken(), [])


@pytest.mark.parametrize(
    ("owner", "wanted", "draining", "hurried"),
    [
        (None, None, "", True),  # it was handed over, and nobody has it yet
        ("a", "b", "", True),
        ("a", "gone", "", False),  # whoever was wanted does not come: that must not cost queries for ever
        ("a", None, "a", True),
        ("a", None, "b", False),
        ("a", None, "", False),
    ],
)
def test_brokers_look_often_only_while_a_cell_changes_hands(
    owner: str | None, wanted: str | None, draining: str, hurried: bool
) -> None:
    brokers = {
        name: BrokerFacts(name, number, "localhost", 1, {}, "", name == draining, name != "gone", 0.0)
        for number, name in enumerate(("a", "b", "gone"))
    }
    cell = CellFacts(1, "main", owner, wanted, 4, 5.0, "", 0, 0)
    assert View(brokers, {1: cell}).on_the_way is hurried
