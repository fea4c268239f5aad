"""Turns of the loop: fair between tenants, by their shares, whatever each of them has waiting."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from mainstem.broker.delivery.turns import COMPANY_NS, Turns


async def given_to(turns: Turns, readers: dict[str, int], rounds: int) -> Counter[str]:
    """How many slices each tenant worked, with so many readers that always have more to do."""
    worked: Counter[str] = Counter()
    done = asyncio.Event()

    async def read(tenant: str) -> None:
        while not done.is_set():
            await turns.turn(tenant)
            worked[tenant] += 1
            if sum(worked.values()) >= rounds:
                done.set()

    tasks = [asyncio.create_task(read(tenant)) for tenant, count in readers.items() for _ in range(count)]
    await done.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return worked


async def test_a_hundred_readers_of_one_tenant_leave_half_of_the_turns_to_two_of_another() -> None:
    worked = await given_to(Turns(), {"noisy": 100, "quiet": 2}, 1_000)
    assert worked["quiet"] == pytest.approx(500, abs=25)


async def test_shares_weigh() -> None:
    shares = {"gold": 3, "plain": 1}
    worked = await given_to(Turns(lambda tenant: shares[tenant]), {"gold": 5, "plain": 50}, 1_000)
    assert worked["gold"] == pytest.approx(750, abs=25)


async def test_who_comes_late_gets_its_share_and_no_more() -> None:
    turns = Turns()
    await given_to(turns, {"early": 3}, 500)
    worked = await given_to(turns, {"early": 3, "late": 3}, 500)
    assert worked["late"] == pytest.approx(250, abs=25)


async def test_within_a_tenant_it_is_first_come_first_served() -> None:
    turns, order = Turns(), list[int]()
    for number in range(5):
        turns.soon(lambda number=number: order.append(number), "one")  # type: ignore[misc]
    assert len(turns) == 5
    while len(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0, 1, 2, 3, 4]


async def test_who_is_gone_takes_no_turn_from_others() -> None:
    turns = Turns()
    gone = asyncio.create_task(turns.turn("one"))
    await asyncio.sleep(0)
    gone.cancel()
    await turns.turn("one")
    assert len(turns) == 0


@pytest.mark.parametrize("company", [True, False])
async def test_who_says_little_is_let_in_before_long_work_and_only_while_there_is_somebody(company: bool) -> None:
    turns, served = Turns(), list[str]()

    def serve() -> None:
        served.append("quick")
        turns.let_in()  # what it serves may be long, too

    turns.quick.append(serve)
    turns.company_until_ns = time.monotonic_ns() + 1_000 * COMPANY_NS if company else 0
    turns.let_in()
    turns.let_in()
    assert served == ["quick"] * (2 if company else 0)
