"""Metadata in PostgreSQL 15 or newer: the same tables as SQLite's, in a schema of their own.

One transaction per round. Writers of several brokers take turns by an advisory lock, so that preconditions see everything
committed before and `changes.seq` grows in commit order. A round whose outcome is unknown, as the connection was lost while
it committed, is recognised by its number when the server is back:

    rounds(writer, round, at)    the last round that each open store committed

While the server is away rounds wait and are tried again; `check_room` refuses new things meanwhile.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.metadata.postgres_session import PostgresSession, check_server
from mainstem.metadata.rounds import RETRY_S, RoundStore, Write
from mainstem.metadata.rows import Facts
from mainstem.metadata.sqlite import VERSION, changes_of
from mainstem.metadata.store import Absent, Changes, Clear, Delete, Operation, Precondition, Put
from mainstem.metadata.tables import CHANGES_KEPT, TABLES, Table, clear_namespace, fill, key_text
from mainstem.model.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    InvalidArgument,
    MainstemError,
    Overloaded,
)

if TYPE_CHECKING:
    import asyncpg

MORE = """
CREATE TABLE IF NOT EXISTS changes (seq BIGINT PRIMARY KEY, "table" TEXT NOT NULL, "key" TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (writer TEXT PRIMARY KEY, round BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL);
DELETE FROM rounds WHERE at < now() - INTERVAL '7 days';
"""
NOTE = 'INSERT INTO changes (seq, "table", "key") SELECT coalesce(max(seq), 0) + 1, $1, $2 FROM changes'
TRIM = f"DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - {CHANGES_KEPT}"
ROUND = (
    "INSERT INTO rounds (writer, round, at) VALUES ($1, $2, now()) "
    "ON CONFLICT (writer) DO UPDATE SET round = excluded.round, at = excluded.at"
)

T = TypeVar("T")


class PostgresStore(RoundStore):
    """`dsn` as libpq writes it (postgresql://user@host/database); `schema` is made where there is none."""

    def __init__(self, dsn: str, schema: str = "mainstem") -> None:
        super().__init__()
        self._schema = schema
        self._session = PostgresSession(dsn, schema)
        self._writer, self._round = uuid.uuid4().hex, 0
        self._unknown: list[MainstemError | None] | None = None  # of the round whose COMMIT was not answered
        self._start_thread()
        try:
            self._call(self._prepare).result()
        except BaseException:
            self.close()
            raise

    # -- the connection

    def _use(self, run: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        return self._session.use(run)

    async def _guard(self, connection: asyncpg.Connection[Any]) -> None:
        """Inside each transaction that writes, before it does: a store that only one owner may write to refuses here."""

    def _prepare(self) -> None:
        async def prepare(connection: asyncpg.Connection[Any]) -> None:
            check_server(connection)
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._schema)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
                if await connection.fetchval("SELECT to_regclass($1)", f"{self._schema}.schema_version") is None:
                    schema = resources.files("mainstem.metadata").joinpath("schema.sql").read_text()
                    await connection.execute(schema.replace("BLOB", "BYTEA"))
                await connection.execute(MORE)
            stored = await connection.fetchval("SELECT version FROM schema_version")
            if stored > VERSION:
                raise ConfigError(
                    f"schema {self._schema} has metadata version {stored}; this Mainstem knows versions up to {VERSION}",
                    fix="start it with the Mainstem that wrote it, or a newer one",
                    code="MS-4007",
                )

        self._use(prepare)

    # -- rounds

    def _commit_round(self, writes: list[Write]) -> list[MainstemError | None]:
        if self._unknown is not None:
            outcomes, self._unknown = self._unknown, None
            try:
                committed = self._use(self._last_round) == self._round
            except Overloaded:
                self._unknown = outcomes
                raise
            if committed:
                return outcomes
        self._round += 1

        async def commit(connection: asyncpg.Connection[Any]) -> list[MainstemError | None]:
            transaction = connection.transaction()
            await transaction.start()
            try:
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._schema)
                await self._guard(connection)
                outcomes = [await _apply(connection, write) for write in writes]
                await connection.execute(ROUND, self._writer, self._round)
            except BaseException:
                if not connection.is_closed():
                    await transaction.rollback()
                raise
            self._unknown = outcomes
            await transaction.commit()
            self._unknown = None
            return outcomes

        return self._use(commit)

    async def _last_round(self, connection: asyncpg.Connection[Any]) -> int:
        found = await connection.fetchval("SELECT round FROM rounds WHERE writer = $1", self._writer)
        return int(found or 0)

    def _may_wait(self, error: Overloaded) -> bool:
        self._waits = error
        return not self._ending.wait(RETRY_S)

    # -- the rest

    def _load(self) -> Facts:
        async def load(connection: asyncpg.Connection[Any]) -> Facts:
            facts = Facts()
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                for table in TABLES.values():
                    fill(facts, table, [tuple(row) for row in await connection.fetch(table.select())])
            return facts

        return self._use(load)

    def _changes_since(self, last: int) -> Changes:
        async def fetch(connection: asyncpg.Connection[Any]) -> list[tuple[int, str, str]]:
            sql = 'SELECT seq, "table", "key" FROM changes WHERE seq > $1 ORDER BY seq'
            return [(row[0], row[1], row[2]) for row in await connection.fetch(sql, last)]

        return changes_of(last, self._use(fetch))

    def _reserve_ids(self, sequence: str, count: int) -> int:
        async def reserve(connection: asyncpg.Connection[Any]) -> int:
            sql = (
                "INSERT INTO sequences AS s (kind, reserved) VALUES ($1, $2) "
                "ON CONFLICT (kind) DO UPDATE SET reserved = s.reserved + $3 RETURNING reserved"
            )
            async with connection.transaction():
                await self._guard(connection)
                return int(await connection.fetchval(sql, sequence, 1 + count, count))

        return self._use(reserve)

    def _give_back_ids(self, sequence: str, first: int, end: int) -> None:
        sql = "UPDATE sequences SET reserved = $1 WHERE kind = $2 AND reserved = $3"

        async def give_back(connection: asyncpg.Connection[Any]) -> None:
            async with connection.transaction():
                await self._guard(connection)
                await connection.execute(sql, first, sequence, end)

        self._use(give_back)

    def _copy(self, path: Path) -> None:
        """As an SQLite file: what a backup holds is the same wherever the metadata lived."""
        from mainstem.metadata.sqlite import SqliteStore

        facts = self._load()
        rows = [row for table in TABLES.values() if table.name != "kv" for row in getattr(facts, table.name)]
        copy = SqliteStore(path)
        try:
            copy.transact([Put(row) for row in rows])
            for key, value in facts.kv.items():
                copy.put_value(key, value)
            copy.flush().result()
            for kind, reserved in self._use(lambda c: c.fetch("SELECT kind, reserved FROM sequences")):
                copy.start_ids_at(kind, reserved)
        finally:
            copy.close()
        path.chmod(0o600)

    def _shut(self) -> None:
        self._session.close()


async def _apply(connection: asyncpg.Connection[Any], write: Write) -> MainstemError | None:
    """One write inside the round's transaction; what it did is undone if it fails."""
    import asyncpg

    try:
        async with connection.transaction():
            for required in write.requires:
                await _check(connection, required)
            for operation in write.operations:
                await _do(connection, operation)
            if write.operations:
                await connection.execute(TRIM)
    except Conflict as error:
        return error
    except asyncpg.IntegrityConstraintViolationError as error:
        return AlreadyExists(f"that name is taken ({error})")
    except asyncpg.DataError as error:
        return InvalidArgument(f"PostgreSQL cannot keep it: {error}")
    return None


async def _check(connection: asyncpg.Connection[Any], required: Precondition) -> None:
    if isinstance(required, Absent):
        table, key = TABLES[required.table], required.key
        if await connection.fetchrow(table.select(table.key, _mark), *key) is not None:
            raise Conflict(f"{table.name} {key_text(key)} exists already")
        return
    table = TABLES[type(required.row)]
    key = table.key_of(required.row)
    found = await connection.fetchrow(table.select(table.key, _mark), *key)
    if found is None or not _equal(table, tuple(found), table.values(required.row)):
        raise Conflict(f"{table.name} {key_text(key)} was changed by someone else")


def _equal(table: Table, found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    pairs = zip(table.columns, found, expected, strict=True)
    return all(json.loads(a) == json.loads(b) if name in table.documents else a == b for name, a, b in pairs)


async def _do(connection: asyncpg.Connection[Any], operation: Operation) -> None:
    if isinstance(operation, Put):
        table = TABLES[type(operation.row)]
        await connection.execute(table.upsert(_mark), *table.values(operation.row))
        await connection.execute(NOTE, table.name, key_text(table.key_of(operation.row)))
    elif isinstance(operation, Delete):
        table = TABLES[operation.table]
        await connection.execute(table.delete(table.key[: len(operation.key)], _mark), *operation.key)
        await connection.execute(NOTE, table.name, key_text(operation.key))
    elif isinstance(operation, Clear):
        for statement in clear_namespace(_mark):
            await connection.execute(statement, operation.namespace)
        await connection.execute(NOTE, "namespaces", key_text([operation.namespace]))


def _mark(number: int) -> str:
    return f"${number}"
