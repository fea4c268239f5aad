"""Spark Connect, and Spark's declarative pipelines, with `format("mainstem")`: a server and its clients, as they come."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.session import WORKER_SETTINGS, find_java
from tests.pipeline.conftest import eventually, publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("grpc_status")

HOME = Path(pyspark.__file__).parent


def environment() -> dict[str, str]:
    """As somebody's own: nothing that our sessions set for Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "MAINSTEM"))}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**kept, **python, **WORKER_SETTINGS, "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}


def settings(folder: Path) -> list[str]:
    given = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={folder}",
    }
    return [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", *settings(tmp_path)]
    command += ["--conf", f"spark.connect.grpc.binding.port={port}", "--name", "connect"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually(lambda: answers(port) or server.poll() is not None, "the Connect server answers", 180)
        assert server.poll() is None, (tmp_path / "server.log").read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


CLIENT = """
import sys
from pyspark.sql import SparkSession

remote, url, folder = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
print("client", type(spark).__module__)
source = {"url": url, "filter": "rooms/#"}
print("batch", spark.read.format("mainstem").options(**source).load().where("topic = 'rooms.1'").count())
spark.sql(f"create temporary view rooms using mainstem options (url '{url}', filter 'rooms/#')")
print("sql", spark.sql("select count(distinct topic) from rooms").collect()[0][0])
limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
rows = spark.readStream.format("mainstem").options(**source, **limits).load()
sink = {"url": url, "topic": "copied", "checkpointLocation": folder + "/state"}
for _ in range(2):
    query = rows.select("key", "value").writeStream.format("mainstem").options(**sink).trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [one["sources"][0] for one in query.recentProgress]
    print("batches", len([one for one in progress if one["startOffset"] != one["endOffset"]]))
try:
    spark.read.format("mainstem").options(url=url, subscribe="nothing.here").load().count()
except Exception as error:
    print("told", "no topic 'nothing.here'" in str(error), "mainstem topic create" in str(error))
"""


def test_a_client_of_spark_connect_reads_streams_and_writes(remote: str, broker: BrokerProcess, tmp_path: Path) -> None:
    publish(broker, [(f"rooms/{number % 4}", b"%d" % number) for number in range(100)])
    command = [sys.executable, "-c", CLIENT, remote, broker.http_url, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if not line.startswith("batches"))
    assert told == {"client": "pyspark.sql.connect.session", "batch": "25", "sql": "4", "told": "True True"}
    assert [line for line in done.stdout.splitlines() if line.startswith("batches")] == ["batches 5", "batches 0"]
    assert copied(broker, "copied") == sorted(b"%d" % number for number in range(100))


def copied(broker: BrokerProcess, topic: str) -> list[bytes]:
    import httpx

    rows = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": topic, "limit": 1000}, timeout=30).json()
    return sorted(one["value"].encode() for one in rows["items"])


DECLARED = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
SOURCE = {"url": "URL", "filter": "halls/#", "startingOffsets": "earliest"}


@dp.table
def readings() -> DataFrame:
    rows = spark.readStream.format("mainstem").options(**SOURCE).load()
    return rows.selectExpr("topic", "cast(cast(value as string) as int) as n")


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("readings").groupBy("topic").agg(F.sum("n").alias("total"))


dp.create_sink("large", "mainstem", {"url": "URL", "topic": "large"})


@dp.append_flow(target="large")
def large_ones() -> DataFrame:
    return spark.readStream.table("readings").where("n >= 90").selectExpr("cast(n as string) as value")
"""


def test_a_declarative_pipeline_of_spark_reads_and_writes_topics(broker: BrokerProcess, tmp_path: Path) -> None:
    """`spark-pipelines run`: a table, a view over it, and a topic with some of its rows."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "halls.py").write_text(DECLARED.replace("URL", broker.http_url))
    spec = f"""
        name: halls
        storage: file://{tmp_path}/storage
        libraries: [{{glob: {{include: flows/**}}}}]
    """
    (tmp_path / "spark-pipeline.yml").write_text(textwrap.dedent(spec))
    command = [str(HOME / "bin" / "spark-pipelines"), "run", "--remote", "local[2]", *settings(tmp_path)]
    publish(broker, [(f"halls/{number % 2}", b"%d" % number) for number in range(100)])
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert copied(broker, "large") == sorted(b"%d" % number for number in range(90, 100))
    read = "import sys, pyarrow.parquet as pq; print(sorted(pq.read_table(sys.argv[1])['total'].to_pylist()))"
    table = next((tmp_path / "warehouse").rglob("totals"))
    told = subprocess.run([sys.executable, "-c", read, str(table)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str([sum(range(0, 100, 2)), sum(range(1, 100, 2))])
