"""The broker: everything opened in the order recovery needs, and the calls that change what exists.

Recovery order: metadata (declarations), logs (each to its own end), the journal (snapshot, then state frames), whatever
the journal's owners derive from it, listeners. Closing goes the other way round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainstem.broker.access import Access
from mainstem.broker.archives import Archives
from mainstem.broker.catch_up import Pump
from mainstem.broker.delayed import Delayed
from mainstem.broker.deletion import Deletion
from mainstem.broker.journal import Journal
from mainstem.broker.live import Dispatcher, Route
from mainstem.broker.maintenance import Maintenance
from mainstem.broker.namespace import Namespace
from mainstem.broker.pipelines import Pipelines
from mainstem.broker.policy import STEMS_MAX, Policy
from mainstem.broker.queues.registry import QueueService
from mainstem.broker.scans.plan import ScanPlans
from mainstem.broker.staging import Staging
from mainstem.broker.ticker import Ticker
from mainstem.broker.topics import Partition, Span, Topic
from mainstem.broker.views import View
from mainstem.log.durability import parse_durability
from mainstem.log.log import Log
from mainstem.log.logs import LogLimits, Logs, rebuild_index
from mainstem.log.stamps import Stamps
from mainstem.metadata.rows import Catalog, LogRow, NamespaceRow, Sequence, SlotRow, SpanRow, TopicRow, ViewRow
from mainstem.metadata.sqlite import SqliteStore
from mainstem.metadata.store import Written
from mainstem.model.clock import Clock, SystemClock
from mainstem.model.condition import parse_condition
from mainstem.model.cut_names import CUT_NAMES
from mainstem.model.errors import (
    AlreadyExists,
    DiskFull,
    InvalidArgument,
    InvalidName,
    NotFound,
    Overloaded,
    StorageFault,
)
from mainstem.model.topic_filter import check_filter, check_topic
from mainstem.storage.ballast import Ballast
from mainstem.storage.disk import REAL_DISK, is_full
from mainstem.storage.state_file import read_state, write_state

logger = logging.getLogger("mainstem.broker")

DEFAULT_NAMESPACE = "/"
TICK_BACKGROUND_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    data: Path
    defaults: Policy = field(default_factory=Policy)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # filter → policy changes
    limits: LogLimits = field(default_factory=LogLimits)


class Broker:
    def __init__(self, options: BrokerOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock: Clock = clock or SystemClock()
        self.namespaces: dict[str, Namespace] = {}
        self.dispatcher = Dispatcher()
        self._background: list[asyncio.Task[None]] = []

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover everything; afterwards the broker serves."""
        loop = asyncio.get_running_loop()
        data = self.options.data
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ballast = Ballast(data)
        self.ballast.check_start()
        self.store = SqliteStore(data / "metadata.sqlite", self.ballast)
        catalog = self.store.load()
        self.access = Access(self.store, catalog.items, clock=self.clock)
        self.ticker = Ticker(loop, self.dispatcher)
        self.pump = Pump(self.dispatcher, self.ticker)
        self.stamps = self._open_stamps(data / "stamps")
        self.logs = Logs(data / "logs", self.stamps, self.ticker.add_log, self.options.limits)
        self.deletion = Deletion(self)
        self._open_namespaces(catalog)
        CUT_NAMES.sources.append(self._names)
        default = self.namespace(DEFAULT_NAMESPACE)
        self.maintenance = Maintenance(self)
        stem = default.stem(default.defaults)
        self.journal = Journal(stem, data / "state.snapshot", self.clock, self.logs.by_id)
        self.scans = ScanPlans(self)
        self.staging = Staging(self)
        self.archives = Archives(self)
        self.pipelines = Pipelines(self.clock)
        newest = max((log.last_stamp for log in self.logs.by_id.values()), default=0)
        self.stamps.next = max(self.stamps.next, newest + 1)
        self.ticker.head_stamp = self.stamps.next
        self.queues = QueueService(self)
        self.queues.load(catalog.items)
        self.delayed = Delayed(self)

    def recover_journal(self) -> int:
        """After every owner has registered: replay what they journaled."""
        count = self.journal.recover()
        self.queues.start()
        self.delayed.start()
        return count

    def start(self) -> None:
        """Begin the background work; listeners may open now."""
        loop = asyncio.get_running_loop()
        self._background = [loop.create_task(self._run_background()), loop.create_task(self.maintenance.run())]

    async def close(self) -> None:
        """Write, sync and mark everything clean."""
        self.store.end_waiting()
        self.ballast.make_room()
        if self._names in CUT_NAMES.sources:
            CUT_NAMES.sources.remove(self._names)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.pump.close()
        self.queues.close()
        self.delayed.close()
        self.ticker.drain()
        logs = list(self.logs.by_id.values())
        await self.ticker.settle([log for log in logs if log.durability.acks_wait])
        self.ticker.stop()
        for log in logs:
            log.sync()
            log.mark_stable(log.written)
        self.journal.close()
        self.logs.close()
        with suppress(DiskFull):  # the next start goes on behind what is reserved
            self.stamps.settle()
        self.store.close()
        self.ballast.keep_rest()

    def _names(self) -> Iterator[bytes]:
        for namespace in self.namespaces.values():
            yield from namespace.names()

    def _open_stamps(self, path: Path) -> Stamps:
        state = read_state(REAL_DISK, path, "stamps")
        reserved = int(state["end"]) if state else 0

        def reserve(end: int) -> None:
            try:
                write_state(REAL_DISK, path, "stamps", {"end": end})
            except OSError as error:
                if is_full(error):
                    raise DiskFull(f"{path}: no space to reserve stamps: {error}") from error
                raise StorageFault(f"{path}: cannot reserve stamps: {error}") from error

        return Stamps(self.clock, reserved_end=reserved, reserve=reserve)

    async def _run_background(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_BACKGROUND_S)
            try:
                self.maintenance.watch_space()
                self.ticker.checkpoint_quiet()
                await loop.run_in_executor(None, self._reserve_ahead, list(self.logs.by_id.values()))
                if self.journal.snapshot_due():
                    await self.snapshot()
            except DiskFull as error:  # publishes meet it, too, and are told
                logger.debug("background work waits for room: %s", error)
            except Exception:
                logger.exception("background work failed; it is tried again")

    def _reserve_ahead(self, logs: list[Log]) -> None:
        """So that the loop seldom waits for these small fsyncs."""
        self.ballast.keep()
        if self.stamps.due():
            self.stamps.extend()
        for log in logs:
            log.reserve_ahead()

    async def snapshot(self) -> None:
        """Bound what the next start replays. Taken when everything put is written, stored once that is durable."""
        self.ticker.drain()
        offset, data = self.journal.take_snapshot()
        stem = self.journal.stem
        await self.ticker.settle([stem])
        if stem.stable >= offset:
            await self.maintenance.in_thread("snapshot", lambda: self.journal.store_snapshot(offset, data))

    # -- namespaces ------------------------------------------------------------------------------------------------

    def namespace(self, name: str) -> Namespace:
        try:
            return self.namespaces[name]
        except KeyError:
            raise NotFound(
                f"no namespace {name!r}", fix="namespaces are AMQP's virtual hosts: PUT /api/vhosts/NAME"
            ) from None

    def create_namespace(self, name: str) -> Namespace:
        if name in self.namespaces:
            return self.namespaces[name]
        self.store.check_room()
        self.store.put_namespace(NamespaceRow(name, self.stamps.next))
        return self._add_namespace(name)

    def _add_namespace(self, name: str) -> Namespace:
        namespace = Namespace(self, name, self.options.defaults)
        namespace.rules = {f.encode(): dict(changes) for f, changes in self.options.rules.items()}
        self.namespaces[name] = namespace
        return namespace

    def _open_namespaces(self, catalog: Catalog) -> None:
        for row in catalog.namespaces:
            self._add_namespace(row.name)
        if DEFAULT_NAMESPACE not in self.namespaces:
            self.create_namespace(DEFAULT_NAMESPACE)
        used, known = {span.log_id for span in catalog.spans}, set[int]()
        first = {span.log_id: span.first_offset for span in reversed(catalog.spans)}
        for log_row in catalog.logs:
            if log_row.kind == "partition" and log_row.id not in used:
                self.logs.unlink(log_row.id)  # its topic was deleted, and a crash kept its files
                self.store.delete_log(log_row.id)
                continue
            known.add(log_row.id)
            shared = log_row.kind == "stem"
            offset = 0 if shared else first.get(log_row.id, 0)
            log = self.logs.open(
                log_row.id, engine=log_row.engine, shared=shared, policy=log_row.policy, first_offset=offset
            )
            if shared:
                policy = Policy().with_changes(log_row.policy)
                self._add_stem(self.namespace(log_row.namespace), policy, log)
        self.logs.sweep(known)
        self.deletion.load(catalog.kv)
        self._open_topics(catalog)
        for namespace in self.namespaces.values():
            for stem in namespace.stems.values():
                assert stem.index is not None
                rebuild_index(stem, stem.index, namespace.topic_of)
            namespace.stem(namespace.defaults)
        self._open_views(catalog)

    def _open_topics(self, catalog: Catalog) -> None:
        spans: dict[tuple[int, int], list[SpanRow]] = {}
        for span in catalog.spans:
            spans.setdefault((span.topic_id, span.partition), []).append(span)
        for row in catalog.topics:
            namespace = self.namespace(row.namespace)
            policy = Policy().with_changes(row.config.get("policy", {}))
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

    def _open_views(self, catalog: Catalog) -> None:
        slots: dict[int, dict[int, int | None]] = {}
        for slot in catalog.view_slots:
            slots.setdefault(slot.view_id, {})[slot.slot] = slot.log_id
        for row in catalog.views:
            namespace = self.namespace(row.namespace)
            view = View(
                namespace, row.id, row.name, row.filter, parse_condition(row.condition), row.options, row.created
            )
            view.slots = [slots.get(row.id, {}).get(n) for n in range(len(slots.get(row.id, {})))]
            namespace.views[row.name] = view

    # -- stems and topics ------------------------------------------------------------------------------------------

    def create_stem(self, namespace: Namespace, policy: Policy) -> Log:
        if len(namespace.stems) >= STEMS_MAX:
            raise Overloaded(
                f"namespace {namespace.name!r} has {STEMS_MAX} stems, one for each distinct policy",
                fix="give topics one of the existing policies, or a log of their own with --layout dedicated",
            )
        self.store.check_room()
        document = policy.to_document()
        log_id = self.store.next_id(Sequence.LOG)
        log = self.logs.open(log_id, engine=policy.engine, shared=True, policy=document)
        log.promise(self.store.put_log(LogRow(log_id, namespace.name, "stem", policy.engine, document)))
        self._add_stem(namespace, policy, log)
        return log

    def _add_stem(self, namespace: Namespace, policy: Policy, log: Log) -> None:
        namespace.stems[policy.stem_key()] = log
        namespace.stem_policies[log] = policy
        assert log.index is not None
        log.index.on_lost = self._wake_maintenance
        for view in namespace.views.values():
            view.add_slots()

    def _wake_maintenance(self) -> None:
        self.ticker.loop.call_soon_threadsafe(self.maintenance.wake)

    def create_topic(
        self,
        namespace: Namespace,
        name: bytes,
        policy: Policy,
        *,
        kafka: Mapping[str, Any] | None = None,
        kafka_alias: str | None = None,
    ) -> Topic:
        """Declare a topic: with logs of its own, or (layout shared, one partition) in the stem of its policy.

        Where the name already lives in a stem its records stay readable: the first span is the stem's.
        """
        check_topic(name)
        if name in namespace.topics or name in namespace.views:
            kind = "topic" if name in namespace.topics else "view"
            raise AlreadyExists(f"{kind} {name.decode(errors='replace')!r} already exists")
        self.store.check_room()
        before = namespace.find_topic(name)
        self.ticker.write_now()  # what was gathered for the old log belongs before the seam
        if not policy.dedicated:
            namespace.stem(policy)
        topic_id = self.store.next_id(Sequence.TOPIC)
        topic = Topic(topic_id, name, policy, [], dict(kafka or {}), kafka_alias, self.stamps.next)
        with self._all_or_none() as written:
            for index in range(policy.partitions):
                spans = self._first_spans(namespace, before, policy, index)
                partition = self._add_partition(namespace, topic, index, spans)
                if spans[0].log.low_marks is not None:  # an older topic of this name may have been deleted here
                    partition.low_mark = spans[0].log.low_marks.of(name)
                for span in spans:
                    self._put_span(topic, partition, span)
            self._put_topic(namespace, topic)
        self._use(namespace, topic, written)
        return topic

    @contextmanager
    def _all_or_none(self) -> Iterator[Written]:
        """Metadata and logs made together: where one cannot be had (a full disk, a limit) no other stays open."""
        before = len(self.logs.by_id)
        try:
            with self.store.together() as written:
                yield written
        except BaseException:
            for log in list(self.logs.by_id.values())[before:]:
                self.deletion.remove_log(log)
            raise

    def _use(self, namespace: Namespace, topic: Topic, written: Written) -> None:
        """Only now that it was asked for: what never comes would keep the logs from ever being stable."""
        for partition in topic.partitions:
            partition.log.promise(written)
        namespace.add_topic(topic)

    def _first_spans(self, namespace: Namespace, before: Topic | None, policy: Policy, index: int) -> list[Span]:
        old = before.partitions[0].log if before is not None else None
        if old is None or index:
            target = self._new_log(namespace, policy) if policy.dedicated else namespace.stem(policy)
            return [Span(target, 0)]
        if not policy.dedicated and namespace.stem(policy) is old:
            return [Span(old, 0)]
        end = old.next_offset
        target = self._new_log(namespace, policy, end) if policy.dedicated else namespace.stem(policy)
        target.skip_to(end)
        return [Span(old, 0, end), Span(target, target.next_offset, None, 1)]

    def _new_log(self, namespace: Namespace, policy: Policy, first_offset: int = 0) -> Log:
        log_id = self.store.next_id(Sequence.LOG)
        document = policy.to_document()
        log = self.logs.open(log_id, engine=policy.engine, shared=False, policy=document, first_offset=first_offset)
        self.store.put_log(LogRow(log_id, namespace.name, "partition", policy.engine, document))
        return log

    def _add_partition(self, namespace: Namespace, topic: Topic, index: int, spans: list[Span]) -> Partition:
        log = spans[-1].log
        number = log.index.topics.number(topic.name) if log.index is not None else 1
        partition = Partition(topic, index, spans, Route(topic.name, number, log, namespace))
        topic.partitions.append(partition)
        return partition

    def _put_span(self, topic: Topic, partition: Partition, span: Span) -> None:
        self.store.put_span(SpanRow(topic.id, partition.index, span.seq, span.log.id, span.first, span.end))

    def _put_topic(self, namespace: Namespace, topic: Topic) -> Written:
        config = {
            "policy": topic.policy.to_document(),
            "kafka": topic.config,
            "low_marks": {str(p.index): p.low_mark for p in topic.partitions if p.low_mark},
        }
        layout = "dedicated" if topic.policy.dedicated else "shared"
        return self.store.put_topic(
            TopicRow(
                topic.id,
                namespace.name,
                topic.name,
                topic.kafka_alias,
                layout,
                len(topic.partitions),
                config,
                topic.created,
            )
        )

    def save_topic(self, namespace: Namespace, topic: Topic) -> Written:
        """After a change of its settings or low marks."""
        return self._put_topic(namespace, topic)

    def add_partitions(self, namespace: Namespace, topic: Topic, count: int) -> Written:
        if count <= len(topic.partitions):
            raise InvalidArgument(f"{topic.name.decode()!r} has {len(topic.partitions)} partitions; they can only grow")
        self.store.check_room()
        if not topic.policy.dedicated:
            self.move_topic(namespace, topic, topic.policy.with_changes({"layout": "dedicated"}))
        before = len(topic.partitions), topic.policy
        topic.policy = topic.policy.with_changes({"partitions": count})
        try:
            with self._all_or_none() as written:
                for index in range(len(topic.partitions), count):
                    span = Span(self._new_log(namespace, topic.policy), 0)
                    self._put_span(topic, self._add_partition(namespace, topic, index, [span]), span)
                self._put_topic(namespace, topic)
        except BaseException:
            del topic.partitions[before[0] :]
            topic.policy = before[1]
            raise
        self._use(namespace, topic, written)
        return written

    def move_topic(self, namespace: Namespace, topic: Topic, policy: Policy) -> Written:
        """Change engine, layout or policy of a live topic. Where another log is needed the open spans are sealed at N,
        and the new ones go on at N or beyond."""
        if len(topic.partitions) > 1 and not policy.dedicated:
            raise InvalidArgument(
                f"{topic.name.decode()!r} has {len(topic.partitions)} partitions and cannot share a log"
            )
        self.store.check_room()
        self.ticker.write_now()
        if not policy.dedicated:
            namespace.stem(policy)
        with self._all_or_none() as written:
            targets = [self._target(namespace, topic, partition, policy) for partition in topic.partitions]
            for partition, target in zip(topic.partitions, targets, strict=True):  # from here on nothing can fail
                self._move_partition(namespace, topic, partition, policy, target)
            topic.policy = policy
            self._put_topic(namespace, topic)
        self._use(namespace, topic, written)
        return written

    def _target(self, namespace: Namespace, topic: Topic, partition: Partition, policy: Policy) -> Log:
        """The log that the partition goes on in; its own if that can stay."""
        last = partition.spans[-1]
        if policy.dedicated and not last.shared and topic.policy.engine == policy.engine:
            return last.log
        end = last.log.next_offset
        target = self._new_log(namespace, policy, end) if policy.dedicated else namespace.stem(policy)
        target.skip_to(end)
        if target.index is not None:
            target.index.topics.number(topic.name)
        return target

    def _move_partition(
        self, namespace: Namespace, topic: Topic, partition: Partition, policy: Policy, target: Log
    ) -> None:
        last = partition.spans[-1]
        if target is last.log:
            if not last.shared:
                target.durability = parse_durability(policy.durability)
                document = policy.to_document()
                self.store.put_log(LogRow(target.id, namespace.name, "partition", policy.engine, document))
            return
        last.end = last.log.next_offset
        span = Span(target, target.next_offset, None, last.seq + 1)
        partition.spans.append(span)
        self._put_span(topic, partition, last)
        self._put_span(topic, partition, span)
        number = target.index.topics.number(topic.name) if target.index is not None else 1
        partition.route.move(target, number)

    def drop_empty_spans(self, namespace: Namespace, topic: Topic) -> None:
        """Spans of which retention left nothing go, and with them logs that nobody writes any more."""
        for partition in topic.partitions:
            while len(partition.spans) > 1 and _is_empty(partition.spans[0]):
                span = partition.spans.pop(0)
                with self.store.together() as written:
                    self.store.delete_span(topic.id, partition.index, span.seq)
                    if not span.shared:
                        self.store.delete_log(span.log.id)
                if not span.shared:
                    namespace.topic_of_log.pop(span.log, None)
                    self.deletion.remove_log(span.log, written)

    def delete_topic(self, namespace: Namespace, name: bytes) -> Written:
        """See `Deletion`."""
        return self.deletion.delete_topic(namespace, name)

    def delete_records(self, namespace: Namespace, topic: Topic, partition: int, before_offset: int) -> Written:
        """Hide a partition's records below an offset (-1: all that are stable)."""
        return self.deletion.delete_records(namespace, topic, topic.partitions[partition], before_offset)

    async def erase_topic(self, namespace: Namespace, name: bytes) -> int:
        """Take a topic's records off the disk; returns how many."""
        return await self.deletion.erase_topic(namespace, name)

    # -- views -----------------------------------------------------------------------------------------------------

    def create_view(
        self,
        namespace: Namespace,
        name: bytes,
        topic_filter: bytes,
        *,
        where: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> View:
        """O(1): nothing is read, nothing is copied."""
        check_topic(name)
        check_filter(topic_filter)
        if name in namespace.views:
            raise AlreadyExists(f"view {name.decode()!r} already exists")
        if namespace.find_topic(name) is not None:
            raise InvalidName(f"{name.decode()!r} is a topic; a view needs a name of its own")
        condition = parse_condition(where)
        self.store.check_room()
        view_id = self.store.next_id(Sequence.VIEW)
        view = View(namespace, view_id, name, topic_filter, condition, dict(options or {}), self.stamps.next)
        namespace.views[name] = view
        with self.store.together():
            self.store.put_view(ViewRow(view_id, namespace.name, name, topic_filter, where, view.options, view.created))
            view.add_slots()
        return view

    def save_slot(self, view: View, slot: int, log_id: int | None) -> Written:
        return self.store.put_slot(SlotRow(view.id, slot, log_id))

    def drop_view(self, namespace: Namespace, name: bytes) -> Written:
        view = namespace.views.pop(name, None)
        if view is None:
            raise NotFound(f"no view {name.decode(errors='replace')!r}", fix="mainstem view ls")
        return self.store.delete_view(view.id)


def _is_empty(span: Span) -> bool:
    """A sealed span of which nothing is left, also for those who hold records."""
    if span.end is None:
        return False
    if span.shared:
        return span.log.engine.stat().start_offset >= span.end
    stat = span.log.engine.stat()
    return stat.start_offset == stat.end_offset and span.log.stable >= span.end
