"""What the broker does on its own, in the background: seal, forget, compact, watch the disk.

Everything runs in threads, a log at a time, and may be cut short by a crash anywhere: engines swap parts atomically.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from mainstem.broker.topics.policy import Policy
from mainstem.log import retention
from mainstem.log.compaction import compact
from mainstem.log.log import Log
from mainstem.log.logs import add_columns, topic_columns
from mainstem.log.retention import Holds
from mainstem.model.errors import DiskFull

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.topic import Topic
    from mainstem.log.topic_index import TopicIndex

logger = logging.getLogger("mainstem.broker")

CLOCK_JUMP_NS = 60_000_000_000  # wall and monotonic time disagree by more since the last round
CLOCK_TRUST_NS = 3_600_000_000_000  # after a jump nothing is forgotten for that long: the old time may have been right
HELD_SHARE_ALARM = 0.2  # of the disk
PAUSE = "backups"  # a holder's name
ROOM_SHARE = 16  # of a full memory log, twice: what goes at once

HoldFn = Callable[[Log], Holds]
T = TypeVar("T")
EVERY_S = 30.0


class Maintenance:
    def __init__(self, broker: Broker, *, space_low_bytes: int = 256 << 20) -> None:
        self._broker = broker
        self.every_s = EVERY_S
        self.space_low_bytes = space_low_bytes
        self.around_round: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
        self.planning: Namespace | None = (
            None  # whose log a round asks holders about, as of its beginning and not right now
        )
        self.holders: dict[str, HoldFn] = {}  # by name; each says what it still needs of a log
        self.held: dict[int, tuple[tuple[int, int], ...]] = {}  # log → (stamp end, bytes) of parts that are only held
        self.held_by: dict[str, dict[int, int]] = {}  # holder → log → bytes it would hold if it were the only one
        self.space_low = False
        self.running: set[str] = set()  # shown by metrics
        self._wall_ahead_ns = self._disagreement_ns()
        self._forget_from_ns = 0  # monotonic: no retention before
        self._alarmed = False
        self._pauses = 0
        self._woken = asyncio.Event()
        self.rewriting = asyncio.Lock()  # parts are rewritten by one task at a time

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self.every_s)
            self._woken.clear()
            try:
                await self.round()
            except Exception:
                logger.exception("maintenance failed; it is tried again in %.0f s", self.every_s)

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """No part is dropped or rewritten meanwhile; where streams begin moves on. For a backup: it copies the state's
        snapshot first, and needs what was journaled since."""
        self._pauses += 1
        self.holders[PAUSE] = lambda log: Holds(from_stamp=0)
        try:
            async with self.rewriting:  # what was decided before
                pass
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                del self.holders[PAUSE]
                self.held_by.pop(PAUSE, None)

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    def wake(self) -> None:
        """A round is due now; on the loop."""
        self._woken.set()

    async def round(self) -> None:
        """One look at every log. What fails for one is tried again in the next round and keeps no other waiting."""
        self.watch_space()
        self._watch_clock()
        work = self._broker.turns.slices()
        async with self.around_round():
            for namespace in list(self._broker.namespaces.values()):
                for stem in list(namespace.stems.values()):
                    await self._try_keep(namespace, stem, namespace.stem_policies[stem])
                for topic in list(namespace.topics.values()):
                    if work.over:
                        await work.next()
                    await self._keep_topic(namespace, topic)
        self._watch_held()

    async def _keep_topic(self, namespace: Namespace, topic: Topic) -> None:
        for partition in topic.partitions:
            for span in list(partition.spans):
                if not span.shared:
                    if span.end is not None and not span.log.is_asleep:
                        span.log.engine.roll()  # nobody writes it any more
                    await self._try_keep(namespace, span.log, topic.policy)
        self._broker.drop_empty_spans(namespace, topic)

    async def _try_keep(self, namespace: Namespace, log: Log, policy: Policy) -> None:
        try:
            async with self.rewriting:
                await self.keep(namespace, log, policy)
        except Exception:
            if not log.removed:
                logger.exception("maintenance of log %d failed; it is tried again", log.id)

    async def keep(self, namespace: Namespace, log: Log, policy: Policy) -> None:
        """Seal what is old, compact what is to be compacted, drop what may go."""
        now_ns = self._broker.clock.now_ns()
        if log.is_asleep and not retention.may_be_due(
            log, policy.cleanup, now_ns, policy.retention_ms, policy.retention_bytes
        ):
            return
        segment_ms = policy.segment_ms
        if policy.compaction_lag_max_ms > 0 and "compact" in policy.cleanup:
            segment_ms = (
                min(segment_ms, policy.compaction_lag_max_ms) if segment_ms > 0 else policy.compaction_lag_max_ms
            )
        if retention.roll_due(log, now_ns=now_ns, segment_ms=segment_ms):
            log.engine.roll()
        if log.index is not None:
            index = log.index
            if index.missing:
                await self._rebuild(namespace, log, index)
            await self.in_thread(f"topic index of log {log.id}", lambda: index.checkpoint(log.stable))
        if log.times.due():
            await self.in_thread(f"times of log {log.id}", log.times.learn)
        if log.durability.mode == "os" and log.sealed_unsynced():
            await self.in_thread(f"sync of log {log.id}", log.sync)
        if "compact" in policy.cleanup and not self._waits_for_clock():
            with self._plan(namespace):
                holds = self.holds_of(log)
            await self.in_thread(f"compaction of log {log.id}", lambda: self._compact(log, policy, now_ns, holds))
        await self._forget(namespace, log, policy, now_ns)

    async def _rebuild(self, namespace: Namespace, log: Log, index: TopicIndex) -> None:
        """Reads of a damaged stretch fail until its topics are known again: read in a thread, added in one turn."""
        for start, end in index.missing:
            columns = await self.in_thread(
                f"rebuilding the topic index of log {log.id}",
                lambda start=start, end=end: list(topic_columns(log, start, end, namespace.topic_of)),  # type: ignore[misc]
            )
            logger.info("log %d: indexed the topics of %d records again", log.id, add_columns(index, columns))

    async def _forget(self, namespace: Namespace, log: Log, policy: Policy, now_ns: int) -> None:
        by_policy = "delete" in policy.cleanup and not self._waits_for_clock()

        def plan(holds: Holds) -> retention.Plan:
            by_time, by_size = (policy.retention_ms, policy.retention_bytes) if by_policy else (-1, -1)
            return retention.plan(log, now_ns=now_ns, retention_ms=by_time, retention_bytes=by_size, holds=holds)

        with self._plan(namespace):
            holds = self.holds_of(log)
            decided = plan(holds)
            self._note_held(log, decided.held, plan)
        if decided.changes(log):
            await self.in_thread(f"retention of log {log.id}", lambda: retention.apply(log, decided, holds))
        forget_before = max(decided.forget_before, log.engine.stat().start_offset if log.overflowed else 0)
        if log.index is not None and forget_before > log.index.start_offset:
            self._broker.ticker.write_now()  # no open batch may still mean a number that is free afterwards
            namespace.forget_numbers(log, log.forget_topics(forget_before))
            self._broker.deletion.prune(log)

    @contextmanager
    def _plan(self, namespace: Namespace) -> Iterator[None]:
        self.planning = namespace
        try:
            yield
        finally:
            self.planning = None

    def make_room(self, log: Log, size: int) -> bool:
        """A memory log is full: its oldest parts go, an eighth of it at once. False: what is held leaves too little."""
        stat = log.engine.stat()
        holds = self.holds_of(log)
        wanted = max(0, stat.size_bytes - 2 * max(size, stat.size_bytes // ROOM_SHARE))
        decided = retention.plan(log, now_ns=0, retention_ms=-1, retention_bytes=wanted, holds=holds)
        going = [*(part for part in stat.parts if part.end_offset <= decided.drop_before), *decided.rewrite]
        if sum(part.size_bytes for part in going) < size:
            return False
        start = max(part.end_offset for part in going)
        gone = max(0, start - log.start_offset)
        log.move_start(start)
        retention.drop(log, decided, holds)
        log.overflowed += gone
        log.meters.overflowed += gone
        return True

    def _note_held(self, log: Log, held: tuple[tuple[int, int], ...], plan: Callable[[Holds], retention.Plan]) -> None:
        self.held[log.id] = held
        for name, holder in self.holders.items():
            self.held_by.setdefault(name, {})[log.id] = plan(holder(log)).held_bytes if held else 0

    def held_bytes_from(self, stamp: int) -> int:
        """What a holder that needs everything from a stamp on keeps past its time, in all logs."""
        return sum(size for held in self.held.values() for stamp_end, size in held if stamp_end > stamp)

    @property
    def held_bytes(self) -> int:
        return sum(size for held in self.held.values() for _, size in held)

    def holds_of(self, log: Log) -> Holds:
        """What all holders together need, and the state that no snapshot covers yet."""
        joined, singly = Holds(), list[Sequence[int]]()
        if log is self._broker.journal.stem and log.on_disk:  # state in memory survives nothing
            joined.from_offset = self._broker.journal.snapshot_offset
        for holder in self.holders.values():
            held = holder(log)
            joined.from_stamp = min(joined.from_stamp, held.from_stamp)
            joined.from_offset = min(joined.from_offset, held.from_offset)
            joined.start_max = min(joined.start_max, held.start_max)
            if held.offsets:
                singly.append(held.offsets)
        joined.offsets = singly[0] if len(singly) == 1 else sorted(chain.from_iterable(singly))
        return joined

    # -- watching --------------------------------------------------------------------------------------------------

    def watch_space(self) -> None:
        """Below the mark publishers are refused; reads go on, and writing resumes by itself once there is room."""
        data = self._broker.options.data
        free = shutil.disk_usage(data).free
        mark = max(self.space_low_bytes, self._broker.ballast.size_bytes)
        low = free < mark
        if not low and not self.space_low:
            return
        refusal = None
        if low:
            refusal = DiskFull(
                f"{data} has {free >> 20} MiB free, less than the mark of {mark >> 20} MiB",
                fix="free disk space, or shorten retention: mainstem topic alter TOPIC --set retention_ms=...",
            )
        for log in self._broker.logs.by_id.values():
            if log.on_disk:
                log.refusal = refusal
        if not low:
            self._broker.quotas.refuse_again()
        if low != self.space_low:
            self.space_low = low
            logger.warning(
                "%s: %d MiB free, the mark is %d MiB; publishes are %s",
                data,
                free >> 20,
                mark >> 20,
                "refused until there is room" if low else "accepted again",
            )

    def _watch_held(self) -> None:
        known = self._broker.logs.by_id
        self.held = {log_id: parts for log_id, parts in self.held.items() if log_id in known}
        for name, sizes in self.held_by.items():
            self.held_by[name] = {log_id: size for log_id, size in sizes.items() if log_id in known}
        held = self.held_bytes
        alarm = held > shutil.disk_usage(self._broker.options.data).total * HELD_SHARE_ALARM
        if alarm and not self._alarmed:
            logger.warning(
                "queues, sessions, retained messages and archives hold %d MiB that retention would drop: "
                "mainstem queue ls, mainstem lake archives",
                held >> 20,
            )
        self._alarmed = alarm

    def _watch_clock(self) -> None:
        """After a jump of the wall clock everything may look old that is not."""
        ahead = self._disagreement_ns()
        if abs(ahead - self._wall_ahead_ns) > CLOCK_JUMP_NS:
            self._forget_from_ns = self._broker.clock.monotonic_ns() + CLOCK_TRUST_NS
            logger.warning(
                "the wall clock jumped by %d s; nothing is forgotten for an hour",
                (ahead - self._wall_ahead_ns) // 10**9,
            )
        self._wall_ahead_ns = ahead

    def _waits_for_clock(self) -> bool:
        return self._broker.clock.monotonic_ns() < self._forget_from_ns

    def _disagreement_ns(self) -> int:
        return self._broker.clock.now_ns() - self._broker.clock.monotonic_ns()

    def _compact(self, log: Log, policy: Policy, now_ns: int, holds: Holds) -> None:
        done = compact(
            log,
            now_ns=now_ns,
            delete_retention_ms=policy.delete_retention_ms,
            lag_min_ms=policy.compaction_lag_min_ms,
            holds=holds,
        )
        if done.parts:
            logger.info(
                "log %d: compacted %d parts, %d records to %d",
                log.id,
                done.parts,
                done.records_before,
                done.records_after,
            )

    async def in_thread(self, name: str, work: Callable[[], T]) -> T:
        """Work that the metrics show by its name while it runs."""
        self.running.add(name)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        finally:
            self.running.discard(name)
