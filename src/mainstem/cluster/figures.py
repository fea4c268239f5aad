"""What a serving broker knows of its cluster, for metrics, the health line and the console."""

from __future__ import annotations

import time
from typing import Any

from mainstem.cluster.cell import Cell
from mainstem.cluster.membership import Membership
from mainstem.cluster.relay import Relay

NAMES_MAX = 20  # namespaces of a cell that are shown


class Figures:
    def __init__(self, cell: Cell, membership: Membership, relay: Relay) -> None:
        self.cell, self.wal, self.images = cell, cell.wal, cell.images
        self._membership, self._relay = membership, relay
        self.places: Any = None  # where namespaces are; set by whoever serves

    @property
    def brokers(self) -> dict[str, int]:
        """How many are alive, and how many away."""
        known = self._membership.view.brokers.values()
        return {"alive": sum(one.alive for one in known), "away": sum(not one.alive for one in known)}

    @property
    def cells(self) -> dict[str, int]:
        """How many have an owner, and how many none."""
        owned = sum(one.owner is not None and one.lease_s > 0 for one in self._membership.view.cells.values())
        return {"owned": owned, "free": len(self._membership.view.cells) - owned}

    @property
    def relayed(self) -> int:
        """Clients of ours that another broker serves; a few while the cell changes hands."""
        return len(self._relay.clients)

    @property
    def postgres_away_s(self) -> float:
        return time.monotonic() - self.wal.away_since_s if self.wal.away_since_s else 0.0

    def described(self) -> dict[str, list[dict[str, Any]]]:
        """Cells and brokers, as `mainstem cluster status` and `ls` show them."""
        view = self._membership.view
        cells = [
            {
                "cell": one.name,
                "namespaces": sorted(name for name, cell in view.places.items() if cell == one.cell_id)[:NAMES_MAX],
                "owner": one.owner if one.lease_s > 0 else None,
                "wanted": one.wanted,
                "epoch": one.epoch,
                "rows_since_image": one.wal_seq - one.flushed_seq,
                "taken_because": one.reason,
            }
            for one in view.cells.values()
        ]
        brokers = [
            {
                "name": one.name,
                "address": f"{one.host}:{one.relay_port}",
                "state": one.state,
                "owns": [cell.name for cell in view.owned_by(one.name)],
                "version": one.version,
            }
            for one in view.brokers.values()
        ]
        return {"cells": cells, "brokers": brokers}

    def health(self) -> dict[str, object]:
        """One line. It is not well while nothing can be acknowledged, or nobody could take over."""
        away, alone = self.postgres_away_s, self.brokers["alive"] < 2
        reason = f"{self._membership.name} owns cell {self.cell.cell_id}, epoch {self.cell.epoch}"
        if away:
            reason += f"; PostgreSQL has not answered for {away:.1f} s: nothing is acknowledged"
        if self.cell.objects.away:
            reason += "; the object store takes no images"
        reason += "; no other broker is alive" if alone else f"; {self.brokers['alive'] - 1} more could take over"
        return {"name": "cluster", "ok": not (away or alone or self.cell.objects.away), "reason": reason}
