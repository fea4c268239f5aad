"""When a broker takes a cell and when it hands one over: decisions from what PostgreSQL says, made a few times a second.

A planned hand-over has an heir: the broker that `cell.wanted` names, or the least loaded one where this broker is drained or
stopped. The owner serves until the heir is prepared, at most PREPARE_S.

Cells are spread as they are taken: a broker that owns more than another could waits a moment for that one, SPREAD_S for each
cell more, at most SPREAD_S_MAX.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from mainstem.cluster.membership import LEASE_S, WANTED_S, CellFacts, View
from mainstem.cluster.schema import FIRST_CELL

PREPARE_S = 5.0  # until the heir has a cell's files; a broker of an older version never says that it has
REFUSED_S = 0.5  # the owner's address refuses connections for so long: its process is gone
CONNECT_S = 0.5
SILENT_S = 1.0  # without a renewal the address of a cell's process is tried; that of cell 1 is tried always
SPREAD_S, SPREAD_S_MAX = 0.75, 2.5


class Reason(NamedTuple):
    text: str
    early: bool = False  # although the lease holds


class Leaving(NamedTuple):
    heir: str
    why: str


class Taking:
    def __init__(self, name: str) -> None:
        self._name = name
        self._refused_since: dict[int, float] = {}
        self._free_since: dict[int, float] = {}
        self._leaving_since: dict[int, float] = {}  # cells that are to be handed over
        self._left: dict[int, int] = {}  # cells that were handed over, with the epoch that they had
        self.stopping = False

    async def reason_to_take(self, view: View, cell: CellFacts) -> Reason | None:
        mine = view.brokers.get(self._name)
        others = [one for one in view.brokers.values() if one.name != self._name and one.takes]
        if mine is None or not mine.owns or (mine.draining and others):
            return None
        if self._left.get(cell.cell_id) == cell.epoch and cell.owner == self._name and cell.lease_s > 0:
            return None  # the view is from before it was let go, or PostgreSQL was not told
        reason = await self._reason(view, cell)
        if reason is None:
            self._free_since.pop(cell.cell_id, None)
            return None
        if cell.wanted == self._name or cell.owner == self._name:
            return reason
        since = self._free_since.setdefault(cell.cell_id, time.monotonic())
        return reason if time.monotonic() - since >= self._patience_s(view) else None

    def _patience_s(self, view: View) -> float:
        owned = len(view.owned_by(self._name))
        fewest = min((len(view.owned_by(one.name)) for one in view.brokers.values() if one.takes), default=owned)
        return min(SPREAD_S * (owned - fewest), SPREAD_S_MAX)

    async def _reason(self, view: View, cell: CellFacts) -> Reason | None:
        me = self._name
        if cell.owner is None or cell.lease_s < 0:
            wanted = view.brokers.get(cell.wanted or me)
            if wanted is not None and wanted.name != me and wanted.alive and -cell.lease_s < WANTED_S:
                return None
            before = cell.reason if cell.owner is None else f"the lease of {cell.owner} ran out"
            return Reason(before or "nobody owned it")
        if cell.owner == me:
            return Reason(f"{me} was restarted", early=True)
        address = view.address_of(cell.cell_id)
        silent = cell.cell_id == FIRST_CELL or cell.lease_s < LEASE_S - SILENT_S
        if address is None or not silent or not await _refuses(address):
            self._refused_since.pop(cell.cell_id, None)
            return None
        since = self._refused_since.setdefault(cell.cell_id, time.monotonic())
        if time.monotonic() - since <= (REFUSED_S if cell.cell_id == FIRST_CELL else REFUSED_S / 2):
            return None
        return Reason(f"{cell.owner} refuses connections", early=True)

    def is_heir(self, view: View, cell: CellFacts) -> bool:
        """Whether another broker is about to hand the cell over to this one."""
        mine = view.brokers.get(self._name)
        owned = cell.owner is not None and cell.owner != self._name and cell.lease_s > 0
        return owned and cell.wanted == self._name and mine is not None and mine.takes

    def leaving(self, view: View, cell: CellFacts) -> Leaving | None:
        """Of a cell that this broker owns: whether it is to hand it over, and to whom."""
        found = self._leaving(view, cell)
        if found is None:
            self._leaving_since.pop(cell.cell_id, None)
        return found

    def _leaving(self, view: View, cell: CellFacts) -> Leaving | None:
        others = [one.name for one in view.brokers.values() if one.name != self._name and one.takes]
        wanted = cell.wanted if cell.wanted in others else None
        mine = view.brokers.get(self._name)
        if not others or mine is None:
            return None
        if self.stopping or mine.draining:
            why = f"{self._name} {'was stopped' if self.stopping else 'is drained'}"
            return Leaving(wanted or self._least_loaded(view, others), why)
        if wanted is not None:
            because = f": {cell.wanted_because}" if cell.wanted_because else ""
            return Leaving(wanted, f"it is moved to {wanted}{because}")
        return None

    def may_leave(self, cell: CellFacts, leaving: Leaving) -> bool:
        """Whether the heir is prepared, or was waited for long enough."""
        since = self._leaving_since.setdefault(cell.cell_id, time.monotonic())
        if not cell.is_prepared_by(leaving.heir) and time.monotonic() - since < PREPARE_S:
            return False
        del self._leaving_since[cell.cell_id]
        self._left[cell.cell_id] = cell.epoch
        return True

    def _least_loaded(self, view: View, others: list[str]) -> str:
        def load(name: str) -> int:
            return len(view.owned_by(name)) + sum(one.wanted == name for one in view.cells.values())

        return min(others, key=load)


async def _refuses(address: tuple[str, int]) -> bool:
    """Its machine answers, and says that nobody listens."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(*address)
        writer.close()
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    return False
