"""What every metadata store promises. A subclass says how one is opened, and opened again on the same facts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.metadata.rounds import ID_BLOCK
from mainstem.metadata.rows import Item, LogRow, NamespaceRow, Sequence, SlotRow, SpanRow, TopicRow, Value, ViewRow
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import Absent, Clear, Delete, MetadataStore, Put, Same
from mainstem.metadata.tables import CHANGES_KEPT
from mainstem.model.errors import AlreadyExists, Conflict, StorageFault

DEADLINE_S = 20.0


def topic(number: int, name: bytes, partitions: int = 3) -> TopicRow:
    return TopicRow(number, "default", name, None, "dedicated", partitions, {"policy": {"é": [1, None]}}, 17)


class MetadataContract:
    def open(self, place: Path) -> MetadataStore:
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def store(self, place: Path) -> Iterator[MetadataStore]:
        store = self.open(place)
        yield store
        store.close()

    def test_every_fact_is_there_after_reopening(self, place: Path) -> None:
        rows = (
            NamespaceRow("default", 5, {"clients": "shown"}),
            topic(1, b"caf\xc3\xa9/\x00\xff"),
            LogRow(4, "default", "partition", "segment", {"durability": "sync"}),
            SpanRow(1, 0, 0, 4, 0, None),
            SpanRow(1, 0, 1, 4, 1 << 62, (1 << 62) + 1),
            ViewRow(9, "default", b"v", b"a/+/#", "key ^= 'x'", {"from": "earliest"}, 23),
            SlotRow(9, 0, None),
            Item("queue", "default", "jobs", {"durable": True}),
            Value("cluster", b"\x00\x01"),
        )
        store = self.open(place)
        store.transact([Put(row) for row in rows]).result(DEADLINE_S)
        store.close()
        store = self.open(place)
        found = store.load()
        store.close()
        assert (found.namespaces, found.topics, found.logs) == ([rows[0]], [rows[1]], [rows[2]])
        assert (found.spans, found.views, found.view_slots) == ([rows[3], rows[4]], [rows[5]], [rows[6]])
        assert (found.items, found.kv) == ([rows[7]], {"cluster": b"\x00\x01"})

    def test_a_put_replaces_the_row_with_its_key(self, store: MetadataStore) -> None:
        store.transact([Put(topic(1, b"a", 1)), Put(topic(1, b"a", 2))])
        assert store.load().topics == [topic(1, b"a", 2)]

    def test_a_name_that_is_taken_fails_its_own_transaction_whole_and_no_other(self, store: MetadataStore) -> None:
        first = store.transact([Put(topic(1, b"a"))])
        clash = store.transact([Put(Value("k", b"v")), Put(topic(2, b"a"))])
        after = store.transact([Put(topic(3, b"b"))])
        first.result(DEADLINE_S)
        after.result(DEADLINE_S)
        with pytest.raises(AlreadyExists):
            clash.result(DEADLINE_S)
        found = store.load()
        assert ([row.id for row in found.topics], found.kv) == ([1, 3], {})

    def test_a_precondition_that_does_not_hold_is_an_answer_and_changes_nothing(self, store: MetadataStore) -> None:
        store.transact([Put(topic(1, b"a", 1))]).result(DEADLINE_S)
        absent = store.transact([Put(topic(1, b"b"))], [Absent(TopicRow, (1,))])
        stale = store.transact([Put(topic(1, b"a", 9))], [Same(topic(1, b"a", 5))])
        missing = store.transact([Put(topic(2, b"c"))], [Same(topic(2, b"c"))])
        for refused in (absent, stale, missing):
            with pytest.raises(Conflict):
                refused.result(DEADLINE_S)
        assert store.load().topics == [topic(1, b"a", 1)]

    def test_preconditions_that_hold_let_it_through(self, store: MetadataStore) -> None:
        store.transact([Put(topic(1, b"a", 1))], [Absent(TopicRow, (1,))]).result(DEADLINE_S)
        store.transact([Put(topic(1, b"a", 2))], [Same(topic(1, b"a", 1))]).result(DEADLINE_S)
        store.transact([Delete(TopicRow, (1,))], [Same(topic(1, b"a", 2))]).result(DEADLINE_S)
        assert store.load().topics == []

    def test_of_many_that_compare_and_set_one_wins_each_time(self, place: Path, store: MetadataStore) -> None:
        other = self.open(place)
        store.transact([Put(Value("n", b"0"))]).result(DEADLINE_S)
        won: list[int] = []

        def count_up(by: MetadataStore) -> None:
            for _ in range(10):
                while True:
                    seen = by.load().kv["n"]
                    try:
                        by.transact([Put(Value("n", b"%d" % (int(seen) + 1)))], [Same(Value("n", seen))]).result()
                    except Conflict:
                        continue
                    won.append(int(seen))
                    break

        threads = [threading.Thread(target=count_up, args=(by,)) for by in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        other.close()
        assert sorted(won) == list(range(20))
        assert store.load().kv == {"n": b"20"}

    def test_a_delete_takes_all_rows_below_the_key_it_names(self, store: MetadataStore) -> None:
        spans = [SpanRow(1, 0, 0, 4, 0, 9), SpanRow(1, 1, 0, 5, 0, None), SpanRow(2, 0, 0, 6, 0, None)]
        store.transact([Put(row) for row in spans])
        store.transact([Delete(SpanRow, (1,))])
        assert store.load().spans == spans[2:]

    def test_a_cleared_namespace_leaves_others_alone(self, store: MetadataStore) -> None:
        store.transact(
            [
                Put(NamespaceRow("default", 1)),
                Put(topic(1, b"a")),
                Put(SpanRow(1, 0, 0, 4, 0, None)),
                Put(ViewRow(2, "default", b"v", b"#", "", {}, 1)),
                Put(SlotRow(2, 0, 4)),
                Put(Item("queue", "default", "q", {})),
                Put(Item("queue", "other", "q", {})),
            ]
        )
        store.transact([Clear("default")]).result(DEADLINE_S)
        found = store.load()
        assert not (found.namespaces or found.topics or found.spans or found.views or found.view_slots)
        assert [item.namespace for item in found.items] == ["other"]

    def test_changes_are_told_once_in_order_and_to_other_stores(self, place: Path, store: MetadataStore) -> None:
        other = self.open(place)
        store.transact([Put(topic(1, b"a")), Put(Item("user", "", "ann", {}))]).result(DEADLINE_S)
        first = other.changes_since(0).result(DEADLINE_S)
        other.transact([Delete(TopicRow, (1,))]).result(DEADLINE_S)
        with pytest.raises(Conflict):
            other.transact([Put(topic(5, b"b"))], [Absent(Item, ("user", "", "ann"))]).result(DEADLINE_S)
        second = store.changes_since(first.last).result(DEADLINE_S)
        third = store.changes_since(second.last).result(DEADLINE_S)
        other.close()
        assert first.changed == ((TopicRow, (1,)), (Item, ("user", "", "ann")))
        assert second.changed == ((TopicRow, (1,)),)
        assert (third.changed, third.last) == ((), second.last)
        assert first.complete and second.complete and third.complete

    def test_who_asks_for_changes_that_were_dropped_is_told(self, store: MetadataStore) -> None:
        first = store.changes_since(0).result(DEADLINE_S)
        store.transact([Put(Value("k", b"v"))] * (CHANGES_KEPT + 5)).result(60)
        assert first.complete
        assert not store.changes_since(first.last).result(DEADLINE_S).complete

    def test_ids_are_never_given_twice(self, place: Path) -> None:
        store = self.open(place)
        given = [store.next_id(Sequence.TOPIC) for _ in range(3 * ID_BLOCK)]
        store.close()
        store = self.open(place)
        again = [store.next_id(Sequence.TOPIC), store.next_id(Sequence.LOG)]
        store.close()
        assert given == list(range(1, 3 * ID_BLOCK + 1))
        assert again == [3 * ID_BLOCK + 1, 1]

    def test_two_stores_give_different_ids(self, place: Path, store: MetadataStore) -> None:
        other = self.open(place)
        given = [by.next_id(Sequence.LOG) for _ in range(2 * ID_BLOCK) for by in (store, other)]
        other.close()
        assert len(set(given)) == 4 * ID_BLOCK

    def test_a_copy_is_an_sqlite_file_with_what_was_put_before_it(self, tmp_path: Path, store: MetadataStore) -> None:
        given = store.next_id(Sequence.TOPIC)
        store.transact([Put(topic(1, b"a")), Put(Value("k", b"v"))])
        copied = store.copy_to(tmp_path / "copy.sqlite")
        store.transact([Put(Value("k", b"later"))])
        copied.result(DEADLINE_S)
        copy = SqliteStore(tmp_path / "copy.sqlite")
        found, next_id = copy.load(), copy.next_id(Sequence.TOPIC)
        copy.close()
        assert (found.topics, found.kv) == ([topic(1, b"a")], {"k": b"v"})
        assert next_id > given

    def test_a_closed_store_refuses(self, place: Path) -> None:
        store = self.open(place)
        store.close()
        store.close()
        with pytest.raises(StorageFault):
            store.transact([Put(Value("k", b"v"))])
