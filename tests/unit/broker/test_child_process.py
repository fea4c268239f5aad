"""A process behind two pipes: it answers, is ended, and is not left behind by whoever gives up while it starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from mainstem.broker.child_process import NICER_BY, ChildProcess

ECHO = (sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)")


async def test_it_answers_and_is_ended() -> None:
    child = await ChildProcess.start(ECHO, limit=1 << 20)
    for size in (1, 300_000):  # more than a pipe holds
        child.stdin.write(b"a" * size + b"\n")
        await child.stdin.drain()
        assert await child.stdout.readline() == b"A" * size + b"\n"
    assert not child.has_ended
    child.kill()
    await child.wait()
    assert child.has_ended


async def test_it_yields_to_the_loop() -> None:
    tell = "import os, sys\nfor line in sys.stdin: print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)"
    child = await ChildProcess.start((sys.executable, "-c", tell))
    child.stdin.write(b"\n")
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(await child.stdout.readline()) == min(19, ours + NICER_BY)  # the system knows nothing nicer
    child.kill()
    await child.wait()


async def test_it_leaves_a_core_to_the_broker_if_it_is_told_so() -> None:
    tell = "import os\nprint(len(os.sched_getaffinity(0)), flush=True)"
    cores = len(os.sched_getaffinity(0))
    for leaves, left in ((False, cores), (True, max(1, cores - 1))):
        child = await ChildProcess.start((sys.executable, "-c", f"input()\n{tell}"), leaves_a_core=leaves)
        child.stdin.write(b"\n")  # it was told before anybody asks it
        assert int(await child.stdout.readline()) == left
        await child.wait()


async def test_one_that_ends_by_itself_is_seen() -> None:
    child = await ChildProcess.start((sys.executable, "-c", "print('done')"))
    assert await child.stdout.read() == b"done\n"
    await child.wait()
    child.kill()  # hurts nobody
    assert child.has_ended


async def test_who_gives_up_while_it_starts_leaves_no_process_behind(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    starting = asyncio.create_task(ChildProcess.start((sys.executable, "-c", code)))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        with contextlib.suppress(OSError, ValueError):
            state = Path(f"/proc/{int(told.read_text())}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z":
                continue
        return  # it is gone, a zombie, or was ended before it told anything
    pytest.fail("it still runs")
