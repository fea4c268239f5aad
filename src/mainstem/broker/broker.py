"""The broker: everything opened in the order recovery needs, and the calls that change what exists.

Recovery order: metadata (declarations), logs (each to its own end), the journal (snapshot, then state frames), whatever
the journal's owners derive from it, listeners. Closing goes the other way round.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainstem.broker.delayed import TOPIC as DELAYED_TOPIC
from mainstem.broker.delayed import Delayed
from mainstem.broker.delivery.catch_up import Pump
from mainstem.broker.delivery.live import Dispatcher
from mainstem.broker.delivery.ticker import MakeCommitter, Ticker
from mainstem.broker.delivery.turns import Turns
from mainstem.broker.groups.classic import GroupLimits
from mainstem.broker.identity.login import Identity, IdentityOptions
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.namespaces.placement import Placement
from mainstem.broker.namespaces.quotas import Quotas
from mainstem.broker.namespaces.removal import NamespaceRemoval
from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.broker.nodes import Nodes
from mainstem.broker.pipelines import Pipelines
from mainstem.broker.queues.registry import QueueService
from mainstem.broker.rights.access import Access
from mainstem.broker.rights.audit import Audit, AuditOptions
from mainstem.broker.rights.followed_users import UserSource
from mainstem.broker.rights.owners import Owners
from mainstem.broker.scans.plan import ScanPlans
from mainstem.broker.schemas.registry import Schemas
from mainstem.broker.sessions.keeper import SessionKeeper, SessionLimits
from mainstem.broker.staging.staging import Staging
from mainstem.broker.state.journal import Journal
from mainstem.broker.streams.policy import LOG_KIND
from mainstem.broker.streams.registry import StreamService
from mainstem.broker.topics.commits import Commit
from mainstem.broker.topics.declaring import Declaring
from mainstem.broker.topics.deletion import Deletion
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.topic import Span, Topic
from mainstem.broker.topics.views import View
from mainstem.broker.tracing.tracer import Tracer
from mainstem.broker.transactions.coordinator import Coordinator
from mainstem.broker.upkeep.archives import Archives
from mainstem.broker.upkeep.maintenance import Maintenance
from mainstem.broker.upkeep.search_indexing import SearchIndexing
from mainstem.broker.upkeep.tiering import Tiering
from mainstem.broker.upkeep.works import Works
from mainstem.log.away import reads_may_wait
from mainstem.log.log import Log
from mainstem.log.logs import LogLimits, Logs, rebuild_index
from mainstem.log.stamps import Stamps
from mainstem.metadata.rows import Facts, NamespaceRow, Sequence, SpanRow
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import MetadataStore
from mainstem.model.clock import Clock, SystemClock
from mainstem.model.condition import parse_condition
from mainstem.model.cut_names import CUT_NAMES
from mainstem.model.errors import (
    DiskFull,
    InvalidArgument,
    InvalidName,
    NotFound,
)
from mainstem.storage.ballast import Ballast
from mainstem.storage.directory import keep_before_upgrade, raise_format
from mainstem.storage.disk import REAL_DISK, Disk, RealDisk
from mainstem.storage.log_state import STAMPS, Fact, FileState, LogState
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.object.shared import ObjectLogs
from mainstem.storage.tier.registry import StatementJournal
from mainstem.storage.tier.store import StoreAway
from mainstem.storage.tier.tier import Tier, TierSettings

logger = logging.getLogger("mainstem.broker")

DEFAULT_NAMESPACE = "/"
TICK_BACKGROUND_S = 1.0
OBJECTS_S = 5.0  # that a stop waits for the object store
LAST_ROUNDS = 3  # of a stop: of what is written on hearing of the last
SNAPSHOT_SLICE = 4  # pieces; about a millisecond
_NAMESPACE_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,128}")


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    data: Path
    defaults: Policy = field(default_factory=Policy)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # filter → policy changes
    limits: LogLimits = field(default_factory=LogLimits)
    groups: GroupLimits = field(default_factory=GroupLimits)
    sessions: SessionLimits = field(default_factory=SessionLimits)
    cluster_id: str = ""  # empty: one is made
    lost_kept_ms: int = 7 * 86_400_000  # a log without records that no topic names
    tier: TierSettings | None = None  # where sealed segments may go
    identity: IdentityOptions = field(default_factory=IdentityOptions)
    audit: AuditOptions = field(default_factory=AuditOptions)
    disk: Disk = REAL_DISK  # of logs and journal; what is derived from them lies in plain files
    replicated: bool = False  # that disk's promise is kept by other machines (`cluster/disk.py`)


class Broker(Declaring):
    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock | None = None,
        store: MetadataStore | None = None,
        *,
        committer: MakeCommitter | None = None,
        users: UserSource | None = None,
    ) -> None:
        """`store`: where the metadata lives, if not in an SQLite file of the data directory; `users`: those of another
        cell, if that is where users and roles are kept.

        Clock, disk and `committer`, which says when it is synced, may be a simulation's.
        """
        self.options = options
        self._store, self._users = store, users
        self.clock: Clock = clock or SystemClock()
        self._make_committer = committer
        self.namespaces: dict[str, Namespace] = {}
        self.placement = Placement(self.namespaces)
        self.nodes = Nodes()
        self.dispatcher = Dispatcher()
        self._background: list[asyncio.Task[None]] = []
        self.snapshot_slice = SNAPSHOT_SLICE
        self.snapshot_pause: Callable[[], Awaitable[None]] = lambda: self.turns.turn()  # between two slices
        self._snapshotting = asyncio.Lock()
        self.closing: list[Callable[[], Awaitable[None]]] = []  # of what others keep beside it

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover everything; afterwards the broker serves."""
        loop = asyncio.get_running_loop()
        data = self.options.data
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ballast = Ballast(data)
        self.ballast.check_start()
        keep_before_upgrade(data)
        self.store: MetadataStore = self._store or SqliteStore(data / "metadata.sqlite", self.ballast)
        facts = self.store.load()
        self.store.prepare_ids(Sequence)
        users = facts.items if self._users is None else self._users.load()
        self.access = Access(self._users or self.store, users, clock=self.clock, namespaces=self.placement)
        self.identity = Identity(self.access, self.options.identity, clock=self.clock)
        self.audit = Audit(self, self.options.audit)
        self.owners = Owners(self.store, self.access, facts.items)
        self.turns = Turns(self._share_of)
        self.ticker = Ticker(loop, self.dispatcher, self._make_committer, self.turns)
        self.turns.quick.append(self.ticker.committer.collect)
        self.pump = Pump(self.dispatcher, self.ticker, self.turns)
        self.stamps = self._open_stamps(FileState(data, self.options.disk))
        self.logs = Logs(data / "logs", self.stamps, self.ticker.add_log, self.options.limits, self.options.disk)
        self.logs.replicated = self.options.replicated
        if self.options.tier is not None:
            disk = self.options.disk
            journal = disk if isinstance(disk, StatementJournal) else None
            self.logs.tier = Tier(data, self.options.tier, self.logs.files.indexes, journal=journal)
            await self._claim(self.logs.tier)
            self.logs.objects = ObjectLogs(self.logs.tier)
        self.logs.load_closed()
        self.logs.remembered = (DELAYED_TOPIC,)
        self.logs.on_index_lost = self._wake_maintenance
        self.tiering = Tiering(self)
        self.search_indexing = SearchIndexing(self)
        self.deletion = Deletion(self)
        self.removal = NamespaceRemoval(self)
        self.removal.load(facts.kv)
        self.quotas = Quotas(self)
        self.access.listeners.append(self.quotas.users_changed)
        self._open_namespaces(facts)
        CUT_NAMES.sources.append(self._names)
        default = self.namespace(DEFAULT_NAMESPACE)
        self.maintenance = Maintenance(self)
        self.logs.make_room = self.maintenance.make_room
        stem = default.stem(_for_journal(default.defaults))
        self.journal = Journal(
            stem, data, self.clock, self.logs.by_id, self.options.disk, on_upgraded=lambda: raise_format(data)
        )
        self.coordinator = Coordinator(self, self.options.groups, self.options.cluster_id)
        self.session_keeper = SessionKeeper(self, self.options.sessions)
        self.scans = ScanPlans(self)
        self.staging = Staging(self)
        self.archives = Archives(self)
        self.schemas = Schemas(self)
        self.pipelines = Pipelines(self.clock)
        newest = max((log.last_stamp for log in self.logs.by_id.values()), default=0)
        self.stamps.next = max(self.stamps.next, newest + 1)
        self.ticker.head_stamp = self.stamps.next
        self.queues = QueueService(self)
        self.queues.load(facts.items)
        self.streams = StreamService(self)
        self.streams.load(facts.items)
        self.delayed = Delayed(self)
        self.tracer = Tracer(self)
        self.works = Works()
        for namespace in self.namespaces.values():
            self.note_traced(namespace)
            for topic in namespace.topics.values():
                self.note_traced(namespace, topic)

    def note_traced(self, namespace: Namespace, topic: Topic | None = None) -> None:
        """What is traced may have changed. Before everything is open it is not asked."""
        if hasattr(self, "tracer"):
            if topic is None:
                self.tracer.namespace_changed(namespace)
            else:
                self.tracer.topic_changed(namespace, topic)

    def recover_journal(self) -> int:
        """After every owner has registered: replay what they journaled, and what the logs say beyond it."""
        with reads_may_wait():
            count = self.journal.recover()
            raise_format(self.options.data)
            self.coordinator.recover()
            self.queues.start()
            self.streams.start()
            self.delayed.start()
            self.coordinator.resume()
            self.session_keeper.recover()
            self.schemas.recover()
        return count

    async def settle_marks(self) -> None:
        """Before anyone is served: that the state is in use, as `recover_journal` noted, is durable. The next start must
        know a kill from a clean stop, even if nothing but deliveries came between."""
        if self.stamps.clean:
            await asyncio.get_running_loop().run_in_executor(None, self.options.disk.settle)

    def start(self) -> None:
        """Begin the background work; listeners may open once the marks are settled."""
        loop = asyncio.get_running_loop()
        work = [self._run_background(), self.maintenance.run(), self.coordinator.run(), self.session_keeper.run()]
        if isinstance(self.options.disk, RealDisk):  # else parts are no files that others could read
            work.append(self.search_indexing.run())
        if self.logs.tier is not None:
            work.append(self.tiering.run())
        work += [self.removal.finish(), self.quotas.run(), self.tracer.run(), self.tracer.kept.run(), self.audit.run()]
        self._background = [loop.create_task(one) for one in work]

    async def close(self) -> None:
        """Write, sync and mark everything clean."""
        self.store.end_waiting()
        self.ballast.make_room()
        if self._names in CUT_NAMES.sources:
            CUT_NAMES.sources.remove(self._names)
        for task in self._background:
            task.cancel()
        if self.logs.tier is not None:
            self.logs.tier.stop()
            self.tiering.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.audit.close()
        for close in (self.schemas.close, *self.closing):
            await close()
        await self.pump.close()
        self.queues.close()
        self.streams.close()
        self.delayed.close()
        self.session_keeper.close()
        self.ticker.drain()
        logs = [log for log in self.logs.by_id.values() if not log.is_asleep]
        await self._finish_objects()
        await self.ticker.settle([log for log in logs if log.durability.acks_wait and not log.refusal])
        self.ticker.stop()
        for _ in range(LAST_ROUNDS):  # who hears that its message is durable may write of it: a position, a marker
            self.ticker.drain()
            for log in logs:
                with suppress(StoreAway):  # nothing of it was acked: `Logs.close` tells
                    log.sync()
                    log.mark_stable(log.written)
            if not self.ticker.has_more:
                break
        if all(log.stable == log.written for log in logs):
            self.session_keeper.all_is_stable()
        self.ticker.ended = True
        self.journal.close()
        self.logs.close()
        if self.logs.tier is not None:
            self.logs.tier.close()
        with suppress(DiskFull):  # the next start goes on behind what is reserved
            self.stamps.settle()
        self.store.close()
        self.ballast.keep_rest()

    async def _finish_objects(self) -> None:
        """A stop does not wait for a store that is away: what was not acked is given up."""
        objects, loop = self.logs.objects, asyncio.get_running_loop()
        if objects is None or await loop.run_in_executor(None, objects.finish, time.monotonic() + OBJECTS_S):
            return
        away = StoreAway("the broker stopped before the object store took it", fix="publish it again")
        for log in self.logs.by_id.values():
            if isinstance(log.engine, ObjectEngine):
                log.refusal = away

    def _share_of(self, namespace: str) -> int:
        found = self.namespaces.get(namespace)
        return found.settings.quota.share if found is not None else 0

    def _names(self) -> Iterator[bytes]:
        for namespace in self.namespaces.values():
            yield from namespace.names()

    async def _claim(self, tier: Tier) -> None:
        try:
            await asyncio.to_thread(tier.claim, known_ours=self.options.replicated)
        except asyncio.CancelledError:  # stopped while it waits for the store
            tier.closing.set()
            raise

    def _open_stamps(self, state: LogState) -> Stamps:
        reserved = Fact(state, STAMPS)
        value = reserved.value or {"end": 0, "clean": True}
        return Stamps(
            self.clock,
            reserved_end=int(value["end"]),
            reserve=lambda end, clean: reserved.set({"end": end, "clean": clean}),
            clean=bool(value.get("clean")),
        )

    async def _run_background(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_BACKGROUND_S)
            try:
                self.maintenance.watch_space()
                self.ticker.checkpoint_quiet()
                logs = [log for log in self.logs.by_id.values() if not log.is_asleep]
                lowered = [log for log in logs if log.lower_reservation()]
                await loop.run_in_executor(None, self._reserve_ahead, logs, lowered)
                if self.journal.snapshot_due():
                    await self.snapshot()
            except DiskFull as error:  # publishes meet it, too, and are told
                logger.debug("background work waits for room: %s", error)
            except Exception:
                logger.exception("background work failed; it is tried again")

    def _reserve_ahead(self, logs: list[Log], lowered: list[Log]) -> None:
        """So that the loop seldom waits for these small fsyncs."""
        for log in lowered:
            log.keep_reservation()
        self.ballast.keep()
        if self.stamps.due():
            self.stamps.extend()
        for log in logs:
            log.reserve_ahead()

    async def snapshot(self) -> None:
        """Bound what the next start replays. Taken when everything put is written, stored once that is durable.

        That is: in every log. State in memory may speak of records that are written and not yet durable. It is taken in
        slices, one at a time: whoever asks while one is taken waits for it.
        """
        async with self._snapshotting:
            await self._snapshot()

    async def _snapshot(self) -> None:
        self.ticker.drain()
        snapshot = self.journal.begin_snapshot()
        while not snapshot.go_on(self.snapshot_slice << self.journal.snapshot_haste()):
            await self.snapshot_pause()
            self.ticker.write_early()  # what is gathered may be in memory already, and must be in the log then
        self.ticker.drain()
        logs = [(log, log.written) for log in self.logs.by_id.values()]
        await self.ticker.settle([log for log, _ in logs])
        if all(log.stable >= written or log.removed for log, written in logs):
            await self.maintenance.in_thread("snapshot", lambda: self.journal.store_snapshot(snapshot))

    # -- namespaces ------------------------------------------------------------------------------------------------

    def namespace(self, name: str) -> Namespace:
        try:
            return self.namespaces[name]
        except KeyError:
            raise NotFound(
                f"there is no namespace {name!r}", fix=f"mainstem namespace ls, or mainstem namespace add {name}"
            ) from None

    def create_namespace(self, name: str) -> Namespace:
        if name in self.namespaces:
            return self.namespaces[name]
        return self._begin_namespace(name, NamespaceSettings()).now()

    async def declare_namespace(self, name: str, settings: NamespaceSettings | None = None) -> Namespace:
        """Awaited: it exists once this returns. One that exists stays as it is."""
        if name not in self.namespaces:
            await self._begin_namespace(name, settings or NamespaceSettings())
        return self.namespaces[name]

    async def alter_namespace(self, namespace: Namespace, settings: NamespaceSettings) -> None:
        """Other settings: committed, then in force."""
        if namespace.name == DEFAULT_NAMESPACE and settings.policy:
            raise InvalidArgument(
                "the namespace / takes its defaults from the configuration", fix="set them there, in [topics]"
            )
        namespace.check_there()
        self._check_tier(self.options.defaults.with_changes(settings.policy))
        self.store.check_room()
        written = self.store.put_namespace(NamespaceRow(namespace.name, namespace.created, settings.to_document()))
        await Commit(self.ticker.loop, written, None, apply=lambda: namespace.give(settings))

    @staticmethod
    def check_namespace_name(name: str) -> None:
        if not _NAMESPACE_NAME.fullmatch(name):
            raise InvalidName(f"namespace {name!r}: 1 to 128 printable characters")

    def _begin_namespace(self, name: str, settings: NamespaceSettings) -> Commit[Namespace]:
        self.check_namespace_name(name)
        self.removal.check_free(name)
        self._check_tier(self.options.defaults.with_changes(settings.policy))
        self.store.check_room()
        namespace = self._new_namespace(name, settings, self.stamps.next)
        written = self.store.put_namespace(NamespaceRow(name, namespace.created, settings.to_document()))

        def apply() -> None:
            self.namespaces.setdefault(name, namespace)

        return Commit(self.ticker.loop, written, namespace, apply=apply)

    def _new_namespace(self, name: str, settings: NamespaceSettings, created: int) -> Namespace:
        namespace = Namespace(self, name, self.options.defaults, settings, created)
        if hasattr(self, "streams"):
            self.streams.of(namespace)
        namespace.rules = {f.encode(): dict(changes) for f, changes in self.options.rules.items()}
        return namespace

    def _open_namespaces(self, facts: Facts) -> None:
        for row in facts.namespaces:
            settings = NamespaceSettings.of_document(row.options)
            self.namespaces[row.name] = self._new_namespace(row.name, settings, row.created)
        if DEFAULT_NAMESPACE not in self.namespaces:
            self.create_namespace(DEFAULT_NAMESPACE)
        used, known = {span.log_id for span in facts.spans}, set[int]()
        first = {span.log_id: span.first_offset for span in reversed(facts.spans)}
        self.logs.lost.bring_back(log_row.id for log_row in facts.logs)
        for log_row in facts.logs:
            if log_row.kind == "partition" and log_row.id not in used:
                self.logs.unlink(log_row.id)  # its topic was deleted, and a crash kept its files
                self.store.delete_log(log_row.id)
                continue
            known.add(log_row.id)
            shared = log_row.kind in ("stem", LOG_KIND)
            offset = 0 if shared else first.get(log_row.id, 0)
            log = self.logs.open(
                log_row.id,
                engine=log_row.engine,
                shared=shared,
                policy=log_row.policy,
                first_offset=offset,
                topic_of=self.namespace(log_row.namespace).topic_of,
            )
            if shared:
                policy, namespace = Policy.of_document(log_row.policy), self.namespace(log_row.namespace)
                if log_row.kind == LOG_KIND:
                    self.add_stream_log(namespace, policy, log)
                else:
                    self._add_stem(namespace, policy, log)
        self.logs.sweep(known, now_ms=self.clock.now_ns() // 1_000_000, lost_kept_ms=self.options.lost_kept_ms)
        while self.logs.lost.highest_id() and self.store.next_id(Sequence.LOG) <= self.logs.lost.highest_id():
            pass  # an old copy of the metadata does not know which numbers were given
        self.deletion.load(facts.kv)
        self._open_topics(facts)
        for namespace in self.namespaces.values():
            for stem in namespace.stems.values():
                if not stem.is_asleep:
                    assert stem.index is not None
                    rebuild_index(stem, stem.index, namespace.topic_of)
        self._open_views(facts)

    def _open_topics(self, facts: Facts) -> None:
        spans: dict[tuple[int, int], list[SpanRow]] = {}
        for span in facts.spans:
            spans.setdefault((span.topic_id, span.partition), []).append(span)
        for row in facts.topics:
            namespace = self.namespace(row.namespace)
            policy = Policy.of_document(row.config.get("policy", {}))
            topic = Topic(row.id, row.name, policy, [], row.config.get("kafka", {}), row.kafka_alias, row.created)
            low_marks = row.config.get("low_marks", {})
            for index in range(row.partitions):
                held = [
                    Span(self.logs.by_id[span.log_id], span.first_offset, span.end_offset, span.seq)
                    for span in sorted(spans[row.id, index], key=lambda s: s.seq)
                ]
                low_mark = low_marks.get(str(index), 0)
                self._add_partition(namespace, topic, index, held).low_mark = low_mark
                for one in held:
                    if one.end is not None:  # a backup's metadata may know more than its logs
                        one.log.skip_to(one.end)
                    if not one.shared and low_mark > one.first:
                        one.log.low_mark = min(low_mark, one.limit)
                        one.log.move_start(one.log.low_mark)
            namespace.add_topic(topic)

    def _open_views(self, facts: Facts) -> None:
        slots: dict[int, dict[int, int | None]] = {}
        for slot in facts.view_slots:
            slots.setdefault(slot.view_id, {})[slot.slot] = slot.log_id
        for row in facts.views:
            namespace = self.namespace(row.namespace)
            view = View(
                namespace, row.id, row.name, row.filter, parse_condition(row.condition), row.options, row.created
            )
            view.slots = [slots.get(row.id, {}).get(n) for n in range(len(slots.get(row.id, {})))]
            namespace.views[row.name] = view


def _for_journal(policy: Policy) -> Policy:
    """The broker's own state rests on the local disk: it is written all the time, and read at a start."""
    return policy.with_changes({"engine": "segment"}) if policy.engine == "object" else policy
