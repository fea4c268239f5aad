"""Long lists for a page: the same as `sorted`, with everybody else's turns in between."""

from __future__ import annotations

import asyncio
import random

import pytest

from mainstem.admin.long_lists import SORTED_AT_ONCE, in_order, in_slices
from mainstem.broker.delivery import turns
from mainstem.broker.delivery.turns import Turns


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked whether its slice is over hears that it is."""
    monkeypatch.setattr(turns, "SLICE_NS", 0)


@pytest.mark.parametrize("count", [0, 1, SORTED_AT_ONCE, 10 * SORTED_AT_ONCE + 3])
async def test_all_come_in_order(count: int) -> None:
    names = [b"%d" % number for number in range(count)]
    random.Random(count).shuffle(names)
    assert list(await in_order(Turns(), "", names)) == sorted(names)
    chosen = await in_order(Turns(), "", names, key=lambda name: -int(name), where=lambda name: name.endswith(b"7"))
    assert list(chosen) == sorted((name for name in names if name.endswith(b"7")), key=lambda name: -int(name))


@pytest.mark.usefixtures("short_slices")
async def test_others_have_their_turn_while_a_long_list_is_sorted_and_walked() -> None:
    shared, seen = Turns(), list[int]()
    walked = [0]

    async def other() -> None:
        while walked[0] < 9_999:
            await shared.turn("another tenant")
            seen.append(walked[0])

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    async for walked[0] in in_slices(shared, "one", await in_order(shared, "one", range(10_000)), at_once=10):
        pass
    await task
    assert len(set(seen)) > 900  # it saw almost every step
