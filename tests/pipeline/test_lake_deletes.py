"""Rows that another engine deleted without rewriting their files stay deleted, whoever reads or maintains the table."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent

from mainstem.model.errors import ConfigError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake import maintain
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import Committer, ensure_table
from mainstem_pipeline.lake.deletes import UnreadableTable, planned_tasks
from mainstem_pipeline.lake.maintain import compact, remove_unreferenced
from mainstem_pipeline.lake.snapshots import ChangedFiles, write_position_deletes
from mainstem_pipeline.lake.stream import TableSource, table_options
from mainstem_pipeline.lake.tables import read_table
from mainstem_pipeline.session import find_java
from tests.pipeline.connector_kit import python_with_spark
from tests.pipeline.lake_kit import sql, table_of
from tests.pipeline.test_lake_readers import ICEBERG, SPARK
from tests.protocol.kafka.java_clients import Unavailable, classpath

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    """With a table `t.n` of three files: 0 to 9, 10 to 19, 20 to 29."""
    made = LakeOptions(str(tmp_path / "lake"))
    rows = pa.table({"n": pa.array(range(10), pa.int64()), "text": [f"r{n}" for n in range(10)]})
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    table = ensure_table(
        open_catalog(made), "t.n", assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(rows.schema))
    )
    for first in (0, 10, 20):
        numbers = pa.array(range(first, first + 10), pa.int64())
        table.append(pa.table({"n": numbers, "text": [f"r{n}" for n in range(first, first + 10)]}))
    return made


def delete_rows(table: Table, numbers: Sequence[int]) -> None:
    """As an engine does that writes position deletes: one file for each data file."""
    made = []
    for task in planned_tasks(table):
        stored = pa.parquet.read_table(task.file.file_path.removeprefix("file://"))["n"].to_pylist()
        rows = [row for row, number in enumerate(stored) if number in numbers]
        if rows:
            made.append(write_position_deletes(table, task.file, rows))
    commit_deletes(table, made)


def commit_deletes(table: Table, files: Sequence[DataFile]) -> None:
    with table.transaction() as transaction:
        update = ChangedFiles(transaction, {}, is_replace=False)
        update.append_deletes(files)
        update.commit()


def numbers(spark: SparkSession, lake: LakeOptions) -> list[int]:
    return sorted(row.n for row in read_table(spark, lake, "t.n").collect())


def test_rows_deleted_by_position_are_in_no_answer_and_do_not_come_back_with_maintenance(
    spark: SparkSession, broker: BrokerProcess, lake: LakeOptions
) -> None:
    delete_rows(table_of(lake, "t.n"), [3, 4, 25])
    left = [n for n in range(30) if n not in (3, 4, 25)]
    assert numbers(spark, lake) == left
    assert sorted(table_of(lake, "t.n").scan().to_arrow()["n"].to_pylist()) == left, "pyiceberg says the same"
    assert sql(spark, broker, lake, "select count(*), sum(n) from t.n") == [(27, sum(left))]
    spark.dataSource.register(TableSource)
    stream = spark.readStream.format("mainstem_table").options(**table_options(lake, "t.n")).load()
    query = stream.writeStream.format("memory").queryName("deleted").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(row.n for row in spark.table("deleted").collect()) == left

    delete_rows(table_of(lake, "t.n"), [0, *range(10, 20)])  # a second delete of one file, and a file without rows
    left = [n for n in left if n not in (0, *range(10, 20))]
    assert numbers(spark, lake) == left
    done = compact(spark, open_catalog(lake), "t.n", lake.file_properties(), 128 << 20)
    assert (done.before, done.after) == (3, 1)
    assert numbers(spark, lake) == left
    table = table_of(lake, "t.n")
    assert [task.delete_files for task in planned_tasks(table)] == [set()]
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["total-records"], summary["total-delete-files"]) == (str(len(left)), "0")
    maintain.expire(open_catalog(lake), "t.n", 1, 0)
    assert remove_unreferenced(open_catalog(lake), "t.n", 0) > 3
    assert numbers(spark, lake) == left


def test_a_row_deleted_while_files_are_joined_stays_deleted(
    spark: SparkSession, lake: LakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Committer.attempt
    deleted: list[int] = []

    def late(self: Committer, change: Any) -> bool:
        if not deleted:
            deleted.append(7)
            delete_rows(table_of(lake, "t.n"), [7])
        return attempt(self, change)

    monkeypatch.setattr(Committer, "attempt", late)
    done = compact(spark, open_catalog(lake), "t.n", lake.file_properties(), 128 << 20)
    assert done.after == 1
    assert numbers(spark, lake) == [n for n in range(30) if n != 7]


def test_equality_deletes_are_refused_with_the_way_out_by_every_reader(
    spark: SparkSession, broker: BrokerProcess, lake: LakeOptions
) -> None:
    table = table_of(lake, "t.n")
    file = write_position_deletes(table, planned_tasks(table)[0].file, [1])
    made = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=1,
        file_size_in_bytes=file.file_size_in_bytes,
        equality_ids=[1],
    )
    made.spec_id = file.spec_id
    commit_deletes(table, [made])
    for reading in (
        lambda: numbers(spark, lake),
        lambda: sql(spark, broker, lake, "select * from t.n"),
        lambda: compact(spark, open_catalog(lake), "t.n", lake.file_properties(), 128 << 20),
    ):
        with pytest.raises(UnreadableTable, match=r"table .*t\.n has equality delete files") as caught:
            reading()
        assert "rewrite_data_files" in caught.value.fix
    assert len(table_of(lake, "t.n").metadata.snapshots) == 4, "nothing was rewritten"


def test_a_stream_does_not_pass_over_rows_that_were_changed_in_place(spark: SparkSession, lake: LakeOptions) -> None:
    spark.dataSource.register(TableSource)
    reader = TableSource(table_options(lake, "t.n")).streamReader(read_table(spark, lake, "t.n").schema)
    table = table_of(lake, "t.n")
    delete_rows(table, [5])  # nothing new: passed over
    assert len(reader.partitions({"sequence": 3}, {"sequence": 4})) == 0
    table = table_of(lake, "t.n")
    task = planned_tasks(table)[0]
    with table.transaction() as transaction:
        update = ChangedFiles(transaction, {}, is_replace=False)
        update.delete_data_file(task.file)
        update.append_data_file(task.file)
        update.commit()
    with pytest.raises(Exception, match=r"snapshot 5 changed rows in place"):
        reader.partitions({"sequence": 4}, {"sequence": 5})


OTHER_ENGINE = """
import json, sys
from pyspark.sql import SparkSession
jars, catalog, warehouse = sys.argv[1:]
settings = {
    "spark.jars": jars,
    "spark.ui.enabled": "false",
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
ours = [row[0] for row in spark.sql("select n from mainstem.t.n order by n").collect()]
modes = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read'"
spark.sql(f"alter table mainstem.t.n set tblproperties ({modes})")
spark.sql("delete from mainstem.t.n where n in (1, 12)")
spark.sql("update mainstem.t.n set text = 'new' where n = 20")
spark.sql(f"create table mainstem.t.v (n bigint) using iceberg tblproperties ('format-version'='3', {modes})")
spark.sql("insert into mainstem.t.v select id from range(100)")
spark.sql("delete from mainstem.t.v where n % 3 = 0")
spark.sql("delete from mainstem.t.v where n < 10")
left = [row[0] for row in spark.sql("select n from mainstem.t.v order by n").collect()]
print(json.dumps({"ours": ours, "vectors": left}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_icebergs_own_runtime_deletes_by_position_and_by_vector_and_reads_our_deletes(
    spark: SparkSession, broker: BrokerProcess, lake: LakeOptions, tmp_path: Path
) -> None:
    try:
        jars = [jar for jar in classpath(*ICEBERG).split(":") if "iceberg-spark" in jar or "sqlite-jdbc" in jar]
        python = python_with_spark(tmp_path / "venv", SPARK)
    except Unavailable as error:
        pytest.skip(str(error))
    delete_rows(table_of(lake, "t.n"), [3])
    (tmp_path / "other.py").write_text(OTHER_ENGINE)
    command = [python, tmp_path / "other.py", ",".join(jars), tmp_path / "lake" / "catalog.db", lake.warehouse]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    environment = {**kept, "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    left = [n for n in range(30) if n not in (1, 3, 12)]
    assert told["ours"] == [n for n in range(30) if n != 3]
    assert numbers(spark, lake) == left
    compact(spark, open_catalog(lake), "t.n", lake.file_properties(), 128 << 20)
    assert numbers(spark, lake) == left
    assert sql(spark, broker, lake, "select text from t.n where n = 20") == [("new",)]
    vectors = sorted(row.n for row in read_table(spark, lake, "t.v").collect())
    assert vectors == told["vectors"] == [n for n in range(10, 100) if n % 3]
    with pytest.raises(ConfigError, match="format version 3"):
        compact(spark, open_catalog(lake), "t.v", lake.file_properties(), 128 << 20)
