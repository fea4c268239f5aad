"""Snapshots are taken in slices, while state changes: what a start makes of one is what there was.

Each test copies the data directory as a crash would leave it, and opens the copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.groups.registry import Commit
from mainstem.broker.sessions import table
from mainstem.broker.sessions.sessions import NEVER, Session, Subscription
from mainstem.broker.sessions.wills import Will
from mainstem.broker.state import snapshot as snapshots
from mainstem.broker.state.journal import Entries
from mainstem.broker.state.snapshot import MAGIC, MAGIC_TAKEN, Snapshot
from tests.live_copies import copy_live
from tests.unit.broker.kit import durable, until

NAMESPACE = b"/\0"


class Counters:
    """State whose entries are changes: applied twice, one counts twice."""

    def __init__(self) -> None:
        self.totals: dict[bytes, int] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.totals.pop(key, None)
        elif value.startswith(b"="):
            self.totals[key] = int(value[1:])
        elif key in self.totals:
            self.totals[key] += int(value)

    def dump(self) -> Iterator[tuple[bytes, bytes]]:
        for key in list(self.totals):
            if key in self.totals:
                yield key, b"=%d" % self.totals[key]


async def opened(data: Path, counters: Counters | None = None) -> Broker:
    broker = Broker(BrokerOptions(data))
    await broker.open()
    if counters is not None:
        broker.journal.register("counter", counters.apply, counters.dump, entries=Entries.CHANGES)
    broker.recover_journal()
    return broker


async def store(broker: Broker, snapshot: Snapshot) -> None:
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    broker.journal.store_snapshot(snapshot)


def magic_of(data: Path) -> bytes:
    return (data / "state" / "all.snapshot").read_bytes()[: len(MAGIC)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_ENTRIES", 1)
    monkeypatch.setattr(table, "ASLEEP_PIECE", 1)
    monkeypatch.setattr(table, "AWAKE_PIECE", 1)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(6))
async def test_a_change_between_two_slices_counts_once(tmp_path: Path, seed: int) -> None:
    rng, counters = random.Random(seed), Counters()
    broker = await opened(tmp_path / "data", counters)

    def change() -> None:
        key = b"%d" % rng.randrange(12)
        value = rng.choice((b"=5", b"1", b"1", b"1", None))
        broker.journal.put("counter", key, value)
        counters.apply(key, value)

    for _ in range(40):
        change()
    magics = set[bytes]()
    for _ in range(6):  # one snapshot after the other, each over what the last one left
        broker.ticker.drain()
        snapshot = broker.journal.begin_snapshot()
        while not snapshot.go_on(1):
            for _ in range(rng.randrange(3)):
                change()
            if rng.random() < 0.5:
                broker.ticker.write_early()  # else what was put is in the open batch still
        await store(broker, snapshot)
        assert broker.journal.snapshot_offset == snapshot.offset
        change()
        await durable(broker.journal.put("counter", b"last", b"=1"))
        counters.totals[b"last"] = 1
        magics.add(magic_of(tmp_path / "data"))
    assert MAGIC_TAKEN in magics, "an older version must not count them twice"
    copy_live(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    assert magic_of(tmp_path / "data") == MAGIC, "a clean stop leaves what every version reads"
    for place in ("copy", "data"):
        found = Counters()
        again = await opened(tmp_path / place, found)
        assert found.totals == counters.totals
        await again.close()


def seen(session: Session | None) -> Any:
    if session is None:
        return None
    filters = {one.filter: (one.qos, one.start) for one in session.subscriptions.values()}
    return filters, session.position, sorted(session.flight), session.received, session.left_ns, session.user


class Here:
    """A connected client: what it was given last."""

    def __init__(self, rng: random.Random, session: Session) -> None:
        self._rng, self.position = rng, session.position
        self.flight = {packet_id: stamp for packet_id, _, stamp in session.flight}
        self._ended: list[int] = []
        self._begun: list[tuple[int, int]] = []

    def move(self) -> None:
        for packet_id in self._rng.sample(sorted(self.flight), k=min(2, len(self.flight))):
            del self.flight[packet_id]
            self._ended.append(packet_id)
        packet_id, self.position = self._rng.randrange(1, 9), self.position + 1
        if packet_id not in self.flight and packet_id not in self._ended:
            self.flight[packet_id] = self.position - 1
            self._begun.append((packet_id, self.position - 1))

    def place(self) -> tuple[int, list[tuple[int, int, int]]]:
        return self.position, [(packet_id, 1, stamp) for packet_id, stamp in self.flight.items()]

    def moves(self) -> tuple[int, list[int], list[tuple[int, int]]]:
        ended, begun, self._ended, self._begun = self._ended, self._begun, [], []
        return self.position, ended, begun


class Clients:
    """They come, subscribe, get messages, leave and end, as the seed says."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.sessions, self.rng, self.clock_ns = broker.session_keeper.sessions, random.Random(seed), 1_000
        self.names = [NAMESPACE + b"client-%d" % n for n in range(15)]

    def act(self) -> None:
        key, action = self.rng.choice(self.names), self.rng.random()
        self.clock_ns += 1
        session = self.sessions.find(key)
        if session is None:
            session = self.sessions.begin(key, self.rng.choice((NEVER, 3_600)), self.clock_ns)
            self._come(session)
        elif session.here is None:
            self._come(session)
        elif action < 0.4:
            session.here.move()  # type: ignore[attr-defined]
            self.sessions.save_begun([session])
        elif action < 0.6:
            name = b"t/%d" % self.rng.randrange(4)
            session.subscriptions[name] = Subscription(name, self.rng.randrange(3), start=self.rng.randrange(9))
            self.sessions.save(session)
        elif action < 0.65:
            session.received.add(self.rng.randrange(1, 9))
            self.sessions.save_received(session)
        elif action < 0.7:
            self.sessions.save_released(session, sorted(session.received), self.clock_ns)
        elif action < 0.95:
            self.sessions.leave(session, self.clock_ns)
        else:
            self.sessions.end(session)

    def _come(self, session: Session) -> None:
        session.left_ns, session.user = 0, self.rng.choice(("", "ada"))
        session.here = Here(self.rng, session)
        self.sessions.save(session)
        self.sessions.save_begun([session])

    def leave(self) -> None:
        for key in self.names:
            session = self.sessions.find(key)
            if session is not None and session.here is not None:
                self.sessions.leave(session, self.clock_ns)

    def all(self) -> dict[bytes, Any]:
        return {key: seen(self.sessions.look(key)) for key in self.names}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(12))
async def test_sessions_that_change_between_two_slices_are_as_they_were(tmp_path: Path, seed: int) -> None:
    broker = await opened(tmp_path / "data")
    clients = Clients(broker, seed)
    for _ in range(100):
        clients.act()
    for _ in range(3):
        broker.ticker.drain()
        snapshot = broker.journal.begin_snapshot()
        while not snapshot.go_on(1):
            for _ in range(clients.rng.randrange(4)):
                clients.act()
        await store(broker, snapshot)
        clients.act()
    clients.leave()
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    copy_live(tmp_path / "data", tmp_path / "copy")
    expected = clients.all()
    await broker.close()
    for place in ("copy", "data"):
        again = await opened(tmp_path / place)
        assert Clients(again, 0).all() == expected
        await again.close()


async def many_sessions(broker: Broker, count: int) -> None:
    sessions = broker.session_keeper.sessions
    for n in range(count):
        session = sessions.begin(NAMESPACE + b"client-%d" % n, 3_600, 1_000 + n)
        session.subscriptions[b"t/%d" % n] = Subscription(b"t/%d" % n, 1, start=1_000 + n)
        sessions.leave(session, 5_000_000_000 + n)
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))


def entries_in(piece: bytes) -> list[bytes]:
    found: list[bytes] = []
    snapshots.load_entries(piece, 0, len(piece), lambda name, value: found.append(name))
    return found


async def test_no_slice_of_a_snapshot_grows_with_what_there_is(tmp_path: Path) -> None:
    """Neither its beginning, nor a piece of it."""
    broker = await opened(tmp_path)
    await many_sessions(broker, 3_000)
    namespace, wills = broker.namespace("/"), broker.session_keeper.wills
    for n in range(500):
        wills.arm(NAMESPACE + b"client-%d" % n, namespace, Will(b"w", b"gone", 1, False, 60), b"client-%d" % n, 60)
    broker.ticker.drain()
    for _ in range(2):  # as objects, then asleep
        snapshot = broker.journal.begin_snapshot()
        assert len(snapshot.sealed()) == 2, "nothing is taken where it begins"
        sizes = [len(entries_in(piece)) for piece in snapshot.rest]
        limit = max(snapshots.PIECE_ENTRIES, 2 * table.ASLEEP_PIECE, 3 * table.AWAKE_PIECE)
        assert max(sizes) <= limit
        assert sum(sizes) >= 2 * 3_000 + 500
    await broker.close()


async def test_absent_sessions_sleep_after_a_snapshot_and_wake_as_they_were(tmp_path: Path) -> None:
    broker = await opened(tmp_path / "data")
    await many_sessions(broker, 300)
    sessions = broker.session_keeper.sessions
    keys = [NAMESPACE + b"client-%d" % n for n in range(300)]
    before = {key: seen(sessions.look(key)) for key in keys}
    known = sessions.find(keys[0])
    assert known is not None
    known.received = {7}
    sessions.save_received(known)
    await broker.snapshot()
    assert sessions._table.asleep_count == 299, "the one with an open identifier does not sleep"
    assert sessions.absent() == (300, 300)
    assert {key: seen(sessions.look(key)) for key in keys[1:]} == {key: before[key] for key in keys[1:]}
    assert {hold.key: (hold.oldest, hold.filters) for hold in sessions.holds()}[keys[9]] == (1_009, [b"t/9"])
    woken = sessions.find(keys[5])
    assert woken is not None and sessions.find(keys[5]) is woken
    sessions.end(woken)
    assert sessions.find(keys[5]) is None and len(sessions) == 299
    copy_live(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    for place in ("copy", "data"):
        again = await opened(tmp_path / place)
        sessions = again.session_keeper.sessions
        assert sessions._table.asleep_count >= 298
        found = {key: seen(sessions.look(key)) for key in keys}
        if place == "data":  # what ended after the copy was not yet durable there
            assert found[keys[5]] is None
        assert found[keys[0]][3] == {7}
        assert all(found[key] == before[key] for key in keys[1:] if key != keys[5])
        expired = list[bytes]()
        while some := sessions.expired(9_000_000_000_000):
            expired += [session.key for session in some]
            for session in some:
                sessions.end(session)
        assert len(expired) == len({*expired}) >= 299 and not len(sessions), "each expires, once"
        await again.close()


async def test_a_client_that_comes_and_goes_is_planned_to_expire_once(tmp_path: Path) -> None:
    """However often it sleeps in between."""
    broker = await opened(tmp_path)
    sessions, key = broker.session_keeper.sessions, NAMESPACE + b"client"
    sessions.begin(key, 100, 1)
    for second in range(1, 20):
        session = sessions.find(key)
        assert session is not None
        session.left_ns = 0
        sessions.leave(session, second * 1_000_000_000)
        await broker.snapshot()
        assert sessions._table.asleep_count == 1
    assert sum(map(len, sessions._expiries.values())) == 1
    assert sessions.expired(118 * 1_000_000_000) == [], "its time runs from when its client left last"
    assert [one.key for one in sessions.expired(119 * 1_000_000_000)] == [key]
    await broker.close()


async def test_sessions_in_the_order_that_older_versions_wrote_are_loaded(tmp_path: Path) -> None:
    """All sessions first, then all places."""
    broker = await opened(tmp_path)
    await many_sessions(broker, 20)
    sessions = broker.session_keeper.sessions
    keys = [NAMESPACE + b"client-%d" % n for n in range(20)]
    before = {key: seen(sessions.look(key)) for key in keys}
    pieces = list(broker.journal.take_snapshot().sealed())[:-1]
    await broker.close()
    entries: list[tuple[bytes, bytes | None]] = []
    for piece in pieces[1:]:
        snapshots.load_entries(piece, 0, len(piece), lambda name, value: entries.append((name, value)))
    entries.sort(key=lambda one: not one[0].startswith(b"session\0"))
    again = Broker(BrokerOptions(tmp_path))
    await again.open()
    end = again.journal.stem.written
    old = [
        snapshots.head(again.journal.stem.id, end),
        *snapshots.pieces_of((name, value or b"") for name, value in entries),
    ]
    snapshots.write(
        again.options.disk, tmp_path / "state/all.snapshot", tmp_path / "state/all.new", snapshots.sealed(old)
    )
    again.journal._data = (tmp_path / "state/all.snapshot").read_bytes()
    again.recover_journal()
    assert {key: seen(again.session_keeper.sessions.look(key)) for key in keys} == before
    await again.close()


async def test_a_snapshot_cut_at_any_byte_gives_whole_sessions_or_none(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    await many_sessions(broker, 3)
    sessions = broker.session_keeper.sessions
    whole = b"".join(sessions.pieces(lambda key: None))
    keys = {NAMESPACE + b"client-%d" % n for n in range(3)}
    size = len(entries_in(whole))
    assert size == 6
    for end in range(len(whole) + 1):
        expiries: dict[int, list[bytes]] = {}
        made = table.SessionTable(sessions._table._unpack, sessions._table._pack)
        after, taken = made.load(expiries, whole, 0, end)
        assert after <= end and taken == 2 * len(made)
        for session in made:
            assert session.key in keys and session.subscriptions
        damaged = bytearray(whole)
        if end < len(damaged):
            damaged[end] ^= 0x55
            made.load({}, bytes(damaged), 0, len(damaged))  # whatever it says, it does not read beyond it
    await broker.close()


async def test_the_offset_of_a_transaction_that_was_just_decided_is_kept(tmp_path: Path) -> None:
    """Loading the decision counts its offsets: the older ones of the snapshot must not come after it."""
    broker = await opened(tmp_path / "data")
    groups, transactions, at = broker.coordinator.groups, broker.coordinator.transactions, ("t", 0)
    groups.commit("readers", {at: Commit(1)})
    answers: list[tuple[Any, ...]] = []
    transactions.initialise("tx", 60_000, -1, -1, 0, lambda *answer: answers.append(answer))
    producer_id, epoch = answers[-1][1], answers[-1][2]
    transactions.add("tx", producer_id, epoch, 0, group="readers")
    groups.commit_pending(producer_id, "readers", {at: Commit(9)})
    decided: list[Any] = []
    transactions.decided = lambda known, error: decided.append(known)  # type: ignore[method-assign]  # and not carried out
    transactions.end("tx", producer_id, epoch, 0, commit=True, bump=False, reply=lambda *answer: None)
    await until(lambda: bool(decided))
    assert groups.offset("readers", at) == Commit(1)
    await broker.snapshot()
    copy_live(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    again = await opened(tmp_path / "copy")
    assert again.coordinator.groups.offset("readers", at) == Commit(9)
    await again.close()
