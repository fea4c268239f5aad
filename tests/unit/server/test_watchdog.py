"""The loop's stalls are measured, and told with their cause."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from mainstem.server import watchdog
from mainstem.server.watchdog import COMPILED, ELSEWHERE, Watchdog

DEADLINE_S = 20.0


async def stall_until_seen(dog: Watchdog, block: object) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not any(cause != ELSEWHERE for cause in dog.stalls):
        assert time.monotonic() < deadline, dog.stalls
        block()  # type: ignore[operator]
        await asyncio.sleep(0.1)


def test_a_turn_that_takes_long_is_told_with_its_module_and_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    code = compile("def block():\n    import time\n    time.sleep(0.3)\n", "inflating.py", "exec")
    module = {"__name__": "mainstem.codec.pretended"}
    exec(code, module)

    async def live() -> Watchdog:
        dog = Watchdog()
        dog.start()
        await stall_until_seen(dog, module["block"])
        dog.stop()
        return dog

    with caplog.at_level(logging.INFO, "mainstem.loop"):
        dog = asyncio.run(live())
    stalls = dog.stalls["codec.pretended"]
    assert stalls.count >= 1 and stalls.longest_s >= watchdog.LOG_S
    assert dog.longest()[0] == "codec.pretended"
    assert "in codec.pretended" in caplog.text and "inflating.py" in caplog.text


def test_causes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "CAUSES_MAX", 0)
    code = compile("def block():\n    import time\n    time.sleep(0.2)\n", "x.py", "exec")
    module = {"__name__": "mainstem.any"}
    exec(code, module)

    async def live() -> Watchdog:
        dog = Watchdog()
        dog.start()
        await stall_until_seen(dog, module["block"])
        dog.stop()
        return dog

    assert set(asyncio.run(live()).stalls) == {"others"}


def test_a_turn_without_a_frame_of_ours_is_compiled_code() -> None:
    async def live() -> Watchdog:
        dog = Watchdog()
        dog.start()
        await stall_until_seen(dog, lambda: asyncio.get_running_loop().call_soon(time.sleep, 0.3))
        dog.stop()
        return dog

    assert set(asyncio.run(live()).stalls) - {ELSEWHERE} == {COMPILED}


def test_what_the_thread_waited_for_a_core_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watchdog, "_queued_s", lambda dog: time.monotonic())  # all of the time

    async def live() -> Watchdog:
        dog = Watchdog()
        dog.start()
        deadline = time.monotonic() + DEADLINE_S
        while not dog.stalls:
            assert time.monotonic() < deadline
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
            await asyncio.sleep(0.1)
        dog.stop()
        return dog

    dog = asyncio.run(live())
    assert set(dog.stalls) == {ELSEWHERE} and dog.longest() == ("", 0.0)
