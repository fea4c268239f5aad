"""A decoded table beside an archive: fields as columns, evolving with the data, always what the raw table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyiceberg.exceptions import CommitFailedException

from mainstem.model.errors import ConfigError, InvalidArgument
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.decoded import Decoded
from mainstem_pipeline.lake.decoded_archive import DecodedArchive
from mainstem_pipeline.lake.deletes import planned_files
from mainstem_pipeline.lake.maintain import compact
from mainstem_pipeline.lake.reading import file_batches
from mainstem_pipeline.lake.tables import read_table
from tests.pipeline.conftest import create_topic, produce, publish
from tests.pipeline.lake_kit import ArchiveRun, archive, orphans, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = {"type": "record", "name": "R", "fields": [{"name": "celsius", "type": "double"}, {"name": "n", "type": "long"}]}


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


def rows(lake: LakeOptions, name: str = "decoded.t") -> list[dict[str, Any]]:
    """By our own reader: pyiceberg's shows a list of structs that is null as an empty one."""
    table = table_of(lake, name)
    batches = [one for file in planned_files(table) for one in file_batches(table.io, file, table.schema())]
    return sorted((row for one in batches for row in one.to_pylist()), key=lambda row: (row["_log"], row["_offset"]))


def of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_") and value is not None}


def encoded(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def test_an_archive_keeps_a_decoded_table_that_grows_columns_and_widens_them(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    def send(*values: bytes) -> None:
        publish(broker, [(f"{topic}/a", value) for value in values])
        run = ArchiveRun(spark, broker, lake, f"{topic}/#", "raw.t", decoded="decoded.t", partition=("device",))
        run.wait()

    send(*encoded({"device": "x", "n": 1, "at": {"room": "a"}}, {"device": "y", "n": 2, "tags": [1, 2]}))
    found = rows(lake)
    assert [of(row) for row in found] == [
        {"device": "x", "n": 1, "at": {"room": "a"}},
        {"device": "y", "n": 2, "tags": [1, 2]},
    ]
    assert found[0]["_topic"] == f"{topic}/a" and found[0]["_timestamp"] is not None

    send(*encoded({"device": "x", "n": 3, "volts": 3.3}, {"device": "x", "n": "many"}), b"no json")
    found = rows(lake)
    assert [of(row) for row in found[2:]] == [{"device": "x", "n": 3, "volts": 3.3}, {"device": "x"}, {}]
    assert json.loads(found[3]["_rest"]) == {"n": "many"} and found[4]["_reason"] == "the value is not JSON"

    send(*encoded({"device": "z", "n": 4.5}))
    found = rows(lake)
    assert [row["n"] for row in found] == [1.0, 2.0, 3.0, None, None, 4.5], (
        "made again from the raw table, with doubles"
    )
    assert len({(row["_log"], row["_offset"]) for row in found}) == len(found) == 6
    assert [str(one.transform) for one in table_of(lake, "decoded.t").spec().fields] == ["identity"]

    before = table_of(lake, "decoded.t").metadata_location
    send()
    assert table_of(lake, "decoded.t").metadata_location == before, "nothing new, no commit"


@pytest.mark.slow
def test_serialised_values_are_decoded_by_the_registry_over_all_history(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    create_topic(broker, topic, 1)
    serialise = AvroSerializer(SchemaRegistryClient({"url": broker.http_url}), json.dumps(AVRO))
    context = SerializationContext(topic, MessageField.VALUE)
    values = [serialise({"celsius": n / 2, "n": n}, context) for n in range(40)]
    produce(broker, topic, [*values, b"\0\0\0\0\x63unknown"])
    archive(spark, broker, lake, topic, "raw.t")
    partition = ("day(_timestamp)", "bucket(4, n)")
    decoded = Decoded(lake, "raw.t", "decoded.t", {"url": broker.http_url}, partition)
    assert decoded.catch_up() == 41, "what was archived before anybody wanted it decoded"
    assert decoded.catch_up() == 0
    found = rows(lake)
    assert [of(row) for row in found[:40]] == [{"celsius": n / 2, "n": n} for n in range(40)]
    assert of(found[40]) == {} and found[40]["_reason"] == "no schema of the registry fits the value"
    assert len(table_of(lake, "decoded.t").spec().fields) == 2


@pytest.mark.slow
def test_two_decoders_of_a_table_add_each_row_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    publish(broker, [(f"{topic}/a", value) for value in encoded({"n": 1}, {"n": 2})])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    one, other = (Decoded(lake, "raw.t", "decoded.t", {"url": broker.http_url}) for _ in range(2))
    one.catch_up()
    publish(broker, [(f"{topic}/a", value) for value in encoded({"n": 3})])
    archive(spark, broker, lake, f"{topic}/#", "raw.t")
    stale = other._table()
    assert one.catch_up() == 1
    with pytest.raises(CommitFailedException):
        other._step(stale)
    assert other.catch_up() == 0
    assert [row["n"] for row in rows(lake)] == [1, 2, 3]
    with pytest.raises(ConfigError):
        Decoded(lake, "raw.other", "decoded.t", {"url": broker.http_url}).catch_up()
    with pytest.raises(InvalidArgument):
        Decoded(lake, "raw.t", "decoded.u", {"url": broker.http_url}, ("day(",))


def test_decoded_instead_of_raw_keeps_what_has_no_fields_and_goes_on_where_the_table_ends(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    def send(*values: bytes, state: str = "") -> None:
        publish(broker, [(f"{topic}/a", value) for value in values])
        options: dict[str, Any] = {"decoded": "decoded.t", "decoded_only": True, "partition": ("bucket(4, device)",)}
        place = Path(lake.warehouse) / state if state else None
        ArchiveRun(spark, broker, lake, f"{topic}/#", "", place, sort=("n desc",), **options).wait()

    send(*encoded({"device": "x", "n": 1, "at": {"room": "a"}}, {"device": "x", "n": 2, "legs": [{"k": 1}]}), b"\x07no")
    found = rows(lake)
    assert [of(row) for row in found] == [
        {"device": "x", "n": 1, "at": {"room": "a"}},
        {"device": "x", "n": 2, "legs": [{"k": 1}]},
        {},
    ]
    assert found[2]["_value"] == b"\x07no" and found[2]["_reason"] == "the value is not JSON"
    assert found[0]["_value"] is None, "what has fields is not kept twice"
    table = table_of(lake, "decoded.t")
    assert [str(one.transform) for one in table.spec().fields] == ["bucket[4]"] and len(table.sort_order().fields) == 1

    send(*encoded({"device": "y", "n": 4.5, "at": {"floor": 2}, "legs": [{"k": 2, "j": "b"}]}))
    last = rows(lake)[3]
    assert json.loads(last["_rest"]) == {"n": 4.5}, "there is nothing to make the column again from"
    assert last["at"] == {"room": None, "floor": 2} and last["legs"] == [{"k": 2, "j": "b"}]

    before = table_of(lake, "decoded.t").metadata_location
    send(state="lost")  # a run whose own state is lost
    assert len(rows(lake)) == 4 and not orphans(lake, "decoded.t")
    assert table_of(lake, "decoded.t").metadata_location != before, "it took the table over"
    assert load_namespaces(lake) == {"decoded"}, "no raw table"
    with pytest.raises(ConfigError, match="not of"):
        DecodedArchive(lake, "decoded.t", "filter:other/#", {"url": broker.http_url})


def load_namespaces(lake: LakeOptions) -> set[str]:
    return {one[0] for one in open_catalog(lake).list_namespaces()}


def test_maintenance_of_a_decoded_table_joins_its_files_within_partitions_and_changes_no_value(
    spark: SparkSession, broker: BrokerProcess, topic: str, lake: LakeOptions
) -> None:
    for number in range(3):
        values = encoded(
            {"device": "x", "legs": [{"k": number}], "at": {"tags": None, "n": 1}},
            {"device": "y", "at": {"tags": [], "legs": [{"k": 1}]}},
            {"device": "z"},
        )
        publish(broker, [(f"{topic}/a", value) for value in values])
        options = {"decoded": "decoded.t", "partition": ("bucket(2, device)",)}
        ArchiveRun(spark, broker, lake, f"{topic}/#", "raw.t", **options).wait()
    before = spark_rows(spark, lake)
    done = compact(spark, open_catalog(lake), "decoded.t", lake.file_properties(), 64 << 20)
    assert done.before > done.after
    assert spark_rows(spark, lake) == before, "lists and structs that are null stay null"
    assert [row["at"] for row in before[:3]] == [
        {"n": 1, "legs": None},
        {"n": None, "legs": [{"k": 1}]},
        None,
    ]
    assert json.loads(before[1]["_rest"]) == {"at": {"tags": []}}, "of which kind its items are, nothing has said"
    shares = {one.file.partition for one in table_of(lake, "decoded.t").scan().plan_files()}
    assert len(shares) == done.after, "a file of each partition"


def spark_rows(spark: SparkSession, lake: LakeOptions) -> list[dict[str, Any]]:
    """As `mainstem sql` and flows read it."""
    found = read_table(spark, lake, "decoded.t").orderBy("_log", "_offset").collect()
    return [row.asDict(recursive=True) for row in found]
