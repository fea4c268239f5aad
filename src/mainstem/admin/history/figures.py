"""One point of the history: every figure as it stands now, per second where it counts.

Of the broker as a whole all figures; of topics, queues, groups and flows of pipelines those of at most so many: the
ones that were asked for last (`ask`), then the busy ones. Which topics are busy is found in the newest records of each
stem, so nothing is counted per message. What belongs to the loop is read in slices.

A series is named by its figure, and for one object `kind␟figure␟namespace␟name`.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from mainstem.admin.cursors import group_key, group_named, groups_of, offset_rows, queue_service
from mainstem.admin.overview import resident_bytes
from mainstem.admin.pipelines import SILENT, flow_rows
from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.pipelines import ENDED
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.views import View, ViewSlot
from mainstem.log.away import large_by_thread
from mainstem.model.histogram import Histogram
from mainstem.storage.engine import NotLocal

TOPICS_MAX, QUEUES_MAX, GROUPS_MAX, FLOWS_MAX = 200, 90, 90, 60
NAMESPACES_LOOKED_MAX = 100
ASKED_MAX = 40  # objects of a kind whose page was looked at: they have a place before others
TAIL_RECORDS, TAIL_BYTES = 200, 64 << 10  # looked at in each stem, for who is busy
TURN_OBJECTS = 20
NAME_CHARACTERS_MAX = 256  # longer names have no series
MARK = "\x1f"
Object = tuple[str, str]  # namespace, name


def series_name(kind: str, figure: str, namespace: str, name: str) -> str:
    return MARK.join((kind, figure, namespace, name))


def namespace_of(series: str) -> str | None:
    """Of a series of one object; None: it is the broker's."""
    parts = series.split(MARK, 3)
    return parts[2] if len(parts) == 4 else None


class Figures:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._asked: dict[str, dict[Object, None]] = {"topic": {}, "queue": {}, "group": {}, "pipeline": {}}
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, list[int]] = {}
        self._busy: dict[Object, float] = {}  # topics, the one that has been silent longest first
        self._tails: dict[int, int] = {}  # log → its end when its newest records were looked at
        self._ends: dict[Object, list[int]] = {}  # of topics: the stable end of each partition
        self.totals: dict[Object, int] = {}  # records that came to a topic since it is followed
        self._last_s = time.monotonic()

    def ask(self, kind: str, namespace: str, name: str) -> None:
        """Somebody looks at it: it has a place from now on."""
        if len(name) > NAME_CHARACTERS_MAX:
            return
        asked = self._asked[kind]
        asked.pop((namespace, name), None)
        asked[namespace, name] = None
        while len(asked) > ASKED_MAX:
            del asked[next(iter(asked))]

    def forget_namespace(self, namespace: str) -> None:
        tables: list[dict[Object, Any]] = [self._busy, self._ends, self.totals, *self._asked.values()]
        for kept in tables:
            for key in [key for key in kept if key[0] == namespace]:
                del kept[key]

    async def take(self) -> dict[str, float]:
        now_s = time.monotonic()
        elapsed_s, self._last_s = max(now_s - self._last_s, 1e-3), now_s
        point = dict(self._broker(elapsed_s))
        async for name, value in self._queues():
            point[name] = value
        async for name, value in self._groups():
            point[name] = value
            point["lag_max"] = max(point.get("lag_max", 0.0), value)
        async for name, value in self._topics(elapsed_s):
            point[name] = value
        point.update(islice(self._pipelines(), 2 * FLOWS_MAX))
        return point

    # -- the broker

    def _broker(self, elapsed_s: float) -> Iterator[tuple[str, float]]:
        running, broker = self._running, self._running.broker
        for protocol, counters in running.rates.totals().items():
            for title, counter in (
                ("in", "messages_in"),
                ("out", "messages_out"),
                ("bytes_in", "bytes_in"),
                ("bytes_out", "bytes_out"),
            ):
                name = f"{title}.{protocol}"
                yield name, self._since(name, counters[counter]) / elapsed_s
            yield f"connections.{protocol}", counters["connections"]
        ticker = broker.ticker
        for title, histogram in (
            ("ack", ticker.ack_ns),
            ("deliver", ticker.deliver_ns),
            ("fsync", ticker.committer.sync_ns),
        ):
            yield from self._percentiles(title, histogram)
        stalls = running.watchdog.stalls.copy().values()
        yield "stall_ms", self._since("stall_ms", sum(one.seconds for one in stalls) * 1000)
        samples = islice(reversed(running.rates.samples), int(elapsed_s) + 1)
        yield "loop_lag_max", max((one.loop_lag_ms for one in samples), default=0.0)
        yield "disk_free", shutil.disk_usage(broker.options.data).free
        yield "memory", resident_bytes()
        yield "records", self._since("records", broker.logs.meters.records) / elapsed_s

    def _since(self, name: str, value: float) -> float:
        before = self._counters.get(name, value)
        self._counters[name] = value
        return max(value - before, 0.0)

    def _percentiles(self, title: str, histogram: Histogram) -> Iterator[tuple[str, float]]:
        counts, before = list(histogram.counts), self._histograms.get(title)
        self._histograms[title] = counts
        new = [now - then for now, then in zip(counts, before or counts, strict=True)]
        if sum(new):
            for percent in (50, 99):
                yield f"{title}_p{percent}", histogram.percentile(percent / 100, new) / 1e6

    # -- queues and groups

    async def _queues(self) -> AsyncIterator[tuple[str, float]]:
        service = queue_service(self._running)
        ready = unacked = dead = 0
        followed: dict[Object, tuple[int, int]] = {}
        for number, queue in enumerate(list(service.by_id.values())):
            key = (queue.queues.namespace.name, queue.name)
            held = queue.ready, queue.unacked
            ready, unacked, dead = ready + held[0], unacked + held[1], dead + queue.dead_count
            if key in self._asked["queue"] or (len(followed) < QUEUES_MAX and len(queue.name) <= NAME_CHARACTERS_MAX):
                followed[key] = held
            if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                await asyncio.sleep(0)
        for title, value in (("queue_ready", ready), ("queue_unacked", unacked), ("queue_dead", dead)):
            yield title, value
        for (namespace, name), (waits, leased) in followed.items():
            yield series_name("queue", "ready", namespace, name), waits
            yield series_name("queue", "unacked", namespace, name), leased

    async def _groups(self) -> AsyncIterator[tuple[str, float]]:
        groups, namespaces = groups_of(self._running), self._running.broker.namespaces
        keys = [*self._asked["group"], *map(group_named, islice(groups.offsets, GROUPS_MAX))]
        for number, (space, name) in enumerate(dict.fromkeys(keys)):
            namespace = namespaces.get(space)
            if namespace is not None:
                rows = offset_rows(namespace, groups, group_key(namespace, name))
                yield series_name("group", "lag", space, name), sum(one["lag"] for one in rows)
            if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                await asyncio.sleep(0)

    # -- pipelines

    def _pipelines(self) -> Iterator[tuple[str, float]]:
        spaces = islice(self._running.broker.namespaces.values(), NAMESPACES_LOOKED_MAX)
        told = [(one.name, row) for one in spaces for row in flow_rows(self._running, one)]
        for space, row in sorted(told, key=lambda one: (one[0], one[1]["pipeline"]) not in self._asked["pipeline"]):
            if row["state"] not in (SILENT, *ENDED):
                yield series_name("pipeline", f"lag.{row['flow']}", space, row["pipeline"]), row["lag"]
                yield series_name("pipeline", f"rows.{row['flow']}", space, row["pipeline"]), row["rows_per_s"]

    # -- topics

    async def _topics(self, elapsed_s: float) -> AsyncIterator[tuple[str, float]]:
        namespaces = self._running.broker.namespaces
        for namespace in list(islice(namespaces.values(), NAMESPACES_LOOKED_MAX)):
            self._find_busy(namespace)
            await asyncio.sleep(0)
        for number, (space, name) in enumerate(dict.fromkeys((*self._asked["topic"], *self._busy))):
            found = namespaces.get(space)
            count = None if found is None else self._came(found, name)
            if count is None:  # it is gone
                self._forget((space, name))
                continue
            self.totals[space, name] = self.totals.get((space, name), 0) + count
            yield series_name("topic", "in", space, name), count / elapsed_s
            if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                await asyncio.sleep(0)

    def _find_busy(self, namespace: Namespace) -> None:
        everything = View(namespace, 0, b"", b"#", None, {}, 0)
        for log in list(namespace.stems.values()):
            if log.is_asleep or self._tails.get(log.id) == log.stable:
                continue
            self._tails[log.id] = log.stable
            begin = max(log.start_offset, log.stable - TAIL_RECORDS)
            with suppress(NotLocal), large_by_thread():  # large messages are not read for a guess
                records, _ = ViewSlot(everything, log).records(begin, TAIL_BYTES, count_max=TAIL_RECORDS)
                for topic in {record.topic for record in records}:
                    self._follow((namespace.name, topic.decode(errors="replace")))
        for name in islice(namespace.topics, TOPICS_MAX):
            key = (namespace.name, name.decode(errors="replace"))
            if not name.startswith(b"$") and (key not in self._busy or self._moved(namespace, key)):
                self._follow(key)

    def _follow(self, key: Object) -> None:
        if len(key[1]) > NAME_CHARACTERS_MAX:
            return
        self._busy.pop(key, None)
        self._busy[key] = time.monotonic()
        while len(self._busy) > TOPICS_MAX:
            self._forget(next(iter(self._busy)))

    def _forget(self, key: Object) -> None:
        for kept in (self._busy, self._ends, self.totals, self._asked["topic"]):
            kept.pop(key, None)

    def _moved(self, namespace: Namespace, key: Object) -> bool:
        topic = namespace.find_topic(key[1].encode())
        return topic is not None and [one.stable_offset for one in topic.partitions] != self._ends.get(key)

    def _came(self, namespace: Namespace, name: str) -> int | None:
        """Records since the last look; None where there is no such topic."""
        topic = namespace.find_topic(name.encode())
        if topic is None:
            return None
        key = (namespace.name, name)
        readers = [PartitionReader(one, namespace.topic_of) for one in topic.partitions]
        ends = [one.stable_offset for one in readers]
        before = self._ends.get(key, ends)
        self._ends[key] = ends
        known = zip(readers, before, ends, strict=False)  # partitions may have come
        return sum(reader.count(start, end) for reader, start, end in known if start < end)
