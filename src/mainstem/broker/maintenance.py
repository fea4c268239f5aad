"""What the broker does on its own, in the background: seal, forget, compact, watch the disk.

Everything runs in threads, a log at a time, and may be cut short by a crash anywhere: engines swap parts atomically.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mainstem.broker.policy import Policy
from mainstem.log import retention
from mainstem.log.compaction import compact
from mainstem.log.log import Log
from mainstem.log.retention import NO_STAMP, Holds
from mainstem.model.errors import DiskFull

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

CLOCK_DISAGREEMENT_S = 60.0  # a jump of the wall clock: forget nothing until it is over

HoldFn = Callable[[Log], Holds]
T = TypeVar("T")


class Maintenance:
    def __init__(self, broker: Broker, *, every_s: float = 30.0, space_low_bytes: int = 256 << 20) -> None:
        self._broker = broker
        self._every_s = every_s
        self.space_low_bytes = space_low_bytes
        self.holders: list[HoldFn] = []  # each says what it still needs of a log
        self.space_low = False
        self.running: set[str] = set()  # shown by metrics
        self._wall_minus_monotonic = time.time() - time.monotonic()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.round()
            except Exception:
                logger.exception("maintenance failed; it is tried again in %.0f s", self._every_s)

    async def round(self) -> None:
        """One look at every log."""
        self.watch_space()
        if self._clock_jumped():
            return
        for namespace in list(self._broker.namespaces.values()):
            for stem in list(namespace.stems.values()):
                await self.keep(namespace, stem, namespace.stem_policies[stem])
            for topic in list(namespace.topics.values()):
                for log in {span.log for p in topic.partitions for span in p.spans if not span.shared}:
                    await self.keep(namespace, log, topic.policy)

    async def keep(self, namespace: Namespace, log: Log, policy: Policy) -> None:
        """Seal what is old, compact what is to be compacted, drop what may go."""
        now_ns = self._broker.clock.now_ns()
        if retention.roll_due(log, now_ns=now_ns, segment_ms=policy.segment_ms):
            log.engine.roll()
        if log.index is not None:
            await self._in_thread(f"topic index of log {log.id}", log.index.checkpoint)
        if "compact" in policy.cleanup:
            await self._in_thread(f"compact log {log.id}", lambda: self._compact(log, policy, now_ns))
        if "delete" not in policy.cleanup:
            return
        holds = self.holds_of(log)
        decided = retention.plan(
            log,
            now_ns=now_ns,
            retention_ms=policy.retention_ms,
            retention_bytes=policy.retention_bytes,
            holds=holds,
        )
        start = await self._in_thread(f"retention of log {log.id}", lambda: retention.apply(log, decided, holds))
        namespace.forget_numbers(log, log.forget_topics(start))

    def holds_of(self, log: Log) -> Holds:
        """What all holders together need, and the state that no snapshot covers yet."""
        joined = Holds(NO_STAMP, [], NO_STAMP)
        if log is self._broker.journal.stem:
            joined.from_offset = self._broker.journal.snapshot_offset
        for holder in self.holders:
            held = holder(log)
            joined.from_stamp = min(joined.from_stamp, held.from_stamp)
            joined.from_offset = min(joined.from_offset, held.from_offset)
            joined.offsets += held.offsets
        joined.offsets.sort()
        return joined

    def watch_space(self) -> None:
        """Below the mark publishers are refused; reads go on, and writing resumes by itself once there is room."""
        free = shutil.disk_usage(self._broker.options.data).free
        low = free < self.space_low_bytes
        refusal = None
        if low:
            refusal = DiskFull(
                f"{self._broker.options.data} has {free >> 20} MiB free, less than the mark of "
                f"{self.space_low_bytes >> 20} MiB",
                fix="free disk space, or shorten retention: mainstem topic alter TOPIC --set retention_ms=...",
            )
        for log in self._broker.logs.by_id.values():
            log.refusal = refusal
        if low != self.space_low:
            self.space_low = low
            logger.warning(
                "%s: %d MiB free, the mark is %d MiB; publishes are %s",
                self._broker.options.data,
                free >> 20,
                self.space_low_bytes >> 20,
                "refused until there is room" if low else "accepted again",
            )

    def _clock_jumped(self) -> bool:
        offset = time.time() - time.monotonic()
        jumped = abs(offset - self._wall_minus_monotonic) > CLOCK_DISAGREEMENT_S
        self._wall_minus_monotonic = offset
        if jumped:
            logger.warning("the wall clock jumped; retention waits for the next round")
        return jumped

    def _compact(self, log: Log, policy: Policy, now_ns: int) -> None:
        done = compact(
            log,
            now_ns=now_ns,
            delete_retention_ms=policy.delete_retention_ms,
            lag_min_ms=policy.compaction_lag_min_ms,
        )
        if done.parts:
            logger.info(
                "log %d: compacted %d parts, %d records to %d",
                log.id,
                done.parts,
                done.records_before,
                done.records_after,
            )

    async def _in_thread(self, name: str, work: Callable[[], T]) -> T:
        self.running.add(name)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        finally:
            self.running.discard(name)
