"""The history as records of the log itself, so that a restart keeps it: two topics that nobody else writes.

    $history/10s   {"t": seconds, "v": {series: value}}   a point each ten seconds, kept for a day
    $history/5m    the same, each five minutes, kept for eight days

`durability = os`: a point is worth no sync. Zeros are left out; what a record does not name was zero, or not followed.
Both lie in the namespace `/`, in logs of their own; lists of topics leave out what begins with `$`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from typing import Any

import msgspec

from mainstem.admin.answers.system import HistorySeries
from mainstem.admin.history.figures import MARK, Figures, namespace_of
from mainstem.admin.history.rings import COARSE_SLOTS, FINE_S, FINE_SLOTS, Rings
from mainstem.admin.running import Running
from mainstem.broker.broker import DEFAULT_NAMESPACE
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.topic import Topic
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin

logger = logging.getLogger("mainstem.history")

FINE_TOPIC, COARSE_TOPIC = b"$history/10s", b"$history/5m"
DAY_MS = 86_400_000
KEPT_MS = {FINE_TOPIC: DAY_MS, COARSE_TOPIC: 8 * DAY_MS}
SEGMENT_BYTES, SEGMENT_MS = 4 << 20, 6 * 3_600_000
RESTORE_RECORDS, RESTORE_BYTES = 50, 1 << 20  # at once
POINTS_SHOWN_MAX = 720
COUNTED = ("in", "out", "bytes_in", "bytes_out", "connections", "stall_ms", "lag_max", "queue_ready", "queue_unacked",
           "queue_dead")  # fmt: skip
WEEK_S = 7 * 86_400
SPAN_S_MIN = 3_600  # of less nobody can tell where it leads


class _Point(msgspec.Struct):
    t: float
    v: dict[str, float]


class History:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._rings = Rings()
        self.figures = Figures(running)
        self._decode = msgspec.json.Decoder(_Point).decode
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Restore what there is, then a point each ten seconds, for ever."""
        async with self._writing:
            await self.restore()
        await self._begin()
        while True:
            await asyncio.sleep(FINE_S - time.time() % FINE_S)
            await self.sample()

    async def _begin(self) -> None:
        """Counters begin here. The point is only shown, so that a chart has two when the next one comes."""
        try:
            values = await self.figures.take()
            self._rings.put(time.time(), {name: value for name, value in values.items() if value})
        except Exception:
            logger.exception("a point of the history could not be taken")

    async def sample(self) -> None:
        try:
            values = {name: value for name, value in (await self.figures.take()).items() if value}
            now_s = time.time()
            ended = self._rings.put(now_s, values)
            async with self._writing:
                await self._write(FINE_TOPIC, now_s, values)
                if ended is not None:
                    await self._write(COARSE_TOPIC, *ended)
        except MainstemError as error:  # no room, or a quota: the chart has a gap
            logger.debug("a point of the history was not kept: %s", error)
        except Exception:
            logger.exception("a point of the history could not be taken")

    async def _write(self, name: bytes, time_s: float, values: dict[str, float]) -> None:
        namespace = self._running.broker.namespace(DEFAULT_NAMESPACE)
        if name not in namespace.topics:
            policy = namespace.defaults.with_changes(
                {
                    "durability": "os",
                    "layout": "dedicated",
                    "partitions": 1,
                    "cleanup": "delete",
                    "retention_ms": KEPT_MS[name],
                    "retention_bytes": -1,
                    "segment_bytes": SEGMENT_BYTES,
                    "segment_ms": SEGMENT_MS,
                    "tier": "none",
                    "keep_until_archived": False,
                }
            )
            await self._running.broker.begin_topic(namespace, name, policy)  # before, the stem would have the record
        rounded = {name: round(value, 3) for name, value in values.items()}
        namespace.publish(name, msgspec.json.encode(_Point(round(time_s, 1), rounded)))

    # -- restoring

    async def restore(self) -> None:
        namespace = self._running.broker.namespace(DEFAULT_NAMESPACE)
        for name, slots in ((COARSE_TOPIC, COARSE_SLOTS), (FINE_TOPIC, FINE_SLOTS)):
            topic = namespace.topics.get(name)
            if topic is not None:
                try:
                    await self._restore(topic, slots, coarse=name == COARSE_TOPIC)
                except Exception:
                    logger.exception("%s cannot be read; charts begin now", name.decode())

    async def _restore(self, topic: Topic, slots: int, *, coarse: bool) -> None:
        namespace = self._running.broker.namespace(DEFAULT_NAMESPACE)
        reader = PartitionReader(topic.partitions[0], namespace.topic_of)
        at = max(reader.start_offset, reader.stable_offset - slots)
        while at < reader.stable_offset:
            records, after = reader.records(at, RESTORE_BYTES, count_max=RESTORE_RECORDS)
            for record in records:
                if record.origin == Origin.BROKER and record.value is not None:
                    self._restore_point(record.value, coarse=coarse)
            if after <= at:
                return
            at = after
            await asyncio.sleep(0)

    def _restore_point(self, value: bytes, *, coarse: bool) -> None:
        point = self._point(value)
        if point is not None:
            self._rings.restore(point.t, point.v, coarse=coarse)

    def _point(self, value: bytes | None) -> _Point | None:
        try:
            return self._decode(value) if value is not None else None
        except msgspec.DecodeError:  # cut, or somebody else's
            return None

    # -- forgetting

    async def forget_namespace(self, namespace: str) -> None:
        """It is removed: no chart and no record names its topics, queues and groups any more."""
        self.figures.forget_namespace(namespace)
        self._rings.drop(lambda series: namespace_of(series) == namespace)
        async with self._writing:
            for name, slots in ((FINE_TOPIC, FINE_SLOTS), (COARSE_TOPIC, COARSE_SLOTS)):
                await self._rewrite(name, slots, namespace)

    async def _rewrite(self, name: bytes, slots: int, without: str) -> None:
        """Points that a start would restore are written again, after all others went off the disk. In between they are
        packed in memory: some megabytes at most."""
        broker = self._running.broker
        namespace = broker.namespace(DEFAULT_NAMESPACE)
        topic = namespace.topics.get(name)
        if topic is None:
            return
        reader = PartitionReader(topic.partitions[0], namespace.topic_of)
        at, named, kept = reader.start_offset, False, deque[bytes](maxlen=slots)
        while at < reader.stable_offset:
            records, after = reader.records(at, RESTORE_BYTES, count_max=RESTORE_RECORDS)
            for record in records:
                point = self._point(record.value) if record.origin == Origin.BROKER else None
                if point is not None:
                    others = {series: value for series, value in point.v.items() if namespace_of(series) != without}
                    named = named or len(others) < len(point.v)
                    kept.append(zlib.compress(msgspec.json.encode(_Point(point.t, others)), 1))
            if after <= at:
                break
            at = after
            await asyncio.sleep(0)
        if not named:
            return
        await broker.erase_topic(namespace, name)
        for number, packed in enumerate(kept):
            namespace.publish(name, zlib.decompress(packed))
            if number % RESTORE_RECORDS == RESTORE_RECORDS - 1:
                await asyncio.sleep(0)

    # -- asking

    def of_broker(self, figures: tuple[str, ...], range_s: int) -> HistorySeries:
        """Each figure, or each of its protocols."""

        def wanted(name: str) -> str | None:
            figure, _, _ = name.partition(".")
            return None if MARK in name or (figures and figure not in figures) else name

        found = self._select(wanted, range_s)
        drawn = {name.partition(".")[0] for name in found["series"]}
        for figure in figures:  # always followed, so what no record names was zero; of percentiles there was none
            if figure in COUNTED and figure not in drawn and found["time"]:
                found["series"][figure] = [0.0] * len(found["time"])
        return found

    def of_object(
        self, kind: str, namespace: str, name: str, range_s: int, figures: tuple[str, ...] = ()
    ) -> HistorySeries:
        """Each figure; of a pipeline, each flow of one: a figure is then named `lag.FLOW`, and shown as the flow."""
        self.figures.ask(kind, namespace, name)

        def wanted(series: str) -> str | None:
            parts = series.split(MARK, 3)
            mine = len(parts) == 4 and (parts[0], parts[2], parts[3]) == (kind, namespace, name)
            if not mine:
                return None
            figure, _, of = parts[1].partition(".")
            return (of or figure) if not figures or figure in figures else None

        return self._select(wanted, range_s)

    def _select(self, wanted: Any, range_s: int) -> HistorySeries:
        now_s = time.time()
        found = self._rings.select(wanted, now_s - range_s, now_s, POINTS_SHOWN_MAX)
        for values in found["series"].values():
            begun = False
            for place, value in enumerate(values):
                begun = begun or value is not None
                if value is None and begun:
                    values[place] = 0.0  # it was left out
        return found

    def disk_full_s(self) -> float | None:
        """When the disk is full if it fills as it did in the last week, by a straight line; None: it does not."""
        now_s = time.time()
        found = self._rings.select(lambda name: name if name == "disk_free" else None, now_s - WEEK_S, now_s, 2_000)
        if not found["series"]:
            found = self._rings.select(lambda name: name if name == "disk_free" else None, now_s - 21_600, now_s, 2_000)
        points = list(zip(found["time"], found["series"].get("disk_free", ()), strict=False))
        return full_at_s([(at, free) for at, free in points if free is not None])


def full_at_s(points: list[tuple[float, float]]) -> float | None:
    """Where the line of least squares through (time, free bytes) meets zero."""
    if len(points) < 3 or points[-1][0] - points[0][0] < SPAN_S_MIN:
        return None
    mean_t = sum(at for at, _ in points) / len(points)
    mean_free = sum(free for _, free in points) / len(points)
    spread = sum((at - mean_t) ** 2 for at, _ in points)
    slope = sum((at - mean_t) * (free - mean_free) for at, free in points) / spread if spread else 0.0
    return mean_t - mean_free / slope if slope < 0 else None
