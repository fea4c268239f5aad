"""Metadata in one SQLite file: WAL, synchronous=FULL, one thread that owns the connection, one transaction per round."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

from mainstem.metadata.rounds import RoundStore, Write
from mainstem.metadata.rows import Facts
from mainstem.metadata.store import Absent, Changes, Clear, Delete, Operation, Precondition, Put, Room
from mainstem.metadata.tables import CHANGES_KEPT, TABLES, clear_namespace, fill, key_text
from mainstem.model.errors import AlreadyExists, ConfigError, Conflict, DiskFull, MainstemError, StorageFault

VERSION = 1
FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)  # nothing is broken; the second is -shm's word for it
CHANGES = 'CREATE TABLE IF NOT EXISTS changes (seq INTEGER PRIMARY KEY, "table" TEXT NOT NULL, "key" TEXT NOT NULL)'
NOTE = 'INSERT INTO changes (seq, "table", "key") SELECT coalesce(max(seq), 0) + 1, ?, ? FROM changes'
TRIM = f"DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - {CHANGES_KEPT}"

T = TypeVar("T")


class SqliteStore(RoundStore):
    """`MetadataStore` on a file, or in memory when `path` is None (then nothing survives the process)."""

    def __init__(self, path: Path | None, room: Room | None = None) -> None:
        super().__init__(room)
        self.path = path
        self._connection = _open(path)
        self._start_thread()

    def _commit_round(self, writes: list[Write]) -> list[MainstemError | None]:
        return self._in_transaction(lambda: [_apply(self._connection, write) for write in writes])

    def _reserve_ids(self, sequence: str, count: int) -> int:
        def reserve() -> int:
            self._connection.execute(
                "INSERT INTO sequences (kind, reserved) VALUES (?, ?) "
                "ON CONFLICT (kind) DO UPDATE SET reserved = reserved + ?",
                (sequence, 1 + count, count),
            )
            found = self._connection.execute("SELECT reserved FROM sequences WHERE kind = ?", (sequence,)).fetchone()
            return int(found[0])

        return self._in_transaction(reserve)

    def start_ids_at(self, sequence: str, first: int) -> None:
        """Of a copy: ids below were given by the store it was made from."""
        sql = "INSERT OR REPLACE INTO sequences (kind, reserved) VALUES (?, ?)"
        self._call(lambda: self._connection.execute(sql, (sequence, first))).result()

    def _give_back_ids(self, sequence: str, first: int, end: int) -> None:
        self._connection.execute(
            "UPDATE sequences SET reserved = ? WHERE kind = ? AND reserved = ?", (first, sequence, end)
        )

    def _in_transaction(self, run: Callable[[], T]) -> T:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            done = run()
            connection.execute("COMMIT")
        except (sqlite3.Error, ValueError) as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise _fault(error, self.path) from error
        return done

    def _load(self) -> Facts:
        facts = Facts()
        for table in TABLES.values():
            fill(facts, table, self._connection.execute(table.select()).fetchall())
        return facts

    def _changes_since(self, last: int) -> Changes:
        rows = self._connection.execute('SELECT seq, "table", "key" FROM changes WHERE seq > ? ORDER BY seq', (last,))
        return changes_of(last, rows.fetchall())

    def _copy(self, path: Path) -> None:
        try:
            self._connection.execute("VACUUM INTO ?", (str(path),))
            path.chmod(0o600)
        except (sqlite3.Error, OSError) as error:
            raise _fault(error, self.path) from error

    def _shut(self) -> None:
        self._connection.close()


def changes_of(last: int, rows: list[tuple[int, str, str]]) -> Changes:
    """`rows` are those after `last`; a first one that is not the next says that some were dropped."""
    by_name = {table.name: table.row for table in TABLES.values()}
    changed = tuple((by_name[name], tuple(json.loads(key))) for _, name, key in rows)
    return Changes(rows[-1][0] if rows else last, changed, not rows or rows[0][0] == last + 1)


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # -wal and -shm take the mode of the file
    try:
        connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -1024")  # KiB: the broker's memory is the cache
        _prepare(connection, path)
    except sqlite3.Error as error:
        if (full := _fault(error, path)) and isinstance(full, DiskFull):
            raise full from error
        raise StorageFault(
            f"{path} cannot be opened as metadata: {error}", fix="restore it from a backup: mainstem restore BACKUP DIR"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    known = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'schema_version'").fetchone()[0]
    if not known:
        schema = resources.files("mainstem.metadata").joinpath("schema.sql").read_text()
        connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nCOMMIT;")
    version = connection.execute("SELECT version FROM schema_version").fetchone()[0]
    if version > VERSION:
        connection.close()
        raise ConfigError(
            f"{path} has metadata version {version}; this Mainstem knows versions up to {VERSION}",
            fix="start it with the Mainstem that wrote it, or a newer one",
            code="MS-4007",
        )
    connection.execute(CHANGES)


def _apply(connection: sqlite3.Connection, write: Write) -> MainstemError | None:
    """One write inside the round's transaction; what it did is undone if it fails."""
    connection.execute("SAVEPOINT one")
    try:
        for required in write.requires:
            _check(connection, required)
        for operation in write.operations:
            _do(connection, operation)
        if write.operations:
            connection.execute(TRIM)
    except (sqlite3.IntegrityError, Conflict) as error:
        connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return error if isinstance(error, Conflict) else AlreadyExists(f"that name is taken ({error})")
    connection.execute("RELEASE one")
    return None


def _check(connection: sqlite3.Connection, required: Precondition) -> None:
    if isinstance(required, Absent):
        table, key = TABLES[required.table], required.key
        if connection.execute(table.select(table.key, _mark), key).fetchone() is not None:
            raise Conflict(f"{table.name} {key_text(key)} exists already")
        return
    table = TABLES[type(required.row)]
    key = table.key_of(required.row)
    if connection.execute(table.select(table.key, _mark), key).fetchone() != table.values(required.row):
        raise Conflict(f"{table.name} {key_text(key)} was changed by someone else")


def _do(connection: sqlite3.Connection, operation: Operation) -> None:
    if isinstance(operation, Put):
        table = TABLES[type(operation.row)]
        connection.execute(table.upsert(_mark), table.values(operation.row))
        connection.execute(NOTE, (table.name, key_text(table.key_of(operation.row))))
    elif isinstance(operation, Delete):
        table = TABLES[operation.table]
        connection.execute(table.delete(table.key[: len(operation.key)], _mark), operation.key)
        connection.execute(NOTE, (table.name, key_text(operation.key)))
    elif isinstance(operation, Clear):
        for statement in clear_namespace(_mark):
            connection.execute(statement, (operation.namespace,))
        connection.execute(NOTE, ("namespaces", key_text([operation.namespace])))


def _mark(_number: int) -> str:
    return "?"


def _fault(error: Exception, path: Path | None) -> MainstemError:
    if getattr(error, "sqlite_errorcode", None) in FULL_CODES:
        return DiskFull(f"no space left to write {path}", fix="free space, or move the data directory to a larger disk")
    return StorageFault(f"writing {path} failed: {error}")
