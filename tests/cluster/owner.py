"""An owner of a cell without a broker: it changes files at random, as a broker's engines would."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

from mainstem.cluster.disk import INLINE_BYTES_MAX, CellDisk
from mainstem.cluster.image import ImageMaker
from mainstem.cluster.membership import Membership
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.rebuilding import rebuild
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, metadata_schema, prepare
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.storage.disk import write_all
from mainstem.storage.segment.segment import file_name
from mainstem.storage.state_file import write_state
from mainstem.storage.tier.store import StoreSettings

LOGS = (1, 2)


class Owner:
    """One owner of the cell, from its takeover to its end; `kept` is what it knows to be durable."""

    def __init__(self, dsn: str, directory: Path, store: StoreSettings, number: int) -> None:
        self.lost = threading.Event()
        session = PostgresSession(dsn, SCHEMA)
        prepare(session, store.url)
        logs = f"{metadata_schema(FIRST_CELL)}.logs"
        session.use(lambda c: c.execute(f"CREATE SCHEMA IF NOT EXISTS {metadata_schema(FIRST_CELL)}"))
        session.use(lambda c: c.execute(f"CREATE TABLE IF NOT EXISTS {logs} AS SELECT * FROM (VALUES (1), (2)) t (id)"))
        epoch = session.use(lambda c: c.fetchval("SELECT epoch FROM cell"))
        member = Membership(dsn, f"owner-{number}", lambda reason: None, lambda view: None)
        taken = member.take(FIRST_CELL, epoch, "test", early=True)
        assert taken == epoch + 1
        self.root = directory / f"cell-{number}"
        objects = CellObjects(store, FIRST_CELL)
        found = rebuild(session, FIRST_CELL, taken, self.root, objects)
        self.wal = CellWal(dsn, FIRST_CELL, taken, found.seq, found.slot, lambda reason: self.lost.set())
        self.disk = CellDisk(self.root, self.wal, objects, found.files)
        self.images = ImageMaker(dsn, FIRST_CELL, taken, self.root, self.wal, self.disk, objects)
        self.images.go_on(found.image)
        session.close()

    def end(self) -> None:
        """It is gone; what it recorded last may be committed or not."""
        with contextlib.suppress(Fenced):
            self.wal.close()

    def files(self) -> dict[str, bytes]:
        """What counts: segments, and the newest of each state."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.name.endswith((".new", ".previous", ".format")):
                found[str(path.relative_to(self.root))] = path.read_bytes()
        return found

    def change(self, rng: random.Random, *, stores: bool = True) -> None:
        """`stores`: also files that are too large for a row."""
        log = self.root / "logs" / str(rng.choice(LOGS))
        self.disk.make_dir(log)
        segments = sorted(log.glob("*.log"))
        kind = rng.random()
        if kind < 0.6 or not segments:
            self._append(log, segments, rng)
        elif kind < 0.8:
            size = INLINE_BYTES_MAX + 1 if stores and rng.random() < 0.1 else 10
            write_state(
                self.disk, log / rng.choice(("reserved", "checkpoint")), "test", {"x": rng.randbytes(size).hex()}
            )
        elif kind < 0.9 and len(segments) > 1:
            self.disk.unlink(segments[0])
        elif len(segments) > 1 and stores:
            self.rewrite(segments[-2], rng)

    def _append(self, log: Path, segments: list[Path], rng: random.Random) -> None:
        new = not segments or rng.random() < 0.2
        path = log / file_name(max((int(one.name[:20]) for one in segments), default=0) + 1) if new else segments[-1]
        fd = self.disk.open(path, create=new)
        try:
            end = self.disk.size(fd)
            write_all(self.disk, fd, [rng.randbytes(rng.choice((20, 3000, 100_000)))], end)
            if rng.random() < 0.1:
                self.disk.truncate(fd, end)
            if rng.random() < 0.5:
                self.disk.fdatasync(fd)
        finally:
            self.disk.close(fd)

    def rewrite(self, path: Path, rng: random.Random, size: int = 90_000) -> None:
        temporary = path.with_name(path.name + ".new")
        fd = self.disk.open(temporary, create=True)
        write_all(self.disk, fd, [rng.randbytes(size)], 0)
        self.disk.close(fd)
        self.disk.rename(temporary, path)


def file_store(directory: Path) -> StoreSettings:
    (directory / "store").mkdir()
    return StoreSettings(f"file://{directory / 'store'}")
