"""Which cell holds a namespace: rows of `place`. A namespace gets its cell when it is added, and keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.cluster.membership import hurry, look
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, add_cell
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import AlreadyExists, NotFound, Overloaded

if TYPE_CHECKING:
    import asyncpg

NEW = "new"
CELLS_MAX = 1_000


def place(dsn: str, namespace: str, cell: str) -> tuple[int, str]:
    """Put a namespace that does not exist yet into a cell: `new`, or one by its name. The cell's number and name. Waits."""

    async def put(connection: asyncpg.Connection[Any]) -> tuple[int, str]:
        async with connection.transaction():
            await connection.execute("LOCK TABLE place IN EXCLUSIVE MODE")
            row = await connection.fetchrow(
                "SELECT p.cell_id, c.name FROM place p JOIN cell c USING (cell_id) WHERE namespace = $1", namespace
            )
            if row is not None and cell in (NEW, row["name"]):
                return row["cell_id"], row["name"]
            if row is not None:
                raise AlreadyExists(
                    f"namespace {namespace} is in cell {row['name']} already", fix="mainstem cluster status"
                )
            number, name = await (_new_cell(connection, namespace) if cell == NEW else _find_cell(connection, cell))
            if number != FIRST_CELL:
                await connection.execute("INSERT INTO place (namespace, cell_id) VALUES ($1, $2)", namespace, number)
            return number, name

    async def put_and_tell(connection: asyncpg.Connection[Any]) -> tuple[int, str]:
        done = await put(connection)
        await hurry(connection)
        return done

    placed: tuple[int, str] = _use(dsn, put_and_tell)
    return placed


def take_place_away(dsn: str, namespace: str) -> None:
    """The namespace was removed. Its cell stays, for others."""

    async def take_and_tell(connection: asyncpg.Connection[Any]) -> None:
        await connection.execute("DELETE FROM place WHERE namespace = $1", namespace)
        await hurry(connection)

    _use(dsn, take_and_tell)


def _use(dsn: str, run: Any) -> Any:
    session = PostgresSession(dsn, SCHEMA)
    try:
        return session.use(run)
    finally:
        session.close()


async def _new_cell(connection: asyncpg.Connection[Any], namespace: str) -> tuple[int, str]:
    cells = {row["name"]: row["cell_id"] for row in await connection.fetch("SELECT cell_id, name FROM cell")}
    if len(cells) >= CELLS_MAX:
        raise Overloaded(f"there are {CELLS_MAX} cells already", fix="mainstem namespace add NAME --cell CELL")
    empty = await connection.fetchrow(  # of a namespace that was removed
        "SELECT cell_id, name FROM cell WHERE cell_id != $1 AND cell_id NOT IN (SELECT cell_id FROM place) LIMIT 1",
        FIRST_CELL,
    )
    if empty is not None:
        return empty["cell_id"], empty["name"]
    number = max(cells.values()) + 1
    name = next(one for one in (namespace, f"{namespace}-{number}") if one not in cells and one != NEW)
    await add_cell(connection, number, name)
    view = await look(connection)
    takers = [one for one in view.brokers.values() if one.takes]
    if takers:  # the one with the fewest, which may have to start a process first
        fewest = min(takers, key=lambda one: len(view.owned_by(one.name)))
        await connection.execute("UPDATE cell SET wanted = $2 WHERE cell_id = $1", number, fewest.name)
    return number, name


async def _find_cell(connection: asyncpg.Connection[Any], name: str) -> tuple[int, str]:
    found = await connection.fetchval("SELECT cell_id FROM cell WHERE name = $1", name)
    if found is None:
        raise NotFound(f"there is no cell {name!r}", fix="mainstem cluster status, or --cell new")
    return int(found), name
