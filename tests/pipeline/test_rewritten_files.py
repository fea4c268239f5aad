"""A plan is held while retention and compaction rewrite and remove its files: what is still stored is read exactly once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mainstem.broker.broker import Broker as Core
from mainstem.broker.topics.policy import Policy
from mainstem.broker.topics.topic import Topic
from mainstem.log.log import Log
from mainstem.testing import Broker
from mainstem_pipeline import slices
from mainstem_pipeline.options import ReadOptions, read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import DataLoss, ScanTask, read_task
from tests.pipeline.conftest import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
Row = tuple[int, bytes | None, bytes | None]


class Files:
    """A compacted topic of many small segments, and what may happen to them behind a reader's back."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name
        self.written = 0
        self._on_loop(self._create())

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self.broker.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.broker.loop).result(60)

    @property
    def core(self) -> Core:
        assert self.broker.app is not None
        return self.broker.app.broker

    @property
    def topic(self) -> Topic:
        return self.core.namespace("/").topics[self.name.encode()]

    @property
    def log(self) -> Log:
        return self.topic.partitions[0].log

    async def _create(self) -> None:
        policy = Policy(cleanup="compact", segment_bytes=16 << 10, delete_retention_ms=0, durability="os")
        self.core.create_topic(self.core.namespace("/"), self.name.encode(), policy)

    def write(self, count: int, keys: int) -> None:
        first = self.written
        values = (b"%06d" % number * 8 for number in range(first, first + count))
        key: Callable[[int], bytes] = lambda index: b"k%d" % ((first + index) * 7919 % 10007 % keys)  # noqa: E731
        self.written += produce(self.broker, self.name, values, key=key, **{"batch.num.messages": 25})  # type: ignore[arg-type]

    def compact(self) -> None:
        async def work() -> None:
            self.log.engine.roll()
            await self.core.maintenance.keep(self.core.namespace("/"), self.log, self.topic.policy)

        self._on_loop(work())

    def drop_front(self) -> None:
        """As retention does: the oldest part goes."""

        async def work() -> None:
            sealed = [part for part in self.log.engine.stat().parts if part.sealed]
            if sealed:
                self.log.move_start(sealed[0].end_offset)
                self.log.trim(sealed[0].end_offset)

        self._on_loop(work())

    def end_lease(self, plan: str) -> None:
        """As its time does; the files it kept are unlinked."""

        async def work() -> None:
            self.core.scans.release(plan)

        self._on_loop(work())

    def left(self, path: Path) -> bool:
        """Whether only a lease still keeps the file."""
        return path.name not in {part.name for part in self.log.engine.stat().parts}

    def damage(self, path: Path, chance: random.Random) -> None:
        """A byte of a file that is not the log's own any more."""
        if path.exists() and self.left(path):
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data))] ^= 0xFF
            path.write_bytes(data)

    def options(self, **more: str) -> ReadOptions:
        given = {"url": self.broker.http_url, "subscribe": self.name, "batchRows": "40", "taskBytes": "20000", **more}
        return read_options(given, streaming=False)

    def plan(self, **more: str) -> list[ScanTask]:
        scan = Scan(self.options(**more))
        try:
            return scan.plan(*scan.batch_range())
        finally:
            scan.close()

    def stored(self) -> list[Row]:
        """What the log holds now."""
        tasks = self.plan(direct="false")
        rows = [row for task in tasks for row in rows_of(task)]
        for task in tasks[:1]:
            self.end_lease(task.plan)
        return rows


def rows_of(task: ScanTask, between: Callable[[], None] = lambda: None) -> Iterator[Row]:
    for batch in read_task(task, SCHEMA):
        columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
        yield from zip(*columns, strict=True)
        between()


@pytest.fixture
def files(tmp_path: Path, topic: str) -> Iterator[Files]:
    with Broker(engine="segment", data=tmp_path / "data") as broker:
        yield Files(broker, topic)


def test_a_lease_keeps_what_was_planned_and_without_it_the_broker_is_asked(files: Files) -> None:
    files.write(1500, keys=40)
    before = files.stored()
    assert len(before) == 1500
    kept, ended = files.plan(), files.plan()
    assert all("path" in piece for task in (*kept, *ended) for piece in task.slices)
    files.compact()
    after = files.stored()
    assert len(after) < 100
    assert [row for task in kept for row in rows_of(task)] == before  # the old generation's files, still there
    files.end_lease(kept[0].plan)
    files.end_lease(ended[0].plan)
    gone = [piece["path"] for task in ended for piece in task.slices if not Path(piece["path"]).exists()]
    assert gone
    assert [row for task in ended for row in rows_of(task)] == after


@pytest.mark.parametrize("chunk_bytes", [4 << 10, 4 << 20])
@pytest.mark.parametrize("harm", ["a byte changed", "cut off"])
def test_a_file_rewritten_and_damaged_is_read_on_through_the_broker_from_the_same_offset(
    files: Files, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, harm: str
) -> None:
    monkeypatch.setattr(slices, "CHUNK_BYTES", chunk_bytes)
    files.write(900, keys=300)
    before = files.stored()
    tasks = files.plan(taskBytes="1000000")
    files.compact()
    after = files.stored()
    assert len(after) < len(before)
    for piece in tasks[0].slices:
        path = Path(piece["path"])
        data = bytearray(path.read_bytes())
        place = piece["at"] + piece["bytes"] * 3 // 4
        if harm == "cut off":
            del data[place:]
        else:
            data[place] ^= 0xFF
        if files.left(path):
            path.write_bytes(data)
    found = [row for task in tasks for row in rows_of(task)]
    check(found, before, after)
    assert len(after) < len(found) < len(before)  # some of it from the file


def test_a_file_where_another_frame_stands_than_the_plan_named_is_not_read(files: Files, tmp_path: Path) -> None:
    files.write(300, keys=300)
    before = files.stored()
    tasks = files.plan(taskBytes="1000000")
    piece = tasks[0].slices[0]
    data, at = Path(piece["path"]).read_bytes(), piece["at"]
    frame_bytes = 48 + int.from_bytes(data[at + 8 : at + 12], "big")
    moved = tmp_path / "moved.log"
    moved.write_bytes(data[:at] + data[at + frame_bytes :])  # every frame in it is whole, and of this log
    tasks[0] = replace(tasks[0], slices=[{**piece, "path": str(moved)}, *tasks[0].slices[1:]])
    assert [row for task in tasks for row in rows_of(task)] == before


def check(found: list[Row], before: list[Row], after: list[Row]) -> None:
    """All that is still there, nothing twice, nothing that was not planned, each as it was written."""
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert set(found) <= set(before)
    end = before[-1][0] if before else -1
    assert {row for row in after if row[0] <= end} <= set(found)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_to_files_between_plan_and_read(
    files: Files, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(slices, "CHUNK_BYTES", chance.choice([2 << 10, 10 << 10, 4 << 20]))
    files.write(chance.randrange(200, 900), keys=chance.choice([5, 60, 2000]))
    if chance.random() < 0.5:
        files.compact()
        files.write(chance.randrange(50, 400), keys=chance.choice([5, 60]))
    before = files.stored()
    lossy = chance.random() < 0.5
    tasks = files.plan(failOnDataLoss=str(not lossy).lower(), minPartitions=str(chance.choice([1, 4])))
    paths = [Path(piece["path"]) for task in tasks for piece in task.slices if "path" in piece]
    steps: list[Callable[[], None]] = [
        files.compact,
        files.drop_front,
        lambda: files.write(chance.randrange(1, 200), keys=60),
        lambda: files.end_lease(tasks[0].plan),
        lambda: files.damage(chance.choice(paths), chance),
    ]

    def happen() -> None:
        while chance.random() < 0.3:
            chance.choice(steps)()

    happen()
    found: list[Row] = []
    try:
        for task in tasks:
            found += rows_of(task, happen)
            happen()
    except DataLoss:  # told, never silent
        assert not lossy
        assert files.log.start_offset > before[0][0]
    else:
        check(found, before, files.stored())


def test_spark_reads_each_record_once_while_its_plan_outlives_the_files(files: Files, spark: SparkSession) -> None:
    files.write(2000, keys=50)
    before = files.stored()

    def planned() -> Any:
        reader = spark.read.format("mainstem").options(url=files.broker.http_url, subscribe=files.name)
        rows = reader.options(taskBytes="20000").load().select("offset", "key", "value").rdd
        assert rows.getNumPartitions() > 1  # Spark has asked for its plan, and keeps it
        return rows

    def collected(rows: Any) -> list[Row]:
        return sorted((row.offset, bytes(row.key), bytes(row.value)) for row in rows.collect())

    kept, ended = planned(), planned()
    files.compact()
    after = files.stored()
    assert len(after) < 100
    assert collected(kept) == before
    for plan in list(files.core.scans._leases):
        files.end_lease(plan)
    assert collected(ended) == after


def test_a_stream_over_a_topic_that_is_compacted_meanwhile(files: Files, spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Row] = []

    def keep(frame: Any, batch: int) -> None:
        rows.extend((row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect())
        files.write(150, keys=20)
        files.compact()

    files.write(300, keys=20)
    for _ in range(3):
        query = (
            spark.readStream.format("mainstem")
            .options(url=files.broker.http_url, subscribe=files.name, startingOffsets="earliest")
            .options(maxOffsetsPerTrigger="100", taskBytes="5000")
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
    end = max(offset for offset, _, _ in rows)
    found = [offset for offset, _, _ in rows]
    assert found == sorted(set(found))
    assert {row for row in files.stored() if row[0] <= end} <= set(rows)
