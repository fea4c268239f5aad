"""Spark reading a topic: rows/s, MB/s and CPU seconds, `python bench/spark.py [--rows N] [--size BYTES] [--kafka]`.

One partition of Kafka batches (500 records each) is filled first, then read with local[2] into Spark's no-op sink and into
Parquet. The first run of each warms the JVM; the best of the next two is told. `--kafka` reads the same topic through the
broker's Kafka port with Spark's own connector, where Maven Central has it for this Spark version.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.session import SparkOptions, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = 3
KEY_BYTES = 16


def cpu_seconds() -> tuple[float, float]:
    """(JVM, Python children) of this process."""
    jvm = python = 0.0
    for one in psutil.Process().children(recursive=True):
        try:
            spent, name, command = one.cpu_times(), one.name(), one.cmdline()
        except psutil.Error:  # it ended meanwhile
            continue
        if "java" in name:
            jvm += spent.user + spent.system
        elif "serve" not in command:  # the broker is a child too
            python += spent.user + spent.system
    return jvm, python


def fill(broker: BrokerProcess, rows: int, size: int) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 500, "linger.ms": 50}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000, "acks": 1})
    value = os.urandom(size)
    for number in range(rows):
        while True:
            try:
                producer.produce("bench", value, b"%0*d" % (KEY_BYTES, number))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def measured(name: str, rows: int, size: int, run: Callable[[], None]) -> None:
    best: tuple[float, float, float] | None = None
    for attempt in range(RUNS):
        before, started = cpu_seconds(), time.monotonic()
        run()
        wall, after = time.monotonic() - started, cpu_seconds()
        if attempt and (best is None or wall < best[0]):
            best = (wall, after[0] - before[0], after[1] - before[1])
    assert best is not None
    wall, jvm, python = best
    megabytes = rows * (size + KEY_BYTES) / 1e6
    print(
        f"{name:<28} {rows / wall / 1e6:6.2f} M rows/s  {megabytes / wall:7.0f} MB/s  {wall:6.1f} s  "
        f"CPU s: JVM {jvm:.1f}, Python {python:.1f}"
    )


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def run_all(spark: SparkSession, broker: BrokerProcess, rows: int, size: int, folder: Path, kafka: bool) -> None:
    def ours(**options: str) -> DataFrame:
        return spark.read.format("mainstem").options(url=broker.http_url, subscribe="bench", **options).load()

    def to_parquet(frame: DataFrame) -> None:
        frame.write.mode("overwrite").parquet(str(folder / "parquet"))

    measured("mainstem, no-op", rows, size, lambda: to_noop(ours()))
    measured("mainstem, value and offset", rows, size, lambda: to_noop(ours(columns="value,offset")))
    measured("mainstem, Parquet", rows, size, lambda: to_parquet(ours()))
    if not kafka:
        return

    def connector() -> Any:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "bench"}
        return spark.read.format("kafka").options(**options).load()

    measured("Spark's Kafka connector, no-op", rows, size, lambda: to_noop(connector()))
    measured("Spark's Kafka connector, Parquet", rows, size, lambda: to_parquet(connector()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=84, help="bytes of a value; the key has 16")
    parser.add_argument("--kafka", action="store_true", help="also Spark's own Kafka connector, from Maven Central")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, BrokerProcess(Path(name) / "data") as broker:
        fill(broker, asked.rows, asked.size)
        settings = {"spark.driver.memory": "3g"}
        if asked.kafka:
            import pyspark

            settings["spark.jars.packages"] = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        spark = start_session(SparkOptions(master="local[2]", log=Path(name) / "spark.log", settings=settings))
        print(f"Spark {spark.version}, {os.cpu_count()} cores, {asked.rows:,} rows of {asked.size + KEY_BYTES} bytes")
        run_all(spark, broker, asked.rows, asked.size, Path(name), asked.kafka)
        spark.stop()


if __name__ == "__main__":
    main()
