"""What was done to the files of a cell, in order: the content of its write-ahead log.

A row of the log is a body, its crc32c beside it. A body is changes, one after the other, big-endian:

    u8 kind, u16 length of path, u64 position, u32 length of data, path (relative, UTF-8), data

    WRITE      data at `position` of the file, which is made where there is none
    PUT        the whole file is data
    STORED     the whole file is the object whose key is data; `position` is its size
    TRUNCATE   the file ends at `position`
    DELETE     the file is gone
    SQL        data is a JSON list of statements: a transaction of the SQLite file, once and in its place

Applied in order they give the same files whatever lies there of later ones: a write is at its place, everything else says
the whole file. So the files may be copied while they change, as long as every change from before the copy on is applied;
only a database is copied exactly where the changes that follow begin.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mainstem.model.errors import CorruptFrame
from mainstem.storage.engine import Buffer
from mainstem.storage.object.pieces import SCHEMA as PIECES_SCHEMA
from mainstem.storage.tier.registry import SCHEMA as REGISTRY_SCHEMA

WRITE, PUT, STORED, TRUNCATE, DELETE, SQL = range(1, 7)
HEAD = struct.Struct(">BHQI")
OPEN_MAX = 64  # files of a replay


class Change(NamedTuple):
    kind: int
    path: str
    position: int
    data: memoryview


def head_of(kind: int, path: bytes, position: int = 0, size: int = 0) -> bytes:
    return HEAD.pack(kind, len(path), position, size) + path


def parse_changes(body: Buffer) -> Iterator[Change]:
    view, at = memoryview(body), 0
    while at < len(view):
        if len(view) - at < HEAD.size:
            raise CorruptFrame("a row of the write-ahead log ends inside a change")
        kind, path_size, position, size = HEAD.unpack_from(view, at)
        at += HEAD.size
        data_at = at + path_size
        if len(view) < data_at + size or not WRITE <= kind <= SQL:
            raise CorruptFrame("a row of the write-ahead log does not read as changes of files")
        yield Change(kind, str(view[at:data_at], "utf-8"), position, view[data_at : data_at + size])
        at = data_at + size


class Replay:
    """Does changes again, in a directory of nobody else's; `fetch(key, size)` brings an object."""

    def __init__(self, root: Path, fetch: Callable[[str, int], Buffer]) -> None:
        self._root, self._fetch = root, fetch
        self.files: dict[str, File] = {}
        self.changes = 0
        self._databases: dict[str, sqlite3.Connection] = {}
        self._open: dict[str, int] = {}  # descriptors, the ones used longest ago first

    def apply(self, change: Change) -> None:
        self.changes += 1
        if change.kind == WRITE:
            os.pwrite(self._descriptor(change.path), change.data, change.position)
            known = self.files.get(change.path)
            size = max(known.size if known else 0, change.position + len(change.data))
            self.files[change.path] = File(size)
            return
        self._let_go(change.path)
        path = self._root / change.path
        if change.kind == DELETE:
            path.unlink(missing_ok=True)
            self.files.pop(change.path, None)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if change.kind == SQL:
            self._run(change.path, json.loads(bytes(change.data)))
        elif change.kind == PUT:
            path.write_bytes(change.data)
            self.files[change.path] = File(len(change.data), bytes(change.data))
        elif change.kind == STORED:
            key = str(change.data, "utf-8")
            path.write_bytes(self._fetch(key, change.position))
            self.files[change.path] = File(change.position, key=key)
        else:
            os.ftruncate(self._descriptor(change.path), change.position)
            self.files[change.path] = File(change.position)

    def _descriptor(self, name: str) -> int:
        found = self._open.pop(name, None)
        if found is None:
            path = self._root / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if len(self._open) >= OPEN_MAX:
                self._let_go(next(iter(self._open)))
        self._open[name] = found
        return found

    def _let_go(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            os.close(found)

    def _run(self, path: str, statements: list[str]) -> None:
        db = self._databases.get(path)
        if db is None:
            db = self._databases[path] = sqlite3.connect(
                self._root / path,
                isolation_level=None,
                check_same_thread=False,  # one after the other
            )
            db.execute("PRAGMA synchronous=OFF")
            for schema in (REGISTRY_SCHEMA, PIECES_SCHEMA):
                db.executescript(schema)
        db.execute("BEGIN")
        for statement in statements:
            db.execute(statement)
        db.execute("COMMIT")

    def close(self) -> None:
        for db in self._databases.values():
            db.close()
        for name in list(self._open):
            self._let_go(name)


class File:
    """A file of a cell as the log knows it: small ones with what they hold, others perhaps with the object that does.
    `version` is of nothing else: two that have the same one hold the same bytes."""

    __slots__ = ("content", "key", "size", "version")
    _versions = itertools.count()

    def __init__(self, size: int, content: bytes | None = None, key: str = "") -> None:
        self.size, self.content, self.key, self.version = size, content, key, next(self._versions)

    def copy(self) -> File:
        same = File(self.size, self.content, self.key)
        same.version = self.version
        return same

    def grow(self, end: int) -> None:
        """Bytes were written up to there: what an object holds of it is not all of it."""
        self.size, self.key, self.version = max(self.size, end), "", next(self._versions)
