"""When the loop ticks: what a turn read does not wait behind slices of somebody's reading."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from mainstem.broker.delivery.catch_up import Pump
from mainstem.broker.delivery.ticker import COMPANY_UNSYNCED_BYTES_MAX
from mainstem.broker.delivery.turns import COMPANY_NS, SHORT_SLICE_NS, SLICE_NS, Turns
from tests.unit.broker.kit import Collector, running, until


class Answering:
    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


async def test_a_turn_writes_and_answers_what_it_read_though_a_tick_was_asked_for_before(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        ticker, namespace = broker.ticker, broker.namespace("/")
        namespace.publish(b"known", b"")  # its stem is there
        ticker.drain()
        client, log = Answering(), namespace.route(b"known").log
        before, written = ticker.ticks, log.written
        ticker.request()
        begun = ticker.begin_turn()
        namespace.publish(b"known", b"read in this turn")
        ticker.mark_dirty(client)
        assert begun, "the turn ticks itself"
        ticker.end_turn()
        assert (client.flushed, log.written) == (1, written + 1)
        assert ticker.ticks == before + 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ticker.ticks == before + 1, "the tick that was asked for has nothing left to do"


async def test_a_turn_leaves_the_tick_to_others_while_much_is_to_be_delivered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        ticker = broker.ticker
        receiver = Answering()
        ticker._receivers.append(receiver)
        ticker.request()
        assert not ticker.begin_turn()
        await until(lambda: receiver.flushed == 1)


async def test_many_who_catch_up_offer_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = list[str]()
    turn, offer = Turns.turn, Pump._offer

    async def noted_turn(self: Turns, tenant: str = "") -> None:
        await turn(self, tenant)
        happened.append("turn")

    def noted_offer(self: Pump, *asked: object) -> int:
        happened.append("offer")
        return offer(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(Turns, "turn", noted_turn)
    monkeypatch.setattr(Pump, "_offer", noted_offer)
    async with running(tmp_path) as broker:
        namespace = broker.namespace("/")
        for number in range(100):
            namespace.publish(b"past", b"%d" % number)
        broker.ticker.drain()
        sinks = [Collector(namespace, [b"past"]) for _ in range(5)]
        for sink in sinks:
            sink.live, sink.position = False, 0
            broker.pump.resume(sink, sink.wanted)
        await until(lambda: all(sink.live for sink in sinks))
        assert [len(sink.seen) for sink in sinks] == [100] * len(sinks)
    offers = [place for place, one in enumerate(happened) if one == "offer"]
    assert offers
    assert all(happened[place - 1] == "turn" for place in offers)


async def test_slices_are_short_while_clients_are_about_that_say_little() -> None:
    turns = Turns()
    assert turns.slice_ns == SLICE_NS
    turns.company_until_ns = time.monotonic_ns() + 1_000 * COMPANY_NS
    assert turns.slice_ns == SHORT_SLICE_NS
    work = turns.slices()
    await work.next()
    assert len(turns) == 0


class Flood:
    def __init__(self) -> None:
        self.held = False

    def hold_for_delivery(self) -> None:
        self.held = True

    def release_from_delivery(self) -> None:
        self.held = False


@pytest.mark.parametrize("company", [True, False])
async def test_who_brings_much_waits_for_the_disk_while_clients_are_about_that_say_little(
    tmp_path: Path, company: bool
) -> None:
    """Their acks wait for the sync of all that was written before."""
    async with running(tmp_path) as broker:
        ticker, namespace, flood = broker.ticker, broker.namespace("/"), Flood()
        if company:
            broker.turns.company_until_ns = time.monotonic_ns() + 1_000 * COMPANY_NS
        for _ in range(COMPANY_UNSYNCED_BYTES_MAX // 50_000 + 2):
            namespace.publish(b"flood", bytes(50_000))  # nobody waits for it
            ticker.tick()
        assert ticker.behind == company
        if ticker.behind:
            ticker.outrun(flood)  # type: ignore[arg-type]
            assert flood.held
            log = namespace.route(b"flood").log
            await until(lambda: not flood.held)
            assert not ticker.behind
            await until(lambda: log.unsynced_bytes == 0)


async def test_nobody_waits_for_the_disk_of_a_log_that_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        ticker, namespace, flood = broker.ticker, broker.namespace("/"), Flood()
        broker.turns.company_until_ns = time.monotonic_ns() + 1_000 * COMPANY_NS
        for _ in range(COMPANY_UNSYNCED_BYTES_MAX // 50_000 + 2):
            namespace.publish(b"flood", bytes(50_000))
            ticker.tick()
        ticker.outrun(flood)  # type: ignore[arg-type]
        ticker.forget(namespace.route(b"flood").log)
        assert not flood.held
