"""What a serving broker knows of its cluster, for metrics, the health line and the console."""

from __future__ import annotations

import time

from mainstem.cluster.cell import Cell
from mainstem.cluster.membership import Membership
from mainstem.cluster.relay import Relay


class Figures:
    def __init__(self, cell: Cell, membership: Membership, relay: Relay) -> None:
        self.cell, self.wal, self.images = cell, cell.wal, cell.images
        self._membership, self._relay = membership, relay

    @property
    def brokers(self) -> dict[str, int]:
        """How many are alive, and how many away."""
        known = self._membership.view.brokers.values()
        return {"alive": sum(one.alive for one in known), "away": sum(not one.alive for one in known)}

    @property
    def relayed(self) -> int:
        """Clients of ours that another broker serves; a few while the cell changes hands."""
        return len(self._relay.clients)

    @property
    def postgres_away_s(self) -> float:
        return time.monotonic() - self.wal.away_since_s if self.wal.away_since_s else 0.0

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
