"""The files of a cell, changed at random, with images at any moment, and taken over by the next owner again and again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.cluster.wal import Fenced
from mainstem.model.errors import StorageFault
from mainstem.storage.disk import RealDisk, write_all
from mainstem.storage.segment.segment import file_name
from mainstem.storage.state_file import read_state, write_state
from tests.cluster.kit import new_database
from tests.cluster.owner import Owner, file_store
from tests.contract.postgres_server import PostgresServer


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_the_next_owner_finds_the_files_as_the_last_commit_left_them(
    seed: int, tmp_path: Path, postgres: PostgresServer
) -> None:
    rng, dsn = random.Random(seed), new_database(postgres)
    store = file_store(tmp_path)
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
        owner.end()
        owner = Owner(dsn, tmp_path, store, number)
        assert owner.files() == expected
    owner.end()


def cut_it(owner: Owner, path: Path) -> None:
    fd = owner.disk.open(path)
    owner.disk.truncate(fd, 100_000)
    owner.disk.close(fd)


def cut_it_and_write_as_much_again(owner: Owner, path: Path) -> None:
    cut_it(owner, path)
    fd = owner.disk.open(path)
    write_all(owner.disk, fd, [b"b" * 100_000], 100_000)
    owner.disk.close(fd)


def write_a_shorter_one(owner: Owner, path: Path) -> None:
    owner.rewrite(path, random.Random(1))


@pytest.mark.parametrize("moment", ["capture", "put"])
@pytest.mark.parametrize("change", [cut_it, cut_it_and_write_as_much_again, write_a_shorter_one])
def test_a_large_file_that_changes_while_an_image_is_made_of_it_is_the_file_the_next_owner_finds(
    moment: str, change: Callable[[Owner, Path], None], tmp_path: Path, postgres: PostgresServer
) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    owner = Owner(dsn, tmp_path, store, 0)
    path = owner.root / "logs" / "1" / file_name(1)
    owner.disk.make_dir(path.parent)
    fd = owner.disk.open(path, create=True)
    write_all(owner.disk, fd, [b"a" * 200_000], 0)
    owner.disk.close(fd)
    part: Any = owner.disk if moment == "capture" else owner.images._objects
    call = getattr(part, moment)

    def call_then_change(*given: Any) -> Any:
        setattr(part, moment, call)  # once
        done = call(*given)
        change(owner, path)
        return done

    setattr(part, moment, call_then_change)
    for number in range(1, 3):  # the image that was disturbed, then the one after it
        owner.images.run()
        owner.wal.wait(owner.wal.recorded)
        expected = owner.files()
        owner.end()
        owner = Owner(dsn, tmp_path, store, number)
        assert owner.files() == expected
    owner.end()


def test_images_made_between_the_cut_of_a_file_and_its_record_can_be_taken_over(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    owner = Owner(dsn, tmp_path, store, 0)
    path = owner.root / "logs" / "1" / file_name(1)
    owner.disk.make_dir(path.parent)
    fd = owner.disk.open(path, create=True)
    write_all(owner.disk, fd, [b"a" * 200_000], 0)
    cut = RealDisk.truncate

    def cut_then_make_images(disk: RealDisk, fd: int, size: int) -> None:
        cut(disk, fd, size)
        owner.images.run()  # it stores what is left of the file
        owner.images.run()  # and this one must not name that as the whole file

    with monkeypatch.context() as patched:
        patched.setattr(RealDisk, "truncate", cut_then_make_images)
        owner.disk.truncate(fd, 100_000)
    owner.disk.close(fd)
    owner.wal.wait(owner.wal.recorded)
    expected = owner.files()
    owner.end()
    owner = Owner(dsn, tmp_path, store, 1)
    assert owner.files() == expected
    owner.end()


def test_images_of_one_owner_follow_each_other_while_a_file_is_written_anew(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    owner = Owner(dsn, tmp_path, store, 0)
    path = owner.root / "logs" / "1" / file_name(1)
    owner.disk.make_dir(path.parent)
    fd = owner.disk.open(path, create=True)
    write_all(owner.disk, fd, [b"a" * 200_000], 0)
    owner.disk.close(fd)
    put = owner.images._objects.put

    def put_then_change(kind: str, data: bytes) -> str:
        owner.images._objects.put = put  # type: ignore[method-assign]
        key = put(kind, data)
        cut_it_and_write_as_much_again(owner, path)
        return key

    owner.images._objects.put = put_then_change  # type: ignore[method-assign]
    owner.images.run()
    owner.images.run()  # of the file as it is now, although its size is what it was
    expected = owner.files()
    owner.end()
    following = Owner(dsn, tmp_path, store, 1)
    assert following.files() == expected
    following.end()


def test_an_owner_of_the_past_commits_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    rng, dsn = random.Random(7), new_database(postgres)
    store = file_store(tmp_path)
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
    for one in (old, new, third):
        one.end()


def test_a_committer_that_fails_for_any_reason_ends_the_owner_instead_of_hanging_it(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    owner = Owner(new_database(postgres), tmp_path, file_store(tmp_path), 0)

    def fail(body: bytes) -> None:
        raise OSError("anything")

    owner.wal._commit = fail  # type: ignore[method-assign]
    write_state(owner.disk, owner.root / "stamps", "stamps", {"end": 1})
    with pytest.raises(StorageFault, match="anything"):
        owner.wal.wait(owner.wal.recorded)
    assert owner.lost.wait(10)
