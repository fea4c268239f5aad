"""The files of a cell, changed at random, with images at any moment, and taken over by the next owner again and again."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from mainstem.cluster.disk import INLINE_BYTES_MAX, CellDisk
from mainstem.cluster.image import ImageMaker, rebuild
from mainstem.cluster.membership import Membership
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, metadata_schema, prepare
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.storage.disk import write_all
from mainstem.storage.segment.segment import file_name
from mainstem.storage.state_file import read_state, write_state
from mainstem.storage.tier.store import StoreSettings
from tests.cluster.kit import new_database
from tests.contract.postgres_server import PostgresServer

LOGS = (1, 2)


class Owner:
    """One owner of the cell, from its takeover to its end; `kept` is what it knows to be durable."""

    def __init__(self, dsn: str, directory: Path, store: Path, number: int) -> None:
        self.lost = threading.Event()
        self.session = PostgresSession(dsn, SCHEMA)
        prepare(self.session, f"file://{store}")
        logs = f"{metadata_schema(FIRST_CELL)}.logs"
        self.session.use(lambda c: c.execute(f"CREATE SCHEMA IF NOT EXISTS {metadata_schema(FIRST_CELL)}"))
        self.session.use(
            lambda c: c.execute(f"CREATE TABLE IF NOT EXISTS {logs} AS SELECT * FROM (VALUES (1), (2)) t (id)")
        )
        epoch = self.session.use(lambda c: c.fetchval("SELECT epoch FROM cell"))
        member = Membership(dsn, f"owner-{number}", lambda reason: None, lambda view: None)
        taken = member.take(FIRST_CELL, epoch, "test", early=True)
        assert taken == epoch + 1
        self.root = directory / f"cell-{number}"
        objects = CellObjects(StoreSettings(f"file://{store}"), FIRST_CELL)
        found = rebuild(self.session, FIRST_CELL, self.root, objects)
        self.wal = CellWal(dsn, FIRST_CELL, taken, found.seq, found.slot, lambda reason: self.lost.set())
        self.disk = CellDisk(self.root, self.wal, objects, found.files)
        self.images = ImageMaker(dsn, FIRST_CELL, taken, self.root, self.wal, self.disk, objects)
        self.images.named = found.named

    def files(self) -> dict[str, bytes]:
        """What counts: segments, and the newest of each state."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.name.endswith((".new", ".previous", ".format")):
                found[str(path.relative_to(self.root))] = path.read_bytes()
        return found

    def change(self, rng: random.Random) -> None:
        log = self.root / "logs" / str(rng.choice(LOGS))
        self.disk.make_dir(log)
        segments = sorted(log.glob("*.log"))
        kind = rng.random()
        if kind < 0.6 or not segments:
            self._append(log, segments, rng)
        elif kind < 0.8:
            size = 10 if rng.random() < 0.9 else INLINE_BYTES_MAX + 1
            write_state(
                self.disk, log / rng.choice(("reserved", "checkpoint")), "test", {"x": rng.randbytes(size).hex()}
            )
        elif kind < 0.9 and len(segments) > 1:
            self.disk.unlink(segments[0])
        elif len(segments) > 1:
            self._rewrite(segments[-2], rng)

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

    def _rewrite(self, path: Path, rng: random.Random) -> None:
        temporary = path.with_name(path.name + ".new")
        fd = self.disk.open(temporary, create=True)
        write_all(self.disk, fd, [rng.randbytes(90_000)], 0)
        self.disk.close(fd)
        self.disk.rename(temporary, path)


@pytest.mark.parametrize("seed", range(3))
def test_the_next_owner_finds_the_files_as_the_last_commit_left_them(
    seed: int, tmp_path: Path, postgres: PostgresServer
) -> None:
    rng, dsn = random.Random(seed), new_database(postgres)
    store = tmp_path / "store"
    store.mkdir()
    owner = Owner(dsn, tmp_path, store, 0)
    for number in range(1, 6):
        images = threading.Thread(target=lambda one=owner: [one.images.run() for _ in range(3)])
        images.start()
        for _ in range(rng.randrange(20, 150)):
            owner.change(rng)
        if rng.random() < 0.5:
            images.join()
        owner.wal.wait(owner.wal.recorded)
        expected = owner.files()
        images.join()
        owner = Owner(dsn, tmp_path, store, number)
        assert owner.files() == expected


def test_an_owner_of_the_past_commits_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    rng, dsn = random.Random(7), new_database(postgres)
    store = tmp_path / "store"
    store.mkdir()
    old = Owner(dsn, tmp_path, store, 0)
    for _ in range(20):
        old.change(rng)
    old.wal.wait(old.wal.recorded)
    new = Owner(dsn, tmp_path, store, 1)
    before = new.files()
    write_state(old.disk, old.root / "stamps", "stamps", {"end": 1})
    with pytest.raises(Fenced):
        old.wal.wait(old.wal.recorded)
    assert old.lost.wait(10)
    with pytest.raises(Fenced):
        old.images.run()
    write_state(new.disk, new.root / "stamps", "stamps", {"end": 2})
    new.wal.wait(new.wal.recorded)
    third = Owner(dsn, tmp_path, store, 2)
    assert read_state(third.disk, third.root / "stamps", "stamps") == {"end": 2}
    assert {name: data for name, data in third.files().items() if name != "stamps"} == before
