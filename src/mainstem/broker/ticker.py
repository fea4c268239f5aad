"""The broker's heartbeat: once per turn of the loop in which anything was published or is to be sent.

    read sockets → (records gathered, connections marked) → tick: write logs → deliver live → flush connections → commit

One write per log, one `transport.write` per connection, one wake-up of the committer, however many messages came.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

from mainstem.broker.live import Dispatcher
from mainstem.log.committer import Committer, end_process
from mainstem.log.log import Appended, Log
from mainstem.model.errors import StorageFault

logger = logging.getLogger("mainstem.broker")

UNSYNCED_BYTES_TOTAL_MAX = 256 << 20
UNHURRIED_SYNC_S = 0.2  # what nobody waits for is synced at least this often; each sync is felt by those who do
UNHURRIED_BYTES_MAX = 16 << 20
CHECKPOINT_QUIET_S = 1.0
COMMITTER_THREADS = 2


class Flushable(Protocol):
    def flush(self) -> None:
        """Write what was gathered for the peer; called after this tick's records are written."""


class Pressed(Protocol):
    def hold_for_log(self) -> None:
        """Stop reading from the peer: the disk does not keep up with what is published."""

    def release_from_log(self) -> None:
        """Read on."""


class Ticker:
    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> None:
        self.loop = loop
        self._dispatcher = dispatcher
        self._requested = False
        self._logs: list[Log] = []
        self._connections: list[Flushable] = []
        self._after: list[Callable[[], None]] = []
        self.committer = Committer(self._post_synced, threads=COMMITTER_THREADS)
        self.committer.listen(loop, self.on_synced)
        self.ticks = 0
        self.head_stamp = 0  # all records below it were offered to the live sinks
        self.unsynced_bytes_max = UNSYNCED_BYTES_TOTAL_MAX  # of all logs; each has its own limit beside it
        self.pressed = False  # more is unsynced than may be: publishers call `press` and are held until it is less
        self._held: set[Pressed] = set()
        self._syncing: set[Log] = set()
        self._unhurried: set[Log] = set()
        self._quiet_since: dict[Log, tuple[float, int]] = {}  # when each log was last synced, and up to where
        self._sync_later: set[Log] = set()  # of durability interval: a sync is due
        self._undelivered: list[Appended] = []  # written while a tick delivered
        self._ticking = False
        self._stopped = False

    # -- asking for a tick -----------------------------------------------------------------------------------------

    def request(self) -> None:
        if not self._requested:
            self._requested = True
            self.loop.call_soon(self.tick)

    def begin_turn(self) -> bool:
        """True: whoever reads many sockets in one call of the loop's ticks itself, at its end (`end_turn`)."""
        if self._requested:
            return False
        self._requested = True
        return True

    def end_turn(self) -> None:
        if self._logs or self._connections or self._after or self._undelivered:
            self.tick()
        else:
            self._requested = False

    def add_log(self, log: Log) -> None:
        """A log has something to write (its `on_dirty`)."""
        log.on_awaited = self.sync_soon
        self._logs.append(log)
        if not self._requested:
            self.request()

    def mark_dirty(self, connection: Flushable) -> None:
        """The caller keeps a flag so that it is marked once per tick."""
        self._connections.append(connection)
        if not self._requested:
            self.request()

    def press(self, connection: Pressed) -> None:
        """A publisher read while `pressed`: it reads no more until the disk has caught up."""
        if connection not in self._held:
            self._held.add(connection)
            connection.hold_for_log()

    def after_tick(self, callback: Callable[[], None]) -> None:
        """Run once, after the next tick's delivery and before its flush."""
        self._after.append(callback)
        self.request()

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self._ticking:  # asked for from within a delivery: what is gathered is written, and delivered next
            self._undelivered += self._write_logs()
            return
        self._requested = self._ticking = True  # what it stirs up is its own: asked for again only if some is left
        try:
            self._tick()
        finally:
            self._requested = self._ticking = False
            if self._logs or self._connections or self._after or self._undelivered:
                self.request()

    def _tick(self) -> None:
        self.ticks += 1
        appended = self._write_logs() if self._logs else []
        if self._undelivered:
            appended, self._undelivered = self._undelivered + appended, []
        if appended:
            self._deliver(appended)
        if self._after:
            self._run_after()
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.flush()
            except Exception:  # one connection's failure is its own
                logger.exception("a connection could not be flushed")

    def _run_after(self) -> None:
        after, self._after = self._after, []
        for callback in after:
            try:
                callback()
            except Exception:
                logger.exception("work after a tick failed")

    def write_now(self) -> None:
        """Tick at once if anything is gathered: what follows shall come after it."""
        if self._logs:
            self.tick()

    def _write_logs(self) -> list[Appended]:
        logs, self._logs = self._logs, []
        appended: list[Appended] = []
        to_sync: list[Log] = []
        for log in logs:
            try:
                written = log.write()
            except StorageFault as error:
                end_process(log, error)
                continue
            if not written:
                continue
            appended += written
            if log.durability.acks_wait:
                if _is_awaited(log, written):
                    to_sync.append(log)
                elif log not in self._unhurried:
                    self._sync_unhurried(log)
            else:
                log.mark_stable(log.written)
                if log.durability.interval_ms and log not in self._sync_later:
                    self._sync_later.add(log)
                    self.loop.call_later(log.durability.interval_ms / 1000, self._sync_interval, log)
        if to_sync:
            self._sync(to_sync)
        return appended

    def sync_soon(self, log: Log) -> None:
        """Someone waits for what is written but was not worth a sync of its own."""
        if log in self._unhurried:
            self._sync([log])

    def _sync(self, logs: list[Log]) -> None:
        self.committer.submit([(log, log.written) for log in logs])
        self._unhurried.difference_update(logs)
        self._syncing.update(logs)
        self.pressed = self._too_much_unsynced()

    def _sync_unhurried(self, log: Log) -> None:
        """Nobody waits (QoS 0, acks=0, positions): a few more ticks may share its sync."""
        if not self._unhurried:
            self.loop.call_later(UNHURRIED_SYNC_S, self._sync_all_unhurried)
        self._unhurried.add(log)

    def _sync_all_unhurried(self) -> None:
        if self._unhurried:
            self._sync(list(self._unhurried))

    def _sync_interval(self, log: Log) -> None:
        self._sync_later.discard(log)
        if not log.removed and not self._stopped:
            self.committer.submit([(log, log.written)])

    def _too_much_unsynced(self) -> bool:
        if sum(log.unsynced_bytes for log in self._syncing) > self.unsynced_bytes_max:
            return True
        return any(log.unsynced_bytes > log.unsynced_bytes_max for log in self._syncing)

    def _deliver(self, appended: list[Appended]) -> None:
        if len(appended) > 1:
            appended.sort(key=_stamp)
        self._dispatcher.deliver(appended)
        self.head_stamp = max(self.head_stamp, appended[-1].stamp_end)

    # -- durability ------------------------------------------------------------------------------------------------

    def _post_synced(self, synced: list[tuple[Log, int]]) -> None:
        try:
            self.loop.call_soon_threadsafe(self.on_synced, synced)
        except RuntimeError:  # the loop is closed: nobody waits any more
            logger.debug("a sync round ended after the loop")

    def on_synced(self, synced: list[tuple[Log, int]]) -> None:
        """Release what waited, and let the acks leave now, not in the loop's next turn."""
        ticks = self.begin_turn()
        try:
            self._mark_synced(synced)
        finally:
            if ticks:
                self.end_turn()

    def _mark_synced(self, synced: list[tuple[Log, int]]) -> None:
        now_s = self.loop.time()
        for log, end in synced:
            if log.removed:
                continue
            log.mark_stable(end)
            if self._quiet_since.get(log, (0.0, -1))[1] != end:  # the checkpoint's own sync finds nothing new
                self._quiet_since[log] = (now_s, end)
            if not log.unsynced_bytes:
                self._syncing.discard(log)
        if self.pressed and not self._too_much_unsynced():
            self.pressed = False
            held, self._held = self._held, set()
            for connection in held:
                connection.release_from_log()

    def checkpoint_quiet(self) -> None:
        """Sync once more what was last synced a while ago: its engine then notes how far it is durable.

        An unclean start walks a log from that note on, and damage below it can never pass for a torn tail.
        """
        now_s = self.loop.time()
        quiet = [log for log, (since_s, _) in self._quiet_since.items() if now_s - since_s > CHECKPOINT_QUIET_S]
        for log in quiet:
            self._quiet_since[log] = (math.inf, self._quiet_since[log][1])
        live = [(log, log.written) for log in quiet if not log.removed]
        if live:
            self.committer.submit(live)

    def drain(self) -> None:
        """Tick until nothing is left to write; for shutting down."""
        while self._logs or self._connections or self._after or self._undelivered:
            self.tick()

    def stop(self) -> None:
        """Finish what was submitted; nothing is synced from here on."""
        self._stopped = True
        self.committer.stop()

    def forget(self, log: Log) -> None:
        """The log was removed: nobody waits for it any more."""
        self._syncing.discard(log)
        self._unhurried.discard(log)
        self._quiet_since.pop(log, None)
        log.mark_stable(log.written)

    async def settle(self, logs: list[Log], timeout_s: float = 10.0) -> None:
        """Wait until the given logs are stable up to what is written now."""
        deadline = time.monotonic() + timeout_s
        self._sync_all_unhurried()
        ends = [(log, log.written) for log in logs]
        while any(log.stable < end for log, end in ends) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)


def _is_awaited(log: Log, written: list[Appended]) -> bool:
    if log.stable_listeners or log.unsynced_bytes > UNHURRIED_BYTES_MAX:
        return True
    for item in written:  # noqa: SIM110 -- a generator costs a frame more, in every tick
        if item.ticket.awaited:
            return True
    return False


def _stamp(item: Appended) -> int:
    return item.ref.stamp
