"""Each metadata store, held to the contract; then what only a server can do: go away and come back."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.metadata.rows import TopicRow, Value
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import Absent, MetadataStore, Put
from mainstem.model.errors import Overloaded
from tests.contract.metadata_contract import DEADLINE_S, MetadataContract, topic
from tests.contract.postgres_server import PostgresServer, binaries


class TestSqliteStore(MetadataContract):
    def open(self, place: Path) -> MetadataStore:
        return SqliteStore(place / "metadata.sqlite")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip("asyncpg", reason="asyncpg is not installed: pip install 'mainstem[cluster]'")
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    server = PostgresServer()
    yield server
    server.remove()


class TestPostgresStore(MetadataContract):
    @pytest.fixture(autouse=True)
    def _on(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"m_{uuid.uuid4().hex[:12]}"

    def open(self, place: Path) -> MetadataStore:
        from mainstem.metadata.postgres import PostgresStore

        return PostgresStore(self.server.dsn, self.schema)

    def test_writes_wait_while_the_server_is_away_and_new_things_are_refused(self, place: Path) -> None:
        store = self.open(place)
        store.transact([Put(Value("before", b"1"))]).result(DEADLINE_S)
        self.server.stop()
        waiting = store.transact([Put(topic(1, b"a"))], [Absent(TopicRow, (1,))])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                store.check_room()
            except Overloaded:
                break
            time.sleep(0.02)
        with pytest.raises(Overloaded, match="PostgreSQL"):
            store.check_room()
        assert not waiting.done()
        self.server.start()
        waiting.result(DEADLINE_S)
        store.check_room()
        found = store.load()
        store.close()
        assert ([row.id for row in found.topics], list(found.kv)) == ([1], ["before"])

    def test_a_commit_whose_answer_was_lost_is_recognised_and_not_refused_as_its_own_conflict(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from asyncpg.transaction import Transaction

        store = self.open(place)
        commit, lost = Transaction.commit, threading.Event()

        async def commit_and_lose(transaction: Transaction) -> None:
            await commit(transaction)
            if not transaction._nested and not lost.is_set():
                lost.set()
                raise ConnectionResetError("the answer was lost")

        monkeypatch.setattr(Transaction, "commit", commit_and_lose)
        store.transact([Put(topic(1, b"a"))], [Absent(TopicRow, (1,))]).result(DEADLINE_S)
        assert lost.is_set()
        changed = store.changes_since(0).result(DEADLINE_S).changed
        store.close()
        assert changed == ((TopicRow, (1,)),)
