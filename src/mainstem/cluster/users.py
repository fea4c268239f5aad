"""Users, roles and rules kept for names of the cluster: cell 1 keeps them among its metadata, every other cell follows them.

Each second it is asked for the number of the last change there (`changes.seq`); only if that is another one are they read
again. A client that cell 1 has let in may be quicker than that: `catch_up` asks at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Access, Principal
from mainstem.broker.rights.followed_users import FollowedUsers
from mainstem.cluster.schema import FIRST_CELL, metadata_schema
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.metadata.rows import Item, ItemKind
from mainstem.metadata.tables import TABLES
from mainstem.model.errors import Overloaded

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

FOLLOW_S = 1.0
CONNECT_S = STATEMENT_S = 3.0


class CellUsers(FollowedUsers):
    def __init__(self, dsn: str) -> None:
        self._session = PostgresSession(dsn, metadata_schema(FIRST_CELL), connect_s=CONNECT_S, statement_s=STATEMENT_S)
        self._thread = ThreadPoolExecutor(1, "users")  # the session is one thread's
        self._seen = -1

    def load(self) -> list[Item]:
        return self._thread.submit(self._changed).result() or []

    async def keep(self, access: Callable[[], Access]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            await self.follow(access())

    async def follow(self, access: Access) -> None:
        try:
            items = await asyncio.wrap_future(self._thread.submit(self._changed))
        except Overloaded as error:
            logger.debug("users are not followed for now: %s", error)  # the lease says so, too
        else:
            if items is not None:
                access.follow(items)

    async def catch_up(self, access: Access, principal: Principal) -> None:
        """Before a client is served that another cell has let in: its user may have been added a moment ago."""
        if not principal.anonymous and not principal.stranger and principal.name not in access.users:
            await self.follow(access)

    def _changed(self) -> list[Item] | None:
        return self._session.use(self._ask)

    async def _ask(self, connection: asyncpg.Connection[Any]) -> list[Item] | None:
        schema, table = metadata_schema(FIRST_CELL), TABLES[Item]
        if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.changes") is None:
            return None
        last = await connection.fetchval("SELECT coalesce(max(seq), 0) FROM changes")
        if last == self._seen:
            return None
        columns = ", ".join(f'"{name}"' for name in table.columns)
        sql = f"SELECT {columns} FROM {table.name} WHERE kind IN ($1, $2, $3)"
        rows = await connection.fetch(sql, ItemKind.USER.value, ItemKind.ROLE.value, ItemKind.ACL.value)
        self._seen = last
        found = [table.row_of(tuple(row)) for row in rows]
        return [one for one in found if isinstance(one, Item)]
