"""Cells are spread by load: the owner of cell 1 looks now and then, and has one cell at a time moved.

A cell weighs 1, and as much again for each ROWS_PER_WEIGHT rows a second of its write-ahead log. A cell goes from the broker
that carries most to the one that carries least, if that makes the two differ by GAIN_MIN less; of several the one that
makes them most alike. Cell 1 stays: whoever moves it cuts off all clients of its front.

A cell moves once in ASKED_S at most. Nothing is moved while a cell has no owner or is on its way, nor for SETTLE_S after
that, and at most `cluster.moves_per_hour`, which the table `move` counts, whoever decided.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.cluster.membership import CellFacts, View, hurry
from mainstem.cluster.schema import FIRST_CELL, SCHEMA
from mainstem.metadata.postgres_session import PostgresSession

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

LOOK_S, SETTLE_S = 2.0, 6.0
ASKED_S = 300.0  # a cell is not asked to move again: a broker too busy to take it would be asked for ever
RATE_S = 60.0  # over which rates are smoothed
ROWS_PER_WEIGHT = 100.0
GAIN_MIN = 0.75
STATEMENT_S = 3.0


class Move(NamedTuple):
    cell: CellFacts
    target: str
    reason: str


class Balance:
    """Told the cluster as it is, again and again; decides, and keeps rates."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}
        self._seen: dict[int, tuple[float, int]] = {}
        self._calm_since = math.inf
        self._looked_s = 0.0
        self._asked: dict[int, float] = {}  # cells that were to move, and when

    def due(self, now_s: float) -> bool:
        return now_s - self._looked_s >= LOOK_S

    def look(self, view: View, now_s: float) -> Move | None:
        self._looked_s = now_s
        self._note_rates(view, now_s)
        if any(one.lease_s <= 0 or one.owner is None or one.wanted is not None for one in view.cells.values()):
            self._calm_since = math.inf
            return None
        self._calm_since = min(self._calm_since, now_s)
        if now_s - self._calm_since < SETTLE_S:
            return None
        move = self._choose(view, now_s)
        if move is not None:
            self._asked[move.cell.cell_id] = now_s
        return move

    def _note_rates(self, view: View, now_s: float) -> None:
        for number, cell in view.cells.items():
            since_s, before = self._seen.get(number, (now_s, cell.wal_seq))
            if now_s > since_s:
                share = 1 - math.exp(-(now_s - since_s) / RATE_S)
                rate = (cell.wal_seq - before) / (now_s - since_s)
                self._rates[number] = self._rates.get(number, 0.0) * (1 - share) + rate * share
            self._seen[number] = now_s, cell.wal_seq

    def weight(self, cell: CellFacts) -> float:
        return 1 + self._rates.get(cell.cell_id, 0.0) / ROWS_PER_WEIGHT

    def _choose(self, view: View, now_s: float) -> Move | None:
        takers = [one.name for one in view.brokers.values() if one.takes]
        loads = {name: sum(map(self.weight, view.owned_by(name))) for name in takers}
        if len(loads) < 2:
            return None
        most, least = max(loads, key=loads.__getitem__), min(loads, key=loads.__getitem__)
        gap = loads[most] - loads[least]

        def gap_after(cell: CellFacts) -> float:
            return abs(gap - 2 * self.weight(cell))

        movable = [
            one
            for one in view.owned_by(most)
            if one.cell_id != FIRST_CELL and now_s - self._asked.get(one.cell_id, -math.inf) >= ASKED_S
        ]
        best = min(movable, key=gap_after, default=None)
        if best is None or gap - gap_after(best) < GAIN_MIN:
            return None
        return Move(best, least, f"{most} carries {loads[most]:.1f}, {least} {loads[least]:.1f}")


def ask_for(dsn: str, move: Move, moves_per_hour: int) -> bool:
    """Have the owner hand it over, unless enough were moved in the last hour. Waits."""

    async def ask(connection: asyncpg.Connection[Any]) -> bool:
        async with connection.transaction():
            await connection.execute("LOCK TABLE move IN EXCLUSIVE MODE")
            await connection.execute("DELETE FROM move WHERE at < clock_timestamp() - interval '1 day'")
            sql = "SELECT count(*) FROM move WHERE at > clock_timestamp() - interval '1 hour'"
            if await connection.fetchval(sql) >= moves_per_hour:
                return False
            sql = (
                "UPDATE cell SET wanted = $2, wanted_because = $3 WHERE cell_id = $1 AND owner = $4 AND wanted IS NULL"
                " RETURNING 1"
            )
            cell = move.cell
            if await connection.fetchval(sql, cell.cell_id, move.target, move.reason, cell.owner) is None:
                return False
            sql = "INSERT INTO move (cell_id, source, target, reason) VALUES ($1, $2, $3, $4)"
            await connection.execute(sql, cell.cell_id, cell.owner, move.target, move.reason)
        await hurry(connection)
        logger.warning("cell %s is to move from %s to %s: %s", cell.name, cell.owner, move.target, move.reason)
        return True

    session = PostgresSession(dsn, SCHEMA, connect_s=STATEMENT_S, statement_s=STATEMENT_S)
    try:
        return session.use(ask)
    finally:
        session.close()
