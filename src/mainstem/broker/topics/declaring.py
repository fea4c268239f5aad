"""Declaring stems, topics and views: what exists changes here, committed first and applied then (`commits.py`).

`begin_topic` is for whoever cannot wait (a publish creates its topic): it returns at once, and the new log gathers what
arrives until the commit. `declare_*` are awaited. `create_*` wait where they stand: when the broker opens, and in tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from mainstem.broker.delivery.live import Route
from mainstem.broker.queues.exchange_names import DEFAULT, key_of
from mainstem.broker.rights.rules import AUDIT_TOPIC
from mainstem.broker.topics.commits import Commit
from mainstem.broker.topics.policy import STEMS_MAX, Policy
from mainstem.broker.topics.topic import Partition, Span, Topic
from mainstem.broker.topics.views import View
from mainstem.log.log import Log
from mainstem.metadata.rows import LogRow, Sequence, SlotRow, SpanRow, TopicRow, ViewRow
from mainstem.metadata.store import MetadataStore, Written
from mainstem.model.condition import parse_condition
from mainstem.model.errors import AlreadyExists, InvalidArgument, InvalidName, NotFound, Overloaded
from mainstem.model.topic_filter import check_filter, check_topic
from mainstem.storage.tier.iceberg.tables import check_installed

if TYPE_CHECKING:
    from mainstem.broker.delivery.ticker import Ticker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.broker.namespaces.quotas import Quotas
    from mainstem.broker.queues.registry import QueueService
    from mainstem.broker.topics.deletion import Deletion
    from mainstem.broker.transactions.coordinator import Coordinator
    from mainstem.broker.upkeep.maintenance import Maintenance
    from mainstem.broker.upkeep.works import Work
    from mainstem.log.logs import Logs
    from mainstem.log.stamps import Stamps

T = TypeVar("T")


class Declaring:
    """A part of the broker."""

    store: MetadataStore
    ticker: Ticker
    logs: Logs
    stamps: Stamps
    deletion: Deletion
    maintenance: Maintenance
    queues: QueueService
    quotas: Quotas
    coordinator: Coordinator

    def note_traced(self, namespace: Namespace, topic: Topic | None = None) -> None:
        """What is traced may have changed."""

    # -- stems -----------------------------------------------------------------------------------------------------

    def create_stem(self, namespace: Namespace, policy: Policy) -> Log:
        """It is used at once and written once it is committed; its id is nobody else's, so no name can conflict."""
        if len(namespace.stems) - len(namespace.stream_logs) >= STEMS_MAX:
            raise Overloaded(
                f"namespace {namespace.name!r} has {STEMS_MAX} stems, one for each distinct policy",
                fix="give topics one of the existing policies, or a log of their own with --layout dedicated",
            )
        self.store.check_room()
        document = policy.to_document()
        log_id = self.store.next_id(Sequence.LOG)
        log = self.logs.open(log_id, engine=policy.engine, shared=True, policy=document)
        log.syncing.promise(self.store.put_log(LogRow(log_id, namespace.name, "stem", policy.engine, document)))
        self._add_stem(namespace, policy, log)
        return log

    def add_stream_log(self, namespace: Namespace, policy: Policy, log: Log) -> None:
        """A stream's log is a stem for just its subjects: whoever reads stems reads it, too. No policy chooses it."""
        namespace.stream_logs[log] = policy
        self._add_stem(namespace, policy, log, ("stream", log.id))

    def remove_stream_log(self, namespace: Namespace, log: Log, written: Written) -> None:
        del namespace.stream_logs[log], namespace.stem_policies[log], namespace.stems["stream", log.id]
        self.deletion.remove_log(log, written)

    def _add_stem(self, namespace: Namespace, policy: Policy, log: Log, key: tuple[object, ...] | None = None) -> None:
        namespace.stems[key or policy.stem_key()] = log
        log.refusal = namespace.refusal
        namespace.stem_policies[log] = policy
        for view in namespace.views.values():
            view.add_slots()

    def _wake_maintenance(self) -> None:
        self.ticker.loop.call_soon_threadsafe(self.maintenance.wake)

    # -- topics ----------------------------------------------------------------------------------------------------

    async def declare_topic(
        self,
        namespace: Namespace,
        name: bytes,
        policy: Policy,
        *,
        kafka: Mapping[str, Any] | None = None,
    ) -> Topic:
        """Awaited: the topic exists for everyone once this returns, and for nobody before."""
        while (under_way := namespace.changing.get(name)) is not None:
            await under_way
        return await self.begin_topic(namespace, name, policy, kafka=kafka)

    def create_topic(
        self,
        namespace: Namespace,
        name: bytes,
        policy: Policy,
        *,
        kafka: Mapping[str, Any] | None = None,
        kafka_alias: str | None = None,
    ) -> Topic:
        return self.begin_topic(namespace, name, policy, kafka=kafka, kafka_alias=kafka_alias).now()

    def begin_topic(
        self,
        namespace: Namespace,
        name: bytes,
        policy: Policy,
        *,
        kafka: Mapping[str, Any] | None = None,
        kafka_alias: str | None = None,
    ) -> Commit[Topic]:
        """Declare a topic: with logs of its own, or (layout shared, one partition) in the stem of its policy.

        Where the name already lives in a stem its records stay readable: the first span is the stem's. While it is
        being created already, by another publish, that creation is returned.
        """
        check_topic(name)
        if name not in namespace.topics and (creation := namespace.creation(name)) is not None:
            return creation
        if namespace.streams is not None and (stream := namespace.streams.capture(name)) is not None:
            raise InvalidArgument(
                f"{name.decode(errors='replace')!r} is a subject of stream {stream.name!r}, which keeps it in its own log",
                fix="publish to it as it is: it needs no declaration",
            )
        namespace.check_there()
        _check_free(namespace, name)
        _check_unneeded(namespace, name, policy)
        self._check_tier(policy)
        self.store.check_room()
        before = namespace.find_topic(name)
        if before is None and name != AUDIT_TOPIC:
            self.quotas.check_topics(namespace)
        self.ticker.write_gathered()  # what was gathered for the old log belongs before the seam
        if not policy.dedicated:
            namespace.stem(policy)
        topic_id = self.store.next_id(Sequence.TOPIC)
        topic = Topic(topic_id, name, policy, [], dict(kafka or {}), kafka_alias, self.stamps.next)
        with self._all_or_none() as (written, made):
            for index in range(policy.partitions):
                spans = self._first_spans(namespace, before, policy, index)
                partition = self._add_partition(namespace, topic, index, spans)
                if spans[0].log.low_marks is not None:  # an older topic of this name may have been deleted here
                    partition.low_mark = spans[0].log.low_marks.of(name)
                for span in spans:
                    self._put_span(topic, partition, span)
            self._put_topic(namespace, topic)
        _promise(topic, made, written)
        namespace.topic_of[topic_id] = name  # a batch in a stem may name it from now on
        seam = any(len(partition.spans) > 1 for partition in topic.partitions)
        if seam:
            namespace.add_topic(topic)

        def apply() -> None:
            _release(made)
            if not seam:
                namespace.add_topic(topic)

        def undo(error: Exception) -> None:
            if seam:
                namespace.remove_topic(topic)
            namespace.forget_route(name)
            self._withdraw(made, error)

        return self._change(
            namespace,
            name,
            Commit(self.ticker.loop, written, topic, prepare=lambda: _reserve(made), apply=apply, undo=undo),
        )

    def _change(self, namespace: Namespace, name: bytes, commit: Commit[T]) -> Commit[T]:
        """Until it is finished the next change of the same name waits for it."""

        def finished() -> None:
            if namespace.changing.get(name) is commit:
                del namespace.changing[name]

        namespace.changing[name] = commit
        commit.on_finished = finished
        return commit

    def _withdraw(self, made: list[Log], error: Exception) -> None:
        """What was made for a change that was refused goes, and who published into it is told why."""
        for log in made:
            log.withdraw(error)
            self.deletion.remove_log(log)

    @contextmanager
    def _all_or_none(self) -> Iterator[tuple[Written, list[Log]]]:
        """Metadata and logs made together: where one cannot be had (a full disk, a limit) no other stays open.

        The new logs, in the list after the `with`, write nothing before they are released."""
        before, made = len(self.logs.by_id), list[Log]()
        try:
            with self.store.together() as written:
                yield written, made
        except BaseException:
            for log in self._newest_logs(before):
                self.deletion.remove_log(log)
            raise
        made += self._newest_logs(before)
        for log in made:
            log.hold_writes()

    def _newest_logs(self, before: int) -> list[Log]:
        """Opened since there were so many."""
        by_id = self.logs.by_id
        return list(islice(reversed(by_id.values()), len(by_id) - before))[::-1]

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
        log.refusal = namespace.refusal
        self.store.put_log(LogRow(log_id, namespace.name, "partition", policy.engine, document))
        return log

    def _add_partition(self, namespace: Namespace, topic: Topic, index: int, spans: list[Span]) -> Partition:
        partition = _partition(namespace, topic, index, spans)
        topic.partitions.append(partition)
        return partition

    def _put_span(self, topic: Topic, partition: Partition, span: Span) -> None:
        self.store.put_span(SpanRow(topic.id, partition.index, span.seq, span.log.id, span.first, span.end))

    def _put_topic(self, namespace: Namespace, topic: Topic, low_marks: Mapping[int, int] | None = None) -> Written:
        """`low_marks`: of partitions, where they are about to change."""
        marks = {p.index: p.low_mark for p in topic.partitions if p.low_mark} | dict(low_marks or {})
        config = {
            "policy": topic.policy.to_document(),
            "kafka": topic.config,
            "low_marks": {str(index): mark for index, mark in marks.items()},
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

    def _check_tier(self, policy: Policy) -> None:
        if (policy.tier != "none" or policy.engine == "object") and self.logs.tier is None:
            asked = "engine 'object'" if policy.engine == "object" else f"tier {policy.tier!r}"
            raise InvalidArgument(
                f"{asked}: this broker has no object store",
                fix='set one and start again: [tier] store = "s3://BUCKET/PREFIX"',
            )
        if policy.tier == "iceberg":
            if self.logs.replicated:
                raise InvalidArgument("tier 'iceberg': the catalog of tables lies on one machine", fix="use tier s3")
            check_installed()

    def save_topic(self, namespace: Namespace, topic: Topic, low_marks: Mapping[int, int] | None = None) -> Written:
        """After a change of its settings, or for one of its low marks."""
        return self._put_topic(namespace, topic, low_marks)

    async def alter_topic(
        self, namespace: Namespace, topic: Topic, policy: Policy, *, kafka: dict[str, Any] | None = None
    ) -> None:
        """Change settings that move nothing: committed, then in force."""
        self._check_tier(policy)
        _check_unneeded(namespace, topic.name, policy)
        await _settled(namespace, topic.name)
        planned = Topic(topic.id, topic.name, policy, topic.partitions, kafka if kafka is not None else topic.config)
        planned.kafka_alias, planned.created = topic.kafka_alias, topic.created

        def apply() -> None:
            self.ticker.write_now()  # what was gathered goes to whom it was gathered for
            topic.policy, topic.config = policy, planned.config
            for partition in topic.partitions:
                _direct(namespace, partition)
            namespace.forget_routes()
            self.note_traced(namespace, topic)
            for log in {partition.log for partition in topic.partitions if policy.dedicated}:
                log.durability = self.logs.durability_of(policy.durability)

        written = self._put_topic(namespace, planned)
        await self._change(namespace, topic.name, Commit(self.ticker.loop, written, topic, apply=apply))

    async def add_partitions(self, namespace: Namespace, topic: Topic, count: int) -> None:
        await _settled(namespace, topic.name)
        if count <= len(topic.partitions):
            raise InvalidArgument(f"{topic.name.decode()!r} has {len(topic.partitions)} partitions; they can only grow")
        self.store.check_room()
        if not topic.policy.dedicated:
            await self.move_topic(namespace, topic, topic.policy.with_changes({"layout": "dedicated"}))
        planned = Topic(topic.id, topic.name, topic.policy.with_changes({"partitions": count}), list(topic.partitions))
        planned.config, planned.kafka_alias, planned.created = topic.config, topic.kafka_alias, topic.created
        with self._all_or_none() as (written, made):
            for index in range(len(topic.partitions), count):
                span = Span(self._new_log(namespace, planned.policy), 0)
                partition = _partition(namespace, topic, index, [span])
                planned.partitions.append(partition)
                self._put_span(topic, partition, span)
            self._put_topic(namespace, planned)

        def apply() -> None:
            _release(made)
            topic.partitions, topic.policy = planned.partitions, planned.policy
            namespace.add_topic(topic)

        def undo(error: Exception) -> None:
            self._withdraw(made, error)

        await self._change(
            namespace,
            topic.name,
            Commit(self.ticker.loop, written, topic, prepare=lambda: _reserve(made), apply=apply, undo=undo),
        )

    async def relocate_topic(self, namespace: Namespace, topic: Topic, policy: Policy) -> None:
        """`move_topic`, once no transaction is open in it."""
        await _settled(namespace, topic.name)
        async with self.coordinator.without_transactions(topic):
            await self.move_topic(namespace, topic, policy)

    def move_topic(self, namespace: Namespace, topic: Topic, policy: Policy) -> Commit[Topic]:
        """Change engine, layout or policy of a live topic. Where another log is needed the open spans are sealed at N,
        and the new ones go on at N or beyond. Publishers go on there at once; nothing is written before the commit."""
        if len(topic.partitions) > 1 and not policy.dedicated:
            raise InvalidArgument(
                f"{topic.name.decode()!r} has {len(topic.partitions)} partitions and cannot share a log"
            )
        if topic.name in namespace.changing and topic.name in namespace.topics:  # its own creation comes first anyway
            raise Overloaded(f"{topic.name.decode(errors='replace')!r} is being changed; try again")
        self._check_tier(policy)
        _check_unneeded(namespace, topic.name, policy)
        self.store.check_room()
        self.ticker.write_now()
        if not policy.dedicated:
            namespace.stem(policy)
        old_policy, undone = topic.policy, list[tuple[Partition, Span]]()
        with self._all_or_none() as (written, made):
            targets = [self._target(namespace, topic, partition, policy) for partition in topic.partitions]
            for partition, target in zip(topic.partitions, targets, strict=True):  # from here on nothing can fail
                undone.append((partition, partition.spans[-1]))
                self._move_partition(namespace, topic, partition, policy, target)
            topic.policy = policy
            for partition in topic.partitions:
                _direct(namespace, partition)
            self._put_topic(namespace, topic)
        _promise(topic, made, written)
        namespace.add_topic(topic)

        def apply() -> None:
            _release(made)

        def undo(error: Exception) -> None:
            topic.policy = old_policy
            for partition, last in undone:
                if partition.spans[-1] is not last:
                    left = partition.spans.pop().log
                    namespace.topic_of_log.pop(left, None)
                    self.coordinator.producers.move(left, last.log, topic.id)
                    last.end = None
                _direct(namespace, partition)
            self._withdraw(made, error)
            namespace.forget_route(topic.name)

        return self._change(
            namespace,
            topic.name,
            Commit(self.ticker.loop, written, topic, prepare=lambda: _reserve(made), apply=apply, undo=undo),
        )

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
                target.durability = self.logs.durability_of(policy.durability)
                document = policy.to_document()
                self.store.put_log(LogRow(target.id, namespace.name, "partition", policy.engine, document))
            return
        last.end = last.log.next_offset
        span = Span(target, target.next_offset, None, last.seq + 1)
        partition.spans.append(span)
        self._put_span(topic, partition, last)
        self._put_span(topic, partition, span)
        self.coordinator.producers.move(last.log, target, topic.id)

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

    def delete_topic(self, namespace: Namespace, name: bytes) -> Commit[None]:
        """See `Deletion`."""
        return self.deletion.delete_topic(namespace, name)

    def delete_records(self, namespace: Namespace, topic: Topic, partition: int, before_offset: int) -> Commit[None]:
        """Hide a partition's records below an offset (-1: all that are stable)."""
        return self.deletion.delete_records(namespace, topic, topic.partitions[partition], before_offset)

    async def erase_topic(self, namespace: Namespace, name: bytes, work: Work | None = None) -> int:
        """Take a topic's records off the disk; returns how many."""
        return await self.deletion.erase_topic(namespace, name, work)

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
        return self.begin_view(namespace, name, topic_filter, where=where, options=options).now()

    def begin_view(
        self,
        namespace: Namespace,
        name: bytes,
        topic_filter: bytes,
        *,
        where: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> Commit[View]:
        """O(1): nothing is read, nothing is copied. Await it: nobody finds the view before it is committed."""
        check_topic(name)
        check_filter(topic_filter)
        if name in namespace.views:
            raise AlreadyExists(f"view {name.decode()!r} already exists")
        if namespace.find_topic(name) is not None:
            raise InvalidName(f"{name.decode()!r} is a topic; a view needs a name of its own")
        if self.queues.of(namespace).find(key_of(DEFAULT, name)) is not None:
            raise InvalidName(f"{name.decode()!r} is a queue; a view needs a name of its own")
        if name in namespace.changing:
            raise AlreadyExists(f"{name.decode()!r} is being created")
        namespace.check_stored(topic_filter)
        condition = parse_condition(where)
        self.store.check_room()
        view_id = self.store.next_id(Sequence.VIEW)
        view = View(namespace, view_id, name, topic_filter, condition, dict(options or {}), self.stamps.next)
        with self.store.together() as written:
            self.store.put_view(ViewRow(view_id, namespace.name, name, topic_filter, where, view.options, view.created))
            view.add_slots()

        def apply() -> None:
            namespace.views[name] = view
            view.add_slots()  # of logs that came meanwhile
            namespace.forget_route(name)

        return self._change(namespace, name, Commit(self.ticker.loop, written, view, apply=apply))

    def save_slot(self, view: View, slot: int, log_id: int | None) -> Written:
        return self.store.put_slot(SlotRow(view.id, slot, log_id))

    def drop_view(self, namespace: Namespace, name: bytes) -> Commit[None]:
        view = namespace.views.get(name)
        if view is None:
            raise NotFound(f"no view {name.decode(errors='replace')!r}", fix="mainstem view ls")
        written = self.store.delete_view(view.id)

        def apply() -> None:
            if namespace.views.get(name) is view:
                del namespace.views[name]

        return Commit(self.ticker.loop, written, None, apply=apply)


def _check_free(namespace: Namespace, name: bytes) -> None:
    if name in namespace.topics or name in namespace.views:
        kind = "topic" if name in namespace.topics else "view"
        raise AlreadyExists(f"{kind} {name.decode(errors='replace')!r} already exists")
    if name in namespace.changing:
        raise AlreadyExists(f"view {name.decode(errors='replace')!r} is being created")


def _check_unneeded(namespace: Namespace, name: bytes, policy: Policy) -> None:
    """A topic that becomes live only must not be one whose records somebody waits for."""
    reader = namespace.reader_of(name) if not policy.store else ""
    if reader:
        raise InvalidArgument(
            f"{name.decode(errors='replace')!r} cannot be live only (store = false): {reader} reads what it stores",
            fix="remove that first, or let the topic be stored",
        )


async def _settled(namespace: Namespace, name: bytes) -> None:
    """Until no change of the topic is under way: each is planned on what the one before left."""
    while (under_way := namespace.changing.get(name)) is not None:
        await under_way


def _partition(namespace: Namespace, topic: Topic, index: int, spans: list[Span]) -> Partition:
    log = spans[-1].log
    number = log.index.topics.number(topic.name) if log.index is not None else 1
    partition = Partition(topic, index, spans, Route(topic.name, number, log, namespace))
    _direct(namespace, partition)
    return partition


def _direct(namespace: Namespace, partition: Partition) -> None:
    """Publishes go to the last of its logs, or past it where the topic is live only: the log stays the topic's."""
    log, route = partition.log, partition.route
    if not partition.topic.policy.store:
        route.move(namespace.live_log, 1)
    elif route.log is not log:
        route.move(log, log.index.topics.number(partition.topic.name) if log.index is not None else 1)
    route.epoch = 0  # others may listen to what is stored than to what is not


def _promise(topic: Topic, made: list[Log], written: Written) -> None:
    """A log that exists already cannot be held for one topic: what is published into it is not acked before the commit."""
    for log in {partition.log for partition in topic.partitions}.difference(made):
        log.syncing.promise(written)


def _reserve(made: list[Log]) -> None:
    for log in made:
        log.reserve_first()


def _release(made: list[Log]) -> None:
    for log in made:
        log.release_writes()


def _is_empty(span: Span) -> bool:
    """A sealed span of which nothing is left, also for those who hold records."""
    if span.end is None:
        return False
    if span.shared:
        return span.log.engine.stat().start_offset >= span.end
    stat = span.log.engine.stat()
    return stat.start_offset == stat.end_offset and span.log.stable >= span.end
