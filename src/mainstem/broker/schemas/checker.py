"""Asks the process that parses and compares schemas. One question at a time; a late or greedy one ends the process.

The process is started with the first question and stays IDLE_S beyond the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from mainstem.broker.schemas import faults

COMMAND = (sys.executable, "-m", "mainstem.broker.schemas.worker")
ANSWER_S_MAX = 20.0
START_S_MAX = 20.0  # added for the first question: libraries are loaded
IDLE_S = 60.0
ANSWER_BYTES_MAX = 16 << 20
WAITING_MAX = 64
INSTALL = "pip install 'mainstem[schemas]'"


class Checker:
    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, **asked: Any) -> dict[str, Any]:
        if self._waiting >= WAITING_MAX:
            raise faults.not_checked(f"{WAITING_MAX} schemas wait to be checked", fix="try again in a moment")
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                answer = await self._asked(asked)
        finally:
            self._waiting -= 1
        if "invalid" in answer:
            raise faults.invalid_schema(answer["invalid"])
        if "missing" in answer:
            raise faults.not_checked(answer["missing"], fix=INSTALL)
        return answer

    async def _asked(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._idle is not None:
            self._idle.cancel()
        limit_s = ANSWER_S_MAX if self._process is not None else ANSWER_S_MAX + START_S_MAX
        try:
            async with asyncio.timeout(limit_s):
                process = await self._started()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            if not line:
                raise ConnectionError("it ended")
            answer: dict[str, Any] = json.loads(line)
        except TimeoutError:
            await self.close()
            raise faults.invalid_schema(f"it cannot be checked within {limit_s:.0f} s") from None
        except (OSError, ValueError):
            await self.close()
            raise faults.invalid_schema("the process that checks it ended: it needs too much memory") from None
        except asyncio.CancelledError:  # the answer would be taken for that of the next question
            await self.close()
            raise
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(IDLE_S, lambda: loop.create_task(self._end_idle()))
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=ANSWER_BYTES_MAX
            )
        return self._process

    async def _end_idle(self) -> None:
        if not self._one_at_a_time.locked():
            await self.close()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
