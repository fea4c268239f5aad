"""Sealed segments on their way to the object store, and local ones that may go because they are there.

A round each second looks at the logs whose policy says so. Uploads run in threads of their own, a few at a time, and never
keep a stop or the rest of the maintenance waiting. While the store does not answer they fall behind: local segments stay,
and publishers are refused where `tier.backlog_bytes_max` or the disk's own mark is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.streams.registry import keep_counts
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log
from mainstem.model.errors import MainstemError, Overloaded
from mainstem.storage.engine import Part
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.iceberg.tables import TableTarget, table_name
from mainstem.storage.tier.manifest import store_manifest
from mainstem.storage.tier.tier import Tier
from mainstem.storage.tier.workers import Workers

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.topics.topic import Topic

logger = logging.getLogger("mainstem.tier")

ROUND_S = 1.0
SWEEP_S = 10.0
AGAIN_S = 10.0  # after an upload that failed for good
STALLED_S = 5.0  # that what was published waits for the store: then more is refused
UPLOADS = 2  # at once; each holds a segment in memory


class TieredLog(NamedTuple):
    log: Log
    policy: Policy
    target: TableTarget | None  # its parts go to a table: whose records they hold
    topic_of: dict[int, bytes] | None  # of a shared log: names of topics by their ids


class Tiering:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._workers = Workers("tier-put", UPLOADS)
        self._uploading: set[tuple[int, str]] = set()  # log, part
        self._again_s: dict[int, float] = {}  # logs whose upload failed: when it is tried again
        self._swept_s = 0.0
        self._sweeping = False
        self._manifest_ms, self._manifest_of = 0, -1  # when the last one was made, and of which state of the registry
        self.backlog_bytes = 0  # sealed and durable, not in the store yet
        self.backlog_since_stamp = 0  # of the oldest of them; 0: none
        self.refusing = self.objects_refusing = False

    async def run(self) -> None:
        tier = self._broker.logs.tier
        assert tier is not None
        while True:
            try:
                await self.round(tier)
            except Exception:
                logger.exception("a round of the tier failed; the next one follows")
            await asyncio.sleep(ROUND_S)

    def close(self) -> None:
        """Uploads that wait stay undone, those under way end by themselves, and their threads with them."""
        self._workers.close()

    async def round(self, tier: Tier) -> None:
        await asyncio.get_running_loop().run_in_executor(None, tier.count)
        backlog, oldest = 0, 0
        for log, policy, target, topic_of in self._tiered():
            engine = self._attached(tier, log)
            if engine is None:
                continue
            engine.table_target, engine.topic_of = target, topic_of
            for part in engine.uploadable():
                backlog += part.size_bytes
                oldest = min(oldest or part.first_stamp, part.first_stamp)
                self._begin(tier, engine, log, part)
            await self._drop(engine, log, policy)
        self.backlog_bytes, self.backlog_since_stamp = backlog, oldest
        self._watch_backlog(tier)
        self._watch_objects(tier)
        self._sweep(tier)

    def _tiered(self) -> Iterator[TieredLog]:
        """Logs whose sealed parts go to the store."""
        for namespace in list(self._broker.namespaces.values()):
            for stem, policy in list(namespace.stem_policies.items()):
                if policy.tier != "none":
                    yield TieredLog(stem, policy, None, namespace.topic_of)
            for topic in list(namespace.topics.values()):
                if topic.policy.tier != "none":
                    for number, partition in enumerate(topic.partitions):
                        target = self._table_target(namespace, topic, number)
                        logs = [span.log for span in partition.spans if not span.shared]
                        yield from (TieredLog(log, topic.policy, target, None) for log in logs)

    @staticmethod
    def _table_target(namespace: Namespace, topic: Topic, partition: int) -> TableTarget | None:
        if topic.policy.tier != "iceberg":
            return None
        return TableTarget(topic.name, partition, table_name(namespace.name, topic.name))

    def _attached(self, tier: Tier, log: Log) -> TieredEngine | None:
        """A log that got its policy while it was open gets its engine now."""
        engine = log.engine
        if isinstance(engine, TieredEngine):
            return engine
        if log.removed or not isinstance(engine, SegmentEngine):
            return None
        tiered = tier.attach(engine, log.id, self._broker.logs.path_of(log.id))
        log.use_engine(tiered)
        return tiered

    # -- up

    def _begin(self, tier: Tier, engine: TieredEngine, log: Log, part: Part) -> None:
        now = self._broker.clock.monotonic_ns() / 1e9
        name = log.id, part.name
        if name in self._uploading or len(self._uploading) >= 2 * UPLOADS or self._again_s.get(log.id, 0) > now:
            return
        if tier.lost is not None:  # nobody would find it there; it stays here
            return
        self._uploading.add(name)
        path, loop = self._broker.logs.path_of(log.id), asyncio.get_running_loop()

        def upload() -> None:
            try:
                if not log.removed:
                    tier.upload(engine, log.id, part, path)
            except Exception as error:
                self._again_s[log.id] = self._broker.clock.monotonic_ns() / 1e9 + AGAIN_S
                if not (tier.closing.is_set() or log.removed):
                    logger.error("log %d: %s is not uploaded, it is tried again: %s", log.id, part.name, error)
            finally:
                if not tier.closing.is_set():
                    loop.call_soon_threadsafe(self._uploading.discard, name)

        self._workers.submit(upload)

    # -- and away

    async def _drop(self, engine: TieredEngine, log: Log, policy: Policy) -> None:
        """Give back the disk of parts that are in the store and past their local time or size."""
        before = self._local_end(engine, log, policy)
        if before <= engine.local.start_offset or engine.droppable(before) <= engine.local.start_offset:
            return
        maintenance = self._broker.maintenance
        async with maintenance.rewriting:
            if not maintenance.paused and not log.removed:
                self._broker.coordinator.producers.keep_floor(log)  # a start reads on from there, not from the store
                keep_counts(self._broker.streams, log)
                try:
                    await maintenance.in_thread(
                        f"tier of log {log.id}", lambda: self._learn_and_drop(engine, log, before, policy)
                    )
                except MainstemError as error:
                    logger.error("log %d: local parts are kept: %s", log.id, error)

    def _learn_and_drop(self, engine: TieredEngine, log: Log, before: int, policy: Policy) -> None:
        """In a thread. What is asked of parts is learnt while they are here: later each would have to be fetched for it."""
        log.times.learn()
        end = engine.droppable(before)  # what is stored meanwhile has not been learnt of: the next round's
        if policy.search_index != "off":
            self._broker.search_indexing.index_before(log, engine.local, end)
        engine.drop_local(end)

    def _local_end(self, engine: TieredEngine, log: Log, policy: Policy) -> int:
        """Local parts below it may go. What a start replays stays: it must not wait for the store."""
        by_time, by_size = policy.local_retention_ms, policy.local_retention_bytes
        oldest = self._broker.clock.now_ns() - by_time * 1_000_000
        segments = engine.local.segments
        total, end = sum(segment.size for segment in segments), engine.local.start_offset
        for segment in segments:
            too_old = by_time >= 0 and segment.last_stamp < oldest
            too_much = by_size >= 0 and total > by_size
            if not segment.sealed or not (too_old or too_much):
                break
            total -= segment.size
            end = segment.end_offset
        journal = self._broker.journal
        return min(end, journal.snapshot_offset) if log is journal.stem else end

    def _watch_backlog(self, tier: Tier) -> None:
        limit = tier.settings.backlog_bytes_max
        over = 0 <= limit < self.backlog_bytes
        if not over and not self.refusing:
            return
        refusal = None
        if over:
            refusal = Overloaded(
                f"{self.backlog_bytes >> 20} MiB wait for the object store, more than the limit of {limit >> 20} MiB",
                fix="see why it takes nothing: mainstem doctor; or raise tier.backlog_bytes_max",
            )
        if over != self.refusing:
            logger.warning(
                "uploads %s", f"are behind: {refusal}" if over else "have caught up; publishes are taken again"
            )
        self.refusing = over
        if not self._broker.maintenance.space_low:  # that refusal says more
            for one in self._tiered():
                one.log.refusal = refusal

    def _watch_objects(self, tier: Tier) -> None:
        """Logs of the engine `object`: while the store takes nothing, or is another broker's, they refuse, and nobody else
        is held up for them."""
        objects = self._broker.logs.objects
        if objects is None:
            return
        oldest_s = objects.writer.oldest_s
        stalled = oldest_s > STALLED_S or tier.lost is not None
        if not stalled and not self.objects_refusing:
            return
        refusal = None
        if tier.lost is not None:
            refusal = Overloaded(tier.lost.message, fix=tier.lost.fix)
        elif stalled:
            refusal = Overloaded(
                f"the object store has taken nothing for {oldest_s:.0f} s, and this topic is kept nowhere else",
                fix="it is tried again; see why: mainstem doctor",
            )
        if stalled != self.objects_refusing:
            logger.warning("topics of the engine object %s", "refuse publishes" if stalled else "take publishes again")
        self.objects_refusing = stalled
        if not self._broker.maintenance.space_low:  # that refusal says more
            for log in self._broker.logs.by_id.values():
                if isinstance(log.engine, ObjectEngine):
                    log.refusal = refusal
            self._broker.ticker.ease()

    # -- gone

    def _sweep(self, tier: Tier) -> None:
        now = self._broker.clock.monotonic_ns() / 1e9
        if self._sweeping or now - self._swept_s < SWEEP_S:
            return
        self._swept_s, self._sweeping = now, True

        def sweep() -> None:
            try:
                self._keep_manifest(tier)
                gone = tier.sweep(self._manifest_ms)
                if gone:
                    logger.info("%d objects that nothing names any more are deleted from the store", gone)
            except MainstemError as error:
                logger.warning("the manifest is not stored, or what nothing names not deleted; later again: %s", error)
            finally:
                self._sweeping = False

        self._workers.submit(sweep)

    def _keep_manifest(self, tier: Tier) -> None:
        """In a thread. An object that the manifest in the bucket still names is not deleted."""
        now_ms, state = self._broker.clock.now_ns() // 1_000_000, tier.registry.version
        objects = self._broker.logs.objects
        if state == self._manifest_of or self._broker.options.replicated:  # then the registry itself is kept elsewhere
            self._manifest_ms = now_ms  # it says what is true now
        elif now_ms - self._manifest_ms >= tier.settings.manifest_ms or (objects is not None and objects.manifest_due):
            if objects is not None:
                objects.manifest_due = False
            tier.check_ours()
            store_manifest(tier.store, tier.registry, self._broker.options.data)
            self._manifest_ms, self._manifest_of = now_ms, state
