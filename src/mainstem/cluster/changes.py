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

import json
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

    def __init__(self, root: Path, fetch: Callable[[str, int], bytes]) -> None:
        self._root, self._fetch = root, fetch
        self.files: dict[str, File] = {}
        self.changes = 0
        self._databases: dict[str, sqlite3.Connection] = {}

    def apply(self, change: Change) -> None:
        self.changes += 1
        path = self._root / change.path
        if change.kind == DELETE:
            path.unlink(missing_ok=True)
            self.files.pop(change.path, None)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if change.kind == SQL:
            self._run(change.path, json.loads(bytes(change.data)))
            return
        known = self.files.get(change.path)
        if change.kind == WRITE:
            _write(path, change.position, change.data)
            size = max(known.size if known else 0, change.position + len(change.data))
            self.files[change.path] = File(size)
        elif change.kind == PUT:
            path.write_bytes(change.data)
            self.files[change.path] = File(len(change.data), bytes(change.data))
        elif change.kind == STORED:
            key = str(change.data, "utf-8")
            path.write_bytes(self._fetch(key, change.position))
            self.files[change.path] = File(change.position, key=key)
        else:
            _write(path, 0, memoryview(b""))
            with path.open("r+b") as file:
                file.truncate(change.position)
            self.files[change.path] = File(change.position)

    def _run(self, path: str, statements: list[str]) -> None:
        db = self._databases.get(path)
        if db is None:
            db = self._databases[path] = sqlite3.connect(self._root / path, isolation_level=None)
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


class File:
    """A file of a cell as the log knows it: small ones with what they hold, others perhaps with the object that does."""

    __slots__ = ("content", "key", "size")

    def __init__(self, size: int, content: bytes | None = None, key: str = "") -> None:
        self.size, self.content, self.key = size, content, key


def _write(path: Path, position: int, data: memoryview) -> None:
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(position)
        file.write(data)
