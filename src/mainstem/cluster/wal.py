"""A cell's write-ahead log in PostgreSQL: one transaction a round, under the owner's epoch, and nothing acked before it.

Whoever changes a file records the change (`record`, which never waits), whoever must know it durable waits for it
(`wait`). One thread commits what was recorded, in order: while one round is on its way the next collects. Changes that
nobody waits for follow within LINGER_S.

The commit is the fence, and may be sent again (`lane.py`).

While PostgreSQL is away a round is tried again without end; what collects meanwhile is bounded by the broker's limits of
unsynced bytes, beyond which publishers wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from mainstem.cluster.lane import Fenced as Fenced
from mainstem.cluster.lane import Lane
from mainstem.cluster.schema import SCHEMA
from mainstem.metadata.postgres_session import PostgresSession
from mainstem.model.errors import Overloaded, StorageFault
from mainstem.model.histogram import times_histogram
from mainstem.storage.engine import Buffer
from mainstem.storage.scheduling import answer_at_once

logger = logging.getLogger("mainstem.cluster")

ROUND_BYTES_MAX = 8 << 20  # of one commit; a larger change goes alone
LINGER_S = 0.2
RETRY_S = 0.1
CONNECT_S, STATEMENT_S = 3.0, 10.0


class CellWal:
    """`lost(reason)` is called, in the log's thread, when the cell is not ours any more."""

    def __init__(self, dsn: str, cell_id: int, epoch: int, seq: int, slot: int, lost: Callable[[str], None]) -> None:
        """`seq` is the last one that was replayed."""
        self._session = PostgresSession(dsn, SCHEMA, connect_s=CONNECT_S, statement_s=STATEMENT_S)
        self._lane, self._lost = Lane(cell_id, epoch, seq, slot), lost
        self._changes: deque[tuple[list[Buffer], int]] = deque()  # and their bytes
        self._barriers: deque[int] = deque()  # positions where a round ends, and the tables take turns
        self._barrier_seqs: dict[int, int] = {}
        self._state = threading.Condition(threading.Lock())
        self.recorded = self.committed = 0  # positions: how many changes
        self._wanted = 0
        self._oldest_s = 0.0
        self._fault: StorageFault | None = None
        self._stopping = False
        self.pending_bytes = 0
        self.recorded_bytes = 0
        self.commits = 0
        self.commit_ns = times_histogram()
        self.away_since_s = 0.0  # while PostgreSQL does not answer: since when (monotonic)
        self._thread = threading.Thread(target=self._run, name=f"wal-{cell_id}", daemon=True)
        self._start()

    def _start(self) -> None:
        self._thread.start()

    # -- for everyone

    @property
    def seq(self) -> int:
        """Of the last row that is committed."""
        return self._lane.seq

    @property
    def slot(self) -> int:
        """The table that rows go to."""
        return self._lane.slot

    def record(self, head: bytes, data: Sequence[Buffer] = ()) -> int:
        """The change's position. The data is copied: its owner may use the memory again."""
        parts: list[Buffer] = [head, *map(bytes, data)]
        size = sum(map(len, parts))
        with self._state:
            if not self._changes:
                self._oldest_s = time.monotonic()
                self._state.notify_all()  # the thread begins to count LINGER_S
            self._changes.append((parts, size))
            self.pending_bytes += size
            self.recorded_bytes += size
            self.recorded += 1
            return self.recorded

    def wait(self, position: int) -> None:
        """Until everything recorded up to there is committed; as long as it takes. Raises Fenced where it never will."""
        with self._state:
            if self.committed >= position:
                return
            if position > self._wanted:
                self._wanted = position
                self._state.notify_all()
            while self.committed < position:
                if self._fault is not None:
                    raise self._fault
                self._state.wait(1.0)

    def barrier(self, note: Callable[[], None]) -> int:
        """A place between two rounds: `note` is called there, before anything else is recorded. Its position; what
        comes later goes into the other table."""
        with self._state:
            note()
            self._barriers.append(self.recorded)
            self._wanted = max(self._wanted, self.recorded)
            self._state.notify_all()
            return self.recorded

    def seq_of(self, barrier: int) -> int:
        """Waits until everything before the barrier is committed: the number of its last row."""
        self.wait(barrier)
        with self._state:
            while barrier not in self._barrier_seqs:
                if self._fault is not None:
                    raise self._fault
                self._state.wait(0.1)
            return self._barrier_seqs.pop(barrier)

    def close(self) -> None:
        """Commit what was recorded, then end. Raises Fenced where that was not possible."""
        try:
            self.wait(self.recorded)
        finally:
            with self._state:
                self._stopping = True
                self._state.notify_all()
            self._thread.join(STATEMENT_S)
            if not self._thread.is_alive():
                self._session.close()

    # -- the thread

    def _run(self) -> None:
        """Without this thread nothing is acknowledged: whatever ends it ends the owner. Who waits is told last: it would end
        the process, as for a broken disk, while the owner starts over."""
        answer_at_once()
        try:
            self._commit_all()
        except Exception as error:
            fault = error if isinstance(error, StorageFault) else StorageFault(f"commits ended: {error!r}")
            if fault is not error:
                logger.exception("the thread that commits has failed")
            try:
                self._lost(fault.message)
            finally:
                with self._state:
                    self._fault = fault
                    self._state.notify_all()

    def _commit_all(self) -> None:
        while True:
            with self._state:
                while not self._due():
                    if self._stopping:
                        return
                    self._state.wait(LINGER_S if self._changes else None)
            self._commit_round()

    def _commit_round(self) -> None:
        with self._state:
            self._pass_barriers()
            bodies, end = self._take()
        if not bodies:
            return
        self._commit(b"".join(bodies))
        with self._state:
            self.committed = end
            self._pass_barriers()
            self._state.notify_all()

    def _due(self) -> bool:
        if self._barriers and self._barriers[0] <= self.committed:
            return True
        return bool(self._changes) and (
            self._wanted > self.committed or time.monotonic() - self._oldest_s >= LINGER_S or self._stopping
        )

    def _pass_barriers(self) -> None:
        while self._barriers and self._barriers[0] <= self.committed:
            self._barrier_seqs[self._barriers.popleft()] = self.seq
            self._lane.take_turns()
            self._state.notify_all()

    def _take(self) -> tuple[list[Buffer], int]:
        bodies: list[Buffer] = []
        size, end = 0, self.committed
        last = self._barriers[0] if self._barriers else self.recorded
        while self._changes and end < last and (not bodies or size + self._changes[0][1] <= ROUND_BYTES_MAX):
            parts, more = self._changes.popleft()
            bodies += parts
            size += more
            end += 1
        self.pending_bytes -= size
        self._oldest_s = time.monotonic()
        return bodies, end

    def _commit(self, body: bytes) -> None:
        began_ns = time.monotonic_ns()
        while True:
            try:
                if self._session.use(lambda connection: self._lane.commit(connection, body)):
                    break
            except Overloaded as error:
                self._wait_away(error)
        if self.away_since_s:
            logger.warning("PostgreSQL answers again after %.1f s", time.monotonic() - self.away_since_s)
            self.away_since_s = 0.0
        self.commits += 1
        self.commit_ns.add(time.monotonic_ns() - began_ns)

    def _wait_away(self, error: Overloaded) -> None:
        if not self.away_since_s:
            self.away_since_s = time.monotonic()
            logger.error("nothing is acknowledged while PostgreSQL is away: %s", error)
        time.sleep(RETRY_S)
