"""All streams and their consumers: declaring, finding and deleting them, their journal, their clock.

Declarations are metadata (items of kinds `stream` and `consumer`); what happened to them is journaled in the default stem:

    journal kind "stream":    key = u32 log id;  value: `stream_entries.py` draws it
    journal kind "consumer":  key = u32 id;  value = i64 consumer sequence, i64 delivered, a change of the cursor;
                              or i64 −1, i64 offset: it begins again there

A consumer that is not durable is in no journal: it ends with the broker.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainstem.broker.state.journal import Entries
from mainstem.broker.streams.consumer import Consumer
from mainstem.broker.streams.joined import make_consumer
from mainstem.broker.streams.mirror import Mirror
from mainstem.broker.streams.policy import LOG_KIND, changed_policy, put_policy, use_policy
from mainstem.broker.streams.recovery import recover
from mainstem.broker.streams.settings import StreamSettings
from mainstem.broker.streams.sourcing import Granted
from mainstem.broker.streams.stream import Stream
from mainstem.broker.streams.stream_entries import (
    COUNT_EVERY,
    SOURCES,
    apply_entry,
    gone_entry,
    state_entry,
    waits_entries,
)
from mainstem.broker.streams.streams import Streams
from mainstem.broker.topics.commits import Commit
from mainstem.log.away import bring
from mainstem.metadata.rows import Item, ItemKind, LogRow, Sequence
from mainstem.metadata.store import Written
from mainstem.model.errors import Overloaded
from mainstem.model.record import Record
from mainstem.model.topic_filter import matches
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.log.gather import Ticket
    from mainstem.log.log import Log

logger = logging.getLogger("mainstem.broker")

STREAMS_MAX = 10_000
CONSUMERS_MAX = 100_000
CHECKPOINT_S = 1.0
ALARM_S = 0.02  # messages that end within it end together
STREAM_KIND, CONSUMER_KIND = "stream", "consumer"
_KEY = struct.Struct(">I")
_PLACE = struct.Struct(">qq")
RESET = -1
ENGINE_OF_STORAGE = {"memory": "memory"}  # JetStream's word → the engine; `file` is whatever the namespace has


class StreamService:
    """What the streams of all namespaces share: journal, timers."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._namespaces: dict[str, Streams] = {}
        self.by_log: dict[int, Stream] = {}
        self.by_id: dict[int, Consumer] = {}
        self._pending: set[Consumer] = set()
        self._timers: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        self._alarms: dict[int, tuple[int, asyncio.TimerHandle]] = {}  # by log id: when a message of a stream ends
        self._checkpoint: asyncio.TimerHandle | None = None
        for kind, apply, dump, namespace_of in (
            (STREAM_KIND, self._apply_stream, self._dump_streams, self._stream_namespace),
            (CONSUMER_KIND, self._apply_consumer, self._dump_consumers, self._consumer_namespace),
        ):
            broker.journal.register(kind, apply, dump, namespace_of, entries=Entries.CHANGES)

    def of(self, namespace: Namespace) -> Streams:
        found = self._namespaces.get(namespace.name)
        if found is None or found.namespace is not namespace:
            found = self._namespaces[namespace.name] = Streams(self, namespace)
            namespace.streams = found
        return found

    def now_ns(self) -> int:
        return self.broker.clock.now_ns()

    def now_ms(self) -> int:
        return self.broker.clock.now_ns() // 1_000_000

    # -- opening ---------------------------------------------------------------------------------------------------

    def load(self, items: list[Item]) -> None:
        """Before the journal is recovered."""
        for namespace in self.broker.namespaces.values():
            self.of(namespace)
        streams = [i for i in items if i.kind == ItemKind.STREAM and i.namespace in self.broker.namespaces]
        for item in streams:
            if "mirror" not in item.body:
                self._load_stream(item)
        for item in streams:
            if "mirror" in item.body:
                self._load_mirror(item)
        for item in items:
            if item.kind == ItemKind.CONSUMER and item.namespace in self.broker.namespaces:
                self._load_consumer(item)

    def _load_stream(self, item: Item) -> None:
        log = self.broker.logs.by_id.get(item.body["log"])
        if log is None or log.index is None:
            logger.error("stream %r: its log %s is not there", item.name, item.body["log"])
            return
        streams = self.of(self.broker.namespace(item.namespace))
        stream = Stream(self, streams.namespace, item.name, log, item.body["config"], item.body["created"])
        stream.first = log.start_offset
        stream.last_seq = item.body.get("begin", 0)
        stream.granted = item.body.get("granted") or {}
        stream.former = tuple(one.encode() for one in item.body.get("former") or ())
        self.by_log[log.id] = stream
        streams.add(stream)

    def _load_mirror(self, item: Item) -> None:
        streams, body = self.of(self.broker.namespace(item.namespace)), item.body
        origin = streams.by_name.get(body["mirror"])
        if origin is None:
            logger.error("stream %r: its origin %r is not there", item.name, body["mirror"])
            return
        streams.add(Mirror(origin, item.name, body["config"], body["created"], body["start"]))

    def _load_consumer(self, item: Item) -> None:
        name, _, durable = item.name.partition("/")
        stream = self.of(self.broker.namespace(item.namespace)).by_name.get(name)
        if stream is not None:
            body = item.body
            consumer = make_consumer(stream, durable, body["id"], body["config"], body["created"], body["start"])
            self.by_id[consumer.id] = stream.consumers[durable] = consumer

    def start(self) -> None:
        """After the journal is recovered: count what it does not know."""
        for stream in self.by_log.values():
            recover(stream)
        for consumer in self.by_id.values():
            consumer.recover()
        for stream in self.by_log.values():
            stream.sourcing.start()
        self._checkpoint = asyncio.get_running_loop().call_later(CHECKPOINT_S, self._on_checkpoint)

    def close(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.cancel()
        for _, handle in (*self._timers.values(), *self._alarms.values()):
            handle.cancel()
        for stream in self.by_log.values():
            stream.flush_removed()
        for consumer in self.by_id.values():
            self.journal_consumer(consumer)

    # -- declaring -------------------------------------------------------------------------------------------------

    def create(
        self, namespace: Namespace, config: dict[str, Any], *, durability: str = "", granted: Granted | None = None
    ) -> Commit[Stream]:
        """Checked by who asks; the stream exists once this is committed."""
        streams, broker = self.of(namespace), self.broker
        if len(streams.by_name) >= STREAMS_MAX:
            raise Overloaded(f"namespace {namespace.name!r} has {STREAMS_MAX} streams")
        broker.store.check_room()
        broker.ticker.write_now()
        changes: dict[str, Any] = {"retention_ms": -1, "layout": "shared", "retention_bytes": -1, "store": True}
        if engine := ENGINE_OF_STORAGE.get(config.get("storage", "")):
            changes["engine"] = engine
        if durability:
            changes["durability"] = durability
        policy = namespace.defaults.with_changes(changes)
        document = policy.to_document()
        filters = StreamSettings.of(config).filters
        begin = max(streams.begin_offset(filters), max(0, config.get("first_seq", 0) - 1))
        log_id = broker.store.next_id(Sequence.LOG)
        log = broker.logs.open(log_id, engine=policy.engine, shared=True, policy=document, first_offset=begin)
        log.skip_to(begin)
        created = self.now_ns()
        body = {"log": log_id, "created": created, "begin": begin, "config": config, "granted": granted or {}}
        with broker.store.together() as written:
            broker.store.put_log(LogRow(log_id, namespace.name, LOG_KIND, policy.engine, document))
            broker.store.put_item(ItemKind.STREAM, namespace.name, config["name"], body)
        stream = Stream(self, namespace, config["name"], log, config, created)
        stream.first = stream.last_seq = begin
        stream.granted = granted or {}

        def apply() -> None:
            broker.add_stream_log(namespace, policy, log)
            self.by_log[log_id] = stream
            streams.add(stream)
            streams.run_sources(stream.name)

        def undo(error: Exception) -> None:
            broker.deletion.remove_log(log)

        return Commit(broker.ticker.loop, written, stream, apply=apply, undo=undo)

    def create_mirror(self, origin: Stream, config: dict[str, Any], start: int) -> Commit[Stream]:
        """A view of a stream, from an offset on."""
        streams, created = self.of(origin.namespace), self.now_ns()
        mirror: Stream = Mirror(origin, config["name"], config, created, start)
        body = {"mirror": origin.name, "created": created, "start": start, "config": config}
        written = self.broker.store.put_item(ItemKind.STREAM, origin.namespace.name, mirror.name, body)

        def apply() -> None:
            streams.add(mirror)
            streams.run_sources(mirror.name)

        return Commit(self.broker.ticker.loop, written, mirror, apply=apply)

    def update(
        self,
        stream: Stream,
        config: dict[str, Any],
        granted: Granted | None = None,
        *,
        durability: str | None = None,
    ) -> Commit[Stream]:
        """`durability`: where it changes; empty: as the namespace's topics."""
        policy = changed_policy(stream, durability) if durability is not None else None
        body = {"log": stream.log.id, "created": stream.created_ns, "begin": 0, "config": config}
        body["granted"] = granted or {}
        filters = StreamSettings.of(config).filters
        gone = {*stream.former, *stream.settings.filters} - {*filters} if stream.messages else set()
        body["former"] = [one.decode() for one in sorted(gone)]
        if isinstance(stream, Mirror):
            body = {"mirror": stream.origin.name, "created": stream.created_ns, "start": stream.start, "config": config}
        with self.broker.store.together() as written:
            self.broker.store.put_item(ItemKind.STREAM, stream.namespace.name, stream.name, body)
            if policy is not None:
                put_policy(stream, policy)

        def apply() -> None:
            self.broker.ticker.write_now()
            if policy is not None:
                use_policy(stream, policy)
            stream.granted, stream.former = granted or {}, tuple(sorted(gone))
            was = stream.settings.retention
            self.of(stream.namespace).change(stream, config)
            if was != stream.settings.retention == "interest":
                self.drop_unwanted(stream)

        return Commit(self.broker.ticker.loop, written, stream, apply=apply)

    def delete(self, stream: Stream) -> Commit[None]:
        namespace, broker = stream.namespace, self.broker
        broker.ticker.write_now()
        with broker.store.together() as written:
            broker.store.delete_item(ItemKind.STREAM, namespace.name, stream.name)
            if not isinstance(stream, Mirror):
                broker.store.delete_log(stream.log.id)
            for consumer in stream.consumers.values():
                if consumer.settings.durable:
                    broker.store.delete_item(ItemKind.CONSUMER, namespace.name, f"{stream.name}/{consumer.name}")

        def apply() -> None:
            if stream.deleted:
                return
            stream.deleted = True
            for consumer in list(stream.consumers.values()):
                self._forget(consumer)
            self.of(namespace).remove(stream)
            if isinstance(stream, Mirror):
                return
            self.by_log.pop(stream.log.id, None)
            broker.journal.put(STREAM_KIND, _KEY.pack(stream.log.id), None)
            end = stream.log.next_offset
            broker.remove_stream_log(namespace, stream.log, written)
            if end:  # its subjects go on in a stem: with offsets nobody has seen
                namespace.stem(namespace.defaults).skip_to(end)

        return Commit(broker.ticker.loop, written, None, apply=apply)

    def add_consumer(self, stream: Stream, name: str, config: dict[str, Any], start: int) -> Commit[Consumer]:
        if len(self.by_id) >= CONSUMERS_MAX:
            raise Overloaded(f"there are {CONSUMERS_MAX} consumers")
        created = self.now_ns()
        consumer_id = self.broker.store.next_id(Sequence.QUEUE)
        consumer = make_consumer(stream, name, consumer_id, config, created, start)

        def apply() -> None:
            if not stream.deleted:
                self.by_id[consumer_id] = stream.consumers[name] = consumer

        return Commit(self.broker.ticker.loop, self._put_consumer(consumer, start), consumer, apply=apply)

    def update_consumer(self, consumer: Consumer, config: dict[str, Any]) -> Commit[Consumer]:
        def apply() -> None:
            consumer.change(config)
            consumer.on_ready()

        was, consumer.config = consumer.config, config
        written = self._put_consumer(consumer, consumer.cursor.next)
        consumer.config = was
        return Commit(self.broker.ticker.loop, written, consumer, apply=apply)

    def _put_consumer(self, consumer: Consumer, start: int) -> Written:
        store, stream = self.broker.store, consumer.stream
        if not consumer.config.get("durable_name"):
            done = Written()
            done.set_result(None)
            return done
        body = {"id": consumer.id, "created": consumer.created_ns, "start": start, "config": consumer.config}
        return store.put_item(ItemKind.CONSUMER, stream.namespace.name, f"{stream.name}/{consumer.name}", body)

    def delete_consumer(self, consumer: Consumer) -> Written | None:
        """It is gone at once; `None`: it was not durable."""
        stream = consumer.stream
        written = None
        if consumer.settings.durable:
            written = self.broker.store.delete_item(
                ItemKind.CONSUMER, stream.namespace.name, f"{stream.name}/{consumer.name}"
            )
        self._forget(consumer)
        if stream.settings.retention == "interest":
            self.drop_unwanted(stream)
        return written

    def _forget(self, consumer: Consumer) -> None:
        consumer.let_go()
        consumer.deleted = True
        consumer.stream.consumers.pop(consumer.name, None)
        self.by_id.pop(consumer.id, None)
        self._pending.discard(consumer)
        timer = self._timers.pop(consumer.id, None)
        if timer is not None:
            timer[1].cancel()
        if consumer.settings.durable:
            self.broker.journal.put(CONSUMER_KIND, _KEY.pack(consumer.id), None)
        consumer.on_deleted()

    # -- retention by interest -------------------------------------------------------------------------------------

    def on_settled(self, consumer: Consumer, offsets: list[int]) -> None:
        """Of workqueues a settled message goes; by interest, once every consumer that takes it has settled it."""
        stream = consumer.stream
        if stream.settings.retention == "workqueue":
            stream.remove(offsets)
        elif stream.settings.retention == "interest":
            try:
                gone = [offset for offset in offsets if not self._owed(stream, stream.read_one(offset))]
            except NotLocal as missing:
                bring(missing, lambda: None if stream.deleted else self.on_settled(consumer, offsets))
                return
            stream.remove(gone)
        else:
            return
        stream.flush_removed()

    def _owed(self, stream: Stream, record: Record | None) -> bool:
        if record is None:
            return False
        offset = record.offset
        for consumer in stream.consumers.values():
            filters = consumer.settings.filters
            if filters and not any(matches(f, stream.plain(record.topic)) for f in filters):
                continue
            if offset >= consumer.cursor.next or consumer.cursor.holds(offset):
                return True
        return False

    def drop_unwanted(self, stream: Stream, start: int = 0) -> None:
        """What no consumer is owed is removed: one was deleted, or the stream was not kept by interest before."""
        unwanted, at = list[int](), max(start, stream.first)
        try:
            for record in stream.walk((), at, stream.end):
                at = record.offset + 1
                if not self._owed(stream, record):
                    unwanted.append(record.offset)
        except NotLocal as missing:
            bring(missing, lambda: None if stream.deleted else self.drop_unwanted(stream, at))
        stream.remove(unwanted)
        stream.flush_removed()

    # -- journal ---------------------------------------------------------------------------------------------------

    def journal_state(self, stream: Stream) -> Ticket:
        removed, _ = stream.take_removed()
        return self.broker.journal.put(STREAM_KIND, _KEY.pack(stream.log.id), state_entry(stream, removed))

    def journal_removed(self, stream: Stream) -> Ticket:
        entry = gone_entry(stream, *stream.take_removed())
        return self.broker.journal.put(STREAM_KIND, _KEY.pack(stream.log.id), entry)

    def _keep_counted(self, stream: Stream) -> None:
        """Now and then, so that a start after kill -9 looks at few of its messages."""
        end = min(stream.end, stream.last_seq)
        if end - stream.counted.end >= COUNT_EVERY:
            self.journal_state(stream)
        if stream.waits.wanted and end - stream.waits.told_end >= COUNT_EVERY:
            for one in waits_entries(stream.waits.take(end), end):
                self.broker.journal.put(STREAM_KIND, _KEY.pack(stream.log.id), one)

    def _apply_stream(self, key: bytes, value: bytes | None) -> None:
        stream = self.by_log.get(_KEY.unpack(key)[0])
        if stream is not None and value is not None:
            apply_entry(stream, value)

    def _dump_streams(self) -> Iterator[tuple[bytes, bytes]]:
        for log_id, stream in list(self.by_log.items()):
            if self.by_log.get(log_id) is not stream:
                continue
            key, state = _KEY.pack(log_id), state_entry(stream, stream.removed.all())
            waits = waits_entries(stream.waits.all(stream.counted.end), stream.counted.end)
            yield key, state
            if stream.waits.wanted:
                for one in waits:
                    yield key, one
            if stream.sourcing.journaled:
                yield key, SOURCES + stream.sourcing.journaled

    def _stream_namespace(self, key: bytes) -> str:
        stream = self.by_log.get(_KEY.unpack(key)[0])
        return stream.namespace.name if stream is not None else "/"

    def journal_consumer(self, consumer: Consumer) -> Ticket | None:
        self._pending.discard(consumer)
        if not consumer.settings.durable:
            return None
        change = consumer.cursor.changes()
        if change is None:
            return None
        place = _PLACE.pack(consumer.consumer_seq, consumer.delivered)
        return self.broker.journal.put(CONSUMER_KIND, _KEY.pack(consumer.id), place + change)

    def journal_reset(self, consumer: Consumer, start: int) -> Ticket | None:
        self._pending.discard(consumer)
        if not consumer.settings.durable:
            return None
        return self.broker.journal.put(CONSUMER_KIND, _KEY.pack(consumer.id), _PLACE.pack(RESET, start))

    def note_pending(self, consumer: Consumer) -> None:
        if consumer.settings.durable:
            self._pending.add(consumer)

    def _apply_consumer(self, key: bytes, value: bytes | None) -> None:
        consumer = self.by_id.get(_KEY.unpack(key)[0])
        if consumer is None or value is None:
            return
        consumer_seq, delivered = _PLACE.unpack_from(value)
        if consumer_seq == RESET:
            consumer.begin_again(delivered)
            return
        consumer.consumer_seq = max(consumer.consumer_seq, consumer_seq)
        consumer.delivered = max(consumer.delivered, delivered)
        consumer.cursor.apply(value[_PLACE.size :])

    def _dump_consumers(self) -> Iterator[tuple[bytes, bytes]]:
        for consumer in list(self.by_id.values()):
            if consumer.settings.durable and self.by_id.get(consumer.id) is consumer:
                place = _PLACE.pack(consumer.consumer_seq, consumer.delivered)
                yield _KEY.pack(consumer.id), place + consumer.cursor.snapshot()

    def _consumer_namespace(self, key: bytes) -> str:
        consumer = self.by_id.get(_KEY.unpack(key)[0])
        return consumer.stream.namespace.name if consumer is not None else "/"

    # -- time ------------------------------------------------------------------------------------------------------

    def _on_checkpoint(self) -> None:
        pending, self._pending = self._pending, set()
        for consumer in pending:
            if not consumer.deleted:
                self.journal_consumer(consumer)
        for stream in list(self.by_log.values()):
            if stream.settings.max_age_ns > 0:
                stream.expire()
            self._keep_counted(stream)
            places = stream.sourcing.state()
            if places is not None:
                self.broker.journal.put(STREAM_KIND, _KEY.pack(stream.log.id), SOURCES + places)
        self._checkpoint = asyncio.get_running_loop().call_later(CHECKPOINT_S, self._on_checkpoint)

    def arm(self, stream: Stream) -> None:
        """Look at the stream when a message of it ends or is to be published."""
        due_ns = stream.next_due_ns()
        known = self._alarms.get(stream.log.id)
        if due_ns is None or (known is not None and known[0] <= due_ns):
            return
        if known is not None:
            known[1].cancel()
        delay = max(ALARM_S, (due_ns - self.now_ns()) / 1e9)
        handle = self.broker.ticker.loop.call_later(delay, self._on_alarm, stream)
        self._alarms[stream.log.id] = (due_ns, handle)

    def _on_alarm(self, stream: Stream) -> None:
        self._alarms.pop(stream.log.id, None)
        if not stream.deleted:
            stream.expire_single()
            stream.run_schedules()
            self.arm(stream)

    def schedule(self, consumer: Consumer) -> None:
        """Look at its leases when the first may have run out."""
        due_ms = consumer.cursor.next_event_ms()
        known = self._timers.get(consumer.id)
        if due_ms is None or consumer.deleted:
            return
        if known is not None:
            if known[0] <= due_ms:
                return
            known[1].cancel()
        delay = max(0, due_ms - self.now_ms()) / 1000 + 0.001
        handle = asyncio.get_running_loop().call_later(delay, self._on_due, consumer)
        self._timers[consumer.id] = (due_ms, handle)

    def _on_due(self, consumer: Consumer) -> None:
        self._timers.pop(consumer.id, None)
        if not consumer.deleted:
            consumer.on_time(self.now_ms())
            self.schedule(consumer)


def keep_counts(service: StreamService, log: Log) -> None:
    """Parts of it leave this machine: a start counts on from here, and not what it would have to fetch for it."""
    stream = service.by_log.get(log.id)
    if stream is not None:
        service.broker.ticker.write_now()
        service.journal_state(stream)
