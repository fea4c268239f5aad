"""Which pieces of which bundles make up a log, in the registry of objects (`tier/registry.py`), on the local disk:

    piece(log_id, base_offset, end_offset, part, generation, first_stamp, last_stamp,
          object_id, position, size, index_position, index_size)         object_id '': nothing is left of these offsets
    object_log(log_id, end_offset, last_stamp, sealed, closed_run)       where a log ends, also when nothing of it is left

A bundle is live while a piece names it. Every change is one transaction, durable once the call returns.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.storage.object.bundle import Bundle, Piece, footer_of
from mainstem.storage.tier.registry import Registry

SCHEMA = """
CREATE TABLE IF NOT EXISTS piece(
    log_id INTEGER NOT NULL, part INTEGER NOT NULL, generation INTEGER NOT NULL, base_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL, first_stamp INTEGER NOT NULL, last_stamp INTEGER NOT NULL, position INTEGER NOT NULL,
    size INTEGER NOT NULL, index_position INTEGER NOT NULL, index_size INTEGER NOT NULL, object_id TEXT NOT NULL,
    PRIMARY KEY(log_id, base_offset)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS piece_object ON piece(object_id);
CREATE TABLE IF NOT EXISTS object_log(
    log_id INTEGER PRIMARY KEY, end_offset INTEGER NOT NULL, last_stamp INTEGER NOT NULL, sealed INTEGER NOT NULL,
    closed_run TEXT NOT NULL);
"""
_INSERT = f"INSERT INTO piece VALUES({','.join('?' * 12)})"
_SELECT = f"SELECT {', '.join(f'piece.{name}' for name in Piece._fields)}, o.id, o.key, o.footer FROM piece"
LAST = "bundle"  # a fact: run and sequence of the last bundle that was committed
RUNS_KEPT = 64  # lives of the writer that the bucket names


class Placed(NamedTuple):
    """A piece, and the bundle that it lies in; None: nothing is left of it."""

    piece: Piece
    bundle: Bundle | None


class LogEnd(NamedTuple):
    end_offset: int = 0
    last_stamp: int = 0
    sealed: bool = False
    closed_run: str = ""


class Pieces:
    """Any thread may call; what changes something takes a sync of the disk."""

    def __init__(self, registry: Registry, *, read_only: bool = False) -> None:
        self.registry = registry
        self.on_doomed: Callable[[set[str]], None] = lambda ids: None  # bundles that nothing names any more
        self.bared: set[str] | None = None  # while something is erased: bundles that lost a piece by it
        self.erasures = 0  # that have begun, and that have ended: odd while something is erased
        self._forgotten: set[int] = set()  # logs that were deleted: what is under way of them counts no more
        self.known: set[int] = set()  # logs of which something was written down before this start
        if read_only:
            with registry.reading() as db:
                self._exist = db.execute("SELECT 1 FROM sqlite_master WHERE name='piece'").fetchone() is not None
            return
        self._exist = True
        registry.extend(SCHEMA)
        with registry.reading() as db:
            for table in ("piece", "object_log"):
                self.known |= {row[0] for row in db.execute(f"SELECT DISTINCT log_id FROM {table}")}

    # -- runs

    @property
    def runs(self) -> list[str]:
        """Lives of the writer, the newest last."""
        return list(json.loads(self.registry.fact("runs") or "[]"))

    def begin_run(self, run: str) -> None:
        self.registry.set_fact("runs", json.dumps([*self.runs, run][-RUNS_KEPT:]))

    @property
    def last_bundle(self) -> tuple[str, int]:
        run, sequence = json.loads(self.registry.fact(LAST) or '["", -1]')
        return run, sequence

    # -- reading

    def of_log(self, log_id: int) -> list[Placed]:
        if not self._exist or log_id in self._forgotten:
            return []
        with self.registry.reading() as db:
            rows = db.execute(
                f"{_SELECT} LEFT JOIN object o ON o.id=object_id WHERE piece.log_id=? ORDER BY base_offset", (log_id,)
            ).fetchall()
        return _placed(rows)

    def of_bundles(self, ids: Sequence[str]) -> list[Placed]:
        """In order of log and offset."""
        marks = ",".join("?" * len(ids))
        with self.registry.reading() as db:
            rows = db.execute(
                f"{_SELECT} JOIN object o ON o.id=object_id WHERE object_id IN ({marks}) ORDER BY piece.log_id, base_offset",
                list(ids),
            ).fetchall()
        return _placed(rows)

    def bundles(self) -> list[Bundle]:
        """Live ones, the oldest first."""
        with self.registry.reading() as db:
            rows = db.execute(
                "SELECT id, key, footer FROM object WHERE state='live' AND log_id<0 ORDER BY created_ms"
            ).fetchall()
        return [Bundle(one, key, footer_of(json.loads(footer))) for one, key, footer in rows]

    def sparse(self, before_ms: int, limit: int) -> list[str]:
        """Merged bundles of which less than half is named any more, made before that time."""
        with self.registry.reading() as db:
            rows = db.execute(
                "SELECT o.id FROM object o JOIN piece p ON p.object_id=o.id WHERE o.state='live' AND o.log_id<0"
                " AND o.created_ms<? GROUP BY o.id HAVING 2*sum(p.size + p.index_size)<o.size LIMIT ?",
                (before_ms, limit),
            ).fetchall()
        return [row[0] for row in rows]

    def end_of(self, log_id: int) -> LogEnd:
        with self.registry.reading() as db:
            row = db.execute(
                "SELECT end_offset, last_stamp, sealed, closed_run FROM object_log WHERE log_id=?", (log_id,)
            ).fetchone()
        return LogEnd(row[0], row[1], bool(row[2]), row[3]) if row else LogEnd()

    def count_between(self, first: Piece, last: Piece) -> int:
        with self.registry.reading() as db:
            found = db.execute(
                "SELECT count(*) FROM piece WHERE log_id=? AND base_offset BETWEEN ? AND ?",
                (first.log_id, first.base_offset, last.base_offset),
            ).fetchone()
        return int(found[0])

    # -- changing

    def commit(self, bundle: Bundle, now_ms: int) -> None:
        """It is stored: from now on its pieces are part of their logs."""
        with self.registry.change() as db:
            live = [piece for piece in bundle.footer.pieces if piece.log_id not in self._forgotten]
            db.execute("UPDATE object SET state='live' WHERE id=?", (bundle.id,))
            db.executemany(_INSERT, [(*piece, bundle.id) for piece in live])
            last = json.dumps([bundle.footer.run, bundle.footer.sequence])
            db.execute("INSERT OR REPLACE INTO fact VALUES(?,?)", (LAST, last))
            gone = _doom_unnamed(db, [bundle.id], now_ms)
        self.on_doomed(gone)

    def swap(self, bundle: Bundle, replaced: Sequence[Sequence[Placed]], now_ms: int) -> list[bool]:
        """Pieces of `bundle` take the place of others, each of those at its place in `replaced`, where these are all there
        still; which of them did."""
        done = list[bool]()
        with self.registry.change() as db:
            db.execute("UPDATE object SET state='live' WHERE id=?", (bundle.id,))
            for piece, olds in zip(bundle.footer.pieces, replaced, strict=True):
                done.append(all(_is_there(db, old) for old in olds) and piece.log_id not in self._forgotten)
                if done[-1]:
                    db.executemany(
                        "DELETE FROM piece WHERE log_id=? AND base_offset=?",
                        [(old.piece.log_id, old.piece.base_offset) for old in olds],
                    )
                    db.execute(_INSERT, (*piece, bundle.id))
            ids = {old.bundle.id for olds in replaced for old in olds if old.bundle is not None}
            gone = _doom_unnamed(db, [bundle.id, *ids], now_ms)
        self.on_doomed(gone)
        return done

    def replace_part(self, piece: Piece, bundle: Bundle | None, now_ms: int) -> None:
        """All that there is of a part is this piece from now on."""
        with self.registry.change() as db:
            ids = _named_by(db, piece.log_id, [piece.part])
            db.execute("DELETE FROM piece WHERE log_id=? AND part=?", (piece.log_id, piece.part))
            db.execute(_INSERT, (*piece, bundle.id if bundle is not None else ""))
            if bundle is not None:
                db.execute("UPDATE object SET state='live' WHERE id=?", (bundle.id,))
            gone = _doom_unnamed(db, ids, now_ms)
        self._note_bared(ids, gone)
        self.on_doomed(gone)

    def trim(self, log_id: int, parts: Sequence[int], end: LogEnd, now_ms: int) -> None:
        with self.registry.change() as db:
            ids = _named_by(db, log_id, parts)
            db.executemany("DELETE FROM piece WHERE log_id=? AND part=?", [(log_id, part) for part in parts])
            db.execute("INSERT OR REPLACE INTO object_log VALUES(?,?,?,?,?)", (log_id, *end))
            gone = _doom_unnamed(db, ids, now_ms)
        self._note_bared(ids, gone)
        self.on_doomed(gone)

    def _note_bared(self, ids: Iterable[str], gone: set[str]) -> None:
        bared = self.bared
        if bared is not None:
            bared.update(one for one in ids if one and one not in gone)

    def close_log(self, log_id: int, end: LogEnd) -> None:
        with self.registry.change() as db:
            db.execute("INSERT OR REPLACE INTO object_log VALUES(?,?,?,?,?)", (log_id, *end))

    def ignore(self, log_ids: set[int]) -> None:
        """Their pieces count no more."""
        self._forgotten |= log_ids

    def forget_log(self, log_id: int, now_ms: int) -> None:
        """Its topic was deleted."""
        self._forgotten.add(log_id)
        with self.registry.change() as db:
            ids = _named_by(db, log_id)
            db.execute("DELETE FROM piece WHERE log_id=?", (log_id,))
            db.execute("DELETE FROM object_log WHERE log_id=?", (log_id,))
            gone = _doom_unnamed(db, ids, now_ms)
        self.on_doomed(gone)


def _placed(rows: Iterable[tuple[object, ...]]) -> list[Placed]:
    found, bundles = list[Placed](), dict[str, Bundle]()
    for row in rows:
        *piece, object_id, key, footer = row
        bundle = None
        if object_id is not None:
            name = str(object_id)
            if name not in bundles:
                bundles[name] = Bundle(name, str(key), footer_of(json.loads(str(footer))))
            bundle = bundles[name]
        found.append(Placed(Piece(*piece), bundle))  # type: ignore[arg-type]
    return found


def _is_there(db: sqlite3.Connection, old: Placed) -> bool:
    where = old.piece.log_id, old.piece.base_offset
    row = db.execute("SELECT object_id FROM piece WHERE log_id=? AND base_offset=?", where).fetchone()
    return row is not None and old.bundle is not None and row[0] == old.bundle.id


def _named_by(db: sqlite3.Connection, log_id: int, parts: Sequence[int] | None = None) -> list[str]:
    if parts is None:
        return [row[0] for row in db.execute("SELECT DISTINCT object_id FROM piece WHERE log_id=?", (log_id,))]
    found = [
        db.execute("SELECT DISTINCT object_id FROM piece WHERE log_id=? AND part=?", (log_id, part)).fetchall()
        for part in parts
    ]
    return [row[0] for row in itertools.chain.from_iterable(found)]


def _doom_unnamed(db: sqlite3.Connection, ids: Iterable[str], now_ms: int) -> set[str]:
    """Which of these are named no more."""
    unnamed = "id=? AND doomed_ms IS NULL AND NOT EXISTS (SELECT 1 FROM piece WHERE object_id=object.id)"
    gone = {one for one in set(ids) if db.execute(f"SELECT 1 FROM object WHERE {unnamed}", (one,)).fetchone()}
    db.executemany("UPDATE object SET state='doomed', doomed_ms=? WHERE id=?", [(now_ms, one) for one in gone])
    return gone
