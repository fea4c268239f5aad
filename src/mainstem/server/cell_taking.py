"""When a broker takes a cell and when it hands one over: decisions from what PostgreSQL says, made a few times a second.

Cells are spread as they are taken: a broker that owns more than another could waits a moment for that one, SPREAD_S for each
cell more, at most SPREAD_S_MAX.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from mainstem.cluster.membership import LEASE_S, WANTED_S, CellFacts, View
from mainstem.cluster.schema import FIRST_CELL

REFUSED_S = 1.0  # the owner's address refuses connections for so long: its process is gone
CONNECT_S = 0.5
SILENT_S = 1.0  # without a renewal the address of a cell's process is tried; that of cell 1 is tried always
SPREAD_S, SPREAD_S_MAX = 0.75, 2.5


class Reason(NamedTuple):
    text: str
    early: bool = False  # although the lease holds


class Taking:
    def __init__(self, name: str) -> None:
        self._name = name
        self._refused_since: dict[int, float] = {}
        self._free_since: dict[int, float] = {}

    async def reason_to_take(self, view: View, cell: CellFacts) -> Reason | None:
        mine = view.brokers.get(self._name)
        others = [one for one in view.brokers.values() if one.name != self._name and one.takes]
        if mine is None or not mine.owns or (mine.draining and others):
            return None
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

    def reason_to_leave(self, view: View, cell: CellFacts) -> str:
        others = [one.name for one in view.brokers.values() if one.name != self._name and one.takes]
        if view.brokers[self._name].draining and others:
            return f"{self._name} is drained"
        if cell.wanted is not None and cell.wanted != self._name and cell.wanted in others:
            return f"it is moved to {cell.wanted}" + (f": {cell.wanted_because}" if cell.wanted_because else "")
        return ""


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
