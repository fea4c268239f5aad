"""The metadata store: what was put is there after reopening, ids are never reused, one bad write fails alone."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.metadata.rounds import ID_BLOCK
from mainstem.metadata.rows import ItemKind, LogRow, NamespaceRow, Sequence, SlotRow, SpanRow, TopicRow, ViewRow
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import MetadataStore
from mainstem.model.errors import AlreadyExists, ConfigError, DiskFull, StorageFault

DEADLINE_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def topic(number: int, name: bytes) -> TopicRow:
    return TopicRow(number, "default", name, None, "dedicated", 3, {"retention_ms": 1000}, 17)


def test_every_fact_survives_reopening(path: Path) -> None:
    rows = (
        NamespaceRow("default", 5, {"clients": "shown"}),
        topic(1, b"caf\xc3\xa9/\x00"),
        LogRow(4, "default", "partition", "segment", {"durability": "sync"}),
        SpanRow(1, 0, 0, 4, 0, None),
        ViewRow(9, "default", b"v", b"a/+/#", "key ^= 'x'", {"from": "earliest"}, 23),
        SlotRow(9, 0, 4),
    )
    store: MetadataStore = SqliteStore(path)
    store.put_namespace(rows[0])
    store.put_topic(rows[1])
    store.put_log(rows[2])
    store.put_span(rows[3])
    store.put_view(rows[4])
    store.put_slot(rows[5])
    store.put_item(ItemKind.QUEUE, "default", "jobs", {"durable": True})
    store.put_value("cluster", b"\x00\x01")
    store.close()

    facts = SqliteStore(path).load()
    assert (facts.namespaces, facts.topics, facts.logs) == ([rows[0]], [rows[1]], [rows[2]])
    assert (facts.spans, facts.views, facts.view_slots) == ([rows[3]], [rows[4]], [rows[5]])
    assert [(item.name, item.body) for item in facts.items_of("queue")] == [("jobs", {"durable": True})]
    assert facts.kv == {"cluster": b"\x00\x01"}


def test_putting_again_replaces(store: SqliteStore) -> None:
    store.put_span(SpanRow(1, 0, 0, 4, 0, None))
    store.put_span(SpanRow(1, 0, 0, 4, 0, 77))
    store.put_item("user", "default", "ann", {"hash": "a"})
    store.put_item("user", "default", "ann", {"hash": "b"})
    facts = store.load()
    assert facts.spans == [SpanRow(1, 0, 0, 4, 0, 77)]
    assert [item.body for item in facts.items] == [{"hash": "b"}]


def test_deleting_a_topic_takes_its_spans_and_leaves_its_log(store: SqliteStore) -> None:
    store.put_topic(topic(1, b"a"))
    store.put_span(SpanRow(1, 0, 0, 4, 0, None))
    store.put_log(LogRow(4, "default", "partition", "segment", {}))
    store.delete_topic(1)
    facts = store.load()
    assert (facts.topics, facts.spans, len(facts.logs)) == ([], [], 1)


def test_deleting_a_namespace_takes_everything_in_it(store: SqliteStore) -> None:
    store.put_namespace(NamespaceRow("default", 1))
    store.put_topic(topic(1, b"a"))
    store.put_span(SpanRow(1, 0, 0, 4, 0, None))
    store.put_view(ViewRow(2, "default", b"v", b"#", "", {}, 1))
    store.put_slot(SlotRow(2, 0, 4))
    store.put_item("queue", "default", "q", {})
    store.put_item("queue", "other", "q", {})
    store.delete_namespace("default")
    facts = store.load()
    assert [item.namespace for item in facts.items] == ["other"]
    assert not (facts.namespaces or facts.topics or facts.spans or facts.views or facts.view_slots)


def test_a_taken_name_fails_alone(store: SqliteStore) -> None:
    first = store.put_topic(topic(1, b"a"))
    clash = store.put_topic(topic(2, b"a"))
    after = store.put_topic(topic(3, b"b"))
    first.result()
    after.result()
    with pytest.raises(AlreadyExists):
        clash.result()
    assert [row.id for row in store.load().topics] == [1, 3]


def test_writes_together_are_all_or_none(store: SqliteStore) -> None:
    store.put_topic(topic(1, b"a")).result()
    with store.together() as written:
        store.put_log(LogRow(4, "default", "partition", "segment", {}))
        store.put_topic(topic(2, b"a"))
    with pytest.raises(AlreadyExists):
        written.result()
    assert store.load().logs == []


def test_ids_are_not_reused_after_a_clean_stop(path: Path) -> None:
    store = SqliteStore(path)
    given = [store.next_id(Sequence.TOPIC) for _ in range(3)]
    store.close()
    reopened = SqliteStore(path)
    assert given == [1, 2, 3]
    assert reopened.next_id(Sequence.TOPIC) == 4
    assert reopened.next_id(Sequence.LOG) == 1
    reopened.close()


def test_ids_are_not_reused_after_a_kill(path: Path) -> None:
    script = (
        "import os, sys, pathlib\n"
        "from mainstem.metadata.sqlite import SqliteStore\n"
        "store = SqliteStore(pathlib.Path(sys.argv[1]))\n"
        "given = [store.next_id('topic') for _ in range(200)]\n"
        "print(given[-1], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    highest = int(ran.stdout)
    store = SqliteStore(path)
    again = store.next_id("topic")
    assert highest == 200
    assert highest < again <= highest + 2 * ID_BLOCK
    store.close()


def test_an_awaited_write_is_visible_to_another_reader(path: Path, store: SqliteStore) -> None:
    async def put() -> None:
        await store.put_value("k", b"v")

    asyncio.run(put())
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT value FROM kv").fetchone() == (b"v",)


def test_the_file_is_for_the_owner_only(path: Path, store: SqliteStore) -> None:
    store.put_value("k", b"v").result()
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_newer_version_is_refused_by_name(path: Path) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 2")
    connection.close()
    with pytest.raises(ConfigError, match="metadata version 2") as caught:
        SqliteStore(path)
    assert caught.value.code == "MS-4007"


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(StorageFault, match="cannot be opened"):
        SqliteStore(path)


def test_a_copy_holds_what_was_put_before_it(tmp_path: Path, store: SqliteStore) -> None:
    store.put_value("k", b"v")
    copy = tmp_path / "copy.sqlite"
    store.copy_to(copy).result()
    store.put_value("k", b"later").result()
    assert SqliteStore(copy).load().kv == {"k": b"v"}


def test_memory_store_needs_no_file() -> None:
    store = SqliteStore(None)
    store.put_value("k", b"v")
    assert store.load().kv == {"k": b"v"}
    store.close()


def test_a_closed_store_refuses(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with pytest.raises(StorageFault):
        store.put_value("k", b"v")


class SmallDisk:
    """Room for so many pages; `spare` of them come free when it is given up."""

    def __init__(self, spare: int = 0) -> None:
        self.spare, self.full = spare, False
        self.store: SqliteStore | None = None

    def limit(self, store: SqliteStore, more: int = 0) -> None:
        self.store = store
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + more}")

    def check(self) -> None:
        if self.full:
            raise DiskFull("nothing new")

    def give_up(self) -> bool:
        assert self.store is not None
        self.full, given, self.spare = True, self.spare, 0
        self.limit(self.store, given)
        return given > 0


def test_a_write_that_meets_a_full_disk_finds_the_room_that_was_kept_for_it(path: Path) -> None:
    disk = SmallDisk(spare=1000)
    store = SqliteStore(path, disk)
    disk.limit(store)
    store.put_value("large", bytes(200_000)).result(DEADLINE_S)
    with pytest.raises(DiskFull):
        store.check_room()
    store.delete_value("large").result(DEADLINE_S)
    store.close()


def test_a_write_that_finds_no_room_waits_for_it_while_new_ones_are_refused(path: Path) -> None:
    disk = SmallDisk()
    store = SqliteStore(path, disk)
    for _ in range(ID_BLOCK // 2 - 1):
        store.next_id(Sequence.QUEUE)
    disk.limit(store)
    waiting = store.put_value("large", bytes(200_000))
    deadline = time.monotonic() + DEADLINE_S
    while store._waits is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(DiskFull, match="no space left to write"):
        store.check_room()
    with pytest.raises(DiskFull):
        store.next_id(Sequence.PRODUCER)  # its block cannot be kept
    assert not waiting.done()
    disk.limit(store, 1000)
    waiting.result(DEADLINE_S)
    disk.full = False
    store.check_room()
    assert store.load().kv["large"] == bytes(200_000)
    assert store.next_id(Sequence.PRODUCER) == 1
    store.close()


def test_a_stop_does_not_wait_for_room(path: Path) -> None:
    disk = SmallDisk()
    store = SqliteStore(path, disk)
    disk.limit(store)
    waiting = store.put_value("large", bytes(200_000))
    store.end_waiting()
    with pytest.raises(DiskFull):
        waiting.result(DEADLINE_S)
    store.close()


def test_a_full_disk_under_many_writes_of_one_round_is_known_as_one(path: Path) -> None:
    """What does not fit into SQLite's cache is written, and fails, before the commit."""
    store = SqliteStore(path)
    store._connection.execute("PRAGMA max_page_count = 40")
    with store.together() as written:
        for number in range(100):
            store.put_value(f"k{number}", bytes(50_000))
    with pytest.raises(DiskFull):
        written.result(DEADLINE_S)
    assert store.load().kv == {}
    store.close()
