"""A start replays the journal in bulk, and ends where applying its entries one by one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.sessions import table
from mainstem.broker.sessions.sessions import NEVER, Session, Subscription
from mainstem.broker.state import journal
from mainstem.broker.state import snapshot as snapshots
from mainstem.model.origin import RecordFlag
from tests.live_copies import copy_live
from tests.unit.broker.test_snapshot_slices import NAMESPACE, Clients, many_sessions, opened, seen, store

RECENT_NS = 1_000_000_000 * 1_000_000_000  # clients of these tests leave long before it


class Devices(Clients):
    """Some get nothing, some with subscriptions that concern others; more than a second lies between two acts."""

    def __init__(self, broker: Broker, seed: int) -> None:
        super().__init__(broker, seed)
        self.names = [NAMESPACE + b"device-%d" % n for n in range(40)]
        self.quiet = [NAMESPACE + b"quiet-%d" % n for n in range(20)]

    def act(self) -> None:
        self.clock_ns += 1_500_000_000
        session = self.sessions.find(self.rng.choice(self.names))
        if session is not None and session.here is not None and self.rng.random() < 0.05:
            name = self.rng.choice((b"$share/g/t", b"own"))
            session.subscriptions[name] = Subscription(name, 1, no_local=name == b"own", start=3)
            self.sessions.save(session)
        super().act()
        self._act_quietly(self.rng.choice(self.quiet))

    def _act_quietly(self, key: bytes) -> None:
        session = self.sessions.find(key)
        if session is None:
            session = self.sessions.begin(key, self.rng.choice((NEVER, 60, 3_600)), self.clock_ns)
        if session.here is None:
            self._come(session)
        elif self.rng.random() < 0.2:
            self.sessions.end(session)
        else:
            session.subscriptions[b"orders"] = Subscription(b"orders", 1, start=self.clock_ns)
            self.sessions.leave(session, self.clock_ns)

    @property
    def everyone(self) -> list[bytes]:
        return [*self.names, *self.quiet]


async def opened_one_by_one(data: Path) -> Broker:
    broker = Broker(BrokerOptions(data))
    await broker.open()
    for owner in broker.journal._owners.values():
        if owner.bulk is not None:
            owner.bulk.replay = lambda data, at, *_: (at, 0)  # type: ignore[method-assign]
    broker.recover_journal()
    return broker


def known(session: Session | None) -> Any:
    """As `seen`; when a client left that was here at the end is when the broker started."""
    found = seen(session)
    return found and (
        *found[:4],
        "now" if found[4] > RECENT_NS else found[4],
        found[5],
        session and session.expiry_seconds,
    )


def planned(broker: Broker, keys: list[bytes]) -> dict[bytes, bool]:
    """Whether each that ends some day is looked at no later than then."""
    sessions = broker.session_keeper.sessions
    seconds: dict[bytes, int] = {}
    for second, found in sessions._expiries.items():
        for key in found:
            seconds[key] = min(second, seconds.get(key, second))
    looked = {key: sessions.look(key) for key in keys}
    return {
        key: key in seconds and seconds[key] <= one.expiry_second()
        for key, one in looked.items()
        if one is not None and one.expiry_second()
    }


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_ENTRIES", 1)
    monkeypatch.setattr(table, "ASLEEP_PIECE", 1)
    monkeypatch.setattr(table, "AWAKE_PIECE", 1)


@pytest.mark.parametrize("snapshots_taken", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
async def test_sessions_are_as_if_each_entry_had_been_applied_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, snapshots_taken: int
) -> None:
    small_pieces(monkeypatch)
    broker = await opened(tmp_path / "data")
    devices = Devices(broker, seed)
    for _ in range(snapshots_taken):
        for _ in range(200):
            devices.act()
        broker.ticker.drain()
        snapshot = broker.journal.begin_snapshot()
        while not snapshot.go_on(1):
            devices.act()
        await store(broker, snapshot)
    for _ in range(300):
        devices.act()
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    for place in ("bulk", "single"):
        copy_live(tmp_path / "data", tmp_path / place)
    await broker.close()
    bulk, single = await opened(tmp_path / "bulk"), await opened_one_by_one(tmp_path / "single")
    one, other = bulk.session_keeper.sessions, single.session_keeper.sessions
    assert {key: known(one.look(key)) for key in devices.everyone} == {
        key: known(other.look(key)) for key in devices.everyone
    }
    assert one._table.asleep_count > other._table.asleep_count, "those that nobody needs as objects sleep"
    assert len(one) == len(other) and one.absent() == other.absent()
    assert {hold.key: (hold.oldest, sorted(hold.filters)) for hold in one.holds()} == {
        hold.key: (hold.oldest, sorted(hold.filters)) for hold in other.holds()
    }
    assert all(planned(bulk, devices.everyone).values())
    assert bulk.session_keeper._shares.keys() == single.session_keeper._shares.keys()
    await bulk.close()
    again = await opened(tmp_path / "bulk")
    sessions = again.session_keeper.sessions
    assert {key: known(sessions.look(key)) for key in devices.everyone} == {
        key: known(other.look(key)) for key in devices.everyone
    }
    await again.close()
    await single.close()


async def test_sessions_of_a_killed_broker_sleep_and_each_expires_once(tmp_path: Path) -> None:
    broker = await opened(tmp_path / "data")
    await many_sessions(broker, 300)
    copy_live(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    again = await opened(tmp_path / "copy")
    sessions = again.session_keeper.sessions
    assert sessions._table.asleep_count == 300 and not list(sessions._table.awake())
    expired = list[bytes]()
    while some := sessions.expired(9_000_000_000_000):
        expired += [session.key for session in some]
        for session in some:
            sessions.end(session)
    assert len(expired) == len({*expired}) == 300 and not len(sessions)
    await again.close()


async def test_a_snapshot_becomes_whole_while_clients_put_state_faster_than_slices_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_EVERY_BYTES", 100_000)
    monkeypatch.setattr(table, "AWAKE_PIECE", 1)
    broker = await opened(tmp_path)
    await many_sessions(broker, 2_000)
    pauses = 0

    async def put_more() -> None:
        nonlocal pauses
        pauses += 1
        for _ in range(100):
            broker.journal.put("checkpoint", b"", b"\0" * 500)

    broker.snapshot_slice, broker.snapshot_pause = 1, put_more
    await broker.snapshot()
    assert pauses < 200, "slices of one session each would have been 2,000"
    await broker.close()


async def test_what_was_replayed_counts_towards_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker that is killed again and again replays more each time."""
    broker = await opened(tmp_path / "data")
    await many_sessions(broker, 300)
    copy_live(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    monkeypatch.setattr(journal, "SNAPSHOT_EVERY_BYTES", 10_000)
    again = await opened(tmp_path / "copy")
    assert again.journal.snapshot_due()
    await again.close()


async def test_retained_messages_are_as_if_each_entry_had_been_applied_by_itself(tmp_path: Path) -> None:
    broker = await opened(tmp_path / "data")
    namespace = broker.namespace("/")
    for n in range(400):
        value = b"" if n % 7 == 3 else b"%d" % n
        namespace.publish(b"site/%d" % (n % 50), value or None, flags=RecordFlag.RETAIN)
        if n % 20 == 19:
            broker.ticker.drain()
            await broker.ticker.settle(list(broker.logs.by_id.values()))
    newest = broker.journal.put("checkpoint", b"", b"\0")
    broker.ticker.drain()
    await broker.ticker.settle([newest.log])
    for place in ("bulk", "single"):
        copy_live(tmp_path / "data", tmp_path / place)
    expected = broker.session_keeper.retained(namespace).find(b"#")
    await broker.close()
    assert 10 < len(expected) < 50
    for again in (await opened(tmp_path / "bulk"), await opened_one_by_one(tmp_path / "single")):
        assert again.session_keeper.retained(again.namespace("/")).find(b"#") == expected
        await again.close()
