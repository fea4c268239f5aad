"""Who takes part and who owns what: rows of PostgreSQL, kept alive by one thread.

A lease is a time of PostgreSQL's own clock (`cell.lease_until`), renewed each RENEW_S. The owner measures with its monotonic
clock and counts from before the renewal was sent: after FENCE_S without one it stops by itself, before the lease, LEASE_S,
can run out. The thread stops when the process is stopped (SIGSTOP), and finds that out when it goes on. None of this decides
what is acked: that is the epoch, checked by every commit (`wal.py`). A taker may therefore be early without harm:

    lease ran out                                    anyone takes the cell
    the owner's address refuses connections          its process is gone: taken after REFUSED_S
    `cell.wanted` names another, the heir            the owner hands over; only that one takes it, for WANTED_S

An heir makes the cell's files beforehand and says so (`cell.prepared`): the owner serves until then, at most PREPARE_S.
Whoever changes a cell sends a notice (NOTIFY), and everybody looks at once. Notices only hurry: without them brokers look
each RENEW_S, and each HASTE_S while a cell changes hands.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.cluster.schema import FIRST_CELL, SCHEMA
from mainstem.cluster.wal import Fenced
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import ConfigError, Overloaded, StorageFault

if TYPE_CHECKING:
    import asyncpg

logger = logging.getLogger("mainstem.cluster")

LEASE_S, FENCE_S, RENEW_S = 5.0, 4.0, 0.5
T = TypeVar("T")
END_S = 0.01  # after the end of a lease somebody looks
HASTE_S = 0.1  # instead of RENEW_S while a cell changes hands
HEARD_S = 10.0  # a broker not heard of for so long is away
WANTED_S = 10.0
NOTICES = "mainstem_cluster"
STATEMENT_S = 2.0
SKEW_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    name: str
    node_id: int
    host: str
    relay_port: int
    ports: dict[str, int]
    version: str
    draining: bool
    alive: bool
    heard_s: float  # ago
    owns: bool = True  # its roles let it

    @property
    def state(self) -> str:
        return ("draining" if self.draining else "alive") if self.alive else "away"

    @property
    def takes(self) -> bool:
        """Whether a cell could go there now."""
        return self.alive and self.owns and not self.draining


@dataclass(frozen=True, slots=True)
class CellFacts:
    cell_id: int
    name: str
    owner: str | None
    wanted: str | None
    epoch: int
    lease_s: float  # left; negative: ran out so long ago
    reason: str
    wal_seq: int
    flushed_seq: int
    relay_port: int = 0  # of the process that serves it; 0: its broker's
    wanted_because: str = ""
    prepared: str = ""

    def is_prepared_by(self, broker: str) -> bool:
        return self.prepared == prepared_by(broker, self.epoch)


def prepared_by(broker: str, epoch: int) -> str:
    """What an heir says once it has the files of the owner with this epoch."""
    return f"{broker} {epoch}"


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as it was a moment ago."""

    brokers: dict[str, BrokerFacts]
    cells: dict[int, CellFacts]
    places: dict[str, int] = field(default_factory=dict)  # namespaces that are not in cell 1

    def owner_of(self, cell_id: int) -> BrokerFacts | None:
        cell = self.cells.get(cell_id)
        return self.brokers.get(cell.owner) if cell is not None and cell.owner else None

    def address_of(self, cell_id: int) -> tuple[str, int] | None:
        """Where its owner takes clients from relays."""
        owner = self.owner_of(cell_id)
        return (owner.host, self.cells[cell_id].relay_port or owner.relay_port) if owner is not None else None

    @property
    def on_the_way(self) -> bool:
        """Whether a cell changes hands, or is about to: clients wait for that."""
        return any(self._leaves(one) for one in self.cells.values())

    def _leaves(self, cell: CellFacts) -> bool:
        owner, wanted = self.brokers.get(cell.owner or ""), self.brokers.get(cell.wanted or "")
        if owner is None or (wanted is not None and wanted is not owner and wanted.takes):
            return True
        return owner.draining and any(one.takes for one in self.brokers.values())

    @property
    def next_look_s(self) -> float:
        """Until one is worth it: sooner where clients wait, or where a lease is about to be over."""
        if self.on_the_way:
            return HASTE_S
        ends = [one.lease_s + END_S for one in self.cells.values() if 0 < one.lease_s < RENEW_S]
        return min([*ends, RENEW_S])

    def owned_by(self, broker: str) -> list[CellFacts]:
        return [one for one in self.cells.values() if one.owner == broker and one.lease_s > 0]


async def look(connection: asyncpg.Connection[Any]) -> View:
    brokers = await connection.fetch(
        "SELECT *, extract(epoch FROM clock_timestamp() - seen)::float8 AS heard FROM broker ORDER BY node_id"
    )
    cells = await connection.fetch(
        "SELECT c.*, l.wal_seq, l.flushed_seq, extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease"
        " FROM cell c JOIN lane l USING (cell_id) ORDER BY cell_id"
    )
    several = any(row["cell_id"] != FIRST_CELL for row in cells)  # only then is there a table of places for certain
    places = await connection.fetch("SELECT namespace, cell_id FROM place") if several else []
    return View(
        {row["name"]: _broker(row) for row in brokers},
        {row["cell_id"]: _cell(row) for row in cells},
        {row["namespace"]: row["cell_id"] for row in places},
    )


def _broker(row: Any) -> BrokerFacts:
    return BrokerFacts(
        row["name"],
        row["node_id"],
        row["host"],
        row["relay_port"],
        json.loads(row["ports"]),
        row["version"],
        row["draining"],
        row["heard"] < HEARD_S,
        row["heard"],
        bool(row.get("owns", True)),
    )


def _cell(row: Any) -> CellFacts:
    names = "cell_id", "name", "owner", "wanted", "epoch", "lease", "reason", "wal_seq", "flushed_seq"
    added = {"relay_port": row.get("relay_port", 0), "wanted_because": row.get("wanted_because", "")}
    added["prepared"] = row.get("prepared", "")
    return CellFacts(*(row[name] for name in names), **added)


async def take_cell(
    connection: asyncpg.Connection[Any],
    name: str,
    cell_id: int,
    epoch: int,
    reason: str,
    early: bool,
    relay_port: int | None,
) -> int | None:
    async with connection.transaction():
        sql = (
            "UPDATE cell SET owner = $2, epoch = epoch + 1, wanted = NULL, taken = clock_timestamp(), reason = $4,"
            " lease_until = clock_timestamp() + $5 * interval '1 s' WHERE cell_id = $1 AND epoch = $3"
            " AND ($6 OR owner IS NULL OR lease_until < clock_timestamp()) RETURNING epoch"
        )
        found = await connection.fetchval(sql, cell_id, name, epoch, reason, LEASE_S, early)
        if found is not None:
            await connection.execute("UPDATE lane SET epoch = $2 WHERE cell_id = $1", cell_id, found)
            if relay_port is not None:
                sql = "UPDATE cell SET relay_port = $2, wanted_because = '' WHERE cell_id = $1"
                await connection.execute(sql, cell_id, relay_port)
        return None if found is None else int(found)


async def hurry(connection: asyncpg.Connection[Any]) -> None:
    """Have everybody look now. Where PostgreSQL has no notices they look a little later."""
    import asyncpg

    with suppress(asyncpg.PostgresError):
        await connection.execute(f"NOTIFY {NOTICES}")


async def hear(connection: asyncpg.Connection[Any], woken: Callable[[], None]) -> bool:
    """False: this PostgreSQL has no notices."""
    import asyncpg

    try:
        await connection.add_listener(NOTICES, lambda *_: woken())
    except asyncpg.PostgresError as error:
        logger.warning("PostgreSQL sends no notices, hand-overs take a little longer: %s", error)
        return False
    return True


class Membership:
    """One broker's. `lost(reason)`: a cell is not ours any more, or may soon not be; `changed(view)` after each look; both
    are called in its thread."""

    def __init__(self, dsn: str, name: str, lost: Callable[[str], None], changed: Callable[[View], None]) -> None:
        self.name, self.incarnation = name, uuid.uuid4().hex
        self._registered = False
        self._dsn, self._lost, self._changed = dsn, lost, changed
        self._session = PostgresSession(dsn, SCHEMA, connect_s=STATEMENT_S, statement_s=STATEMENT_S)
        self._calls = threading.Lock()
        self._heard_by: asyncpg.Connection[Any] | None = None  # the connection that notices come by
        self._deaf = False  # this PostgreSQL has no notices
        self._held: dict[int, tuple[int, float]] = {}  # cell → epoch, when it was last renewed (monotonic)
        self._stopping = False
        self.view = View({}, {})
        self.looks = 0  # how many there were; the view is of the last one, or of a later one
        self.node_id = 0
        self.away = ""  # why PostgreSQL does not answer, while it does not
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    # -- taking part

    def register(self, host: str, relay_port: int, ports: dict[str, int], version: str, *, owns: bool = True) -> None:
        """ConfigError where another broker of this name is alive."""

        async def put(connection: asyncpg.Connection[Any]) -> int:
            at = self.name, host, relay_port
            async with connection.transaction():
                await connection.execute("LOCK TABLE broker IN EXCLUSIVE MODE")
                sql = (
                    "SELECT host, relay_port, seen > clock_timestamp() - interval '3 s' AS alive FROM broker"
                    " WHERE name = $1"
                )
                row = await connection.fetchrow(sql, self.name)
                sql = "SELECT name FROM broker WHERE name != $1 AND host = $2 AND relay_port = $3"
                same = await connection.fetchval(f"{sql} AND seen > clock_timestamp() - interval '3 s'", *at)
                if same is not None:
                    raise ConfigError(
                        f"broker {same} is at {host}:{relay_port} as well: brokers could not reach each other",
                        fix="say where others reach this one: --set cluster.host=ADDRESS",
                    )
                if row is not None and row["alive"] and (row["host"], row["relay_port"]) != (host, relay_port):
                    raise ConfigError(
                        f"a broker called {self.name} is at {row['host']}:{row['relay_port']} already",
                        fix="give each broker a name of its own: --set cluster.name=NAME",
                    )
                sql = (
                    "INSERT INTO broker (name, node_id, incarnation, host, relay_port, ports, version, owns, seen)"
                    " VALUES ($1, (SELECT coalesce(max(node_id), 0) + 1 FROM broker), $2, $3, $4, $5, $6, $7,"
                    " clock_timestamp())"
                    " ON CONFLICT (name) DO UPDATE SET incarnation = $2, host = $3, relay_port = $4, ports = $5,"
                    " version = $6, owns = $7, seen = clock_timestamp() RETURNING node_id"
                )
                given = self.name, self.incarnation, host, relay_port, json.dumps(ports), version, owns
                return int(await connection.fetchval(sql, *given))

        self.node_id = self._session.use(put)
        self._registered = True
        self.view = self._session.use(look)
        self._thread.start()

    def follow(self) -> None:
        """Of a process that serves a cell for a broker: it holds leases in that one's name, which registers itself."""
        self.view = self._session.use(look)
        self._thread.start()

    def skew_s(self) -> float:
        """How far this machine's clock is from PostgreSQL's. Before `register`."""

        async def ask(connection: asyncpg.Connection[Any]) -> float:
            before = time.time()
            there = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))
            return there - (before + time.time()) / 2

        return self._session.use(ask)

    def stop(self) -> None:
        self._stopping = True
        self._session.wake()
        self._thread.join(STATEMENT_S * 2)

    # -- cells; each of these waits for PostgreSQL on a connection of its own

    def take(
        self, cell_id: int, epoch: int, reason: str, *, early: bool = False, relay_port: int | None = None
    ) -> int | None:
        """Own the cell from now on: the new epoch, None if someone was quicker. `early`: although the lease holds;
        `relay_port`: of the process that serves it, where that is not the broker's own."""

        began = time.monotonic()
        taken: int | None = self._tell(lambda c: take_cell(c, self.name, cell_id, epoch, reason, early, relay_port))
        self.note_taken(cell_id, taken, began)
        return taken

    def note_taken(self, cell_id: int, epoch: int | None, began: float) -> None:
        """The lease counts from before it was asked for."""
        if epoch is not None:
            with self._calls:
                self._held[cell_id] = epoch, began

    def release(self, cell_id: int, reason: str) -> None:
        """Everything is committed: anyone may take it now."""
        with self._calls:
            held = self._held.pop(cell_id, None)
        if held is not None:
            sql = (
                "UPDATE cell SET owner = NULL, lease_until = clock_timestamp(), reason = $3"
                " WHERE cell_id = $1 AND epoch = $2"
            )
            self._tell(lambda connection: connection.execute(sql, cell_id, held[0], reason))

    def name_heir(self, cell_id: int, epoch: int, heir: str, because: str) -> None:
        """The owner is to hand the cell over to that broker, which makes its files from now on."""
        sql = "UPDATE cell SET wanted = $3, wanted_because = $4 WHERE cell_id = $1 AND epoch = $2"
        self._tell(lambda connection: connection.execute(sql, cell_id, epoch, heir, because))

    def tell_prepared(self, cell_id: int, epoch: int) -> None:
        """This broker, the heir, has the files of the owner with that epoch."""
        sql = "UPDATE cell SET prepared = $3 WHERE cell_id = $1 AND epoch = $2"
        self._tell(lambda connection: connection.execute(sql, cell_id, epoch, prepared_by(self.name, epoch)))

    def take_no_more(self) -> None:
        """This broker is being stopped: nobody is to name it as heir. The next start takes part again."""
        sql = "UPDATE broker SET owns = false WHERE name = $1 AND incarnation = $2"
        self._tell(lambda connection: connection.execute(sql, self.name, self.incarnation))

    def _tell(self, run: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """A change that others wait for."""

        async def told(connection: asyncpg.Connection[Any]) -> T:
            done = await run(connection)
            await hurry(connection)
            return done

        session = PostgresSession(self._dsn, SCHEMA, connect_s=STATEMENT_S, statement_s=STATEMENT_S)
        try:
            return session.use(told)
        finally:
            session.close()

    # -- the thread

    def _run(self) -> None:
        renewed_s = -RENEW_S
        while True:
            self._session.wait(min(self.view.next_look_s, max(0.0, renewed_s + RENEW_S - time.monotonic())))
            if self._stopping:
                break
            with self._calls:
                held = dict(self._held)
            try:
                began = time.monotonic()
                self._check_time(held)
                due = began - renewed_s >= RENEW_S
                renewed_s = began if due else renewed_s
                self.view = self._session.use(partial(self._look, held if due else None))
                self.looks += 1
                if due:
                    self._note_renewed(held, began)
                self.away = ""
                self._changed(self.view)
            except Overloaded as error:
                if not self.away:
                    logger.warning("%s", error)
                self.away = error.message
            except StorageFault as error:
                self._lost(error.message)
            except Exception as error:  # without this thread the lease runs out unseen
                logger.exception("the thread that renews leases has failed")
                self._lost(f"leases are not renewed: {error!r}")
        self._session.close()

    async def _look(self, held: dict[int, tuple[int, float]] | None, connection: asyncpg.Connection[Any]) -> View:
        """With renewals, or (None) without."""
        if connection is not self._heard_by and not self._deaf:
            self._deaf = not await hear(connection, self._session.wake)
            self._heard_by = connection
        return await (look(connection) if held is None else self._beat(connection, held))

    def _check_time(self, held: dict[int, tuple[int, float]]) -> None:
        for cell_id, (_, renewed) in held.items():
            silent = time.monotonic() - renewed
            if silent > FENCE_S:
                raise Fenced(
                    f"the lease of cell {cell_id} was not renewed for {silent:.1f} s: it may be another's by now"
                )

    def _note_renewed(self, held: dict[int, tuple[int, float]], began: float) -> None:
        self._check_time(held)  # the answer may have come too late to be worth anything
        with self._calls:
            for cell_id, (epoch, _) in held.items():
                if cell_id in self._held:
                    self._held[cell_id] = epoch, began

    async def _beat(self, connection: asyncpg.Connection[Any], held: dict[int, tuple[int, float]]) -> View:
        sql = "UPDATE broker SET seen = clock_timestamp() WHERE name = $1 AND incarnation = $2 RETURNING 1"
        if self._registered and await connection.fetchval(sql, self.name, self.incarnation) is None:
            raise StorageFault(f"another process registered as broker {self.name}, or it was removed from the cluster")
        for cell_id, (epoch, _) in held.items():
            sql = (
                "UPDATE cell SET lease_until = clock_timestamp() + $3 * interval '1 s' WHERE cell_id = $1 AND epoch = $2"
                " RETURNING 1"
            )
            if await connection.fetchval(sql, cell_id, epoch, LEASE_S) is None and cell_id in self._held:
                raise Fenced(f"another broker took cell {cell_id}")
        return await look(connection)
