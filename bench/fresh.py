"""From publish to queryable: seconds until a record is in an answer.

Records of 200 bytes are published one after the other, each acked, while a reader looks again and again:

- the log, asked by `POST /v1/query` once each ack is there: what one question takes;
- an Iceberg table that `mainstem lake archive` keeps, looked at as any engine does: the newest snapshot of the catalog;
- files that Spark's own Kafka connector writes (its Parquet sink, whose own list says which are whole), over the broker's
  Kafka port, in the Spark that has one.

Both streams begin a batch as soon as the one before is done, with local[2]. A look each 50 ms; the clock starts just before
the publish. The first records warm up and do not count.

python -m bench fresh
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
from confluent_kafka import Producer

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.pipeline.flows import FlowRun
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.session import SparkOptions, start_session

COUNT, WARM, ASKED = 150, 50, 30
PAUSE_S, LOOK_S, DEADLINE_S = 0.1, 0.05, 120.0
VALUE = b"x" * 200
CONNECTOR = """
options = {"kafka.bootstrap.servers": arguments[0], "subscribe": arguments[1], "startingOffsets": "earliest"}
frame = spark.readStream.format("kafka").options(**options).load()
writer = frame.writeStream.format("parquet").option("checkpointLocation", arguments[2] + "-checkpoint")
query = writer.trigger(processingTime="0 seconds").start(arguments[2])
print("started", flush=True)
input()
query.stop()
"""


class Watch:
    """When a count was first seen to be so high."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look, self.seen, self._on = look, list[tuple[float, int]](), True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return self.seen[-1][1] if self.seen else 0

    def _run(self) -> None:
        while self._on:
            found = self._look()
            if found > self.count:
                self.seen.append((time.monotonic(), found))
            time.sleep(LOOK_S)

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.count < count:
            assert time.monotonic() < deadline, f"{self.count} of {count} records were seen"
            time.sleep(LOOK_S)

    def stop(self) -> None:
        self._on = False
        self._thread.join()


def publisher(broker: BrokerProcess) -> Callable[[str], float]:
    """Publishes a record; returns when that began."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})

    def publish(topic: str) -> float:
        began = time.monotonic()
        producer.produce(topic, VALUE)
        assert producer.flush(DEADLINE_S) == 0
        return began

    return publish


def followed(broker: BrokerProcess, topic: str, look: Callable[[], int]) -> list[float]:
    """Seconds, by record."""
    publish, watch = publisher(broker), Watch(look)
    for _ in range(WARM):
        publish(topic)
    watch.wait(WARM)
    began = []
    for _ in range(COUNT):
        began.append(publish(topic))
        time.sleep(PAUSE_S)
    watch.wait(WARM + COUNT)
    watch.stop()
    return [next(at for at, count in watch.seen if count > WARM + number) - at0 for number, at0 in enumerate(began)]


def asked(broker: BrokerProcess) -> list[float]:
    publish, found = publisher(broker), list[float]()
    with httpx.Client(base_url=broker.http_url, timeout=DEADLINE_S) as client:
        for number in range(ASKED + 5):
            began, count = publish("asked"), 0
            while count <= number:
                answer = client.post("/v1/query", json={"sql": 'select count(*) as n from "asked"'}).raise_for_status()
                count = int(answer.json()["items"][0]["n"])
            found.append(time.monotonic() - began)
    return found[5:]


def archived(broker: BrokerProcess, folder: Path) -> list[float]:
    lake = LakeOptions(str(folder / "lake"))
    publisher(broker)("archived")
    made = archive_pipeline(
        "archived", "raw.archived", url=broker.http_url, warehouse=lake.warehouse, catalog="", state=None, trigger_ms=0
    )
    spark = start_session(SparkOptions(master="local[2]", log=folder / "spark.log", fast_start=True))
    query = FlowRun(made, replace(made.flows[0]), spark, State(made), print).start(once=False, run="bench")
    catalog = open_catalog(lake)

    def look() -> int:
        try:
            snapshot = load_table(catalog, "raw.archived").current_snapshot()
        except Exception:  # there is no table yet
            return 0
        summary: Any = snapshot.summary if snapshot is not None else None
        return int(summary["total-records"]) - 1 if summary is not None else 0

    try:
        return followed(broker, "archived", look)
    finally:
        query.stop()
        spark.stop()


def connected(broker: BrokerProcess, folder: Path) -> tuple[list[float], str]:
    from tests.pipeline.connector_kit import connector

    found, target = connector(folder), folder / "connected"
    publisher(broker)("connected")
    rows: dict[str, int] = {}

    def look() -> int:
        for listed in (target / "_spark_metadata").glob("[0-9]*"):
            for line in listed.read_text().splitlines()[1:]:
                path = json.loads(line)["path"].removeprefix("file://")
                if path not in rows:
                    rows[path] = pq.read_metadata(path).num_rows
        return sum(rows.values()) - 1

    command = found.command(CONNECTOR, broker.bootstrap_servers, "connected", str(target))
    environment, pipe = found.environment(), subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline().strip() != "started":
            assert process.poll() is None, "the connector's Spark ended"
        took = followed(broker, "connected", look)
        process.stdin.write("\n")
    return took, found.version


def row(what: str, took: list[float]) -> float:
    cuts = statistics.quantiles(took, n=100)
    print(f"{what:<58}{cuts[49]:>8.2f}{cuts[98]:>8.2f}", flush=True)
    return cuts[49]


def main() -> None:
    from tests.protocol.kafka.java_clients import Unavailable

    print(f"{'seconds from publish to queryable':<58}{'p50':>8}{'p99':>8}")
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-fresh-") as name:
        folder = Path(name)
        with BrokerProcess(folder / "data") as broker:
            row("the log, by POST /v1/query", asked(broker))
            ours = row("an Iceberg table, by mainstem lake archive", archived(broker, folder))
            try:
                took, version = connected(broker, folder)
            except Unavailable as error:
                print(f"Spark's Kafka connector: not measured: {str(error)[:200]}")
                return
            theirs = row(f"Parquet files, by Spark's Kafka connector ({version})", took)
            print(f"the table's median is {ours / theirs:.2f} of the connector's")


if __name__ == "__main__":
    main()
