"""Other people's readers read what we wrote: pyiceberg, DuckDB, and where Maven is reachable Iceberg's own Spark runtime."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.maintain import compact, remove_unreferenced
from mainstem_pipeline.session import find_java
from tests.pipeline.conftest import produce, publish
from tests.pipeline.connector_kit import python_with_spark
from tests.pipeline.lake_kit import archive, rows_of, sql, table_of
from tests.protocol.kafka.java_clients import Unavailable, classpath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("log", "partition", "offset", "topic", "origin", "key", "value", "flags", "stamp")


def filled(spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions) -> list[tuple[Any, ...]]:
    """A table with several snapshots, one of them a compaction; its rows as pyiceberg reads them."""
    for part in range(3):
        publish(broker, [(f"{topic}/{n % 3}", b"%d-%d" % (part, n)) for n in range(100)])
        produce(broker, f"{topic}.kafka", [b"k%d" % n if n % 3 else None for n in range(100)], headers=[("h", b"1")])
        archive(spark, broker, lake, f"{topic}/#", "raw.t")
        if part == 1:
            compact(spark, open_catalog(lake), "raw.t", lake.file_properties(), 128 << 20)
    rows = rows_of(lake, "raw.t").select(list(COLUMNS))
    assert len(rows) == 600
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_duckdb_reads_what_spark_wrote(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_extension_iceberg")
    lake = LakeOptions(str(tmp_path / "lake"))
    wanted = filled(spark, broker, topic, lake)
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.load_extension(_extension(name))
    source = f"iceberg_scan('{table_of(lake, 'raw.t').metadata_location}')"
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    found = connection.sql(f'select {columns} from {source} order by log, "offset"').fetchall()
    assert found == wanted
    figures = connection.sql(
        f'select count(*), count(distinct (log, "offset")), count(headers) from {source}'
    ).fetchone()
    assert figures == (600, 600, 300)
    recent = f"select count(*) from {source} where appended > now() - interval 1 day and topic like '{topic}/kafka'"
    assert connection.sql(recent).fetchone() == (300,)


def _extension(name: str) -> str:
    """Where the wheel put it: DuckDB would otherwise download it."""
    module = __import__(f"duckdb_extension_{name}")
    (path,) = Path(module.__path__[0]).rglob(f"{name}.duckdb_extension")
    return str(path)


# Attached with one URL: it reads an archive that goes on, makes and changes a table, and is refused where others are.
REST_SPARK = """
import json, sys, time
from pyspark.sql import SparkSession
jars, uri, enough = sys.argv[1:]
settings = {
    "spark.jars": jars,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.uri": uri,
    "spark.sql.catalog.lake.cache-enabled": "false",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
def refused(statement):
    try:
        spark.sql(statement)
    except Exception as error:
        return str(error)
    return ""
print("ready", flush=True)
counts = []
until = time.monotonic() + 300
while (not counts or counts[-1] < int(enough)) and time.monotonic() < until:
    counts.append(spark.sql("select count(*) from lake.raw.t").first()[0])
spark.sql("create namespace lake.own")
spark.sql("create table lake.own.n (n bigint, s string) using iceberg partitioned by (bucket(4, n))")
spark.sql("insert into lake.own.n select id, cast(id as string) from range(10)")
spark.sql("merge into lake.own.n t using (select 3 n, 'three' s) u on t.n = u.n when matched then update set s = u.s")
spark.sql("delete from lake.own.n where n = 5")
spark.sql("alter table lake.own.n add column more double")
told = {
    "counts": counts,
    "tables": [row[1] for row in spark.sql("show tables in lake.raw").collect()],
    "own": [list(row) for row in spark.sql("select n, s from lake.own.n order by n").collect()],
    "append": refused("insert into lake.raw.t select * from lake.raw.t"),
    "drop": refused("drop table lake.raw.t"),
    "raise": refused("alter table lake.raw.t set tblproperties ('format-version' = '3')"),
}
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_icebergs_own_spark_runtime_reads_and_commits_through_the_brokers_catalog_while_an_archive_goes_on(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    try:
        jars = [jar for jar in classpath(ICEBERG[0]).split(":") if "iceberg-spark" in jar]
        python = python_with_spark(tmp_path / "venv", SPARK)
    except Unavailable as error:
        pytest.skip(str(error))
    lake = LakeOptions(str(tmp_path / "lake"))
    (tmp_path / "other.py").write_text(REST_SPARK)
    with BrokerProcess(tmp_path / "data", f"lake.warehouse={lake.warehouse}") as broker:

        def archived(part: int) -> None:
            publish(broker, [(f"{topic}/{n % 3}", b"%d-%d" % (part, n)) for n in range(100)])
            archive(spark, broker, lake, f"{topic}/#", "raw.t")

        archived(0)
        command = [python, tmp_path / "other.py", ",".join(jars), f"{broker.http_url}/iceberg", "400"]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment(python))
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "ready\n"
            for part in range(1, 4):
                archived(part)
            answer, _ = other.communicate(timeout=900)
        finally:
            other.kill()
    assert other.returncode == 0
    told = json.loads(answer.splitlines()[-1])
    assert told["counts"] == sorted(told["counts"]) and set(told["counts"]) <= {100, 200, 300, 400}
    assert told["counts"][-1] == 400 and told["tables"] == ["t"]
    assert told["own"] == [[n, "three" if n == 3 else str(n)] for n in range(10) if n != 5]
    assert "publish to the topic, and the archive appends it" in told["append"]
    assert "only its archive drops it" in told["drop"]
    assert "they could not write it in format 3" in told["raise"]
    own = table_of(lake, "own.n")
    assert sorted(own.scan().to_arrow()["n"].to_pylist()) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert own.schema().find_field("more") and str(own.spec().fields[0].transform) == "bucket[4]"
    assert len(rows_of(lake, "raw.t")) == 400


def _environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    return {**kept, "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}


ICEBERG = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0", "org.xerial:sqlite-jdbc:3.50.3.0")
SPARK = "4.1.4"
OTHER_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jars, catalog, warehouse, columns = sys.argv[1:]
settings = {
    "spark.jars": jars,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.mainstem": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.mainstem.type": "jdbc",
    "spark.sql.catalog.mainstem.uri": f"jdbc:sqlite:{catalog}",
    "spark.sql.catalog.mainstem.warehouse": warehouse,
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.sql(f"select {columns} from mainstem.raw.t order by log, `offset`").collect()
told = [[one.hex() if isinstance(one, (bytes, bytearray)) else one for one in row] for row in rows]
options = "map('rewrite-all', 'true')"
done = spark.sql(f"call mainstem.system.rewrite_data_files(table => 'raw.t', options => {options})").first()
spark.sql("call mainstem.system.rewrite_manifests(table => 'raw.t')")
after = spark.sql("select count(*), count(distinct log, `offset`) from mainstem.raw.t").first()
print(json.dumps({"rows": told, "rewritten": done[0], "after": list(after)}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_icebergs_own_spark_runtime_reads_and_rewrites_it_and_the_archive_goes_on(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """In an environment of its own: the newest Spark that Iceberg supports is older than ours."""
    try:
        jars = [jar for jar in classpath(*ICEBERG).split(":") if "iceberg-spark" in jar or "sqlite-jdbc" in jar]
        python = python_with_spark(tmp_path / "venv", SPARK)
    except Unavailable as error:
        pytest.skip(str(error))
    lake = LakeOptions(str(tmp_path / "lake"))
    wanted = filled(spark, broker, topic, lake)
    (tmp_path / "other.py").write_text(OTHER_SPARK)
    columns = ", ".join(f"`{name}`" for name in COLUMNS)
    command = [python, tmp_path / "other.py", ",".join(jars), tmp_path / "lake" / "catalog.db", lake.warehouse, columns]
    environment = _environment(python)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rows"] == [[one.hex() if isinstance(one, bytes) else one for one in row] for row in wanted]
    assert told["rewritten"] > 0
    assert told["after"] == [600, 600]

    publish(broker, [(f"{topic}/0", b"after it")])
    assert archive(spark, broker, lake, f"{topic}/#", "raw.t")["rows"] == 1, "its own snapshots told it nothing"
    removed = remove_unreferenced(open_catalog(lake), "raw.t", 0)
    rows = [tuple(row.values()) for row in rows_of(lake, "raw.t").select(list(COLUMNS)).to_pylist()]
    assert len(rows) == 601
    assert [row for row in rows if row[6] != b"after it"] == wanted, f"{removed} files were nobody's"
    assert sql(spark, broker, lake, f"select count(*), count(distinct partition, offset) from `{topic}/#`")[0][0] == 601
