"""Takers in a row, by a real PostgreSQL: one that was overtaken learns so, and nobody's open transaction keeps a cell."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mainstem.cluster import rebuilding
from mainstem.cluster.membership import Membership
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.schema import FIRST_CELL, SCHEMA
from mainstem.cluster.wal import Fenced
from mainstem.metadata.postgres_session import IDLE_MS, PostgresSession
from mainstem.model.errors import Overloaded
from tests.cluster.kit import new_database
from tests.cluster.owner import Owner, file_store
from tests.contract.postgres_server import PostgresServer


def test_a_taker_that_is_overtaken_while_it_rebuilds_is_told_so_and_not_that_rows_are_missing(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, dsn, store = random.Random(3), new_database(postgres), file_store(tmp_path)
    first = Owner(dsn, tmp_path, store, 0)
    for _ in range(30):
        first.change(rng)
    first.wal.wait(first.wal.recorded)
    slow = Membership(dsn, "slow", lambda reason: None, lambda view: None)
    epoch = slow.take(FIRST_CELL, 1, "test", early=True)
    assert epoch == 2
    rows, next_owners = rebuilding.rows_after, list[Owner]()

    async def rows_of_a_paused_taker(*given: Any) -> list[tuple[int, int, bytes]]:
        """Before it reads them the next one takes the cell, and makes images of it."""
        if not next_owners:
            monkeypatch.setattr(rebuilding, "rows_after", rows)
            worker = threading.Thread(target=lambda: next_owners.append(take_over()))
            worker.start()
            worker.join()
        return await rows(*given)

    def take_over() -> Owner:
        owner = Owner(dsn, tmp_path, store, 1)
        for _ in range(3):
            owner.change(rng)
            owner.wal.wait(owner.wal.recorded)
            owner.images.run()
        return owner

    monkeypatch.setattr(rebuilding, "rows_after", rows_of_a_paused_taker)
    session = PostgresSession(dsn, SCHEMA)
    with pytest.raises(Fenced, match="while its files were rebuilt"):
        rebuilding.rebuild(session, FIRST_CELL, epoch, tmp_path / "slow", CellObjects(store, FIRST_CELL))
    session.close()
    for one in (first, *next_owners):
        one.end()


@pytest.mark.timeout(60)
def test_an_owner_that_vanishes_within_a_transaction_keeps_its_locks_for_seconds_only(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    dsn, store = new_database(postgres), file_store(tmp_path)
    owner = Owner(dsn, tmp_path, store, 0)
    vanished = PostgresSession(dsn, SCHEMA)

    async def begin(connection: Any) -> None:
        """As an image that is being committed by a process that is paused then: nobody ends this."""
        await connection.execute("BEGIN")
        await connection.execute("UPDATE lane SET flushed_seq = 0 WHERE cell_id = $1", FIRST_CELL)

    vanished.use(begin)
    taker = Membership(dsn, "taker", lambda reason: None, lambda view: None)
    while True:
        try:
            assert taker.take(FIRST_CELL, 1, "test", early=True) == 2
            break
        except Overloaded:  # as a broker does, which tries again
            continue
    vanished.drop()
    owner.end()


@pytest.mark.slow
def test_a_process_that_was_paused_within_a_transaction_tries_it_again(postgres: PostgresServer) -> None:
    session = PostgresSession(new_database(postgres), SCHEMA)

    async def pause(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("SELECT 1")
            time.sleep(IDLE_MS / 1000 + 0.5)  # noqa: ASYNC251 -- its loop is paused, too
            await connection.execute("SELECT 1")

    with pytest.raises(Overloaded):
        session.use(pause)
    assert session.use(lambda c: c.fetchval("SELECT 1")) == 1
    session.close()
