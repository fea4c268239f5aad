"""A process that answers questions, a JSON line each: for work that must hold up neither the loop nor its memory.

One question at a time. It is started with the first one and stays IDLE_S beyond the last; one that takes too long, or whose
asker goes away, ends it: the answer would be taken for that of the next.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from mainstem.broker.child_process import ChildProcess
from mainstem.model.errors import Overloaded

START_S_MAX = 20.0  # added for the first question: libraries are loaded
IDLE_S = 60.0
ANSWER_BYTES_MAX = 64 << 20
WAITING_MAX = 64


class Late(Exception):
    """No answer in time."""


class Ended(Exception):
    """The process ended before it answered."""


class LineProcess:
    def __init__(self, module: str, answer_s: float, *arguments: str) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._answer_s = answer_s
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._process: ChildProcess | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} questions wait already", fix="try again in a moment")
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                return await self._asked(question)
        finally:
            self._waiting -= 1

    async def _asked(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if self._idle is not None:
            self._idle.cancel()
        limit_s = self._answer_s if self._process is not None else self._answer_s + START_S_MAX
        try:
            async with asyncio.timeout(limit_s):
                process = await self._started()
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            if not line:
                raise ConnectionError("it ended")
            answer: dict[str, Any] = json.loads(line)
        except TimeoutError:
            await self.close()
            raise Late(f"no answer within {limit_s:.0f} s") from None
        except (OSError, ValueError):
            await self.close()
            raise Ended("it ended") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(IDLE_S, lambda: loop.create_task(self._end_idle()))
        return answer

    async def _started(self) -> ChildProcess:
        if self._process is None or self._process.has_ended:
            self._process = await ChildProcess.start(self._command, limit=ANSWER_BYTES_MAX)
        return self._process

    async def _end_idle(self) -> None:
        if not self._one_at_a_time.locked():
            await self.close()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()
