"""A process of ours behind two pipes, started by a thread.

The loop would fork for it: that copies the page tables of the whole broker and waits until the child runs its program. That
was seen to take 100 ms with 600 MB in memory. A thread's `Popen` shares the memory until then (vfork): the loop goes on.
The process yields: with as many threads as there are cores it would make the loop wait for one.
"""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.streams import FlowControlMixin
from collections.abc import Sequence
from typing import Self

from mainstem.storage.scheduling import leave_a_core, yield_to_others

READ_BYTES_MAX = 1 << 16  # what is read ahead of whoever reads
NICER_BY = 10  # than the broker: a tenth of a core that the loop wants, and all of those it leaves


class ChildProcess:
    """Use `start`. The pipes are closed by `wait`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        source: asyncio.ReadTransport,
    ) -> None:
        self._process, self._source = process, source
        self.stdin, self.stdout = stdin, stdout

    @classmethod
    async def start(cls, command: Sequence[str], *, limit: int = READ_BYTES_MAX, leaves_a_core: bool = False) -> Self:
        """`limit` is the longest line that can be read from it. With `leaves_a_core` it never computes on all of them."""
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(None, _started, command, leaves_a_core)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_ended)
            raise
        stdout = asyncio.StreamReader(limit=limit)
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), process.stdout)
        sink, protocol = await loop.connect_write_pipe(FlowControlMixin, process.stdin)
        return cls(process, asyncio.StreamWriter(sink, protocol, None, loop), stdout, source)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> None:
        """Until it has ended: `kill` it before, or close what it reads."""
        self.stdin.close()
        self._source.close()
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)


def _started(command: Sequence[str], leaves_a_core: bool) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    yield_to_others(process.pid, NICER_BY)
    if leaves_a_core:
        leave_a_core(process.pid)
    return process


def _ended(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Nobody waits for it any more."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
