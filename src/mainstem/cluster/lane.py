"""The end of a cell's write-ahead log as its owner knows it, and the statement that moves it: the fence of the cluster.

A commit moves `lane.wal_seq` from its predecessor, in the epoch of this owner, or does nothing; a taker raises the epoch of
the same row. So either the taker finds the row and replays it, or the old owner's commit changes nothing and it ends.
Where the answer was lost the row tells: our epoch and our checksum under our number mean that it is committed, its absence
that it may be sent again. A number's body never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.cluster.schema import SLOTS, wal_table
from mainstem.codec.batch import crc32c
from mainstem.model.errors import StorageFault

if TYPE_CHECKING:
    import asyncpg


class Fenced(StorageFault):
    """Another broker owns the cell: nothing that is done here counts any more."""

    code = "MS-5010"


class Lane:
    """Of one owner, from its takeover to its end. It waits for nothing but the connection it is given."""

    def __init__(self, cell_id: int, epoch: int, seq: int, slot: int) -> None:
        """`seq` is the last one that was replayed."""
        self._cell_id, self._epoch = cell_id, epoch
        self.seq, self.slot = seq, slot

    def take_turns(self) -> None:
        """What comes next goes into the other table."""
        self.slot = (self.slot + 1) % SLOTS

    async def commit(self, connection: asyncpg.Connection[Any], body: bytes) -> bool:
        """One round. False: it is not there, and may be sent again. Where the answer is lost nobody knows: send it again."""
        seq, crc = self.seq + 1, crc32c(body)
        sql = (
            "WITH own AS (UPDATE lane SET wal_seq = $3, slot = $6 WHERE cell_id = $1 AND epoch = $2 AND wal_seq = $3 - 1"
            f" RETURNING 1) INSERT INTO {wal_table(self._cell_id, self.slot)} (seq, epoch, crc, body)"
            " SELECT $3, $2, $4, $5 FROM own RETURNING seq"
        )
        given = self._cell_id, self._epoch, seq, crc, body, self.slot
        if await connection.fetchval(sql, *given) is None and not await self._is_there(connection, seq, crc):
            return False
        self.seq = seq
        return True

    async def _is_there(self, connection: asyncpg.Connection[Any], seq: int, crc: int) -> bool:
        """Nothing was changed: because it is committed already (True), because the one before is not the last (a fault),
        or because the cell is another's (Fenced). False: send it again."""
        lane = await connection.fetchrow("SELECT epoch, wal_seq FROM lane WHERE cell_id = $1", self._cell_id)
        if lane is None or lane["epoch"] != self._epoch:
            raise Fenced(
                f"cell {self._cell_id} has epoch {lane and lane['epoch']}, ours is {self._epoch}: another broker took it"
            )
        if lane["wal_seq"] == seq - 1:
            return False
        for slot in range(SLOTS):
            sql = f"SELECT epoch, crc FROM {wal_table(self._cell_id, slot)} WHERE seq = $1"
            row = await connection.fetchrow(sql, seq)
            if row is not None and (row["epoch"], row["crc"]) == (self._epoch, crc):
                return True
        raise StorageFault(
            f"PostgreSQL is at {lane['wal_seq']} of cell {self._cell_id}'s write-ahead log and was at {seq - 1}: "
            "it lost what it had committed",
            fix="fail over only to a synchronous standby; docs/cluster.md says what to do now",
        )
