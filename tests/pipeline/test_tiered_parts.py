"""Parts of a log in an object store are read by tasks straight from there, and through the broker where they cannot."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.options import read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.slices import ScanTask, read_task
from tests.crossing.test_object_storage import eventually, local_bytes, read_kafka, read_stream
from tests.crossing.test_object_storage import read_http as read_rest
from tests.pipeline.conftest import produce, read
from tests.s3_server import s3_server

VALUES = [b"%06d" % n + b"." * 200 for n in range(3_000)]
SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
POLICY = ("layout=dedicated", "segment_bytes=64KiB", "tier=s3", "local_retention_bytes=0")
TOTAL_BYTES = 300 << 20
BUDGET_BYTES = TOTAL_BYTES // 10
SEGMENT_BYTES = min(8 << 20, max(BUDGET_BYTES // 4, 1 << 20))


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "bucket").mkdir()
    settings = (f"tier.store=file://{tmp_path / 'bucket'}", *(f"policies.t/#.{one}" for one in POLICY))
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        yield broker


def planned(broker: BrokerProcess, **options: str) -> list[ScanTask]:
    scan = Scan(read_options({"url": broker.http_url, "subscribe": "t.a", **options}, streaming=False))
    tasks = scan.plan(*scan.batch_range())
    scan.close()
    return list(tasks)


def rows_of(tasks: list[ScanTask]) -> list[tuple[int, bytes]]:
    found = []
    for task in tasks:
        for batch in read_task(task, SCHEMA):
            found += list(zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True))
    return sorted(found)


def test_tasks_read_what_lies_in_the_store_past_the_broker(
    tiered: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(tiered, "t.a", VALUES, **{"batch.num.messages": "50"})
    eventually(lambda: local_bytes(tiered) == 0, "every sealed segment is in the store only")
    fetched, fetch = list[int](), BrokerClient.get_bytes

    def noted(client: BrokerClient, path: str, **given: Any) -> Any:
        fetched.append(int(given["start"]))
        return fetch(client, path, **given)

    monkeypatch.setattr(BrokerClient, "get_bytes", noted)
    for options in ({}, {"minPartitions": "20"}, {"maxRecordsPerPartition": "70"}):
        tasks = planned(tiered, **options)
        named = [piece for task in tasks for piece in task.slices if piece.get("object")]
        local = [piece["start"] for task in tasks for piece in task.slices if not piece.get("object")]
        assert named
        assert rows_of(tasks) == list(enumerate(VALUES))
        assert all(start >= min(local) for start in fetched), "what lies in an object is not asked of the broker"
    assert rows_of(planned(tiered, direct="false")) == list(enumerate(VALUES))
    assert 0 in fetched


def test_a_task_that_cannot_reach_the_store_reads_through_the_broker(tiered: BrokerProcess) -> None:
    produce(tiered, "t.a", VALUES, **{"batch.num.messages": "50"})
    eventually(lambda: local_bytes(tiered) == 0, "every sealed segment is in the store only")

    def elsewhere(piece: Any) -> Any:
        if not piece.get("object"):
            return piece
        store = {**piece["object"]["store"], "url": f"file:///nowhere/{uuid.uuid4().hex}"}
        return {**piece, "object": {**piece["object"], "store": store}}

    tasks = [replace(task, slices=[elsewhere(one) for one in task.slices]) for task in planned(tiered)]
    assert rows_of(tasks) == list(enumerate(VALUES))


def test_what_lies_in_an_iceberg_table_is_built_again_by_the_broker_for_tasks(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    rules = ("tier=iceberg", *(one for one in POLICY if one != "tier=s3"))
    settings = (f"tier.store=file://{tmp_path / 'bucket'}", *(f"policies.t/#.{one}" for one in rules))
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        produce(broker, "t.a", VALUES, **{"batch.num.messages": "50"})
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the table only")
        for options in ({}, {"minPartitions": "20"}):
            tasks = planned(broker, **options)
            assert not any(piece.get("object") for task in tasks for piece in task.slices)
            assert rows_of(tasks) == list(enumerate(VALUES))


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", ["tier", "engine"])
def test_a_log_ten_times_the_local_budget_is_read_whole_by_every_protocol_and_spark(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 10_000
    count = TOTAL_BYTES // size
    seeded = random.Random(24)
    values = [seeded.randbytes(size // 2).hex().encode() for _ in range(count)]
    policy = {
        "tier": ("tier=s3", f"local_retention_bytes={BUDGET_BYTES}", f"segment_bytes={SEGMENT_BYTES}"),
        "engine": ("engine=object",),
    }
    with s3_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = (f"tier.store=s3://bucket/{uuid.uuid4().hex}", f"tier.endpoint={server.endpoint}")
        rules = (f"policies.t/#.{one}" for one in ("layout=dedicated", *policy[kind]))
        settings = (*store, "tier.cache_bytes=64MiB", *rules)
        with BrokerProcess(tmp_path / "data", *settings, environment=server.environment) as broker:
            produce(broker, "t.a", values, **{"queue.buffering.max.kbytes": "65536"})
            eventually(lambda: local_bytes(broker) <= BUDGET_BYTES, "the local disk holds its budget only")
            assert read_kafka(broker, "t.a", count) == values
            frame = read(spark, broker, subscribe="t.a").select("offset", f.md5("value").alias("sum"))
            sums = [(offset, hashlib.md5(value).hexdigest()) for offset, value in enumerate(values)]
            wanted = spark.createDataFrame(sums, "offset bigint, sum string")
            assert frame.count() == count
            assert frame.exceptAll(wanted).count() == 0
            monkeypatch.setattr("tests.crossing.test_object_storage.COUNT", count)
            assert read_stream(broker, "t/a") == values
            assert read_rest(broker, "t/a") == values
