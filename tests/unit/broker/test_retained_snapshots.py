"""Retained messages in the journal's snapshot: packed and loaded by the thousand, one namespace after another."""

from __future__ import annotations

import shutil
from pathlib import Path

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.sessions.retained import PIECE_ENTRIES, Pointer
from mainstem.model.origin import RecordFlag

MORE = PIECE_ENTRIES + 10


async def opened(data: Path) -> Broker:
    broker = Broker(BrokerOptions(data))
    await broker.open()
    broker.recover_journal()
    return broker


async def retain(broker: Broker, namespace: str, *topics: bytes, value: bytes | None = b"x") -> None:
    ticket = None
    for topic in topics:
        ticket = broker.namespace(namespace).publish(topic, value, flags=RecordFlag.RETAIN)
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    assert ticket is not None and ticket.stable
    broker.ticker.drain()  # their pointers are journaled


def all_of(broker: Broker) -> dict[str, list[tuple[bytes, Pointer]]]:
    keeper = broker.session_keeper
    return {name: keeper.retained(namespace).find(b"#") for name, namespace in broker.namespaces.items()}


async def test_a_snapshot_brings_back_the_retained_messages_of_every_namespace(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    await broker.declare_namespace("other")
    await retain(broker, "/", *(b"site/%d/state" % n for n in range(MORE)))
    await retain(broker, "other", b"a/b", b"a/b/c", b"a")
    await retain(broker, "/", *(b"site/%d/state" % n for n in range(0, MORE, 3)), value=None)
    kept = all_of(broker)
    assert len(kept["/"]) == MORE - len(range(0, MORE, 3))
    assert [topic for topic, _ in kept["other"]] == [b"a/b", b"a/b/c", b"a"]
    await broker.close()
    again = await opened(tmp_path)
    assert again.journal.snapshot_offset == again.journal.stem.written, "everything came from the snapshot"
    assert all_of(again) == kept
    await again.close()


async def test_a_snapshot_taken_in_slices_ends_in_what_was_retained_meanwhile(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    broker = await opened(data)
    await retain(broker, "/", *(b"t/%d" % n for n in range(MORE)))
    snapshot = broker.journal.begin_snapshot()
    assert not snapshot.go_on(1)
    await retain(broker, "/", b"t/0", b"t/1", value=None)  # taken already
    await retain(broker, "/", b"t/2", b"t/%d" % (MORE - 1), b"t/new")
    while not snapshot.go_on(1):
        pass
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    broker.journal.store_snapshot(snapshot)
    shutil.copytree(data, copy)
    kept = all_of(broker)
    await broker.close()
    again = await opened(copy)
    assert all_of(again) == kept
    assert {b"t/0", b"t/1"}.isdisjoint(topic for topic, _ in kept["/"])
    await again.close()


async def test_state_of_a_namespace_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    await broker.declare_namespace("gone")
    await retain(broker, "gone", b"a", b"b")
    await retain(broker, "/", b"c")
    await broker.close()
    broker = Broker(BrokerOptions(tmp_path))
    await broker.open()
    del broker.namespaces["gone"]  # as if older metadata had been restored
    broker.recover_journal()
    assert [topic for topic, _ in all_of(broker)["/"]] == [b"c"]
    await broker.close()
