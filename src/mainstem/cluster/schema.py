"""The cluster's tables in PostgreSQL, in a schema of their own; each cell has another for its metadata.

    cluster    one row: whose tables these are, their version, where the objects lie, the secret brokers know each other by
    broker     who takes part, where it is reached, when it was last heard of
    cell       who owns it until when, by PostgreSQL's own clock; the epoch grows with every owner
    lane       the end of a cell's write-ahead log: a commit is an update of this row that names the epoch
    image      what the write-ahead log goes on from: an object with all files of the cell as of `flushed_seq`
    place      the cell of a namespace that is not in cell 1
    move       which cell was moved from whom to whom, and why: at most so many an hour
    wal_N_S    the rows of cell N; two tables by turns, so that what an image holds is truncated, never deleted

`cluster.version` grows when an older Mainstem could not work with the tables; what is only added does not raise it, so that
brokers of two neighbouring versions run together. Plain SQL: no extension, no procedure, no LISTEN. The advisory lock only
keeps two first starts apart.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.broker.namespaces.placement import FIRST_CELL as FIRST_CELL
from mainstem.metadata.postgres_session import PostgresSession, check_server
from mainstem.model.errors import ConfigError

if TYPE_CHECKING:
    import asyncpg

SCHEMA = "mainstem_cluster"
VERSION = 1
SLOTS = 2
TABLES = """
CREATE TABLE cluster (
    id TEXT NOT NULL, version INTEGER NOT NULL, store TEXT NOT NULL, secret TEXT NOT NULL,
    created TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE broker (
    name TEXT PRIMARY KEY, node_id INTEGER NOT NULL UNIQUE, incarnation TEXT NOT NULL, host TEXT NOT NULL,
    relay_port INTEGER NOT NULL, ports TEXT NOT NULL, version TEXT NOT NULL, draining BOOLEAN NOT NULL DEFAULT false,
    seen TIMESTAMPTZ NOT NULL);
CREATE TABLE cell (
    cell_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner TEXT, wanted TEXT, epoch BIGINT NOT NULL DEFAULT 0,
    lease_until TIMESTAMPTZ NOT NULL DEFAULT now(), taken TIMESTAMPTZ, reason TEXT NOT NULL DEFAULT '')
    WITH (fillfactor = 50);
CREATE TABLE lane (
    cell_id INTEGER PRIMARY KEY, epoch BIGINT NOT NULL DEFAULT 0, wal_seq BIGINT NOT NULL DEFAULT 0,
    flushed_seq BIGINT NOT NULL DEFAULT 0, slot INTEGER NOT NULL DEFAULT 0, image TEXT NOT NULL DEFAULT '')
    WITH (fillfactor = 50);
"""
ADDED = (  # later, and unknown to older brokers: they go on as they were
    ("broker", "owns", "BOOLEAN NOT NULL DEFAULT true"),
    ("cell", "relay_port", "INTEGER NOT NULL DEFAULT 0"),  # of the process that serves it; 0: the broker's
    ("cell", "wanted_because", "TEXT NOT NULL DEFAULT ''"),
    ("cell", "prepared", "TEXT NOT NULL DEFAULT ''"),  # the heir that has its files, and as of which epoch
)
ADDED_TABLES = """
CREATE TABLE IF NOT EXISTS place (namespace TEXT PRIMARY KEY, cell_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS move (
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), cell_id INTEGER NOT NULL, source TEXT NOT NULL,
    target TEXT NOT NULL, reason TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """What all brokers of a cluster share."""

    id: str
    store: str
    secret: bytes


def wal_table(cell_id: int, slot: int) -> str:
    return f"wal_{cell_id}_{slot}"


def metadata_schema(cell_id: int) -> str:
    return f"mainstem_cell_{cell_id}"


def find(session: PostgresSession) -> Identity | None:
    """Whose tables these are; None where there are none. ConfigError where they are a newer Mainstem's."""
    return session.use(_find)


def prepare(session: PostgresSession, store: str) -> Identity:
    """Make the tables where there are none, and what later versions added to them."""

    async def make(connection: asyncpg.Connection[Any]) -> Identity:
        check_server(connection)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", SCHEMA)
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            if await connection.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.cluster") is None:
                await connection.execute(TABLES)
                sql = "INSERT INTO cluster (id, version, store, secret) VALUES ($1, $2, $3, $4)"
                await connection.execute(sql, uuid.uuid4().hex, VERSION, store, secrets.token_hex(32))
                await add_cell(connection, FIRST_CELL, "main")
            await connection.execute(ADDED_TABLES)
            for table, column, kind in ADDED:
                sql = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2"
                if await connection.fetchval(sql, f"{SCHEMA}.{table}", column) is None:
                    await connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        found = await _find(connection)
        assert found is not None
        return found

    return session.use(make)


async def _find(connection: asyncpg.Connection[Any]) -> Identity | None:
    if await connection.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.cluster") is None:
        return None
    row = await connection.fetchrow("SELECT id, version, store, secret FROM cluster")
    assert row is not None
    if row["version"] > VERSION:
        raise ConfigError(
            f"the cluster's tables have version {row['version']}; this Mainstem knows versions up to {VERSION}",
            fix="start it with the Mainstem that made them, or a newer one",
            code="MS-4007",
        )
    return Identity(row["id"], row["store"], bytes.fromhex(row["secret"]))


async def add_cell(connection: asyncpg.Connection[Any], cell_id: int, name: str) -> None:
    await connection.execute("INSERT INTO cell (cell_id, name) VALUES ($1, $2)", cell_id, name)
    await connection.execute("INSERT INTO lane (cell_id) VALUES ($1)", cell_id)
    for slot in range(SLOTS):
        table = wal_table(cell_id, slot)
        await connection.execute(
            f"CREATE TABLE {table} (seq BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, crc BIGINT NOT NULL, body BYTEA NOT NULL)"
        )
        await connection.execute(f"ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL")
