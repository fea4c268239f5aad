"""Other people's readers read what we wrote: pyiceberg, DuckDB, and where Maven is reachable Iceberg's own Spark runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.maintain import compact
from tests.pipeline.conftest import produce, publish
from tests.pipeline.lake_kit import archive, rows_of, table_of

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


ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
OTHER_SPARK = """
import json, sys
from pyspark.sql import SparkSession
warehouse, metadata = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars.packages", "PACKAGE")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", warehouse)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sql(f"call lake.system.register_table(table => 'copied.t', metadata_file => '{metadata}')")
count, offsets = spark.sql("select count(*), count(distinct log, offset) from lake.copied.t").first()
spark.sql("call lake.system.rewrite_data_files(table => 'copied.t', options => map('rewrite-all', 'true'))")
after = spark.sql("select count(*) from lake.copied.t").first()[0]
print(json.dumps([count, offsets, after]))
""".replace("PACKAGE", ICEBERG)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_icebergs_own_spark_runtime_reads_and_rewrites_it(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """In an environment of its own: the newest Spark that Iceberg supports is older than ours."""
    if not _reachable("https://repo1.maven.org/maven2/org/apache/iceberg/"):
        pytest.skip("Maven Central is not reachable from here")
    lake = LakeOptions(str(tmp_path / "lake"))
    filled(spark, broker, topic, lake)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "pyspark==4.1.4"], check=False)
    if installed.returncode:
        pytest.skip("pyspark 4.1.4 cannot be installed from here")
    (tmp_path / "other.py").write_text(OTHER_SPARK)
    command = [python, tmp_path / "other.py", tmp_path / "hadoop", table_of(lake, "raw.t").metadata_location]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert json.loads(told.stdout.splitlines()[-1]) == [600, 600, 600]


def _reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
