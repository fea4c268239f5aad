"""The files of a cell, changed at random, with images at any moment, and taken over by the next owner again and again."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from mainstem.cluster.wal import Fenced
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
