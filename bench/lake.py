"""Log to Iceberg, and SQL over what is archived.

A topic of ten million records of 235 bytes (key 16, JSON value of 200, one header) in Kafka batches of 500, a million of
them different, is archived with local[2]:

- in descriptor mode: tasks turn slices of the log into Parquet, rows never reach the JVM; once more with local[1], where no
  other task shares the core with the one that is measured; and once with a million values of 1 KiB (several readings each);
- through Spark rows: the same columns read with format("mainstem") and written by Spark as zstd Parquet;
- with Spark's own Kafka connector into zstd Parquet, over the broker's Kafka port, where Maven Central has it.

CPU seconds are those of driver, JVM and Python workers; the broker's are told beside them. Each way runs once on a tenth
of the data to warm up. Then the same questions are asked of the archived rows: with `mainstem sql` (hot and cold, the topic
by its name), with Spark over the same Parquet files (what Spark itself costs), and with DuckDB over them.

python -m bench lake, or in pieces: python -m bench.lake --keep DIR [--only NAME] [--rows N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.machine import settle_machine, write_result
from mainstem.codec.batch import BatchBuilder
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.pipeline.flows import FlowRun
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.query.shell import SqlShell
from mainstem_pipeline.session import SparkOptions, start_session
from tests.protocol.kafka.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Log to Iceberg, and SQL over what is archived"
ROWS, BATCH_ROWS, BATCHES = 10_000_000, 500, 2_000
VALUE_BYTES, LARGE_VALUE_BYTES = 200, 1_024
TARGET_MB = 250.0  # a CPU second
ASKED = {
    "count": "select count(*) from {}",
    "range of offsets": "select count(*), min(timestamp), max(timestamp) from {} where offset between 4000000 and 4200000",
    "scan of values": 'select count(*) from {} where cast(value as string) like \'%"site": "north"%\'',
    "group by key": "select key, count(*) c from {} group by key order by c desc, key limit 10",
}
ASKED_TIMES = 5
DUCK = {"cast(value as string)": "decode(value)", "where offset": 'where "offset"'}
PIECES = ("descriptors", "alone", "large", "rows", "connector", "sql")
TOPICS = {
    "warm": (0.1, VALUE_BYTES),
    "bench": (1.0, VALUE_BYTES),
    "large": (0.1, LARGE_VALUE_BYTES),
}  # share of the rows


# -- the data


def batches(value_bytes: int, count: int) -> list[bytes]:
    chance = random.Random(1)
    made = []
    for number in range(count):
        builder = BatchBuilder()
        for row in range(BATCH_ROWS):
            value = reading(chance, number * BATCH_ROWS + row)
            while len(value) <= value_bytes - VALUE_BYTES:
                value += b", " + reading(chance, number * BATCH_ROWS + row)
            key = b"key-%012d" % chance.randrange(5_000)
            builder.add(key, value.ljust(value_bytes), ((b"unit", b"C"),), int(time.time() * 1000))
        made.append(bytes(builder.seal_batch(0)))
    return made


def reading(chance: random.Random, sequence: int) -> bytes:
    told = {
        "device": f"device-{chance.randrange(5_000):05d}",
        "site": chance.choice(("north", "south", "east", "west")),
        "celsius": round(chance.gauss(21, 6), 3),
        "humidity": round(chance.uniform(20, 80), 2),
        "sequence": sequence,
        "trace": f"{chance.getrandbits(128):032x}",
    }
    return json.dumps(told).encode()


def fill(broker: BrokerProcess, rows: int) -> None:
    import httpx

    filled = {}
    for topic, (share, value_bytes) in TOPICS.items():
        ready = batches(value_bytes, BATCHES if value_bytes == VALUE_BYTES else BATCHES // 10)
        made = {"name": topic, "settings": {"partitions": 1, "durability": "os"}}
        httpx.post(f"{broker.http_url}/v1/topics", json=made).raise_for_status()
        count = int(rows * share) // BATCH_ROWS
        with RawClient(broker) as client:
            for number in range(count):
                assert client.produce(topic, ready[number % len(ready)]).error_code == 0
        filled[topic] = {"rows": count * BATCH_ROWS, "bytes": count * sum(map(len, ready)) // len(ready)}
    broker.data.parent.joinpath("filled.json").write_text(json.dumps(filled))


# -- the machine's time


def cpu_s(process: psutil.Process) -> float:
    try:
        spent = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(spent.user + spent.system + spent.children_user + spent.children_system)


def spent(broker: int) -> dict[str, float]:
    """CPU seconds so far of this process, the JVM, its Python workers and the broker."""
    found = {"driver": 0.0, "jvm": 0.0, "python": 0.0, "broker": cpu_s(psutil.Process(broker))}
    own = psutil.Process().cpu_times()
    found["driver"] = own.user + own.system
    for one in psutil.Process().children(recursive=True):
        if one.pid != broker:
            try:
                found["jvm" if "java" in one.name() else "python"] += cpu_s(one)
            except psutil.Error:
                continue
    return found


@contextmanager
def measured(broker: int, result: dict[str, float]) -> Iterator[None]:
    before, began = spent(broker), time.monotonic()
    yield
    after = spent(broker)
    result |= {name: after[name] - before[name] for name in before}
    result["wall"] = time.monotonic() - began


# -- the ways


class Bench:
    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder, self.broker = folder, broker
        self.filled = json.loads((folder / "filled.json").read_text())
        self.lake = LakeOptions(str(folder / "lake"))
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def measure(self, piece: str) -> dict[str, Any]:
        """In a Spark of its own: archives start as `mainstem lake archive` starts them."""
        is_archive = piece in ("descriptors", "alone", "large")
        master = "local[1]" if piece == "alone" else "local[2]"
        if piece != "connector":
            self._spark = start_session(
                SparkOptions(master=master, log=self.folder / "spark.log", fast_start=is_archive)
            )
        try:
            found: dict[str, Any] = getattr(self, piece)()
            return found
        finally:
            if self._spark is not None:
                self._spark.stop()
                self._spark = None

    def timed(self, warm: Callable[[], Any], run: Callable[[], Any]) -> dict[str, Any]:
        warm()
        settle_machine()
        result: dict[str, float] = {}
        with measured(self.broker.pid, result):
            run()
        return result

    def archive(self, topic: str, lake: LakeOptions) -> None:
        made = archive_pipeline(
            topic, f"raw.{topic}", url=self.broker.http_url, warehouse=lake.warehouse, catalog="", state=None
        )
        run = FlowRun(made, replace(made.flows[0], rows_per_batch_max=1 << 40), self.spark, State(made), print)
        query = run.start(once=True, run="bench")
        assert query.awaitTermination(3_600)

    def alone(self) -> dict[str, Any]:
        return self.archived("bench", LakeOptions(str(self.folder / "alone")))

    def large(self) -> dict[str, Any]:
        return self.archived("large", LakeOptions(str(self.folder / "large")))

    def descriptors(self) -> dict[str, Any]:
        return self.archived("bench", self.lake)

    def archived(self, topic: str, lake: LakeOptions) -> dict[str, Any]:
        shutil.rmtree(lake.warehouse, ignore_errors=True)
        found = self.timed(lambda: self.archive("warm", lake), lambda: self.archive(topic, lake))
        table = load_table(open_catalog(lake), f"raw.{topic}")
        files = [one.file for one in table.scan().plan_files()]
        assert sum(one.record_count for one in files) == self.filled[topic]["rows"]
        return {**found, "files": len(files), "written": sum(one.file_size_in_bytes for one in files)}

    def rows(self) -> dict[str, Any]:
        def write(topic: str) -> None:
            options = {"url": self.broker.http_url, "subscribe": topic, "columns": "all", "includeHeaders": "true"}
            frame = self.spark.read.format("mainstem").options(**options).load()
            frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self.folder / "rows" / topic))

        return self.timed(lambda: write("warm"), lambda: write("bench"))

    def connector(self) -> dict[str, Any]:
        from tests.pipeline.connector_kit import connector
        from tests.protocol.kafka.java_clients import Unavailable

        try:
            found = connector(self.folder)
        except Unavailable as error:
            return {"skipped": str(error)[:300]}
        script = """
for topic in ("warm", "bench"):
    options = {"kafka.bootstrap.servers": arguments[0], "subscribe": topic, "includeHeaders": "true", "minPartitions": "4"}
    frame = spark.read.format("kafka").options(**options).load()
    input()
    frame.write.mode("overwrite").option("compression", "zstd").parquet(arguments[1] + "/" + topic)
    print("done", flush=True)
input()
"""
        command = found.command(script, self.broker.bootstrap_servers, str(self.folder / "connector"))
        result: dict[str, Any] = {}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found.environment()
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def go() -> None:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                while process.stdout.readline().strip() != "done":
                    assert process.poll() is None

            result = self.timed(go, go)
            process.stdin.write("\n")
        return {**result, "version": found.version}

    def sql(self) -> dict[str, Any]:
        import duckdb

        table = load_table(open_catalog(self.lake), "raw.bench")
        files = [one.file.file_path.removeprefix("file://") for one in table.scan().plan_files()]
        shell = SqlShell.over(self.spark, {"url": self.broker.http_url}, self.lake)
        self.spark.read.parquet(*files).createOrReplaceTempView("files")
        duck = duckdb.connect()
        duck.execute(f"set threads={os.cpu_count()}; set timezone='UTC'")
        duck.execute(f"create view files as select * from read_parquet({files!r})")
        found: dict[str, Any] = {}
        for name, statement in ASKED.items():
            theirs = statement
            for spark_words, duck_words in DUCK.items():
                theirs = theirs.replace(spark_words, duck_words)
            ways: dict[str, Callable[[], list[Any]]] = {
                "mainstem": lambda text=statement: shell.answer(text.format("bench"), lambda f: f.collect()),  # type: ignore[misc]
                "spark": lambda text=statement: self.spark.sql(text.format("files")).collect(),  # type: ignore[misc]
                "duckdb": lambda text=theirs: duck.execute(text.format("files")).fetchall(),  # type: ignore[misc]
            }
            answers = {}
            found[name] = dict.fromkeys(ways, float("inf"))
            for _ in range(ASKED_TIMES):  # in turn, so that nobody gets the others' warm JVM and files
                for way, ask in ways.items():
                    began = time.monotonic()
                    answers[way] = ask()
                    found[name][way] = min(found[name][way], time.monotonic() - began)
            counts = {
                way: sorted(int(row[-1 if name == "group by key" else 0]) for row in rows)
                for way, rows in answers.items()
            }
            assert counts["mainstem"] == counts["spark"] == counts["duckdb"], counts
        return found


# -- the page


WORDS = {
    "descriptors": "Iceberg, descriptor mode",
    "large": "the same, values of 1 KiB",
    "alone": "the same with local[1]",
    "rows": "through Spark rows",
    "connector": "Spark's Kafka connector",
}


def told(filled: dict[str, dict[str, int]], known: dict[str, dict[str, Any]]) -> str:
    sizes = [
        f"{one['rows']:,} records, {one['bytes'] / 1e6:,.0f} MB of log" for one in (filled["bench"], filled["large"])
    ]
    lines = [
        f"{sizes[0]}, local[2]; of values of 1 KiB {sizes[1]}",
        "",
        f"{'log to Parquet':<30}{'MB/s':>8}{'M rows/s':>10}{'CPU s':>8}{'JVM':>7}{'Python':>8}{'driver':>8}{'broker':>8}"
        f"{'MB per CPU s':>14}",
        *(way_line(piece, filled["large" if piece == "large" else "bench"], known[piece]) for piece in WORDS),
    ]
    one = known["descriptors"]
    lines += ["", f"the table: {one['files']} files, {one['written'] / 1e6:,.0f} MB of zstd Parquet", ""]
    asked = f"SQL, best of {ASKED_TIMES}, seconds"
    lines.append(f"{asked:<30}{'mainstem sql':>14}{'Spark, files':>14}{'DuckDB':>10}{'  ours to Spark':>15}")
    for name, times in known["sql"].items():
        ours, spark, duck = times["mainstem"], times["spark"], times["duckdb"]
        lines.append(f"{name:<30}{ours:>14.2f}{spark:>14.2f}{duck:>10.2f}{ours / spark:>14.2f}x")
    return "\n".join(lines)


def way_line(piece: str, filled: dict[str, int], one: dict[str, Any]) -> str:
    label, megabytes = WORDS[piece], filled["bytes"] / 1e6
    if "skipped" in one:
        return f"{label:<30}  not measured: {one['skipped']}"
    if "version" in one:
        label += f" ({one['version']})"
    total = one["jvm"] + one["python"] + one["driver"]
    per_cpu = megabytes / total
    line = f"{label:<30}{megabytes / one['wall']:>8.0f}{filled['rows'] / one['wall'] / 1e6:>10.2f}{total:>8.1f}"
    line += f"{one['jvm']:>7.1f}{one['python']:>8.1f}{one['driver']:>8.1f}{one['broker']:>8.1f}{per_cpu:>14.0f}"
    if piece == "descriptors":
        line += f"  target {TARGET_MB:.0f}: {'reached' if per_cpu >= TARGET_MB else 'MISSED'}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="fill once, measure only what is not known there yet")
    parser.add_argument("--only", choices=("fill", *PIECES))
    parser.add_argument("--rows", type=int, default=ROWS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = asked.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        notes = folder / "known.json"
        known: dict[str, dict[str, Any]] = json.loads(notes.read_text()) if notes.exists() else {}
        with BrokerProcess(folder / "data") as broker:
            if not (folder / "filled.json").exists():
                fill(broker, asked.rows)
            bench = Bench(folder, broker)
            for piece in PIECES:
                if asked.only in (None, piece) and (piece not in known or asked.only == piece):
                    known[piece] = bench.measure(piece)
                    notes.write_text(json.dumps(known))
        if set(known) >= set(PIECES):
            text = told(bench.filled, known)
            print(text)
            if asked.rows == ROWS:
                write_result("lake", TITLE, text)


if __name__ == "__main__":
    main()
