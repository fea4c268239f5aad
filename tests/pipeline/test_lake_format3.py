"""Tables of Iceberg's format 3 through the broker's catalog: others commit deletion vectors, all leave the rows out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import httpx
import pytest
from pyiceberg.manifest import FileFormat

from mainstem.codec.raw_table import iceberg_schema
from mainstem.model.errors import ConfigError
from mainstem.testing import Broker
from mainstem_ask.sql.sources import LakeTable
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import SOURCE, ensure_table
from mainstem_pipeline.lake.deletes import UnreadableTable, planned_files
from mainstem_pipeline.lake.maintain import compact, expire, remove_unreferenced
from mainstem_pipeline.lake.tables import read_table
from tests.pipeline.connector_kit import python_with_spark
from tests.pipeline.lake_kit import sql, table_of
from tests.pipeline.test_lake_catalog import NUMBERS, attached, rest, rows
from tests.pipeline.test_lake_readers import ICEBERG, SPARK, _environment
from tests.protocol.kafka.java_clients import Unavailable, classpath

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

THIRD = {"format-version": "3"}
Answer = tuple[int, dict[str, Any]]


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


@pytest.fixture
def catalog(lake: LakeOptions) -> Iterator[Broker]:
    """A broker that serves the lake, with a namespace `iot`."""
    with Broker(f"lake.warehouse={lake.warehouse}") as one:
        rest(one).create_namespace("iot")
        yield one


def asked(broker: Any, path: str, body: Any) -> Answer:
    answer = httpx.post(f"{broker.http_url}/iceberg/v1/namespaces/{path}", json=body, timeout=60)
    found = answer.json()
    return answer.status_code, found.get("error", found)


def create(broker: Any, name: str, schema: Any = None, **more: Any) -> Answer:
    body = {"name": name, "schema": schema or NUMBERS.model_dump(by_alias=True), "properties": THIRD, **more}
    return asked(broker, "iot/tables", body)


def changed(broker: Any, name: str, *updates: dict[str, Any]) -> Answer:
    return asked(broker, f"iot/tables/{name}", {"requirements": [], "updates": list(updates)})


def read_by_query(table: Table) -> list[int]:
    """As `mainstem query` reads any table of the lake."""
    found = LakeTable(table)
    batches = found.batches(found.schema, lambda batch: iter([batch]))
    return sorted(number for batch in batches for number in batch.column("n").to_pylist())


def has_vectors(table: Table) -> bool:
    tasks = list(table.scan().plan_files())
    return any(one.file_format == FileFormat.PUFFIN for task in tasks for one in task.delete_files)


def test_rows_deleted_by_a_vector_are_in_no_answer_and_stay_deleted(catalog: Broker, lake: LakeOptions) -> None:
    assert create(catalog, "v")[0] == 200
    connection = attached(catalog)
    connection.execute("insert into lake.iot.v select range from range(100)")
    connection.execute("delete from lake.iot.v where n % 3 = 0")
    connection.execute("delete from lake.iot.v where n < 10")
    connection.execute("update lake.iot.v set n = 1000 where n = 50")
    left = [n for n in range(10, 100) if n % 3 and n != 50] + [1000]
    assert [row[0] for row in connection.execute("select n from lake.iot.v order by n").fetchall()] == left
    connection.close()
    table = table_of(lake, "iot.v")
    assert has_vectors(table) and table.format_version == 3
    assert sorted(rest(catalog).load_table("iot.v").scan().to_arrow()["n"].to_pylist()) == left
    assert read_by_query(table) == left
    lineage = [(one.first_row_id, one.added_rows) for one in table.metadata.snapshots]
    assert lineage == [(0, 100), (100, 0), (100, 0), (100, 1)]
    assert table.metadata.next_row_id == 101  # type: ignore[union-attr]

    opened = open_catalog(lake)
    assert expire(opened, "iot.v", 1, 0) == 3, "metadata of format 3 is written here, too"
    assert remove_unreferenced(opened, "iot.v", 0) > 0
    assert read_by_query(table_of(lake, "iot.v")) == left, "the vectors were no leftovers"
    assert table_of(lake, "iot.v").metadata.next_row_id == 101  # type: ignore[union-attr]


def test_a_table_is_raised_to_format_3_unless_an_archive_writes_it(catalog: Broker, lake: LakeOptions) -> None:
    own = open_catalog(lake)
    own.create_table("iot.n", NUMBERS).append(rows(1, 2, 3))
    connection = attached(catalog)
    connection.execute("delete from lake.iot.n where n = 1")  # a position delete file, of format 2
    connection.close()
    raised = {"action": "upgrade-format-version", "format-version": 3}
    status, told = changed(catalog, "n", raised)
    assert status == 200 and (told["metadata"]["format-version"], told["metadata"]["next-row-id"]) == (3, 0)
    connection = attached(catalog)
    connection.execute("insert into lake.iot.n values (4)")
    connection.execute("delete from lake.iot.n where n = 2")
    assert connection.execute("select n from lake.iot.n order by n").fetchall() == [(3,), (4,)]
    connection.close()
    assert read_by_query(table_of(lake, "iot.n")) == [3, 4]
    assert changed(catalog, "n", {**raised, "format-version": 2})[0] == 400, "no way back"
    assert changed(catalog, "n", {**raised, "format-version": 4})[0] == 400

    ensure_table(own, "raw.t", iceberg_schema(), properties={SOURCE: "filter:t/#"})
    status, told = asked(catalog, "raw/tables/t", {"requirements": [], "updates": [raised]})
    assert (status, told["type"]) == (403, "ForbiddenException") and "archive" in told["message"]
    assert own.load_table("raw.t").format_version == 2


def test_snapshots_that_lost_a_race_or_have_no_row_ids_are_refused(catalog: Broker, lake: LakeOptions) -> None:
    create(catalog, "v")
    connection = attached(catalog)
    for number in (1, 2):
        connection.execute(f"insert into lake.iot.v values ({number})")
    connection.close()
    table = table_of(lake, "iot.v")
    newest = json.loads(table.current_snapshot().model_dump_json())  # type: ignore[union-attr]
    next_one = {
        **newest,
        "snapshot-id": 77,
        "parent-snapshot-id": newest["snapshot-id"],
        "sequence-number": 3,
        "first-row-id": 2,
    }

    def answer(**fields: Any) -> tuple[int, str]:
        snapshot = {name: value for name, value in {**next_one, **fields}.items() if value is not None}
        status, told = changed(catalog, "v", {"action": "add-snapshot", "snapshot": snapshot})
        return status, told.get("message", "")

    behind = "Cannot add a snapshot, first-row-id is behind table next-row-id: 1 < 2"
    assert answer(**{"first-row-id": 1}) == (409, behind), "the client builds it again on the newest state"
    assert answer(**{"sequence-number": 2})[0] == 409
    assert answer(**{"first-row-id": None}) == (400, "Cannot add a snapshot: first-row-id is null")
    assert answer(**{"added-rows": None})[0] == 400
    assert answer(**{"key-id": "k"}) == (
        400,
        "the snapshot is encrypted (key-id): encrypted tables cannot be committed here",
    )
    assert answer(**{"manifest-list": "/etc/passwd"})[0] == 400
    assert len(table_of(lake, "iot.v").metadata.snapshots) == 2, "nothing was stored"
    assert answer() == (200, "")
    assert table_of(lake, "iot.v").metadata.next_row_id == 3  # type: ignore[union-attr]


def field(number: int, name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "type": kind, "required": False, **more}


def test_defaults_of_columns_are_kept_and_read(catalog: Broker, lake: LakeOptions) -> None:
    day = field(2, "day", "date", **{"initial-default": "2020-01-31", "write-default": "2021-01-31"})
    first = {"type": "struct", "fields": [field(1, "n", "long"), day]}
    made = create(catalog, "d", first)[1]["metadata"]["schemas"][0]["fields"]
    assert made == first["fields"], "also when the catalog gives the ids"
    create(catalog, "v")
    connection = attached(catalog)
    connection.execute("insert into lake.iot.v values (1), (2)")
    connection.close()
    late = {"type": "struct", "schema-id": 1, "fields": [field(1, "n", "long"), day]}
    current = {"action": "set-current-schema", "schema-id": -1}
    assert changed(catalog, "v", {"action": "add-schema", "schema": late}, current)[0] == 200
    found = LakeTable(table_of(lake, "iot.v"))
    (batch,) = found.batches(found.schema, lambda one: iter([one]))
    assert [str(one) for one in batch.column("day").to_pylist()] == ["2020-01-31"] * 2

    inside = field(3, "s", {"type": "struct", "fields": [field(4, "x", "int", **{"initial-default": 7})]})
    deep = {"type": "struct", "schema-id": 2, "fields": [field(1, "n", "long"), day, inside]}
    assert changed(catalog, "v", {"action": "add-schema", "schema": deep}, current)[0] == 200
    with pytest.raises(UnreadableTable, match=r"s\.x has a default inside a column"):
        planned_files(table_of(lake, "iot.v"))
    status, told = create(catalog, "x", {"type": "struct", "fields": [field(1, "v", "variant")]})
    assert status == 400 and "variant" in told["message"]


def test_a_table_is_registered_unless_its_keys_would_be_lost(catalog: Broker, lake: LakeOptions) -> None:
    create(catalog, "v")
    connection = attached(catalog)
    connection.execute("insert into lake.iot.v values (1), (2)")
    connection.execute("delete from lake.iot.v where n = 1")
    connection.close()
    known = Path(table_of(lake, "iot.v").metadata_location)
    open_catalog(lake).drop_table("iot.v")
    locked = known.with_name("locked.metadata.json")
    locked.write_text(json.dumps({**json.loads(known.read_text()), "encryption-keys": [{"key-id": "k"}]}))
    status, told = asked(catalog, "iot/register", {"name": "again", "metadata-location": str(locked)})
    assert status == 400 and "encrypted table" in told["message"]
    assert asked(catalog, "iot/register", {"name": "again", "metadata-location": str(known)})[0] == 200
    assert read_by_query(table_of(lake, "iot.again")) == [2]


def test_maintenance_leaves_a_table_of_format_3_to_its_engine_and_does_the_others(
    catalog: Broker, lake: LakeOptions
) -> None:
    create(catalog, "v")
    for number in (1, 2):
        connection = attached(catalog)
        connection.execute(f"insert into lake.iot.v values ({number})")
        connection.close()
    other = open_catalog(lake).create_table("iot.w", NUMBERS)
    other.append(rows(1))
    other.append(rows(2))
    command = [sys.executable, "-m", "mainstem", "lake", "maintain", "--warehouse", lake.warehouse]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "iot.v: left as it is: table iot.v has format version 3" in done.stdout
    assert "iot.w: 2 files to 1" in done.stdout
    assert len(list(table_of(lake, "iot.v").scan().plan_files())) == 2


# Iceberg's own writer of deletion vectors, through the catalog alone.
REST_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jars, uri = sys.argv[1:]
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
modes = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read'"
made = f"using iceberg partitioned by (bucket(2, n)) tblproperties ('format-version'='3', {modes})"
spark.sql(f"create table lake.iot.v (n bigint, s string) {made}")
spark.sql("insert into lake.iot.v select id, cast(id as string) from range(100)")
spark.sql("delete from lake.iot.v where n % 3 = 0")
spark.sql("delete from lake.iot.v where n < 10")
spark.sql("update lake.iot.v set s = 'new' where n = 50")
new = "using (select 1000 n) u on t.n = u.n when not matched then insert (n, s) values (n, 'in')"
spark.sql(f"merge into lake.iot.v t {new}")
spark.sql(f"alter table lake.iot.old set tblproperties ('format-version'='3', {modes})")
spark.sql("delete from lake.iot.old where n = 2")
spark.sql("insert into lake.iot.old values (9)")
spark.sql("create table lake.iot.chosen using iceberg tblproperties ('format-version'='3') as select * from lake.iot.v")
ids = spark.sql("select count(distinct _row_id), count(*) from lake.iot.v").first()
try:
    spark.sql("create table lake.iot.x (v variant) using iceberg tblproperties ('format-version'='3')")
    refused = ""
except Exception as error:
    refused = str(error)
told = {
    "v": [list(row) for row in spark.sql("select n, s from lake.iot.v order by n").collect()],
    "old": [row[0] for row in spark.sql("select n from lake.iot.old order by n").collect()],
    "ids": list(ids),
    "refused": refused,
}
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_icebergs_own_spark_runtime_commits_deletion_vectors_and_all_others_leave_the_rows_out(
    spark: SparkSession, catalog: Broker, lake: LakeOptions, tmp_path: Path
) -> None:
    try:
        jars = [jar for jar in classpath(ICEBERG[0]).split(":") if "iceberg-spark" in jar]
        python = python_with_spark(tmp_path / "venv", SPARK)
    except Unavailable as error:
        pytest.skip(str(error))
    open_catalog(lake).create_table("iot.old", NUMBERS).append(rows(1, 2, 3))
    (tmp_path / "other.py").write_text(REST_SPARK)
    command = [python, tmp_path / "other.py", ",".join(jars), f"{catalog.http_url}/iceberg"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900, env=_environment(python))
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    left = [n for n in range(10, 100) if n % 3] + [1000]
    assert [row[0] for row in told["v"]] == left and [50, "new"] in told["v"] and [1000, "in"] in told["v"]
    assert told["old"] == [1, 3, 9]
    assert told["ids"] == [len(left), len(left)], "each row has an id of its own"
    assert "variant" in told["refused"].lower()
    for name, wanted in (("v", left), ("old", [1, 3, 9]), ("chosen", left)):
        table = table_of(lake, f"iot.{name}")
        assert table.format_version == 3 and has_vectors(table) == (name != "chosen")
        assert read_by_query(table) == wanted
        assert sorted(row.n for row in read_table(spark, lake, f"iot.{name}").collect()) == wanted
        assert sorted(rest(catalog).load_table(f"iot.{name}").scan().to_arrow()["n"].to_pylist()) == wanted
        connection: duckdb.DuckDBPyConnection = attached(catalog)
        found = connection.execute(f"select n from lake.iot.{name} order by n").fetchall()
        connection.close()
        assert [row[0] for row in found] == wanted
        assert sql(spark, catalog, lake, f"select count(*), sum(n) from iot.{name}") == [(len(wanted), sum(wanted))]
        with pytest.raises(ConfigError, match="format version 3"):
            compact(spark, open_catalog(lake), f"iot.{name}", lake.file_properties(), 128 << 20)
