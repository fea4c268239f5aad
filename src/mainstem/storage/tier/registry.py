"""Which objects there are, and which parts of which logs they hold. The truth of the tier, on the local disk.

    <data>/tier.sqlite
        fact(name, value)          id: whose objects these are; store: where they lie
        object(id, key, log_id, state, size, footer, created_ms, doomed_ms)
        part(log_id, base_offset, object_id)       what readers of a log find; one object each

An object is written down before it is uploaded, so that none is ever forgotten, and none is looked for by listing a bucket:

    pending   being uploaded. After a crash nobody knows whether it is there: it is doomed
    live      stored, verified, and named by a part
    doomed    named by no part any more; deleted from the store after the grace time, then forgotten

Every change is one transaction, durable once the call returns (WAL, synchronous=FULL).
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from mainstem.model.errors import ConfigError, DiskFull, StorageFault
from mainstem.storage.tier.objects import Footer, Object, Stored

FILE = "tier.sqlite"
VERSION = 1
STATES = ("pending", "live", "doomed")
SCHEMA = """
CREATE TABLE IF NOT EXISTS fact(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS object(
    id TEXT PRIMARY KEY, key TEXT NOT NULL, log_id INTEGER NOT NULL, state TEXT NOT NULL, size INTEGER NOT NULL,
    footer TEXT NOT NULL, created_ms INTEGER NOT NULL, doomed_ms INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS object_state ON object(state, doomed_ms);
CREATE TABLE IF NOT EXISTS part(
    log_id INTEGER NOT NULL, base_offset INTEGER NOT NULL, object_id TEXT NOT NULL,
    PRIMARY KEY(log_id, base_offset)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Doomed:
    id: str
    key: str
    size: int
    doomed_ms: int


Reading = Callable[[], AbstractContextManager[sqlite3.Connection]]


@runtime_checkable
class StatementJournal(Protocol):
    """Who keeps the changes of a database elsewhere, too: a disk that other machines go on from (`cluster/disk.py`)."""

    def attach_database(self, path: Path, reading: Reading) -> None:
        """From now on changes of this database are recorded. `reading` holds them off and lends the connection."""

    def record_statements(self, path: Path, statements: list[str]) -> int:
        """A transaction, in its place among all other changes; its position."""

    def wait_recorded(self, position: int) -> None:
        """Until it is durable."""


class Registry:
    """Any thread may call; each call is a small transaction and takes a sync of the disk."""

    def __init__(self, data: Path, *, read_only: bool = False, journal: StatementJournal | None = None) -> None:
        """`read_only`: to look into a data directory that a broker may be using."""
        self.path = data / FILE
        self._journal = journal
        self._lock, self._reading = threading.Lock(), threading.Lock()
        if read_only:
            self._db = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, check_same_thread=False)
            self._reader = self._db
            self.id = self.fact("id")
            return
        try:
            self._db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            self._check_version()
            self._reader = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise StorageFault(
                f"{self.path}: cannot be opened: {error}; it says which objects hold what was dropped locally",
                fix="put a copy back (mainstem backup has one), or restore from the bucket: mainstem restore s3://... DIR",
            ) from error
        if journal is not None:
            journal.attach_database(self.path, self.holding)
        self.id = self.fact("id") or self._make_id()
        self.version = 0  # grows with each change

    def _check_version(self) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found > VERSION:
            raise ConfigError(f"{self.path}: written by a newer Mainstem (format {found})", fix="use that version")
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def _make_id(self) -> str:
        made = uuid.uuid4().hex
        self.set_fact("id", made)
        return made

    def fact(self, name: str) -> str:
        with self.reading() as db:
            found = db.execute("SELECT value FROM fact WHERE name=?", (name,)).fetchone()
        return str(found[0]) if found else ""

    def set_fact(self, name: str, value: str) -> None:
        if self.fact(name) == value:
            return
        with self.change() as db:
            db.execute("INSERT OR REPLACE INTO fact VALUES(?,?)", (name, value))

    def extend(self, schema: str) -> None:
        """Tables of another part of the tier."""
        with self._lock:
            self._db.executescript(schema)

    # -- objects

    def begin(self, made: Stored, size: int, now_ms: int) -> None:
        """It is about to be uploaded."""
        with self.change() as db:
            footer = json.dumps(made.footer.document(), separators=(",", ":"))
            values = (made.id, made.key, made.footer.log_id, "pending", size, footer, now_ms, None)
            db.execute("INSERT INTO object VALUES(?,?,?,?,?,?,?,?)", values)

    def commit(self, made: Object, now_ms: int) -> None:
        """It is stored and verified: from now on its part is read from it, and from no other."""
        with self.change() as db:
            where = (made.footer.log_id, made.footer.base_offset)
            db.execute(
                "UPDATE object SET state='doomed', doomed_ms=? WHERE id IN"
                " (SELECT object_id FROM part WHERE log_id=? AND base_offset=?)",
                (now_ms, *where),
            )
            db.execute("UPDATE object SET state='live' WHERE id=?", (made.id,))
            db.execute("INSERT OR REPLACE INTO part VALUES(?,?,?)", (*where, made.id))

    def doom(self, object_ids: list[str], now_ms: int) -> None:
        """Nothing names them any more."""
        with self.change() as db:
            for one in object_ids:
                db.execute(
                    "UPDATE object SET state='doomed', doomed_ms=? WHERE id=? AND doomed_ms IS NULL", (now_ms, one)
                )
                db.execute("DELETE FROM part WHERE object_id=?", (one,))

    def doom_log(self, log_id: int, now_ms: int) -> None:
        with self.change() as db:
            db.execute(
                "UPDATE object SET state='doomed', doomed_ms=? WHERE log_id=? AND doomed_ms IS NULL", (now_ms, log_id)
            )
            db.execute("DELETE FROM part WHERE log_id=?", (log_id,))

    def doom_pending(self, now_ms: int) -> int:
        """At a start: what was being uploaded when the process ended."""
        with self.reading() as db:
            if db.execute("SELECT 1 FROM object WHERE state='pending' LIMIT 1").fetchone() is None:
                return 0
        with self.change() as db:
            return db.execute("UPDATE object SET state='doomed', doomed_ms=? WHERE state='pending'", (now_ms,)).rowcount

    def doomed(self, before_ms: int, limit: int) -> list[Doomed]:
        with self.reading() as db:
            rows = db.execute(
                "SELECT id, key, size, doomed_ms FROM object WHERE state='doomed' AND doomed_ms<=?"
                " ORDER BY doomed_ms LIMIT ?",
                (before_ms, limit),
            ).fetchall()
        return [Doomed(*row) for row in rows]

    def forget(self, object_id: str) -> None:
        """It is deleted from the store."""
        with self.change() as db:
            db.execute("DELETE FROM object WHERE id=? AND state='doomed'", (object_id,))

    # -- what there is

    def parts_of(self, log_id: int) -> list[Object]:
        """In order of their offsets."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT o.id, o.key, o.footer FROM part p JOIN object o ON o.id=p.object_id"
                " WHERE p.log_id=? ORDER BY p.base_offset",
                (log_id,),
            ).fetchall()
        return [Object(row[0], row[1], _footer(row[2])) for row in rows]

    def logs(self) -> set[int]:
        """Logs of which something is in the store."""
        with self.reading() as db:
            return {row[0] for row in db.execute("SELECT DISTINCT log_id FROM part")}

    def totals(self) -> dict[str, tuple[int, int]]:
        """By state: objects, bytes."""
        with self.reading() as db:
            rows = db.execute("SELECT state, count(*), sum(size) FROM object GROUP BY state").fetchall()
        return {state: (count, size or 0) for state, count, size in rows}

    def copy_to(self, path: Path) -> None:
        """A consistent copy, while it is used."""
        target = sqlite3.connect(path)
        try:
            with self.reading() as db:
                db.backup(target)
        finally:
            target.close()

    def close(self) -> None:
        with self._lock, self._reading:
            self._reader.close()
            self._db.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: it waits for no transaction, and sees all that are done."""
        with self._reading:
            yield self._reader

    @contextmanager
    def holding(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes; nothing changes meanwhile."""
        with self._lock:
            yield self._db

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction, durable at its end."""
        statements: list[str] = []
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                if self._journal is not None:
                    self._db.set_trace_callback(statements.append)  # is told them with their values
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                finally:
                    self._db.set_trace_callback(None)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if "full" in str(error):
                    raise DiskFull(f"{self.path}: no space to write it: {error}") from error
                raise StorageFault(f"{self.path}: cannot be written: {error}") from error
            self.version = getattr(self, "version", 0) + 1
            position = 0 if self._journal is None else self._journal.record_statements(self.path, statements)
        if self._journal is not None:
            self._journal.wait_recorded(
                position
            )  # readers meanwhile see it, whoever acts on it is behind it in the journal


def _footer(text: str) -> Footer:
    told = json.loads(text)
    return Footer(**{**told, "crcs": tuple(told["crcs"])})
