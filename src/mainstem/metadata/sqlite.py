"""Metadata in one SQLite file: WAL, synchronous=FULL, one thread that owns the connection, one transaction per round.

While a round commits, the next one collects in the queue, as in the log's own group commit. Each write of a round
has a savepoint of its own, so a refused one (a name that is taken) fails alone.

A full disk fails nothing: what is written is already true in the broker's memory. New things are refused before they
are made (`check_room`), and a round that meets it all the same has room made for it, or waits until there is some.
"""

from __future__ import annotations

import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from mainstem.metadata.rows import (
    Catalog,
    Document,
    Item,
    LogRow,
    NamespaceRow,
    SlotRow,
    SpanRow,
    TopicRow,
    ViewRow,
)
from mainstem.metadata.store import Room, Written
from mainstem.model.errors import AlreadyExists, ConfigError, DiskFull, MainstemError, Overloaded, StorageFault

VERSION = 1
QUEUED_MAX = 65_536  # writes waiting for the disk; beyond that the caller is refused
ROUND_MAX = 1_024  # writes in one transaction
ID_BLOCK = 64  # ids reserved at once; a crash skips at most this many
FULL_RETRY_S = 0.25
FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)  # nothing is broken; the second is -shm's word for it

Change = Callable[[sqlite3.Connection], None]


@dataclass(slots=True)
class _Write:
    changes: list[Change]
    written: Written
    alone: bool = False  # must run outside of a transaction


@dataclass(slots=True)
class _IdBlock:
    """Ids below `durable_end` may be given; those below `end` once `written` is done."""

    durable_end: int
    end: int
    written: Written


class SqliteStore:
    """`MetadataStore` on a file, or in memory when `path` is None (then nothing survives the process)."""

    def __init__(self, path: Path | None, room: Room | None = None) -> None:
        self.path = path
        self._room = room
        self._full: DiskFull | None = None  # while a round waits for room
        self._ending = threading.Event()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._group: list[Change] | None = None
        self._closed = False
        self._next: dict[str, int] = {}
        self._blocks: dict[str, _IdBlock] = {}
        self._connection = _open(path)
        for kind, reserved in self._connection.execute("SELECT kind, reserved FROM sequences"):
            self._next[kind] = reserved
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._thread.start()

    # -- reading, once

    def load(self) -> Catalog:
        """Reads through the writer's thread, so it sees everything put before."""
        catalog = Catalog()
        self._enqueue([lambda connection: _load(connection, catalog)]).result()
        return catalog

    # -- ids

    def next_id(self, sequence: str) -> int:
        number = self._next.get(sequence, 1)
        block = self._blocks.get(sequence)
        if block is None or number >= block.end:
            block = self._reserve(sequence, number + ID_BLOCK)
        if number >= block.durable_end:
            self._wait(block.written)  # rare: the next block was asked for half a block ago
            block.durable_end = block.end
        if block.end - number == ID_BLOCK // 2:
            durable_end = block.end if block.written.done() else block.durable_end
            self._reserve(sequence, block.end + ID_BLOCK).durable_end = durable_end
        self._next[sequence] = number + 1
        return number

    def _reserve(self, sequence: str, end: int) -> _IdBlock:
        written = self._enqueue([_upsert("sequences", kind=sequence, reserved=end)])
        block = self._blocks[sequence] = _IdBlock(0, end, written)
        return block

    def _wait(self, written: Written) -> None:
        """For the disk, but not for room on it."""
        while True:
            with suppress(TimeoutError):
                return written.result(FULL_RETRY_S)
            if self._full is not None:
                raise self._full

    # -- writing

    def check_room(self) -> None:
        if self._full is not None:
            raise self._full
        if self._room is not None:
            self._room.check()

    @contextmanager
    def together(self) -> Iterator[Written]:
        assert self._group is None, "together() does not nest"
        written = Written()
        changes: list[Change] = []
        self._group = changes
        try:
            yield written
        finally:
            self._group = None
        self._enqueue(changes, written)

    def put_namespace(self, row: NamespaceRow) -> Written:
        return self._put(_upsert("namespaces", name=row.name, created=row.created, options=_text(row.options)))

    def put_topic(self, row: TopicRow) -> Written:
        return self._put(
            _upsert(
                "topics",
                id=row.id,
                namespace=row.namespace,
                name=row.name,
                kafka_alias=row.kafka_alias,
                layout=row.layout,
                partitions=row.partitions,
                config=_text(row.config),
                created=row.created,
            )
        )

    def put_log(self, row: LogRow) -> Written:
        policy = _text(row.policy)
        return self._put(
            _upsert("logs", id=row.id, namespace=row.namespace, kind=row.kind, engine=row.engine, policy=policy)
        )

    def put_span(self, row: SpanRow) -> Written:
        return self._put(
            _upsert(
                "spans",
                topic_id=row.topic_id,
                partition=row.partition,
                seq=row.seq,
                log_id=row.log_id,
                first_offset=row.first_offset,
                end_offset=row.end_offset,
            )
        )

    def put_view(self, row: ViewRow) -> Written:
        return self._put(
            _upsert(
                "views",
                id=row.id,
                namespace=row.namespace,
                name=row.name,
                filter=row.filter,
                condition=row.condition,
                options=_text(row.options),
                created=row.created,
            )
        )

    def put_slot(self, row: SlotRow) -> Written:
        return self._put(_upsert("view_slots", view_id=row.view_id, slot=row.slot, log_id=row.log_id))

    def put_item(self, kind: str, namespace: str, name: str, body: Document) -> Written:
        return self._put(_upsert("items", kind=kind, namespace=namespace, name=name, body=_text(body)))

    def put_value(self, key: str, value: bytes) -> Written:
        return self._put(_upsert("kv", key=key, value=value))

    def delete_namespace(self, name: str) -> Written:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM spans WHERE topic_id IN (SELECT id FROM topics WHERE namespace = ?)", (name,)
            )
            connection.execute(
                "DELETE FROM view_slots WHERE view_id IN (SELECT id FROM views WHERE namespace = ?)", (name,)
            )
            for table in ("topics", "logs", "views", "items"):
                connection.execute(f"DELETE FROM {table} WHERE namespace = ?", (name,))
            connection.execute("DELETE FROM namespaces WHERE name = ?", (name,))

        return self._put(change)

    def delete_topic(self, topic_id: int) -> Written:
        return self._put(_delete("spans", topic_id=topic_id), _delete("topics", id=topic_id))

    def delete_log(self, log_id: int) -> Written:
        return self._put(_delete("logs", id=log_id))

    def delete_span(self, topic_id: int, partition: int, seq: int) -> Written:
        return self._put(_delete("spans", topic_id=topic_id, partition=partition, seq=seq))

    def delete_view(self, view_id: int) -> Written:
        return self._put(_delete("view_slots", view_id=view_id), _delete("views", id=view_id))

    def delete_item(self, kind: str, namespace: str, name: str) -> Written:
        return self._put(_delete("items", kind=kind, namespace=namespace, name=name))

    def delete_value(self, key: str) -> Written:
        return self._put(_delete("kv", key=key))

    def flush(self) -> Written:
        return self._enqueue([])

    def copy_to(self, path: Path) -> Written:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute("VACUUM INTO ?", (str(path),))
            path.chmod(0o600)

        return self._enqueue([change], alone=True)

    def end_waiting(self) -> None:
        self._ending.set()

    def close(self) -> None:
        if self._closed:
            return
        for sequence, number in self._next.items():  # a clean stop gives the unused ids back
            self._enqueue([_upsert("sequences", kind=sequence, reserved=number)])
        self._closed = True
        self._ending.set()
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    # -- the queue and its thread

    def _put(self, *changes: Change) -> Written:
        if self._group is None:
            return self._enqueue(list(changes))
        self._group.extend(changes)
        return Written()  # the group's own Written is the one to wait for

    def _enqueue(self, changes: list[Change], written: Written | None = None, *, alone: bool = False) -> Written:
        if self._closed:
            raise StorageFault("the metadata store is closed")
        if self._queue.qsize() >= QUEUED_MAX:
            raise Overloaded(f"{QUEUED_MAX} metadata changes are waiting for the disk")
        write = _Write(changes, written or Written(), alone)
        self._queue.put(write)
        return write.written

    def _run(self) -> None:
        ended = False
        while not ended:
            first = self._queue.get()
            if first is None:
                return
            writes = [first]
            while len(writes) < ROUND_MAX and not writes[-1].alone and not self._queue.empty():
                write = self._queue.get()
                if write is None:
                    ended = True
                    break
                writes.append(write)
            alone = [writes.pop()] if writes[-1].alone else []
            self._commit(writes)
            for write in alone:
                self._run_alone(write)

    def _commit(self, writes: list[_Write]) -> None:
        if not writes:
            return
        outcomes = self._try_commit(writes)
        while isinstance(full := outcomes[0], DiskFull):
            if self._room is None:
                break
            if not self._room.give_up():
                self._full = full
                if self._ending.wait(FULL_RETRY_S):
                    break  # nobody waits any longer: it was never acknowledged
            outcomes = self._try_commit(writes)
        self._full = None
        for write, outcome in zip(writes, outcomes, strict=True):
            _resolve(write.written, outcome)

    def _try_commit(self, writes: list[_Write]) -> list[MainstemError | None]:
        connection = self._connection
        outcomes: list[MainstemError | None] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = [_apply(connection, write) for write in writes]
            connection.execute("COMMIT")
        except (sqlite3.Error, ValueError) as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            outcomes = [_fault(error, self.path)] * len(writes)
        return outcomes

    def _run_alone(self, write: _Write) -> None:
        try:
            for change in write.changes:
                change(self._connection)
        except (sqlite3.Error, OSError) as error:
            _resolve(write.written, _fault(error, self.path))
        else:
            _resolve(write.written, None)


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
        return
    version = connection.execute("SELECT version FROM schema_version").fetchone()[0]
    if version > VERSION:
        connection.close()
        raise ConfigError(
            f"{path} has metadata version {version}; this Mainstem knows versions up to {VERSION}",
            fix="start it with the Mainstem that wrote it, or a newer one",
            code="MS-4007",
        )


def _apply(connection: sqlite3.Connection, write: _Write) -> MainstemError | None:
    """One write inside the round's transaction; what it did is undone if it fails."""
    connection.execute("SAVEPOINT one")
    try:
        for change in write.changes:
            change(connection)
    except sqlite3.IntegrityError as error:
        connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return AlreadyExists(f"that name is taken ({error})")
    connection.execute("RELEASE one")
    return None


def _resolve(written: Written, outcome: MainstemError | None) -> None:
    if not written.set_running_or_notify_cancel():
        return
    if outcome is None:
        written.set_result(None)
    else:
        written.set_exception(outcome)


def _fault(error: Exception, path: Path | None) -> MainstemError:
    if getattr(error, "sqlite_errorcode", None) in FULL_CODES:
        return DiskFull(f"no space left to write {path}", fix="free space, or move the data directory to a larger disk")
    return StorageFault(f"writing {path} failed: {error}")


def _upsert(table: str, **columns: object) -> Change:
    """Insert, or replace the row with the same primary key; a clash with another unique name is an error."""
    key_count = _KEY_COUNT[table]
    names = [f'"{name}"' for name in columns]
    key = ", ".join(names[:key_count])
    rest = ", ".join(f"{name} = excluded.{name}" for name in names[key_count:])
    marks = ", ".join("?" * len(names))
    sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {rest}"
    values = tuple(columns.values())

    def change(connection: sqlite3.Connection) -> None:
        connection.execute(sql, values)

    return change


_KEY_COUNT = {  # the first so many columns given to _upsert are the primary key
    "sequences": 1,
    "namespaces": 1,
    "topics": 1,
    "logs": 1,
    "spans": 3,
    "views": 1,
    "view_slots": 2,
    "items": 3,
    "kv": 1,
}


def _delete(table: str, **columns: object) -> Change:
    where = " AND ".join(f'"{name}" = ?' for name in columns)
    values = tuple(columns.values())

    def change(connection: sqlite3.Connection) -> None:
        connection.execute(f"DELETE FROM {table} WHERE {where}", values)

    return change


def _text(document: Document) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _load(connection: sqlite3.Connection, catalog: Catalog) -> None:
    for name, created, options in connection.execute("SELECT name, created, options FROM namespaces ORDER BY name"):
        catalog.namespaces.append(NamespaceRow(name, created, json.loads(options)))
    for id_, namespace, name, alias, layout, partitions, config, created in connection.execute(
        "SELECT id, namespace, name, kafka_alias, layout, partitions, config, created FROM topics ORDER BY id"
    ):
        catalog.topics.append(TopicRow(id_, namespace, name, alias, layout, partitions, json.loads(config), created))
    for id_, namespace, kind, engine, policy in connection.execute(
        "SELECT id, namespace, kind, engine, policy FROM logs ORDER BY id"
    ):
        catalog.logs.append(LogRow(id_, namespace, kind, engine, json.loads(policy)))
    for row in connection.execute(
        'SELECT topic_id, "partition", seq, log_id, first_offset, end_offset FROM spans ORDER BY 1, 2, 3'
    ):
        catalog.spans.append(SpanRow(*row))
    for id_, namespace, name, filter_, condition, options, created in connection.execute(
        "SELECT id, namespace, name, filter, condition, options, created FROM views ORDER BY id"
    ):
        catalog.views.append(ViewRow(id_, namespace, name, filter_, condition, json.loads(options), created))
    for row in connection.execute("SELECT view_id, slot, log_id FROM view_slots ORDER BY 1, 2"):
        catalog.view_slots.append(SlotRow(*row))
    for kind, namespace, name, body in connection.execute(
        "SELECT kind, namespace, name, body FROM items ORDER BY 1, 2, 3"
    ):
        catalog.items.append(Item(kind, namespace, name, json.loads(body)))
    catalog.kv = dict(connection.execute('SELECT "key", value FROM kv'))
