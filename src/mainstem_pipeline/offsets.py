"""Where a scan stands: {topic: {partition: next offset}} with string keys, as Spark stores it in its checkpoints.

    {"orders": {"0": 120, "1": 98}, "#": {"1": 5023}, "$ids": {"orders": 7}}

`#` is a stem seen through a filter, its partition the log's number. `$ids` (no name of a topic: Kafka's have no `$`) are the
broker's ids of topics with logs of their own: one that was deleted and recreated has the old name, soon the old offsets too,
but another id. 0 is a topic that was never declared. Positions that were kept before there were ids have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Offsets = dict[str, dict[str, int]]

IDS = "$ids"


def copied(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: dict(parts) for topic, parts in offsets.items()}


def pairs(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    """(topic, partition, offset) of each partition."""
    for topic, parts in offsets.items():
        if topic != IDS:
            for partition, offset in parts.items():
                yield topic, partition, offset


def without_ids(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {topic: dict(parts) for topic, parts in offsets.items() if topic != IDS}


def is_another(topic: str, known: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether the topic was made anew since `known`; not, if either does not say."""
    before, after = known.get(IDS, {}).get(topic), now.get(IDS, {}).get(topic)
    return bool(before) and after is not None and after != before
