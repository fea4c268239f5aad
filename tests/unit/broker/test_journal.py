"""The journal: what was put and synced is applied again, in order, however the broker stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.state.snapshot import PIECE_ENTRIES
from mainstem.broker.topics.policy import Policy
from mainstem.model.errors import StorageFault
from tests.live_copies import copy_live
from tests.unit.broker.kit import durable, everything, reader_of, values


class State:
    """An owner: a table of the last value per key, and the order in which entries were applied."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.applied: list[tuple[bytes, bytes | None]] = []

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.applied.append((key, value))
        if value is None:
            self.table.pop(key, None)
        else:
            self.table[key] = value

    def dump(self) -> list[tuple[bytes, bytes]]:
        return list(self.table.items())


async def started(path: Path, **policy: Any) -> tuple[Broker, State]:
    broker, state = Broker(BrokerOptions(path, Policy(**policy))), State()
    await broker.open()
    broker.journal.register("test", state.apply, state.dump)
    broker.recover_journal()
    return broker, state


async def put(broker: Broker, state: State, *entries: tuple[bytes, bytes | None]) -> None:
    for key, value in entries:
        ticket = broker.journal.put("test", key, value)
        state.apply(key, value)
    await durable(ticket)


async def test_state_and_data_share_one_write_and_one_order(tmp_path: Path) -> None:
    broker, _ = await started(tmp_path)
    namespace = broker.namespace("/")
    namespace.publish(b"a", b"data")
    ticket = broker.journal.put("test", b"k", b"v")
    rounds = broker.ticker.committer.rounds
    await durable(ticket)
    assert broker.ticker.committer.rounds == rounds + 1
    assert values(everything(reader_of(namespace, b"a"))) == [b"data"], "state is not seen as data"
    await broker.close()


async def test_recovery_applies_the_snapshot_then_what_came_after_it_in_order(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, state = await started(data)
    await put(broker, state, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    await broker.snapshot()
    await put(broker, state, (b"b", None), (b"c", b"1"), (b"a", b"3"))
    copy_live(data, copy)  # what a kill leaves
    await broker.close()
    again, found = await started(copy)
    assert found.applied == [(b"a", b"2"), (b"b", b"1"), (b"b", None), (b"c", b"1"), (b"a", b"3")]
    assert found.table == state.table
    await again.close()


async def test_a_clean_stop_leaves_only_the_snapshot_to_apply(tmp_path: Path) -> None:
    broker, state = await started(tmp_path)
    await put(broker, state, *[(b"k", b"%d" % n) for n in range(100)])
    await broker.close()
    broker, found = await started(tmp_path)
    assert found.applied == [(b"k", b"99")]
    await broker.close()


async def test_a_snapshot_never_tells_of_what_is_not_durable(tmp_path: Path) -> None:
    broker, state = await started(tmp_path)
    await put(broker, state, (b"a", b"1"))
    broker.journal.put("test", b"a", b"2")
    state.apply(b"a", b"2")
    await broker.snapshot()
    assert broker.journal.stem.engine.durable_offset >= broker.journal.snapshot_offset == 2
    await broker.close()


async def test_entries_of_unknown_owners_are_kept_for_those_who_know_them(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, _ = await started(data)
    broker.journal.register("from-the-future", lambda key, value: None, lambda: [])
    for n in range(50):
        await durable(broker.journal.put("from-the-future", b"k%d" % (n % 2), b"%d" % n))
    await durable(broker.journal.put("from-the-future", b"gone", b"x"))
    await durable(broker.journal.put("from-the-future", b"gone", None))
    copy_live(data, copy)
    await broker.close()
    for _ in range(3):
        broker, _ = await started(copy)
        await broker.close()
    broker = Broker(BrokerOptions(copy))
    await broker.open()
    future = State()
    broker.journal.register("from-the-future", future.apply, future.dump)
    broker.recover_journal()
    assert future.table == {b"k0": b"48", b"k1": b"49"}
    assert len(future.applied) == 2, "one entry per key, however often it was put"
    await broker.close()


async def test_a_change_of_the_defaults_does_not_lose_the_journal(tmp_path: Path) -> None:
    """With the default policy the default stem changes: the journal goes on where it was, and moves at a clean stop."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, state = await started(data)
    await put(broker, state, (b"a", b"1"))
    first = broker.journal.stem.id
    copy_live(data, copy)  # killed, and started with another configuration
    await broker.close()

    broker, found = await started(copy, retention_ms=1_000_000)
    assert found.table == {b"a": b"1"}
    assert broker.journal.stem.id == first
    await put(broker, found, (b"b", b"2"))
    await broker.close()

    broker, found = await started(copy, retention_ms=1_000_000)
    assert found.table == {b"a": b"1", b"b": b"2"}
    assert broker.journal.stem.id != first
    await put(broker, found, (b"c", b"3"))
    await broker.close()

    broker, found = await started(copy)
    assert found.table == {b"a": b"1", b"b": b"2", b"c": b"3"}
    await broker.close()


async def test_state_below_the_streams_start_is_still_applied(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, state = await started(data)
    await put(broker, state, (b"a", b"1"))
    for _ in range(10):
        await durable(broker.namespace("/").publish(b"x", b""))
    broker.journal.stem.move_start(5)
    broker.journal.stem.keep_start()
    copy_live(data, copy)
    await broker.close()
    again, found = await started(copy)
    assert again.journal.stem.start_offset == 5
    assert found.table == {b"a": b"1"}
    await again.close()


async def test_a_damaged_snapshot_is_refused_by_name(tmp_path: Path) -> None:
    broker, state = await started(tmp_path)
    await put(broker, state, (b"a", b"1"))
    await broker.close()
    path = tmp_path / "state" / "all.snapshot"
    whole = path.read_bytes()
    for at in (0, 9, 20, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        broker = Broker(BrokerOptions(tmp_path))
        with pytest.raises(StorageFault, match=r"all\.snapshot is damaged"):
            await broker.open()
        broker.ticker.stop()
        broker.store.close()
        for log in broker.logs.by_id.values():
            log.engine.close()
    path.write_bytes(whole)
    broker, found = await started(tmp_path)
    assert found.table == {b"a": b"1"}
    await broker.close()


async def test_a_snapshot_that_a_thread_was_late_with_does_not_replace_the_last_one(tmp_path: Path) -> None:
    """A stop cancels the background work, but not the thread in which it stores a snapshot just then."""
    broker, state = await started(tmp_path)
    await put(broker, state, (b"k", b"old"))
    late = broker.journal.take_snapshot()
    await put(broker, state, (b"k", b"new"))
    await broker.close()
    broker.journal.store_snapshot(late)
    again, state = await started(tmp_path)
    assert state.applied == [(b"k", b"new")], "the last snapshot is all there is to apply"
    await again.close()


async def test_a_snapshot_that_is_taken_in_slices_while_state_changes_ends_in_the_same(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker, state = Broker(BrokerOptions(data)), State()
    await broker.open()
    broker.journal.register("test", state.apply, state.dump)
    broker.recover_journal()
    last = 2 * PIECE_ENTRIES
    await put(broker, state, *((b"%d" % n, b"old") for n in range(last + 1)))
    snapshot = broker.journal.begin_snapshot()
    assert not snapshot.go_on(1)
    await put(broker, state, (b"0", None), (b"1", b"new"), (b"%d" % last, b"new"), (b"later", b"new"))
    while not snapshot.go_on(1):
        pass
    broker.journal.store_snapshot(snapshot)
    copy_live(data, copy)
    await broker.close()
    again, found = Broker(BrokerOptions(copy)), State()
    await again.open()
    again.journal.register("test", found.apply, found.dump)
    again.recover_journal()
    unchanged = {b"%d" % n: b"old" for n in range(2, last)}
    assert found.table == unchanged | {b"1": b"new", b"%d" % last: b"new", b"later": b"new"}
    await again.close()
