"""Topics that nobody declared: they were published to, and lie in a stem or in a stream's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import Route
from mainstem.broker.topics.topic import Partition, Span, Topic

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.log.log import Log


def topic_in_stems(namespace: Namespace, topic: bytes) -> Topic | None:
    """As if it were declared with one partition; None where no stem has it."""
    for stem in list(namespace.stems.values()):
        if stem in namespace.stream_logs:
            continue
        number = stem.index.topics.find(topic) if stem.index is not None else 0
        if number and not (stem.low_marks is not None and stem.low_marks.all_gone(topic, number)):
            return _topic_in(namespace, topic, stem)
    return None


def topic_in_stream(namespace: Namespace, topic: bytes, log: Log) -> Topic | None:
    """A stream's subject: what it had before the stream began, if anything, and what the stream has."""
    before = topic_in_stems(namespace, topic)
    number = log.index.topics.find(topic) if log.index is not None else 0
    if not number:
        return before
    found = _topic_in(namespace, topic, log)
    if before is not None:
        span = before.partitions[0].spans[0]
        first = min(log.start_offset, log.stable)
        found.partitions[0].spans[:] = [Span(span.log, 0, first), Span(log, first, None, 1)]
    return found


def _topic_in(namespace: Namespace, name: bytes, stem: Log) -> Topic:
    marks = stem.low_marks
    low_mark = marks.of(name) if marks is not None else 0
    created = marks.deletions.get(name, 0) if marks is not None else 0
    topic = Topic(0, name, namespace.policy(name), created=created)
    number = stem.index.topics.find(name) if stem.index is not None else 1
    route = namespace.routes.get(name) or Route(name, number, stem, namespace)
    topic.partitions.append(Partition(topic, 0, [Span(stem, 0)], route, low_mark))
    return topic
