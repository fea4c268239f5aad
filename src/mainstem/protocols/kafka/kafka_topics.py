"""What a Kafka client sees as topics: declared topics, topics that live in a stem, and views.

- A topic that was born in another protocol has one partition, whose offsets are those of the shared log (sparse).
- A view's partitions are its permanent slots. It is read-only.
- A queue's name, where no topic has it, has one partition without records: a share group that joins the queue needs it.
- A topic that is not there is made by whoever asks for it with automatic creation allowed, as Kafka does
  (`topics.auto_create`): Java's producers name a topic by the id that metadata told them.

Topic ids are derived from what never changes (the declared id, the view's id, the name of a shared topic), so they need
no table and survive restarts; a topic made again has a new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.topics.reading import Fetched, PartitionReader
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.broker.topics.views import View
from mainstem.model.errors import MainstemError
from mainstem.model.record import Record
from mainstem.model.topic import kafka_name, topic_of_kafka

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.log.log import Log

NO_ID = bytes(16)
SEEN_MAX = 100_000
SEEING = (Action.DESCRIBE, Action.CONSUME, Action.PUBLISH)


class Source(Protocol):
    """One partition, read by offset."""

    @property
    def start_offset(self) -> int: ...
    @property
    def stable_offset(self) -> int: ...
    def read(self, offset: int, bytes_max: int, end: int | None = None) -> Fetched: ...
    def records(self, offset: int, bytes_max: int) -> tuple[list[Record], int]: ...
    def find_time(self, time_ms: int) -> tuple[int, int] | None: ...
    def newest(self) -> tuple[int, int] | None: ...


class KafkaTopic:
    """A topic by its Kafka name. One of `topic` and `view` is set, or neither: it is a queue that share groups join."""

    __slots__ = ("_namespace", "count", "id", "name", "topic", "view")

    def __init__(
        self, namespace: Namespace, name: str, *, topic: Topic | None = None, view: View | None = None
    ) -> None:
        self._namespace = namespace
        self.name = name
        self.topic = topic
        self.view = view
        self.id = _id_of(namespace, name, topic, view)
        self.count = 1
        if topic is not None:
            self.count = len(topic.partitions)
        elif view is not None:
            self.count = len(view.slots)

    @property
    def gone(self) -> bool:
        """It was deleted since it was looked up."""
        if self.view is not None:
            return self._namespace.views.get(self.view.name) is not self.view
        topic = self.topic
        return topic is not None and topic.declared and self._namespace.topics.get(topic.name) is not topic

    @property
    def canonical(self) -> bytes:
        if self.topic is not None:
            return self.topic.name
        return self.view.name if self.view is not None else topic_of_kafka(self.name)

    def partition(self, index: int) -> Partition | None:
        if self.topic is None or not 0 <= index < len(self.topic.partitions):
            return None
        return self.topic.partitions[index]

    def source(self, index: int, denied: Sequence[bytes] = ()) -> Source | None:
        """None: no such partition, or a slot whose log is gone (empty for ever). A view shows nothing that is denied."""
        if self.view is not None:
            return self.view.slot(index, self.view.hidden(denied))
        partition = self.partition(index)
        return PartitionReader(partition, self._namespace.topic_of) if partition is not None else None

    def low_mark(self, index: int) -> int:
        """Below it records were removed. A shared log's start says nothing of one topic: only what was deleted does."""
        partition = self.partition(index)
        if partition is None:
            return 0
        if not partition.spans[0].shared:
            return partition.start_offset
        marks = partition.log.low_marks
        return max(partition.low_mark, marks.by_topic.get(partition.topic.name, 0) if marks is not None else 0)

    def log(self, index: int) -> Log | None:
        if self.view is not None:
            slot = self.view.slot(index)
            return slot.log if slot is not None else None
        partition = self.partition(index)
        return partition.log if partition is not None else None

    def epoch(self, index: int) -> int:
        log = self.log(index)
        return log.epoch if log is not None else 0


def _id_of(namespace: Namespace, name: str, topic: Topic | None, view: View | None) -> bytes:
    if view is not None:
        text = f"view/{view.id}"
    elif topic is not None and topic.declared:
        text = f"topic/{topic.id}"
    else:
        text = f"name/{namespace.name}/{name}/{topic.created if topic is not None else 0}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class KafkaTopics:
    """The topics of one namespace by Kafka name and by topic id."""

    def __init__(self, broker: Broker, namespace: Namespace, *, auto_create: bool) -> None:
        self._broker = broker
        self.access = broker.access
        self.namespace = namespace
        self.auto_create = auto_create
        self._names: dict[bytes, str] = {}  # topic id → name, of what was shown
        self._cache: dict[str, KafkaTopic] = {}

    def find(self, name: str) -> KafkaTopic | None:
        """None: there is no such topic. A name that cannot be a topic raises InvalidName."""
        known = self._cache.get(name)
        if known is not None and self._is_current(known):
            return known
        found = self._look_up(name)
        if found is None:
            self._cache.pop(name, None)
            return None
        if len(self._cache) < SEEN_MAX:
            self._cache[name] = found
        self.remember(found)
        return found

    def _is_current(self, known: KafkaTopic) -> bool:
        if known.view is not None:
            return self.namespace.views.get(known.view.name) is known.view and known.count == len(known.view.slots)
        topic = known.topic
        assert topic is not None
        if not topic.declared:
            marks = topic.partitions[0].log.low_marks
            deleted = marks is not None and marks.deletions.get(topic.name, 0) != topic.created
            return not deleted and topic.name not in self.namespace.topics
        return self.namespace.topics.get(topic.name) is topic and known.count == len(topic.partitions)

    def _look_up(self, name: str) -> KafkaTopic | None:
        canonical = topic_of_kafka(name)
        view = self.namespace.views.get(canonical)
        topic = self.namespace.find_topic(canonical) if view is None else None
        if view is None and topic is None:
            return None
        return KafkaTopic(self.namespace, name, topic=topic, view=view)

    def name_of(self, topic_id: bytes) -> str | None:
        name = self._names.get(topic_id)
        if name is None:  # a client may know it from before the restart
            for topic in self.listed():
                self.remember(topic)
            name = self._names.get(topic_id)
        return name

    def by_id(self, topic_id: bytes) -> KafkaTopic | None:
        name = self.name_of(topic_id)
        found = self._find_quietly(name) if name is not None else None
        return found if found is not None and found.id == topic_id else None

    def shown(self, asked: str | bytes) -> KafkaTopic | None:
        """By name or id, as metadata tells of it: what is found, or a queue of that name."""
        name = self.name_of(asked) if isinstance(asked, bytes) else asked
        found = self.find(name) or self._of_queue(name) if name is not None else None
        return found if found is not None and asked in (found.name, found.id) else None

    def _of_queue(self, name: str) -> KafkaTopic | None:
        if self._broker.queues.of(self.namespace).find(name) is None:
            return None
        return self.joined_queue(name)

    def joined_queue(self, name: str) -> KafkaTopic:
        """A queue has one partition, also where a topic with more has its name; clients know both by one id."""
        topic = self.find(name)
        place = KafkaTopic(self.namespace, name)
        if topic is not None:
            place.id = topic.id
        self.remember(place)
        return place

    def _find_quietly(self, name: str) -> KafkaTopic | None:
        try:
            return self.find(name)
        except MainstemError:
            return None

    def remember(self, topic: KafkaTopic) -> None:
        if len(self._names) >= SEEN_MAX:
            self._names.clear()
        self._names[topic.id] = topic.name

    def listed(self) -> Iterator[KafkaTopic]:
        """All that "all topics" means: declared topics and views, never the million topics of a stem."""
        for topic in list(self.namespace.topics.values()):
            if topic.policy.dedicated:
                yield KafkaTopic(self.namespace, kafka_name(topic.name), topic=topic)
        for view in list(self.namespace.views.values()):
            yield KafkaTopic(self.namespace, kafka_name(view.name), view=view)

    def make(self, name: str) -> KafkaTopic | None:
        """By asking for it: a dedicated log per partition, as Kafka users expect. None: topics do not make themselves."""
        own = self.namespace.settings.auto_create
        if not (self.auto_create if own is None else own):
            return None
        canonical = topic_of_kafka(name)
        policy = self.namespace.policy(canonical).with_changes({"layout": "dedicated"})
        return KafkaTopic(self.namespace, name, topic=self._broker.begin_topic(self.namespace, canonical, policy).value)

    def declare(self, topic: KafkaTopic) -> KafkaTopic:
        """A topic of the stem gets an id of its own, which frames can name: Kafka batches are stored unopened."""
        assert topic.topic is not None
        if topic.topic.declared:
            return topic
        policy = self.namespace.policy(topic.topic.name)
        declared = self._broker.begin_topic(self.namespace, topic.topic.name, policy).value
        return KafkaTopic(self.namespace, topic.name, topic=declared)


class GroupTopics:
    """What the broker's own assignors need to know of topics."""

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics

    def find(self, name: str) -> tuple[bytes, int] | None:
        try:
            topic = self._topics.find(name)
        except MainstemError:
            return None
        return (topic.id, topic.count) if topic is not None else None

    def names(self, reader: Principal) -> list[str]:
        """Who may read or write a topic may also know of it; nobody else learns its name by a pattern."""
        namespace, access = self._topics.namespace, self._topics.access
        topics = [topic.name for topic in namespace.topics.values() if topic.policy.dedicated]
        topics += namespace.views
        return [
            kafka_name(name)
            for name in topics
            if any(access.allows(reader, action, name) for action in SEEING)
            and not access.denies(reader, Action.DESCRIBE, name)
        ]
