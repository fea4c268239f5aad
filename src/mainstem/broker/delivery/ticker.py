"""The broker's heartbeat: once per turn of the loop in which anything was published or is to be sent.

    read sockets → (records gathered, connections marked) → tick: write logs → deliver live → flush connections → commit

One write per log, one `transport.write` per connection, one wake-up of the committer, however many messages came.

Delivering and flushing end after a slice of a millisecond each; the rest is the next tick's, after sockets were read. While
what waits to be delivered is more than BEHIND_BYTES, or takes longer than BEHIND_NS, nothing is read from connections that
bring much of it, and a turn reads no more than that (`ahead_bytes`): so what goes to thousands never piles up.

While clients are about that say little and wait for the answer, slices are half as long, and the same holds for what waits
for the disk: their ack waits for the sync of all that was written before it. So what nobody waits for is synced in small
pieces then, and who brings much is not read while more than COMPANY_UNSYNCED_BYTES_MAX of a log is on its way.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mainstem.broker.delivery.ahead import Ahead
from mainstem.broker.delivery.live import Dispatcher
from mainstem.broker.delivery.turns import SLICE_NS, Turns
from mainstem.log.appended import Appended
from mainstem.log.committer import Committer, end_process
from mainstem.log.log import Log
from mainstem.model.errors import StorageFault
from mainstem.model.histogram import times_histogram

logger = logging.getLogger("mainstem.broker")

UNSYNCED_BYTES_TOTAL_MAX = 256 << 20
UNHURRIED_SYNC_S = 0.2  # what nobody waits for is synced at least this often; each sync is felt by those who do
UNHURRIED_BYTES_MAX = 16 << 20
COMPANY_UNHURRIED_BYTES_MAX = 256 << 10  # while clients are about that say little
COMPANY_UNSYNCED_BYTES_MAX = 1 << 20  # of a log: the same
CHECKPOINT_QUIET_S = 1.0
COMMITTER_THREADS = 2
BEHIND_BYTES = 64 << 10  # written and not yet delivered: beyond it those who bring SHARE_BYTES at once wait
BEHIND_NS = 8 * SLICE_NS
COMPANY_SHARE = 2  # slices are so much shorter then
ALONE_SLICES = 4  # for whom nobody waits: every slice ends with a system call for each who received something
AHEAD_BYTES_MAX = 4 << 20  # in one turn, of those whose messages few listen to
SHARE_BYTES = 4 << 10
WAITING_BYTES_MAX = 4 << 20  # beyond it all publishers wait
FLUSHES_UNCLOCKED = 4
SYNCS_TIMED_MAX = 1_000  # of a log at once, for the histogram of acks


class Flushable(Protocol):
    def flush(self) -> None:
        """Write what was gathered for the peer; called after this tick's records are written."""


class Pressed(Protocol):
    def hold_for_log(self) -> None:
        """Stop reading from the peer: the disk does not keep up with what is published."""

    def release_from_log(self) -> None:
        """Read on."""

    def hold_for_delivery(self) -> None:
        """Stop reading: what it published goes to many, who come first."""

    def release_from_delivery(self) -> None:
        """Read on."""


MakeCommitter = Callable[[Callable[[list[tuple[Log, int]]], None]], Committer]  # given where to post what is durable


class Ticker:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatcher: Dispatcher,
        make_committer: MakeCommitter | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.loop = loop
        self._dispatcher = dispatcher
        self._turns = Turns() if turns is None else turns  # one in which nobody waits is false
        self._disk_ahead = Ahead(loop)
        self._requested = False
        self._planned = False  # the loop will call `_tick_asked`
        self._logs: list[Log] = []
        self._connections: list[Flushable] = []  # with answers
        self._receivers: list[Flushable] = []  # with what live delivery brought them
        self._marked = self._connections  # whichever of the two grows now
        self._after: list[Callable[[], None]] = []
        self._after_write: list[Callable[[], None]] = []
        self.committer = (make_committer or _committer)(self._post_synced)
        self.committer.listen(loop, self.on_synced)
        self.ticks = 0
        self.head_stamp = 0  # all records below it were offered to the live sinks
        self.unsynced_bytes_max = UNSYNCED_BYTES_TOTAL_MAX  # of all logs; each has its own limit beside it
        self.pressed = False  # more is unsynced than may be: publishers call `press` and are held until it is less
        self.slice_ns = SLICE_NS  # 0: all at once
        self.alone = False  # those that are read are of one namespace, and none has little to say: slices may be longer
        self.loop_read = False  # a socket that the loop itself reads brought something since that was found
        self.ahead_bytes = AHEAD_BYTES_MAX  # that may be read in one turn: as much as is delivered in BEHIND_NS
        self.behind = False  # more waits for delivery, or for the disk, than should: who publishes much calls `outrun`
        self._in_company = False  # clients are about that say little and wait for the answer
        self._ahead_of_disk = False  # of `behind`: more than COMPANY_UNSYNCED_BYTES_MAX of a log waits for a sync
        self.is_crowded: Callable[[], bool] = lambda: False  # so much waits to be flushed that delivery waits for it
        self._held: set[Pressed] = set()
        self._ahead: set[Pressed] = set()
        self._syncing: set[Log] = set()
        self._unhurried: set[Log] = set()
        self._quiet_since: dict[Log, tuple[float, int]] = {}  # when each log was last synced, and up to where
        self._sync_later: set[Log] = set()  # of durability interval: a sync is due
        self._undelivered: list[Appended] = []  # written while a tick delivered
        self.on_durable: Callable[[], None] | None = None  # whoever follows messages, while there are some
        self.on_turn: Callable[[], None] | None = None  # the same, after each turn in which a socket was read
        self.turn_ns = 0  # while there is one: when what was read since it was last called began to be read
        self.ack_ns = times_histogram()  # from a tick that wrote until what it wrote was durable: acks leave then
        self.deliver_ns = times_histogram()  # from a tick that wrote until the live ones had it in their sockets
        self._began_ns = self._written_ns = 0  # monotonic: of this tick, of the oldest write that is not delivered
        self._timed: dict[Log, deque[tuple[int, int]]] = {}  # end of each sync that is awaited, when it was written
        self._ticking = False
        self._stopped = False
        self.ended = False  # the logs are closed: what is written on hearing of that has no place any more

    # -- asking for a tick -----------------------------------------------------------------------------------------

    def request(self) -> None:
        if not self._requested:
            self._requested = True
            if not self._planned:
                self._planned = True
                self.loop.call_soon(self._tick_asked)

    def _tick_asked(self) -> None:
        self._planned = False
        if self.loop_read:  # this tick answers it: with megabytes, maybe
            self._turns.let_in()
        if self._requested:  # else a turn has ticked meanwhile
            self.tick()

    def begin_turn(self) -> bool:
        """True: whoever reads many sockets in one call of the loop's ticks itself, at its end (`end_turn`). So it does where
        a tick is asked for already, unless that is for what thousands are sent: the loop may come to it only behind slices
        of catching up and scans, and what was read just now would be written and answered behind those."""
        if self.on_turn is not None:
            self.turn_ns = self.turn_ns or time.monotonic_ns()
        if self._requested and (self._ticking or self._receivers or self._dispatcher.waiting_bytes):
            return False
        self._requested = True
        return True

    @property
    def has_more(self) -> bool:
        return bool(
            self._logs
            or self._connections
            or self._receivers
            or self._after
            or self._undelivered
            or self._dispatcher.waiting_bytes
        )

    def end_turn(self) -> None:
        if self._logs or self._connections or self.has_more:
            self.tick()
            return
        self._requested = False
        if self.on_turn is not None:
            self.on_turn()

    def note_turn(self) -> None:
        """A socket is about to be read, and someone wants to know what comes of it."""
        self.turn_ns = self.turn_ns or time.monotonic_ns()
        self.request()

    def add_log(self, log: Log) -> None:
        """A log has something to write (its `on_dirty`)."""
        log.on_awaited = self.sync_soon
        self._logs.append(log)
        if not self._requested:
            self.request()

    def mark_dirty(self, connection: Flushable) -> None:
        """The caller keeps a flag so that it is marked once per tick."""
        self._marked.append(connection)
        if not self._requested:
            self.request()

    def press(self, connection: Pressed) -> None:
        """A publisher read while `pressed`: it reads no more until the disk has caught up."""
        if connection not in self._held:
            self._held.add(connection)
            connection.hold_for_log()

    def outrun(self, connection: Pressed) -> None:
        """A publisher brought much while `behind`: it reads no more until that is delivered."""
        if connection not in self._ahead:
            self._ahead.add(connection)
            connection.hold_for_delivery()

    def after_tick(self, callback: Callable[[], None]) -> None:
        """Run once, after the next tick's delivery and before its flush."""
        self._after.append(callback)
        self.request()

    def after_write(self, callback: Callable[[], None]) -> None:
        """Run once, after the next tick that writes records; does not ask for one, so the loop may rest until then."""
        self._after_write.append(callback)

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self._ticking:  # asked for from within a delivery: what is gathered is written, and delivered next
            self._undelivered += self._write_logs()
            return
        if self.ended:
            return
        self._requested = self._ticking = True  # what it stirs up is its own: asked for again only if some is left
        try:
            self._tick()
        finally:
            self._requested = self._ticking = False
            # `has_more`, without the call
            if (
                self._logs
                or self._connections
                or self._receivers
                or self._after
                or self._undelivered
                or self._dispatcher.waiting_bytes
            ):
                self.request()

    def _tick(self) -> None:
        self.ticks += 1
        self._began_ns = time.monotonic_ns()
        self._in_company = self._began_ns < self._turns.company_until_ns
        delivered = self._dispatcher.delivered
        appended = self._write_logs() if self._logs else []
        if self._undelivered:
            appended, self._undelivered = self._undelivered + appended, []
        if appended or self._dispatcher.waiting_bytes:
            self._deliver(appended)
        if appended and self._after_write:
            self._after += self._after_write
            self._after_write = []
        if self._after:
            after, self._after = self._after, []
            _run_all(after)
        if self._connections or self._receivers:
            self._flush()
        dispatcher = self._dispatcher
        if self._written_ns or (appended and (dispatcher.delivered != delivered or dispatcher.waiting_bytes)):
            self._time_delivery(delivered)
        if self.on_turn is not None:
            self.on_turn()

    def _time_delivery(self, delivered: int) -> None:
        """Once all that was written is with those who listen; slices of a large one are one delivery."""
        self._written_ns = self._written_ns or self._began_ns
        if self._dispatcher.delivered != delivered and not self._dispatcher.waiting_bytes:
            self.deliver_ns.add(time.monotonic_ns() - self._written_ns)
        if not self._dispatcher.waiting_bytes:
            self._written_ns = 0

    def _flush(self) -> None:
        """Answers first: whoever waits for one does not wait until thousands were written what somebody published."""
        answered, received = self._connections, self._receivers
        self._connections, self._receivers = [], []
        self._marked = self._connections
        until_ns = self._flush_until_ns() if len(answered) + len(received) > FLUSHES_UNCLOCKED else 0
        if answered:
            left = _flush_until(answered, until_ns)
            if left:
                self._connections[:0] = left
        if received:
            left = _flush_until(received, until_ns)
            if left:
                self._receivers[:0] = left

    def _slice_ns(self) -> int:
        """Of this tick's delivery, and of its flushes; 0: all at once."""
        if self.alone and not self.loop_read:
            return ALONE_SLICES * self.slice_ns
        return self.slice_ns // COMPANY_SHARE if self._in_company else self.slice_ns

    def _flush_until_ns(self) -> int:
        """A slice after delivery's, which may have taken longer: then half of one."""
        now_ns, slice_ns = time.monotonic_ns(), self._slice_ns()
        return min(now_ns + slice_ns, max(now_ns + slice_ns // 2, self._began_ns + 2 * slice_ns)) if slice_ns else 0

    def write_now(self) -> None:
        """Tick at once if anything is gathered, and deliver all of it: for who asks queues what they hold, or must not
        overtake it. Where a place in the log is enough, `write_gathered` keeps nobody waiting."""
        if self._logs or self._undelivered or self._dispatcher.waiting_bytes:
            slice_ns, self.slice_ns = self.slice_ns, 0
            try:
                self.tick()
            finally:
                self.slice_ns = slice_ns

    def write_gathered(self) -> None:
        """Write at once what is gathered, so that it has its place in its log and its stamp before what follows; it is
        delivered in slices, as ever."""
        if self._logs:
            self._undelivered += self._write_logs()
            self.request()

    def write_early(self) -> None:
        """Tick at once if anything is gathered: it is in the processor's cache still."""
        if self._logs:
            self.tick()

    def _write_logs(self) -> list[Appended]:
        logs, self._logs = self._logs, []
        appended: list[Appended] = []
        to_sync: list[Log] = []
        unhurried_bytes_max = COMPANY_UNHURRIED_BYTES_MAX if self._in_company else UNHURRIED_BYTES_MAX
        for log in logs:
            try:
                written = log.write()
            except StorageFault as error:
                end_process(log, error)
                continue
            if not written:
                if log.held:  # what it gathers counts as unsynced: publishers wait when it is too much
                    self._syncing.add(log)
                    self.pressed = self._too_much()
                continue
            appended += written
            self._disk_ahead.look(log)
            if self._in_company and log.unsynced_bytes > COMPANY_UNSYNCED_BYTES_MAX and not log.refusal:
                self._ahead_of_disk = True
            if log.durability.acks_wait:
                if _is_awaited(log, written, unhurried_bytes_max):
                    to_sync.append(log)
                    timed = self._timed.get(log)
                    if timed is None:
                        timed = self._timed[log] = deque(maxlen=SYNCS_TIMED_MAX)
                    timed.append((log.written, self._began_ns))
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
        self.pressed = self._too_much()

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

    def _too_much(self) -> bool:
        """A log that refuses is not waited for: nothing more comes to it, and others need not suffer for it."""
        total = 0
        for log in self._syncing:
            if log.refusal is None:
                if log.unsynced_bytes > log.unsynced_bytes_max:
                    return True
                total += log.unsynced_bytes
        return total > self.unsynced_bytes_max or self._dispatcher.waiting_bytes > WAITING_BYTES_MAX

    def _deliver(self, appended: list[Appended]) -> None:
        if len(appended) > 1:
            appended.sort(key=_stamp)
        if self.slice_ns and self._receivers and self.is_crowded():
            self._dispatcher.keep(appended)
        else:
            self._marked = self._receivers
            try:
                slice_ns = self._slice_ns()
                until_ns = time.monotonic_ns() + slice_ns if slice_ns else 0
                self.head_stamp = max(self.head_stamp, self._dispatcher.deliver(appended, until_ns))
            finally:
                self._marked = self._connections
        waiting = self._dispatcher.waiting_bytes
        self.ahead_bytes = max(SHARE_BYTES, self._dispatcher.bytes_within(BEHIND_NS, AHEAD_BYTES_MAX))
        self.behind = self._ahead_of_disk or waiting > min(BEHIND_BYTES, self.ahead_bytes)
        if self._ahead and not self.behind:
            ahead, self._ahead = self._ahead, set()
            _read_on(ahead)
        if waiting > WAITING_BYTES_MAX:
            self.pressed = True
        elif self.pressed or self._held:
            self.ease()

    def _look_at_disk(self) -> None:
        """A sync has ended, or a log is gone."""
        self._ahead_of_disk = any(
            log.unsynced_bytes > COMPANY_UNSYNCED_BYTES_MAX for log in self._syncing if not log.refusal
        )
        self.behind = self._ahead_of_disk or self._dispatcher.waiting_bytes > min(BEHIND_BYTES, self.ahead_bytes)
        if self._ahead and not self.behind:
            ahead, self._ahead = self._ahead, set()
            _read_on(ahead)

    def ease(self) -> None:
        """Publishers go on once neither the disk nor the readers are too far behind."""
        self.pressed = self._too_much()
        if not self.pressed and self._held:
            held, self._held = self._held, set()
            for connection in held:
                connection.release_from_log()

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
        now_s, now_ns = self.loop.time(), time.monotonic_ns()
        for log, end in synced:
            if log.removed:
                continue
            log.mark_stable(end)
            timed = self._timed.get(log)
            while timed and timed[0][0] <= end:
                self.ack_ns.add(now_ns - timed.popleft()[1])
            if self._quiet_since.get(log, (0.0, -1))[1] != end:  # the checkpoint's own sync finds nothing new
                self._quiet_since[log] = (now_s, end)
            if not log.unsynced_bytes:
                self._syncing.discard(log)
        if self.on_durable is not None:
            self.on_durable()
        if self.pressed:
            self.ease()
        if self._ahead_of_disk:
            self._look_at_disk()

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
        while self.has_more:
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
        self._timed.pop(log, None)
        log.mark_stable(log.written)
        if self._ahead_of_disk:
            self._look_at_disk()

    async def settle(self, logs: list[Log], timeout_s: float = 10.0) -> None:
        """Wait until the given logs are stable up to what is written now."""
        deadline = time.monotonic() + timeout_s
        self._sync_all_unhurried()
        ends = [(log, log.written) for log in logs]
        while any(log.stable < end for log, end in ends) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)


def _committer(post: Callable[[list[tuple[Log, int]]], None]) -> Committer:
    return Committer(post, threads=COMMITTER_THREADS)


def _run_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("work after a tick failed")


def _flush_until(connections: list[Flushable], until_ns: int) -> list[Flushable]:
    """Those that were not reached; 0: all are."""
    for place, connection in enumerate(connections, 1):
        try:
            connection.flush()
        except Exception:  # one connection's failure is its own
            logger.exception("a connection could not be flushed")
        if until_ns and place % FLUSHES_UNCLOCKED == 0 and time.monotonic_ns() > until_ns:
            return connections[place:]
    return []


def _read_on(connections: set[Pressed]) -> None:
    for connection in connections:
        connection.release_from_delivery()


def _is_awaited(log: Log, written: list[Appended], unhurried_bytes_max: int) -> bool:
    if log.stable_listeners or log.unsynced_bytes > unhurried_bytes_max:
        return True
    for item in written:  # noqa: SIM110 -- a generator costs a frame more, in every tick
        if item.ticket.awaited:
            return True
    return False


def _stamp(item: Appended) -> int:
    return item.ref.stamp
