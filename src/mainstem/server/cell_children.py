"""The processes that serve this broker's cells, cell 1 aside: started, told, noticed when they end.

A child reads lines of JSON from its front, and ends when there will be no more, as the front is gone:

    {"take": {"cell", "epoch", "reason", "early", "name", "host", "ports", "secret", "heir"}}
                          once: take this cell and serve it; an heir prepares, and waits until its owner lets it go
    {"leave": reason}     hand it over, then end

One more waits as a spare where there are several cells: taking a cell then costs no start of Python. A front that starts
over in its place (`exec`) keeps its children: their processes stay its own, and the pipes to them stay open.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from mainstem.cluster.membership import CellFacts

logger = logging.getLogger("mainstem.cluster")

FLAG = "--cell"
KEPT = "MAINSTEM_CELL_CHILDREN"  # in the environment of a front that starts over
SPARE_S = 3.0
HUNG_S = 2.0  # after the end of its lease; one that runs ends itself before that
LINE_BYTES_MAX = 4096  # a pipe takes so much at once


@dataclass(slots=True)
class Child:
    pid: int
    pipe: int
    cell: int = 0  # 0: the spare
    epoch: int = 0  # that the cell had before it took it
    leaving: bool = False

    def tell(self, **line: Any) -> None:
        """It may have ended: that is noticed elsewhere."""
        text = json.dumps(line).encode() + b"\n"
        assert len(text) <= LINE_BYTES_MAX
        with suppress(OSError):
            os.write(self.pipe, text)


class Children:
    """By the cell that each serves."""

    def __init__(self) -> None:
        self.by_cell: dict[int, Child] = {}
        self._spare: Child | None = None
        self._taken_s = -SPARE_S
        for facts in json.loads(os.environ.pop(KEPT, "[]")):
            child = Child(**facts)
            os.set_inheritable(child.pipe, False)
            if child.cell:
                self.by_cell[child.cell] = child
            else:
                self._spare = child

    def take(self, cell: int, facts: dict[str, Any]) -> None:
        child = self._spare or _spawn()
        self._spare, self._taken_s = None, time.monotonic()
        child.cell, child.epoch = cell, facts["epoch"]
        self.by_cell[cell] = child
        child.tell(take={**facts, "cell": cell})

    def leave(self, cell: int, reason: str) -> None:
        child = self.by_cell[cell]
        if not child.leaving:
            child.leaving = True
            child.tell(leave=reason)

    def end_if_lost(self, cell: CellFacts, broker: str) -> None:
        """Another broker took the cell, or could have for a while: a process that hangs, and does not know it, stands in the
        way of the next."""
        child = self.by_cell[cell.cell_id]
        if cell.epoch <= child.epoch or cell.owner is None:
            return
        if cell.owner != broker or cell.lease_s < -HUNG_S:
            why = f"{cell.owner} owns the cell" if cell.owner != broker else "it no longer renews its lease"
            logger.warning("the process of cell %d is ended: %s", cell.cell_id, why)
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def keep_spare(self, wanted: bool) -> None:
        """The next one starts when the last has its cell: a start of Python would take the time that clients wait for."""
        if wanted and self._spare is None and time.monotonic() >= self._taken_s + SPARE_S:
            self._spare = _spawn()
        elif not wanted and self._spare is not None:
            _end(self._spare)
            self._spare = None

    def ended(self) -> list[tuple[int, int]]:
        """Cells whose process has ended since, with its exit code."""
        found = []
        for child in [*self.by_cell.values(), *([self._spare] if self._spare is not None else [])]:
            code = _exit_code(child.pid)
            if code is None:
                continue
            os.close(child.pipe)
            if child is self._spare:
                self._spare = None
            else:
                del self.by_cell[child.cell]
                found.append((child.cell, code))
        return found

    def keep_over_exec(self) -> None:
        kept = [*self.by_cell.values(), *([self._spare] if self._spare is not None else [])]
        for child in kept:
            os.set_inheritable(child.pipe, True)
        os.environ[KEPT] = json.dumps([asdict(child) for child in kept])


def _spawn() -> Child:
    reading, writing = os.pipe()
    command = [sys.executable, *sys.orig_argv[1:], FLAG]
    try:
        pid = os.posix_spawn(
            sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)], setsigdef=()
        )
    finally:
        os.close(reading)
    return Child(pid, writing)


def _end(child: Child) -> None:
    """Its pipe says so; who has no cell has nothing to hand over. Nobody waits for it: it may still be starting."""
    os.close(child.pipe)


def _exit_code(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None
