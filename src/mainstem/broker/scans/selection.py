"""What a scan reads: a selection of topics becomes partitions, each an ordered run of offsets with a start and an end.

A topic's partition has the offsets its Kafka consumers see, through all the spans it ever lay in. A filter or a view has
one partition per stem (topic `#`, number = the log's) and one per partition of each matching topic that has logs of its
own: new ones appear as such topics are made, and are read from their beginning. The scan API calls them `lanes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.scans.readers import Reader
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.log.log import Log
from mainstem.model.condition import Condition
from mainstem.model.errors import InvalidArgument, InvalidName, NotFound, Overloaded
from mainstem.model.pattern import Pattern
from mainstem.model.topic import kafka_name, topic_of_kafka
from mainstem.model.topic_filter import check_filter, matches

STEM = "#"
PARTITIONS_MAX = 10_000
ALIASES_MAX = 100_000


@dataclass(slots=True)
class ScanPartition:
    topic: str  # in Kafka's spelling; STEM for a shared log seen through a filter
    number: int
    canonical: bytes | None  # None: many topics
    start: int
    end: int  # the last stable offset
    spans: list[tuple[Log, int, int]] = field(default_factory=list)  # (log, first offset, end), in order
    # The topic's, if offsets would begin again with another one of its name; 0: not declared; None: they go on in a stem.
    topic_id: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.number


@dataclass(slots=True)
class Selection:
    """A scan's topics, resolved: its partitions, and what readers need to know a wanted record."""

    partitions: list[ScanPartition]
    filter: bytes | None = None
    condition: Condition | None = None
    low_marks: dict[bytes, int] = field(default_factory=dict)
    aliases: dict[bytes, str] = field(default_factory=dict)  # names whose Kafka spelling is their own
    ids: dict[int, bytes] = field(default_factory=dict)  # topics that frames of shared logs name by number
    reader: Reader = field(default_factory=Reader)
    _bits: dict[int, bytes | bytearray] = field(default_factory=dict)
    _by_key: dict[tuple[str, int], ScanPartition] = field(default_factory=dict)

    def bits(self, log: Log) -> bytes | bytearray:
        """The topics of a shared log that the filter means to its reader."""
        if log.id not in self._bits:
            assert self.filter is not None
            self._bits[log.id] = self.reader.bits(log, self.filter)
        return self._bits[log.id]

    def partition(self, topic: str, number: int) -> ScanPartition:
        if len(self._by_key) != len(self.partitions):
            self._by_key = {one.key: one for one in reversed(self.partitions)}
        found = self._by_key.get((topic, number))
        if found is not None:
            return found
        raise NotFound(f"partition {number} of {topic!r} is not part of this scan", fix="mainstem topic ls")


def select(namespace: Namespace, wanted: Mapping[str, Any], reader: Reader) -> Selection:
    """`wanted` is {"kind": topics | pattern | partitions | filter | view, ...}; NotFound for what is not there."""
    match wanted.get("kind"):
        case "topics":
            topics = [_find(namespace, str(name), reader) for name in wanted["topics"]]
            return _selected(reader, [(topic, partition) for topic in topics for partition in topic.partitions])
        case "pattern":
            topics = _by_pattern(namespace, str(wanted["pattern"]), reader)
            return _selected(reader, [(topic, partition) for topic in topics for partition in topic.partitions])
        case "partitions":
            return _of_partitions(namespace, wanted["partitions"], reader)
        case "filter":
            topic_filter = str(wanted["filter"]).encode()
            check_filter(topic_filter)
            reader.require_some(topic_filter)
            return _of_filter(namespace, topic_filter, None, reader)
        case "view":
            name = canonical_topic(namespace, str(wanted["view"]))
            view = namespace.views.get(name)
            if view is None:
                reader.require(name)
                raise NotFound(f"no view {wanted['view']!r}", fix="mainstem view ls")
            return _of_filter(namespace, view.filter, view.condition, reader.through(view))
    raise InvalidArgument(f"a scan needs a kind of topics, pattern, partitions, filter or view, not {wanted!r}")


def kafka_topic(topic: Topic) -> str:
    """Its name among Kafka clients."""
    return topic.kafka_alias or kafka_name(topic.name)


def canonical_topic(namespace: Namespace, name: str) -> bytes:
    """A name with `/` is an MQTT spelling, any other a Kafka one."""
    if "/" in name:
        return name.encode()
    for topic in namespace.topics.values():
        if topic.kafka_alias == name:
            return topic.name
    return topic_of_kafka(name)


def _find(namespace: Namespace, name: str, reader: Reader) -> Topic:
    """Whether there is a topic that the reader may not consume is not told."""
    canonical, found = name.encode(), None
    with contextlib.suppress(InvalidName):
        canonical = canonical_topic(namespace, name)
        found = namespace.find_topic(canonical) or namespace.find_topic(name.encode())
    reader.require(found.name if found is not None else canonical)
    if found is None:
        raise NotFound(f"no topic {name!r}", fix=f"mainstem topic ls, or mainstem topic create {name}")
    return found


def _by_pattern(namespace: Namespace, pattern: str, reader: Reader) -> list[Topic]:
    wanted = Pattern(pattern)
    found = {
        topic.name: topic
        for topic in namespace.topics.values()
        if wanted.matches(kafka_topic(topic)) and reader.may(topic.name) and not topic.name.startswith(b"$")
    }
    for stem in namespace.stems.values():
        assert stem.index is not None
        for number in stem.index.topics.match(b"#"):
            name = stem.index.topics.name(number)
            if name not in found and wanted.matches(kafka_name(name)) and reader.may(name):
                topic = namespace.find_topic(name)
                if topic is None:  # deleted; its records are still stored
                    continue
                found[name] = topic
                if len(found) > PARTITIONS_MAX:
                    raise _too_many(len(found))
    return list(found.values())


def _too_many(count: int) -> Overloaded:
    return Overloaded(
        f"{count} topics or more are meant, at most {PARTITIONS_MAX} can be read one by one",
        fix="use the option filter (any number of topics), for example filter=sensors/#",
    )


def _of_partitions(namespace: Namespace, wanted: Mapping[str, Iterable[int]], reader: Reader) -> Selection:
    chosen: list[tuple[Topic, Partition]] = []
    for name, numbers in wanted.items():
        topic = _find(namespace, name, reader)
        for number in numbers:
            if not 0 <= int(number) < len(topic.partitions):
                raise NotFound(f"topic {name!r} has no partition {number}, only 0 to {len(topic.partitions) - 1}")
            chosen.append((topic, topic.partitions[int(number)]))
    return _selected(reader, chosen)


def _selected(reader: Reader, chosen: list[tuple[Topic, Partition]]) -> Selection:
    if len(chosen) > PARTITIONS_MAX:
        raise _too_many(len(chosen))
    selection = Selection([_scan_partition(topic, partition) for topic, partition in chosen], reader=reader)
    for topic, _ in chosen:
        _describe(selection, topic)
    return selection


def _scan_partition(topic: Topic, partition: Partition) -> ScanPartition:
    spans = [(span.log, span.first, span.end_offset) for span in partition.spans]
    start, end = partition.start_offset, partition.stable_offset
    topic_id = None if topic.declared and partition.spans[-1].shared else topic.id
    return ScanPartition(kafka_topic(topic), partition.index, topic.name, start, end, spans, topic_id)


def _describe(selection: Selection, topic: Topic) -> None:
    if topic.declared:
        selection.ids[topic.id] = topic.name
    if topic.kafka_alias is not None and len(selection.aliases) < ALIASES_MAX:
        selection.aliases[topic.name] = topic.kafka_alias
    low_mark = topic.partitions[0].low_mark
    if low_mark:
        selection.low_marks[topic.name] = low_mark


def _of_filter(namespace: Namespace, topic_filter: bytes, condition: Condition | None, reader: Reader) -> Selection:
    selection = Selection([], topic_filter, condition, reader=reader)
    for stem in namespace.stems.values():
        span = (stem, stem.start_offset, stem.stable)
        selection.partitions.append(ScanPartition(STEM, stem.id, None, stem.start_offset, stem.stable, [span]))
    for topic in namespace.topics.values():
        if not matches(topic_filter, topic.name) or not reader.may(topic.name):
            continue
        _describe(selection, topic)
        for partition in topic.partitions:
            own = [(span.log, span.first, span.end_offset) for span in partition.spans if not span.shared]
            if own:  # what lies in a stem is read with the stem
                start = max(partition.low_mark, own[0][1], own[0][0].start_offset)
                found = ScanPartition(kafka_topic(topic), partition.index, topic.name, start, own[-1][2], own, topic.id)
                selection.partitions.append(found)
    return selection
