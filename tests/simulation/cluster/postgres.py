"""A PostgreSQL of the cluster's tables: every statement that the product sends, done by hand, with locks and lost answers.

A statement takes effect at one moment between its sending and its answer, whoever is paused meanwhile. A row that an open
transaction has changed is waited for by whoever changes it and read as it was before. A connection may be cut before the
statement arrives, while it is on its way (then it is done later, and nobody hears of it), or before its answer.

A statement that is not known here fails the test: whoever changes the product's SQL changes this page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from mainstem.metadata.postgres_session import IDLE_MS
from tests.simulation.cluster.world import Later, World

CELL = 1
LATENCY_S = (0.0005, 0.02)
SLOW_S = 3.0  # now and then
GHOST_S = 8.0  # at most until a statement is done whose sender is gone
STATEMENT_S, LOOK_S = 2.0, 0.01
IDLE_S = IDLE_MS / 1000
Key = tuple[str, int]
Tables = dict[str, dict[int, dict[str, Any]]]


class ConnectionCut(Exception):
    pass


class Locked(Exception):
    """Another transaction holds what this statement changes."""


class Row(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(key)


class Server:
    """`fences`: False leaves the epoch out of every condition, to see that this is noticed."""

    def __init__(self, world: World, *, fences: bool = True) -> None:
        self.world, self.fences = world, fences
        self.tables: Tables = {"wal_1_0": {}, "wal_1_1": {}, "broker": {}, "cell": {}, "lane": {}}
        facts = {"cell_id": CELL, "name": "main", "owner": None, "wanted": None, "epoch": 0, "reason": ""}
        self.tables["cell"][CELL] = {**facts, "lease_until": 0.0, "relay_port": 0, "wanted_because": ""}
        self.tables["lane"][CELL] = {
            "cell_id": CELL,
            "epoch": 0,
            "wal_seq": 0,
            "flushed_seq": 0,
            "slot": 0,
            "image": "",
        }
        self.locks: dict[Key, Connection] = {}
        self.early: dict[int, bool] = {}  # by epoch: taken although the lease held
        self.trouble = 0.0  # how likely each kind of accident is, for each statement

    def row(self, table: str, key: int, by: Connection) -> dict[str, Any]:
        return by.before_of(table, self)[key]

    def change(self, table: str, key: int, by: Connection) -> dict[str, Any]:
        holder = self.locks.get((table, key))
        if holder is not None and holder is not by:
            raise Locked
        if by.in_transaction and holder is None:
            self.locks[table, key] = by
            by.undo.append((table, key, deepcopy(self.tables[table].get(key))))
        return self.tables[table][key]

    # -- statements: what `run` finds by how they begin

    def run(self, sql: str, given: tuple[Any, ...], by: Connection) -> list[Row]:
        for pattern, done in STATEMENTS:
            if match := re.match(pattern, sql):
                return [Row(row) for row in done(self, match, given, by)]
        raise AssertionError(f"the simulated PostgreSQL does not know: {sql}")

    def _commit(self, match: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        cell, epoch, seq, crc, body, slot = given
        lane, wal = self.change("lane", cell, by), self.tables[match[1]]
        if (self.fences and lane["epoch"] != epoch) or lane["wal_seq"] != seq - 1:
            return []
        lane["wal_seq"], lane["slot"] = seq, slot
        assert all(seq not in self.tables[f"wal_1_{one}"] for one in (0, 1)), "a number was given twice"
        wal[seq] = {"seq": seq, "epoch": epoch, "crc": crc, "body": body}
        return [{"seq": seq}]

    def _lane(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        return [dict(self.row("lane", given[0], by))]

    def _one_row(self, match: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        found = by.before_of(match[1], self).get(given[0])
        return [{"epoch": found["epoch"], "crc": found["crc"]}] if found else []

    def _rows(self, match: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        tables = [by.before_of(name, self) for name in ("wal_1_0", "wal_1_1")]
        found = sorted((row for table in tables for row in table.values()), key=lambda row: row["seq"])
        rows = [{name: row[name] for name in ("seq", "crc", "body")} for row in found if row["seq"] > given[0]]
        return rows[: int(match[1])]

    def _flush(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        cell, epoch, seq, key = given
        lane = self.change("lane", cell, by)
        if self.fences and lane["epoch"] != epoch:
            return []
        lane["flushed_seq"], lane["image"] = seq, key
        return [{"1": 1}]

    def _highest(self, match: re.Match[str], _: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        return [{"max": max(self.tables[match[1]], default=None)}]

    def _truncate(self, match: re.Match[str], _: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        by.undo_table(match[1], self)
        self.tables[match[1]].clear()
        return []

    def _take(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        number, name, epoch, reason, lease_s, early = given
        cell, now = self.change("cell", number, by), self.world.now
        if cell["epoch"] != epoch or not (early or cell["owner"] is None or cell["lease_until"] < now):
            return []
        self.early[epoch + 1] = bool(early and cell["owner"] is not None and cell["lease_until"] >= now)
        cell.update(owner=name, epoch=epoch + 1, wanted=None, reason=reason, lease_until=now + lease_s)
        return [{"epoch": epoch + 1}]

    def _raise(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        self.change("lane", given[0], by)["epoch"] = given[1]
        return []

    def _renew(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        number, epoch, lease_s = given
        cell = self.change("cell", number, by)
        if cell["epoch"] != epoch:
            return []
        cell["lease_until"] = self.world.now + lease_s
        return [{"1": 1}]

    def _brokers(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        return []

    def _cells(self, _: re.Match[str], given: tuple[Any, ...], by: Connection) -> list[dict[str, Any]]:
        cell, lane = self.row("cell", CELL, by), self.row("lane", CELL, by)
        ends = {name: lane[name] for name in ("wal_seq", "flushed_seq")}
        return [{**cell, **ends, "lease": cell["lease_until"] - self.world.now}]


Done = Callable[[Server, re.Match[str], tuple[Any, ...], "Connection"], list[dict[str, Any]]]
STATEMENTS: tuple[tuple[str, Done], ...] = (
    (r"WITH own AS \(UPDATE lane SET wal_seq = \$3, slot = \$6 WHERE .* INTO (wal_1_\d) ", Server._commit),
    (r"SELECT epoch, wal_seq FROM lane WHERE cell_id = \$1$", Server._lane),
    (r"SELECT \* FROM lane WHERE cell_id = \$1$", Server._lane),
    (r"SELECT epoch, crc FROM (wal_1_\d) WHERE seq = \$1$", Server._one_row),
    (r"SELECT seq, crc, body FROM \(.* LIMIT (\d+)$", Server._rows),
    (r"UPDATE lane SET flushed_seq = \$3, image = \$4 WHERE cell_id = \$1 AND epoch = \$2 ", Server._flush),
    (r"SELECT max\(seq\) FROM (wal_1_\d)$", Server._highest),
    (r"TRUNCATE (wal_1_\d)$", Server._truncate),
    (r"UPDATE cell SET owner = \$2, epoch = epoch \+ 1.* AND epoch = \$3 AND \(\$6 OR ", Server._take),
    (r"UPDATE lane SET epoch = \$2 WHERE cell_id = \$1$", Server._raise),
    (r"UPDATE cell SET lease_until = .* WHERE cell_id = \$1 AND epoch = \$2 RETURNING 1$", Server._renew),
    (r"SELECT \*, extract\(epoch FROM .* FROM broker ORDER BY node_id$", Server._brokers),
    (r"SELECT c\.\*, l\.wal_seq, l\.flushed_seq, .* FROM cell c JOIN lane l ", Server._cells),
)


class Connection:
    """What the product's coroutines are given instead of asyncpg's."""

    def __init__(self, server: Server) -> None:
        self._server, self._world = server, server.world
        self.cut = False  # its client has given up
        self.gone = False  # the server has ended the session: nothing that was sent is done any more
        self.in_transaction = False
        self.undo: list[tuple[str, int, dict[str, Any] | None]] = []
        self._undo_tables: list[tuple[str, dict[int, dict[str, Any]]]] = []
        self._heard = 0

    async def fetch(self, sql: str, *given: Any) -> list[Row]:
        rows: list[Row] = await self._send(lambda: self._server.run(sql, given, self))
        return rows

    async def fetchrow(self, sql: str, *given: Any) -> Row | None:
        found = await self.fetch(sql, *given)
        return found[0] if found else None

    async def fetchval(self, sql: str, *given: Any) -> Any:
        row = await self.fetchrow(sql, *given)
        return None if row is None else row[0]

    async def execute(self, sql: str, *given: Any) -> None:
        await self.fetch(sql, *given)

    def transaction(self) -> Connection:
        return self

    async def __aenter__(self) -> None:
        await self._send(self._begin)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._send(self._end)
        elif not self.cut:
            self.roll_back()

    # -- at the server

    def _begin(self) -> None:
        self.in_transaction = True

    def _end(self) -> None:
        """COMMIT: everything was changed where it lies."""
        self._release()

    def roll_back(self) -> None:
        for table, key, row in reversed(self.undo):
            if row is None:
                self._server.tables[table].pop(key, None)
            else:
                self._server.tables[table][key] = row
        for name, rows in self._undo_tables:
            self._server.tables[name].update(rows)
        self._release()

    def _release(self) -> None:
        for table, key, _ in self.undo:
            self._server.locks.pop((table, key), None)
        self.undo.clear()
        self._undo_tables.clear()
        self.in_transaction = False

    def undo_table(self, name: str, server: Server) -> None:
        self._undo_tables.append((name, dict(server.tables[name])))

    def before_of(self, table: str, server: Server) -> dict[int, dict[str, Any]]:
        """A table as this connection sees it: without what open transactions of others changed."""
        found = dict(server.tables[table])
        for holder in {one for (name, _), one in server.locks.items() if one is not self}:
            for name, rows in holder._undo_tables:
                found |= rows if name == table else {}
            for name, key, row in holder.undo:
                if name == table and row is not None:
                    found[key] = row
        return found

    # -- the way there and back

    def _send(self, run: Callable[[], Any]) -> Later:
        later, rng, trouble = Later(), self._world.rng, self._server.trouble
        if self.cut:
            later.tell(error=ConnectionCut("it was cut before"))
        elif rng.random() < trouble:  # it never arrives
            self._world.after(rng.uniform(*LATENCY_S), lambda: self._cut(later))
        elif rng.random() < trouble:  # it arrives when its sender has given up
            self.cut = True
            self._world.after(rng.uniform(0.0, GHOST_S), lambda: self._arrive(run, Later(), last=True))
            self._world.after(rng.uniform(0.0, 1.0), lambda: later.tell(error=ConnectionCut("no answer came")))
        else:
            self._world.after(self._latency_s(), lambda: self._arrive(run, later))
        return later

    def _arrive(self, run: Callable[[], Any], later: Later, *, last: bool = False, waited_s: float = 0.0) -> None:
        if self.gone or (self.cut and not last):
            later.tell(error=ConnectionCut("it was cut"))
            return
        try:
            found = run()
        except Locked:
            if waited_s > STATEMENT_S:
                self._cut(later)
            else:
                again = partial(self._arrive, run, later, last=last, waited_s=waited_s + LOOK_S)
                self._world.after(LOOK_S, again)
            return
        self._heard += 1
        if self.in_transaction:
            self._world.after(IDLE_S, partial(self._end_if_idle, self._heard))
        if last and self.in_transaction:
            self.roll_back()
        if last or self._world.rng.random() < self._server.trouble:  # the answer is lost
            self._cut(later)
        else:
            self._world.after(self._latency_s(), lambda: later.tell(found))

    def _end_if_idle(self, heard: int) -> None:
        """`idle_in_transaction_session_timeout`: a client that is paused, or gone, must not keep a lock."""
        if self.in_transaction and heard == self._heard:
            self.drop()

    def _latency_s(self) -> float:
        slow = self._world.rng.random() < self._server.trouble
        return self._world.rng.uniform(*LATENCY_S) + (self._world.rng.uniform(0.0, SLOW_S) if slow else 0.0)

    def _cut(self, later: Later) -> None:
        self.drop()
        later.tell(error=ConnectionCut("it was cut"))

    def drop(self) -> None:
        """The server notices: what was open is undone."""
        self.cut = self.gone = True
        if self.in_transaction:
            self.roll_back()
