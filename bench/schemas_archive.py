"""What decoding costs an archive: MB of log per CPU second into a raw table, and into tables of the values' fields.

Kafka batches of 500 records with values of 200 bytes as JSON, and the same readings in Avro as serialisers write it.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from bench.lake import BATCH_ROWS, VALUE_BYTES, batches, measured, reading
from mainstem.codec.batch import BatchBuilder
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import load_table, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.pipeline.flows import FlowRun
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.session import SparkOptions, start_session
from tests.protocol.kafka.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, WARM_ROWS, BATCHES = 2_000_000, 100_000, 200
READING = {
    "type": "record",
    "name": "LakeReading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "site", "type": "string"},
        {"name": "celsius", "type": "double"},
        {"name": "humidity", "type": "double"},
        {"name": "sequence", "type": "long"},
        {"name": "trace", "type": "string"},
    ],
}
# What is archived, how, and as what it is told.
WAYS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("readings", {}, "raw"),
    ("readings", {"decoded": "decoded.{}", "decoded_only": True}, "decoded instead (JSON)"),
    ("avros", {"decoded": "decoded.{}", "decoded_only": True}, "decoded instead (Avro)"),
    ("readings", {"decoded": "decoded.{}"}, "raw, and decoded beside (JSON)"),
)


def archive_rates(broker: BrokerProcess, folder: Path) -> list[str]:
    made = httpx.post(f"{broker.http_url}/subjects/readings/versions", json={"schema": json.dumps(READING)}).json()
    sizes = {}
    for topic, ready in (("readings", batches(VALUE_BYTES, BATCHES)), ("avros", avro_batches(made["id"]))):
        _fill(broker, f"warm{topic}", ready, WARM_ROWS)
        sizes[topic] = _fill(broker, topic, ready, ROWS)
    lines = ["", "| archive, local[2] | MB of log | MB/s | CPU s | MB per CPU second |", "|---|---|---|---|---|"]
    spark = start_session(SparkOptions(master="local[2]", log=folder / "spark.log", fast_start=True))
    try:
        for number, (topic, options, words) in enumerate(WAYS):
            for name in (f"warm{topic}", topic):
                found: dict[str, float] = {}
                with measured(broker.pid, found):
                    _archive(spark, broker, folder / f"lake{number}", name, options)
            cpu_s = found["jvm"] + found["python"] + found["driver"]
            size = sizes[topic] / 1e6
            lines.append(f"| {words} | {size:,.0f} | {size / found['wall']:.0f} | {cpu_s:.1f} | {size / cpu_s:.0f} |")
    finally:
        spark.stop()
    return lines


def avro_batches(schema_id: int) -> list[bytes]:
    import io

    import fastavro

    chance, schema = random.Random(1), fastavro.parse_schema(READING)
    made = []
    for number in range(BATCHES):
        builder = BatchBuilder()
        for row in range(BATCH_ROWS):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, json.loads(reading(chance, number * BATCH_ROWS + row)))
            value = b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()
            builder.add(b"key-%012d" % chance.randrange(5_000), value, ((b"unit", b"C"),), int(time.time() * 1000))
        made.append(bytes(builder.seal_batch(0)))
    return made


def _fill(broker: BrokerProcess, topic: str, ready: list[bytes], rows: int) -> int:
    """Returns the bytes of its log."""
    made = {"name": topic, "settings": {"partitions": 1, "durability": "os"}}
    httpx.post(f"{broker.http_url}/v1/topics", json=made).raise_for_status()
    size = 0
    with RawClient(broker) as client:
        for number in range(rows // BATCH_ROWS):
            assert client.produce(topic, ready[number % len(ready)]).error_code == 0
            size += len(ready[number % len(ready)])
    return size


def _archive(spark: SparkSession, broker: BrokerProcess, lake: Path, topic: str, options: dict[str, Any]) -> None:
    named: dict[str, Any] = {
        name: value.format(topic) if isinstance(value, str) else value for name, value in options.items()
    }
    made = archive_pipeline(topic, None, url=broker.http_url, warehouse=str(lake), catalog="", state=None, **named)
    run = FlowRun(made, replace(made.flows[0], rows_per_batch_max=1 << 40), spark, State(made), print)
    assert run.start(once=True, run="bench").awaitTermination(600)
    table = load_table(open_catalog(made.lake), named.get("decoded") or f"raw.{topic}")  # type: ignore[arg-type]
    rows = sum(one.file.record_count for one in table.scan().plan_files())
    assert rows == (WARM_ROWS if topic.startswith("warm") else ROWS), rows
