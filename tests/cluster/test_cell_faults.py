"""PostgreSQL and the object store as they fail: answers are lost, requests refused; what is durable stays exactly that."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.cluster.schema import FIRST_CELL
from mainstem.cluster.wal import CellWal, Fenced
from mainstem.storage.tier.store import StoreSettings
from tests.cluster.cutting import CuttingProxy
from tests.cluster.kit import new_database
from tests.cluster.owner import Owner, file_store
from tests.contract.postgres_server import PostgresServer
from tests.s3_faults import fault_proxy
from tests.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as started:
        started.make_bucket("cells")
        yield started


def test_who_loses_the_cell_says_so_before_anyone_who_waits_for_a_commit_is_told(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Those who wait end the process, as for a broken disk; the broker is to start over instead."""
    dsn, said = new_database(postgres), list[str]()
    owner = Owner(dsn, tmp_path, file_store(tmp_path), 0)

    def lost(reason: str) -> None:
        time.sleep(0.3)  # to start over takes a moment
        said.append(reason)

    late = CellWal(dsn, FIRST_CELL, 0, 0, 0, lost)  # of the epoch before
    with pytest.raises(Fenced):
        late.wait(late.record(b"x"))
    assert len(said) == 1
    with pytest.raises(Fenced):
        late.close()
    owner.end()


def test_a_commit_whose_answer_was_lost_is_neither_lost_nor_done_twice(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    rng, direct, store = random.Random(1), new_database(postgres), file_store(tmp_path)
    proxy = CuttingProxy(postgres.directory, seed=1, every=3)
    dsn = direct.replace(str(postgres.directory), str(proxy.directory))
    try:
        owner = Owner(dsn, tmp_path, store, 0)
        for number in range(1, 3):
            proxy.cutting.set()
            for _ in range(25):
                owner.change(rng)
            owner.wal.wait(owner.wal.recorded)
            proxy.cutting.clear()
            expected = owner.files()
            owner.end()
            owner = Owner(dsn, tmp_path, store, number)
            assert owner.files() == expected
        assert proxy.cuts > 3
        owner.end()
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["503", "lost", "cut", "delay:1"])
def test_a_store_that_fails_only_makes_images_late(
    fault: str, server: S3Server, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, dsn = random.Random(2), new_database(postgres)
    with fault_proxy(server.endpoint) as proxy:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = StoreSettings(f"s3://cells/{fault[:3]}", proxy.endpoint, "us-east-1", timeout_s=2)
        owner = Owner(dsn, tmp_path, store, 0)
        for number in range(1, 3):
            images = threading.Thread(target=lambda one=owner: [one.images.run() for _ in range(2)])
            proxy.faults["*"] = fault
            images.start()
            for _ in range(60):
                owner.change(rng, stores=False)
            owner.wal.wait(owner.wal.recorded)  # while the store fails
            proxy.faults.clear()
            images.join()
            expected = owner.files()
            owner.end()
            owner = Owner(dsn, tmp_path, store, number)
            assert owner.files() == expected
