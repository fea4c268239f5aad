"""Into a cluster and out of it: a stopped broker's data directory becomes the first cell, and the other way round.

Importing makes an image of the directory and copies its metadata; the directory stays as it is. Exporting rebuilds the
cell's files as a taker would, beside a copy of its metadata. Both own the cell meanwhile, so nobody else can serve it.
What lies in an object store is named by one registry only, and is therefore not moved: such topics are refused.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from mainstem.cluster.cell import CellStore, borrow_cell
from mainstem.cluster.changes import File
from mainstem.cluster.disk import CellDisk, is_recorded
from mainstem.cluster.image import ImageMaker
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.rebuilding import rebuild
from mainstem.cluster.schema import FIRST_CELL, SCHEMA
from mainstem.cluster.wal import CellWal
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import Put
from mainstem.metadata.tables import TABLES
from mainstem.model.errors import ConfigError
from mainstem.storage.backup import METADATA, STAGING, STAMPS, STATE, Progress, make_empty, sync_tree
from mainstem.storage.directory import DataDirectory
from mainstem.storage.engines import ENGINES
from mainstem.storage.segment.segment import parse_name
from mainstem.storage.tier.registry import FILE, Registry
from mainstem.storage.tier.store import StoreSettings

ROWS_AT_ONCE = 500


def import_directory(dsn: str, store: StoreSettings, data: Path, progress: Progress | None = None) -> int:
    """How many files were taken. The broker of the directory must be stopped, the cluster new. `progress` is told bytes that
    were stored, and bytes in all."""
    directory = DataDirectory(data)
    try:
        _check_movable(directory.path)
        session = PostgresSession(dsn, SCHEMA)
        try:
            _check_new(session)
        finally:
            session.close()
        files = _files_of(directory.path)
        with borrow_cell(dsn, "it was imported") as epoch:
            _store_image(dsn, store, epoch, directory.path, files, progress)
            _copy_metadata(directory.path / METADATA, CellStore(dsn, FIRST_CELL, epoch, lambda reason: None))
        return len(files)
    finally:
        directory.release()


def export_directory(dsn: str, store: StoreSettings, target: Path, progress: Progress | None = None) -> int:
    """How many files were made. `target` must be empty, and no broker may serve. `progress` is told bytes that were made,
    and bytes in all."""
    make_empty(target)
    session = PostgresSession(dsn, SCHEMA)
    try:
        _check_one_cell(session)
        with borrow_cell(dsn, "it was exported") as epoch:
            found = rebuild(session, FIRST_CELL, epoch, target.resolve(), CellObjects(store, FIRST_CELL), progress)
            _check_movable(target)
            metadata = CellStore(dsn, FIRST_CELL, epoch, lambda reason: None)
            try:
                metadata.copy_to(target / METADATA).result()
            finally:
                metadata.close()
    finally:
        session.close()
    sync_tree(target)
    return len(found.files)


def _check_new(session: PostgresSession) -> None:
    lane = session.use(lambda c: c.fetchrow("SELECT wal_seq, image FROM lane WHERE cell_id = $1", FIRST_CELL))
    if lane is None or lane["wal_seq"] or lane["image"]:
        raise ConfigError(
            "the cluster holds data already; importing would replace it",
            fix="import before the first broker serves, into a database and a prefix of their own",
        )


def _check_one_cell(session: PostgresSession) -> None:
    """The data of a broker that is alone is one cell's."""
    names = [
        row["name"] for row in session.use(lambda c: c.fetch("SELECT name FROM cell WHERE cell_id != $1", FIRST_CELL))
    ]
    if names:
        raise ConfigError(
            f"the cluster has {len(names)} cells beside main ({', '.join(names[:5])}), which are not exported",
            fix="copy their topics to a broker by a client, or remove their namespaces with the cluster",
        )


def _check_movable(data: Path) -> None:
    if (data / FILE).exists():
        registry = Registry(data, read_only=True)
        try:
            if registry.totals():
                raise ConfigError(
                    f"{data}: parts of it lie in an object store, which are not moved",
                    fix="alter the topics to tier none and engine segment first, and wait until nothing is there",
                )
        finally:
            registry.close()
    if (data / METADATA).exists():
        db = sqlite3.connect(f"file:{data / METADATA}?mode=ro", uri=True)
        try:
            used = {row[0] for row in db.execute("SELECT DISTINCT engine FROM logs")}
        finally:
            db.close()
        for engine in used:
            if ENGINES[engine].one_machine:
                raise ConfigError(
                    f"{data}: logs of engine {engine} cannot be moved",
                    fix="mainstem topic alter TOPIC --engine segment",
                )


def _files_of(root: Path) -> dict[str, File]:
    paths = [root / STAMPS, *(root / STATE).glob("*"), *(root / STAGING).rglob("*"), *(root / "logs").glob("*/*")]
    files = {}
    for path in paths:
        if path.is_file() and is_recorded(path.name) and (parse_name(path.name) or not path.name.endswith(".log")):
            content = None if parse_name(path.name) else path.read_bytes()
            files[str(path.relative_to(root))] = File(path.stat().st_size, content)
    return files


class _ToldObjects(CellObjects):
    """Tells how much was put."""

    def __init__(self, store: StoreSettings, progress: Progress, total: int) -> None:
        super().__init__(store, FIRST_CELL)
        self._progress, self._total, self._done = progress, total, 0

    def put(self, kind: str, data: bytes) -> str:
        key = super().put(kind, data)
        self._done += len(data)
        self._progress(min(self._done, self._total), self._total)
        return key


def _store_image(
    dsn: str, store: StoreSettings, epoch: int, root: Path, files: dict[str, File], progress: Progress | None
) -> None:
    lost = threading.Event()
    wal = CellWal(dsn, FIRST_CELL, epoch, 0, 0, lambda reason: lost.set())
    size = sum(file.size for file in files.values())
    objects = _ToldObjects(store, progress or (lambda done, total: None), size)
    disk = CellDisk(root, wal, objects, files)
    try:
        ImageMaker(dsn, FIRST_CELL, epoch, root, wal, disk, objects).run()
    finally:
        wal.close()


def _copy_metadata(source: Path, target: CellStore) -> None:
    origin = SqliteStore(source)
    try:
        facts = origin.load()
        rows = [row for table in TABLES.values() if table.name != "kv" for row in getattr(facts, table.name)]
        for first in range(0, len(rows), ROWS_AT_ONCE):
            target.transact([Put(row) for row in rows[first : first + ROWS_AT_ONCE]]).result()
        for key, value in facts.kv.items():
            target.put_value(key, value)
        target.flush().result()
        for kind, reserved in _sequences(source):
            target.start_ids_at(kind, reserved)
    finally:
        origin.close()
        target.close()


def _sequences(path: Path) -> list[tuple[str, int]]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return [(row[0], row[1]) for row in db.execute("SELECT kind, reserved FROM sequences")]
    finally:
        db.close()
