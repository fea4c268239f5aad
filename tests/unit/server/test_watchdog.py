"""The loop's stalls are measured, and told with their cause."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from mainstem.server import watchdog
from mainstem.server.watchdog import ELSEWHERE, Watchdog

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
