"""Facts about topics: pages of them, the tree of their levels, one in full. A page costs the same for any number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields
from itertools import islice

from mainstem.admin.answers.topics import Level, PartitionFacts, TopicFacts, TopicRow, TopicSetting
from mainstem.admin.long_lists import in_order, in_slices
from mainstem.admin.running import Running
from mainstem.broker.delivery.turns import Turns
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.log.log import Log
from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.model.topic_filter import check_filter, matches
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.tier.engine import TieredEngine

HISTORY_TOPICS = (b"$history/10s", b"$history/5m")
SCAN_MAX = 20_000  # topics looked at for one page of a search or of the tree; then it says how to go on


def topic_count(namespace: Namespace) -> int:
    """Without the broker's own, which no list shows; the namespace has left out its audit already."""
    return namespace.topic_count - sum(name in namespace.topics for name in HISTORY_TOPICS)


def stems(namespace: Namespace) -> list[Log]:
    return list(namespace.stems.values())


async def topic_page(
    turns: Turns, namespace: Namespace, *, topic_filter: str = "", search: str = "", after: str = "", limit: int
) -> tuple[list[bytes], str | None]:
    """Names of up to `limit` topics: the declared ones by name, then those of the stems as they came.

    `after` is `d/<name>` or `s/<stem>/<number>`.
    """
    if topic_filter:
        check_filter(topic_filter.encode())
    wanted = search.lower().encode()
    found: list[bytes] = []
    hidden = not topic_filter.startswith("$")
    looked = 0
    async for mark, name in _names(turns, namespace, topic_filter.encode(), after):
        looked += 1
        if name and (not wanted or wanted in name.lower()) and not (hidden and name.startswith(b"$")):
            found.append(name)
        if len(found) >= limit or looked >= SCAN_MAX:
            return found, mark
    return found, None


async def _names(
    turns: Turns, namespace: Namespace, topic_filter: bytes, after: str
) -> AsyncIterator[tuple[str, bytes]]:
    """(where a page that ends here goes on, name); topics may come and go meanwhile."""
    where, _, rest = after.partition("/")
    if where != "s":
        begin, tenant = rest.encode(), namespace.name
        async for name in in_slices(turns, tenant, await in_order(turns, tenant, namespace.topics)):
            if name > begin and (not topic_filter or matches(topic_filter, name)):
                yield f"d/{name.decode()}", name
    stem_at, _, number_at = rest.partition("/") if where == "s" else ("0", "", "0")
    if not (stem_at.isdecimal() and number_at.isdecimal()):
        raise InvalidArgument(f"after={after!r} is not where a page ended")
    for index, stem in enumerate(stems(namespace)):
        if index < int(stem_at) or stem.index is None:
            continue
        trie = stem.index.topics
        begin_number = int(number_at) if index == int(stem_at) else 0
        numbers: Sequence[int] = sorted(trie.match(topic_filter)) if topic_filter else range(1, trie.numbers_end)
        async for number in in_slices(turns, namespace.name, numbers[bisect_right(numbers, begin_number) :]):
            if number > begin_number:
                yield f"s/{index}/{number}", _shared_name(namespace, stem, number)


def _shared_name(namespace: Namespace, stem: Log, number: int) -> bytes:
    """Empty for a number that is free, and for a topic that was deleted or is declared and thus told already."""
    assert stem.index is not None
    try:
        name = stem.index.topics.name(number)
    except NotFound:
        return b""
    deleted = stem.low_marks is not None and stem.low_marks.all_gone(name, number)
    return b"" if deleted or name in namespace.topics else name


def topic_row(namespace: Namespace, name: bytes) -> TopicRow:
    topic = find(namespace, name)
    partitions = [PartitionReader(one, namespace.topic_of) for one in topic.partitions]
    return {
        "name": _text(name),
        "layout": "dedicated" if topic.policy.dedicated else "shared",
        "engine": topic.policy.engine,
        "partitions": len(topic.partitions),
        "records": sum(reader.count(reader.start_offset, reader.stable_offset) for reader in partitions),
        "start_offset": min(reader.start_offset for reader in partitions),
        "end_offset": max(reader.stable_offset for reader in partitions),
        "declared": topic.declared,
    }


def find(namespace: Namespace, name: bytes) -> Topic:
    topic = namespace.find_topic(name)
    if topic is None:
        raise NotFound(f"there is no topic {_text(name)}", fix="mainstem topic ls")
    return topic


def topic_facts(
    running: Running, namespace: Namespace, name: bytes, may_describe: Callable[[bytes], bool]
) -> TopicFacts:
    """One topic in full: spellings, settings with their sources, partitions, where its bytes are, and of the views over it
    those that the caller may describe.
    """
    topic = find(namespace, name)
    route = topic.partitions[0].route
    return {
        **topic_row(namespace, name),
        "namespace": namespace.name,
        "spellings": running.spellings(name),
        "id": topic.id,
        "settings": settings_of(namespace, topic),
        "kafka_config": topic.config,
        "listeners": len(route.deliveries),
        "views": sorted(_text(view) for view in _views_over(namespace, name) if may_describe(view)),
        "placement": [_partition_facts(namespace, partition) for partition in topic.partitions],
        "bytes_by_engine": bytes_by_engine(topic),
    }


def _views_over(namespace: Namespace, name: bytes) -> list[bytes]:
    return [view.name for view in namespace.views.values() if view.covers(name)]


def settings_of(namespace: Namespace, topic: Topic) -> dict[str, TopicSetting]:
    """Every setting of the topic's policy, its value and where that came from."""
    shown: dict[str, TopicSetting] = {}
    for one in fields(Policy):
        value = getattr(topic.policy, one.name)
        source = "default"
        rule_sources = [f for f, changes in namespace.rules.items() if one.name in changes and matches(f, topic.name)]
        inherited = getattr(namespace.policy(topic.name), one.name)
        if value != inherited:
            source = "topic"
        elif rule_sources:
            source = f"policy {_text(rule_sources[-1])}"
        shown[one.name] = {"value": value, "source": source}
    if topic.policy.dedicated and topic.policy.layout == "shared":
        shown["layout"] = {"value": "dedicated", "source": "its other settings need it"}
    return shown


def _partition_facts(namespace: Namespace, partition: Partition) -> PartitionFacts:
    reader = PartitionReader(partition, namespace.topic_of)
    return {
        "partition": partition.index,
        "start_offset": reader.start_offset,
        "end_offset": reader.stable_offset,
        "records": reader.count(reader.start_offset, reader.stable_offset),
        "epoch": partition.epoch,
        "spans": [
            {
                "log": span.log.id,
                "engine": engine_name(span.log),
                "shared": span.shared,
                "first_offset": span.first,
                "end_offset": span.end,
                "size_bytes": None if span.shared else span.log.engine.stat().size_bytes,
                "local_bytes": None if span.shared else local_and_remote(span.log)[0],
                "overflowed": span.log.overflowed,
                "remote_bytes": None if span.shared else local_and_remote(span.log)[1],
            }
            for span in partition.spans
        ],
    }


def bytes_by_engine(topic: Topic) -> dict[str, int]:
    """Bytes of the logs that are the topic's alone; what it has in a stem is not counted apart."""
    total: dict[str, int] = {}
    for log in {span.log for partition in topic.partitions for span in partition.spans if not span.shared}:
        total[engine_name(log)] = total.get(engine_name(log), 0) + log.engine.stat().size_bytes
    return total


def engine_name(log: Log) -> str:
    return log.engine_name


def local_and_remote(log: Log) -> tuple[int, int]:
    """Bytes on the local disk, and in the object store; what lies in both counts in both."""
    engine = log.engine
    if isinstance(engine, TieredEngine):
        return engine.local.stat().size_bytes, engine.remote_bytes
    if isinstance(engine, ObjectEngine):
        return 0, engine.remote_bytes
    return engine.stat().size_bytes, 0


async def children(
    turns: Turns, namespace: Namespace, prefix: str, *, after: str, limit: int, allowed: Callable[[bytes], bool]
) -> tuple[list[Level], str | None, bool]:
    """The levels below a prefix, with how many topics are below each; whether all topics were looked at."""
    base = f"{prefix}/" if prefix else ""
    depth = base.count("/")
    counts: dict[str, int] = {}
    leaves: set[str] = set()
    looked = 0
    complete = True
    async for _, name in _names(turns, namespace, f"{base}#".encode() if prefix else b"", ""):
        looked += 1
        if name.startswith(b"$") and not base.startswith("$"):  # the broker's own
            continue
        if looked > SCAN_MAX:
            complete = False
            break
        levels = _text(name).split("/") if name and allowed(name) else []
        if len(levels) <= depth:
            continue
        counts[levels[depth]] = counts.get(levels[depth], 0) + 1
        if len(levels) == depth + 1:
            leaves.add(levels[depth])
    levels_after = (level for level in await in_order(turns, namespace.name, counts) if not after or level > after)
    shown = list(islice(levels_after, limit + 1))
    rows: list[Level] = [
        {"level": level, "path": base + level, "topics": counts[level], "is_topic": level in leaves}
        for level in shown[:limit]
    ]
    return rows, shown[limit - 1] if len(shown) > limit else None, complete


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
