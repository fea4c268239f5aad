"""Share groups over queues: which queue a group's topic is, and what each member holds.

- A share group's topic is a queue of its own over that topic (or view), named `share/<group>/<topic>`.
- A group whose id is the name of an existing queue, subscribed to that name, joins that queue: its members compete with
  the queue's AMQP and MQTT consumers. Its records lie in many logs, so there the offset told is the record's stamp.

A member's session holds the records it was given. Whatever it does not settle goes back when its lock expires, or when
the session or its connection ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.queue import Outcome, Queue, Taken
from mainstem.broker.queues.settings import QueueSettings
from mainstem.codec.batch import read_frame_head, rebuild_batches
from mainstem.model.crossing import kafka_record
from mainstem.model.origin import Origin
from mainstem.model.topic_filter import literal_filter
from mainstem.protocols.kafka.config_table import GROUP_SETTINGS, READ_UNCOMMITTED
from mainstem.protocols.kafka.kafka_topics import KafkaTopic
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.log.gather import Ticket
    from mainstem.log.log import Log
    from mainstem.metadata.store import Written
    from mainstem.protocols.kafka.service import KafkaService

SESSIONS_MAX = 2_000
LOCKS_MAX = 2_000  # records that one member may hold
NS_PER_MS = 1_000_000
END_OF_STAMPS = (1 << 63) - 1
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
OUTCOMES = {ACCEPT: Outcome.ACK, RELEASE: Outcome.RELEASE, REJECT: Outcome.REJECT}
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")

Place = tuple[bytes, int, int]  # topic id, partition, offset


class ShareSource:
    """A queue as a Kafka topic."""

    def __init__(self, queue: Queue, topic: KafkaTopic, *, by_stamp: bool) -> None:
        self.queue = queue
        self.topic = topic
        self.by_stamp = by_stamp

    def place(self, taken: Taken, partitions: dict[int, int]) -> tuple[int, int]:
        if self.by_stamp:
            return 0, taken.position
        return partitions.get(taken.log_id, 0), taken.record.offset

    def partitions(self) -> dict[int, int]:
        """log id → partition"""
        topic = self.topic
        if topic.view is not None:
            return {log_id: slot for slot, log_id in enumerate(topic.view.slots) if log_id is not None}
        if topic.topic is None:
            return {}
        return {span.log.id: p.index for p in topic.topic.partitions for span in p.spans}

    def rest_of_batch(self, taken: Taken) -> tuple[int, int, int] | None:
        """Log, how many records may follow in the batch that this one was produced in, and the stamp of the last; None:
        it is the last, or the batch is no producer's own (a view's, a queue's), or lies too far away to look."""
        if self.by_stamp or self.topic.topic is None or self.topic.view is not None:
            return None
        spans = (span for partition in self.topic.topic.partitions for span in partition.spans)
        log = next((span.log for span in spans if span.log.id == taken.log_id), None)
        try:
            piece = log.read_anywhere(taken.record.offset, 1) if log is not None else None
        except NotLocal:
            return None
        if log is None or piece is None:
            return None
        head = read_frame_head(piece.data, 0, log.id)
        ahead = head.base_offset + head.count - 1 - taken.record.offset
        return (log.id, ahead, taken.position + ahead) if ahead > 0 and head.origin == Origin.KAFKA else None


class Given:
    """What one fetch got of one partition: batches, and which offsets of them are acquired."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Taken]] = []  # offset

    def batches(self, *, through_view: bool) -> bytes:
        records = []
        for offset, taken in self.taken:
            record = kafka_record(taken.record, through_view=through_view)
            record.offset = offset
            records.append(record)
        return rebuild_batches(records)

    def ranges(self) -> list[tuple[int, int, int]]:
        """(first, last, delivery count): neighbours with the same count together."""
        found: list[tuple[int, int, int]] = []
        for offset, taken in self.taken:
            count = max(taken.attempts, taken.redelivered) + 1
            if found and found[-1][1] + 1 == offset and found[-1][2] == count:
                found[-1] = (found[-1][0], offset, count)
            else:
                found.append((offset, offset, count))
        return found


class ShareSession:
    def __init__(self, group_key: str, member_id: str, client_id: str = "") -> None:
        self.group_key = group_key
        self.member_id = member_id
        self.client_id = client_id or member_id
        self.epoch = 1
        self.topics: dict[bytes, ShareSource] = {}
        self.held: dict[Place, tuple[Queue, int]] = {}

    def take(
        self,
        source: ShareSource,
        count: int,
        *,
        lock_ms: int,
        bytes_max: int,
        locks_max: int = LOCKS_MAX,
        whole: bool = False,
    ) -> dict[int, Given]:
        """Pull from one topic; by partition. `locks_max` of each partition: a queue counts all members and partitions.

        `whole`: the last batch of a producer's is not cut, as far as the locks go, though that is more than `count`.
        """
        source.queue.note_puller(self)
        locks = LOCKS_MAX - len(self.held)
        if not source.by_stamp:
            locks = min(locks, locks_max * max(1, source.topic.count) - source.queue.unacked)
        room = min(count, locks)
        if room <= 0:
            self._forget_expired()
            return {}
        partitions = source.partitions()
        given: dict[int, Given] = {}
        own_ms = 0 if source.by_stamp else lock_ms  # a named queue's lock is the same for all its consumers
        found = source.queue.acquire(self, room, lock_ms=own_ms, bytes_max=bytes_max)
        if whole and len(found) == room < locks and (rest := source.rest_of_batch(found[-1])) is not None:
            log_id, ahead, stamp = rest
            bytes_left = bytes_max - sum(len(one.record.value or b"") for one in found)
            found += source.queue.acquire(
                self, min(ahead, locks - room), lock_ms=own_ms, bytes_max=bytes_left, until=(log_id, stamp)
            )
        for taken in found:
            index, offset = source.place(taken, partitions)
            given.setdefault(index, Given()).taken.append((offset, taken))
            self.held[source.topic.id, index, offset] = (source.queue, taken.position)
        for one in given.values():
            one.taken.sort(key=lambda pair: pair[0])
        return given

    def _forget_expired(self) -> None:
        """Locks that ran out: the queue has given those records to others."""
        self.held = {
            place: (queue, position)
            for place, (queue, position) in self.held.items()
            if queue.held_by(self, (position,))
        }

    def settle(
        self, topic_id: bytes, index: int, first: int, last: int, kinds: list[int], *, lock_ms: int
    ) -> tuple[bool, Ticket | None]:
        """Acknowledge offsets `first` to `last`; (whether all were held, what to wait for)."""
        if last < first or len(kinds) not in (1, last - first + 1) or any(not GAP <= k <= RENEW for k in kinds):
            return False, None
        right = True
        ticket: Ticket | None = None
        by_kind: dict[tuple[int, Queue], list[int]] = {}
        for place in self._places(topic_id, index, first, last):
            kind = kinds[0] if len(kinds) == 1 else kinds[place[2] - first]
            queue, position = self.held[place]
            if not queue.held_by(self, (position,)):
                del self.held[place]
                right = right and kind == GAP
                continue
            if kind != RENEW:
                del self.held[place]
            if kind != GAP:
                by_kind.setdefault((kind, queue), []).append(position)
        for (kind, queue), positions in by_kind.items():
            if kind == RENEW:
                queue.renew(positions, lock_ms=lock_ms)
            else:
                ticket = queue.settle(sorted(positions), OUTCOMES[kind]) or ticket
        return right, ticket

    def _places(self, topic_id: bytes, index: int, first: int, last: int) -> list[Place]:
        """Held offsets in the range, however wide it is."""
        if last - first < len(self.held):
            wanted = ((topic_id, index, offset) for offset in range(first, last + 1))
            return [place for place in wanted if place in self.held]
        return [place for place in self.held if place[:2] == (topic_id, index) and first <= place[2] <= last]

    def release_all(self) -> None:
        by_queue: dict[Queue, list[int]] = {}
        for queue, position in self.held.values():
            if not queue.deleted and queue.held_by(self, (position,)):
                by_queue.setdefault(queue, []).append(position)
        self.held.clear()
        for queue, positions in by_queue.items():
            queue.settle(sorted(positions), Outcome.RELEASE)


class Shares:
    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self.sessions: dict[tuple[str, str], ShareSession] = {}
        self.made: Written | None = (
            None  # the queue that was made last, and with it those before: when they are durable
        )

    def setting(self, group_key: str, name: str) -> str:
        return self._service.group_configs.get(group_key, {}).get(name, self.default(name))

    def default(self, name: str) -> str:
        """Of a group's setting."""
        if name == "share.partition.max.record.locks":
            return str(self._service.config.kafka.share_locks_max)
        if name == "share.record.lock.duration.ms":
            return str(max(1, self._service.config.kafka.share_lock_ms))
        return GROUP_SETTINGS[name].default

    def lock_ms(self, group_key: str) -> int:
        return int(self.setting(group_key, "share.record.lock.duration.ms"))

    def locks_max(self, group_key: str) -> int:
        return int(self.setting(group_key, "share.partition.max.record.locks"))

    def reads_uncommitted(self, group_key: str) -> bool:
        return self.setting(group_key, "share.isolation.level") == READ_UNCOMMITTED

    # -- queues ----------------------------------------------------------------------------------------------------

    def source(self, namespace: Namespace, group_id: str, topic: KafkaTopic) -> ShareSource:
        """The queue of a group's topic; made if need be, from where the group's settings say."""
        queues = self._service.broker.queues.of(namespace)
        named = queues.find(group_id)
        if named is not None and topic.name == group_id:
            return ShareSource(named, topic, by_stamp=True)
        name = queue_name(group_id, topic.name)
        queue = queues.find(name)
        key = self._service.group_key(namespace, group_id)
        if queue is None:
            queue = self.make_queue(namespace, group_id, topic, self._start(key))
        else:
            self._follow(queue, key)
        return ShareSource(queue, topic, by_stamp=False)

    def make_queue(self, namespace: Namespace, group_id: str, topic: KafkaTopic, start: int) -> Queue:
        key = self._service.group_key(namespace, group_id)
        settings = QueueSettings(
            deliveries_max=int(self.setting(key, "share.delivery.count.limit")),
            lock_ms=self.lock_ms(key),
            undecided_to=END_OF_STAMPS if self.reads_uncommitted(key) else 0,
        )
        condition = ""
        topic_filter = literal_filter(topic.canonical)
        if topic.view is not None:
            topic_filter = topic.view.filter
            condition = topic.view.condition.text if topic.view.condition is not None else ""
        queue, written = self._service.broker.queues.of(namespace).declare(
            queue_name(group_id, topic.name),
            settings,
            reaches=[Reach(ANYTHING, topic_filter, start=start)],
            condition=condition,
        )
        self.made = written or self.made
        return queue

    @property
    def making(self) -> Written | None:
        """What a member has to wait for before it hears of its group: a queue that is lost by a crash would begin anew."""
        if self.made is not None and self.made.done():
            self.made = None
        return self.made

    def follow_settings(self, namespace: Namespace, group_id: str) -> None:
        """The group's settings changed: its queues obey them."""
        key = self._service.group_key(namespace, group_id)
        for queue in self.queues_of(namespace, group_id).values():
            self._follow(queue, key)

    def _follow(self, queue: Queue, group_key: str) -> None:
        """What was written before another isolation level was set keeps its place, so that nothing is passed over."""
        now = queue.declared
        uncommitted = self.reads_uncommitted(group_key)
        limit = int(self.setting(group_key, "share.delivery.count.limit"))
        settings = replace(now, deliveries_max=limit, lock_ms=self.lock_ms(group_key))
        if uncommitted != (now.undecided_to == END_OF_STAMPS):
            stamp = self._service.broker.queues.stamp_now()
            start, end = (stamp, END_OF_STAMPS) if uncommitted else (now.undecided_from, stamp)
            settings = replace(settings, undecided_from=start, undecided_to=end)
        if settings != now:
            queue.queues.alter(queue, settings)

    def _start(self, group_key: str) -> int:
        reset = self.setting(group_key, "share.auto.offset.reset")
        if reset == "earliest":
            return 0
        match = _DURATION.fullmatch(reset.removeprefix("by_duration:"))
        if reset == "latest" or match is None:
            return NOW
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        ago_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000
        return max(0, (self._service.now_ms() - ago_ms) * NS_PER_MS)

    def queue_of(self, namespace: Namespace, group_id: str, topic_name: str) -> Queue | None:
        queues = self._service.broker.queues.of(namespace)
        if topic_name == group_id and (named := queues.find(group_id)) is not None:
            return named
        return queues.find(queue_name(group_id, topic_name))

    def queues_of(self, namespace: Namespace, group_id: str) -> dict[str, Queue]:
        """topic → queue"""
        prefix = queue_name(group_id, "")
        return {
            queue.name.removeprefix(prefix): queue
            for queue in self._service.broker.queues.of(namespace)
            if queue.name.startswith(prefix)
        }

    def forget_group(self, namespace: Namespace, group_id: str) -> None:
        for queue in self.queues_of(namespace, group_id).values():
            self._service.broker.queues.of(namespace).delete(queue)

    # -- sessions --------------------------------------------------------------------------------------------------

    def open_session(self, group_key: str, member_id: str, client_id: str = "") -> ShareSession | None:
        self.close_session(group_key, member_id)
        if len(self.sessions) >= SESSIONS_MAX:
            return None
        session = self.sessions[group_key, member_id] = ShareSession(group_key, member_id, client_id)
        return session

    def close_session(self, group_key: str, member_id: str) -> None:
        session = self.sessions.pop((group_key, member_id), None)
        if session is not None:
            session.release_all()

    def close_all(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            self.close_session(*key)


class ShareWatch:
    """Wakes a waiting fetch once, when any of its queues has something."""

    def __init__(self, queues: list[Queue], wake: Callable[[], object]) -> None:
        self._queues = queues
        self._wake = wake
        self._over = False
        for queue in queues:
            queue.watch(self._on_ready)

    def _on_ready(self) -> None:
        if not self._over:
            self.end()
            self._wake()

    def end(self) -> None:
        self._over = True
        for queue in self._queues:
            queue.unwatch(self._on_ready)


def queue_name(group_id: str, topic_name: str) -> str:
    return f"share/{group_id}/{topic_name}"


def stamp_of_offset(topic: KafkaTopic, index: int, offset: int) -> int:
    """The stamp at which a partition's offset lies; 0 before its start, NOW behind its end."""
    source, log = topic.source(index), topic.log(index)
    if source is None or log is None or offset >= source.stable_offset:
        return NOW
    if offset <= source.start_offset:
        return 0
    records, _ = source.records(offset, 1)
    if records:
        return records[0].stamp
    return _stamp_written(log, offset) if topic.topic is not None else NOW


def _stamp_written(log: Log, offset: int) -> int:
    """Where nothing committed is, nor will be: a share group may read what is not."""
    piece = log.read_anywhere(offset, 1)
    if piece is None:
        return NOW
    head = read_frame_head(piece.data, 0, log.id)
    return head.stamp + max(0, offset - head.base_offset)
