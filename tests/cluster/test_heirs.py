"""An heir: it has a cell's files before it owns it, hears of the hand-over at once, and keeps nobody from being served."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mainstem.cluster import membership, rebuilding
from mainstem.cluster.membership import BrokerFacts, CellFacts, Membership, View, hurry, prepared_by
from mainstem.cluster.objects import CellObjects
from mainstem.cluster.rebuilding import Rebuilding
from mainstem.cluster.schema import FIRST_CELL, SCHEMA, prepare
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.server import cell_taking
from mainstem.server.cell_taking import Leaving, Taking
from tests.cluster.kit import new_database
from tests.cluster.owner import Owner, file_store
from tests.contract.postgres_server import PostgresServer

HEARD_S = 20.0  # of a busy machine; without notices it would take LONG_S
LONG_S = 60.0


def files_of(root: Path) -> dict[str, bytes]:
    left_out = (".new", ".previous", ".format")
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(left_out)]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


class Heir:
    """Of a cell that `owner` serves."""

    def __init__(self, dsn: str, owner: Owner, root: Path, objects: CellObjects) -> None:
        self.dsn, self.owner, self.root = dsn, owner, root
        self.session = PostgresSession(dsn, SCHEMA)
        self.rebuilding = Rebuilding(self.session, FIRST_CELL, root, objects)

    def publish(self, rng: random.Random, changes: int) -> None:
        for _ in range(changes):
            self.owner.change(rng)
        self.owner.wal.wait(self.owner.wal.recorded)

    def take(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """The owner lets go, and this one ends its files: how many rows were fetched for that."""
        wanted = self.owner.files()
        self.owner.end()
        epoch = Membership(self.dsn, "heir", lambda reason: None, lambda view: None).take(
            FIRST_CELL, 1, "test", early=True
        )
        assert epoch == 2
        fetched, rows_after = [0], rebuilding.rows_after

        async def counted(*given: object) -> list[tuple[int, int, bytes]]:
            found = await rows_after(*given)  # type: ignore[arg-type]
            fetched[0] += len(found)
            return found

        monkeypatch.setattr(rebuilding, "rows_after", counted)
        self.rebuilding.finish(epoch)
        self.session.close()
        assert files_of(self.root) == wanted
        return fetched[0]


@pytest.fixture
def heir(tmp_path: Path, postgres: PostgresServer) -> Heir:
    dsn, store = new_database(postgres), file_store(tmp_path)
    owner = Owner(dsn, tmp_path, store, 0)
    return Heir(dsn, owner, tmp_path / "heir", CellObjects(store, FIRST_CELL))


def test_an_heir_that_has_the_files_reads_only_what_was_committed_since(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    heir.publish(rng, 40)
    heir.owner.images.run()
    heir.publish(rng, 60)
    heir.rebuilding.catch_up()
    before = heir.owner.wal.seq
    heir.publish(rng, 10)
    committed = heir.owner.wal.seq - before
    assert heir.take(monkeypatch) == committed > 0


def test_an_heir_whose_owner_makes_another_image_begins_anew(heir: Heir, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    heir.publish(rng, 40)
    heir.rebuilding.catch_up()
    for _ in range(2):
        heir.publish(rng, 10)
        heir.owner.images.run()
    heir.publish(rng, 10)
    heir.rebuilding.catch_up()
    before = heir.owner.wal.seq
    heir.publish(rng, 5)
    committed = heir.owner.wal.seq - before
    assert heir.take(monkeypatch) == committed > 0


def test_an_heir_that_is_overtaken_by_an_image_at_the_last_moment_begins_anew(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    heir.publish(rng, 40)
    heir.rebuilding.catch_up()
    heir.publish(rng, 10)
    heir.owner.images.run()
    heir.publish(rng, 5)
    heir.take(monkeypatch)


def test_a_notice_makes_brokers_look_at_once(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = new_database(postgres)
    session = PostgresSession(dsn, SCHEMA)
    prepare(session, file_store(tmp_path).url)
    looked, drained = threading.Event(), threading.Event()

    def see(view: View) -> None:
        looked.set()
        if view.brokers["a"].draining:
            drained.set()

    member = Membership(dsn, "a", lambda reason: None, see)
    member.register("127.0.0.1", 1, {}, "1")
    assert looked.wait(HEARD_S), "it looks by itself, and listens from then on"
    monkeypatch.setattr(membership, "RENEW_S", LONG_S)
    monkeypatch.setattr(membership, "HASTE_S", LONG_S)
    session.use(lambda c: c.execute("UPDATE broker SET draining = true"))
    session.use(hurry)
    assert drained.wait(HEARD_S)
    member.stop()
    session.close()


BROKERS = {
    name: BrokerFacts(name, number, "localhost", 1, {}, "", False, True, 0.0) for number, name in enumerate("abc")
}
MINE = CellFacts(1, "main", "a", None, 4, 3.0, "", 0, 0)


def test_an_owner_that_is_drained_names_the_least_loaded_and_waits_until_that_one_is_prepared() -> None:
    taking = Taking("a")
    other = CellFacts(2, "other", "b", None, 1, 3.0, "", 0, 0)
    calm = View(BROKERS, {1: MINE, 2: other})
    assert taking.leaving(calm, MINE) is None
    drained = View({**BROKERS, "a": replace(BROKERS["a"], draining=True)}, calm.cells)
    assert taking.leaving(drained, MINE) == Leaving("c", "a is drained")
    leaving = Leaving("c", "a is drained")
    assert not taking.may_leave(replace(MINE, prepared=prepared_by("c", 3)), leaving), "of an epoch before"
    assert not taking.may_leave(replace(MINE, prepared=prepared_by("b", 4)), leaving), "another one"
    assert taking.may_leave(replace(MINE, prepared=prepared_by("c", 4)), leaving)


def test_an_heir_that_never_says_so_is_waited_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taking, leaving = Taking("a"), Leaving("c", "it is moved to c")
    assert not taking.may_leave(MINE, leaving)
    monkeypatch.setattr(cell_taking, "PREPARE_S", 0.0)
    assert taking.may_leave(MINE, leaving)


async def test_who_has_just_handed_a_cell_over_does_not_take_it_back_by_an_old_view() -> None:
    taking = Taking("a")
    assert taking.may_leave(replace(MINE, prepared=prepared_by("c", 4)), Leaving("c", ""))
    assert await taking.reason_to_take(View(BROKERS, {1: MINE}), MINE) is None
    taken_again = replace(MINE, epoch=6)
    restarted = await taking.reason_to_take(View(BROKERS, {1: taken_again}), taken_again)
    assert restarted is not None
    assert restarted.text == "a was restarted"


def test_only_a_cell_that_another_broker_serves_has_an_heir() -> None:
    taking = Taking("c")
    wanted = replace(MINE, wanted="c")
    assert taking.is_heir(View(BROKERS, {1: wanted}), wanted)
    for other in (replace(wanted, wanted="b"), replace(wanted, owner=None), replace(wanted, lease_s=-1.0)):
        assert not taking.is_heir(View(BROKERS, {1: other}), other)


def test_brokers_look_when_a_lease_is_about_to_end() -> None:
    cell = replace(MINE, lease_s=0.2)
    assert View(BROKERS, {1: cell}).next_look_s == pytest.approx(0.21)
    assert View(BROKERS, {1: MINE}).next_look_s == membership.RENEW_S
