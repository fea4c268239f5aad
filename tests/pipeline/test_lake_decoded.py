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
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.decoded import Decoded, Rows
from tests.pipeline.conftest import create_topic, produce, publish
from tests.pipeline.lake_kit import ArchiveRun, archive, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = {"type": "record", "name": "R", "fields": [{"name": "celsius", "type": "double"}, {"name": "n", "type": "long"}]}


@pytest.fixture
def lake(tmp_path: Path) -> LakeOptions:
    return LakeOptions(str(tmp_path / "lake"))


def rows(lake: LakeOptions, name: str = "decoded.t") -> list[dict[str, Any]]:
    return table_of(lake, name).scan().to_arrow().sort_by([("_log", "ascending"), ("_offset", "ascending")]).to_pylist()


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
    assert [of(row) for row in found] == [{"device": "x", "n": 1, "at_room": "a"}, {"device": "y", "n": 2}]
    assert json.loads(found[1]["_rest"]) == {"tags": [1, 2]}
    assert found[0]["_topic"] == f"{topic}/a" and found[0]["_timestamp"] is not None

    send(*encoded({"device": "x", "n": 3, "volts": 3.3}, {"device": "x", "n": "many"}), b"no json")
    found = rows(lake)
    assert [of(row) for row in found[2:]] == [{"device": "x", "n": 3, "volts": 3.3}, {"device": "x"}, {}]
    assert json.loads(found[3]["_rest"]) == {"n": "many"} and found[4]["_reason"] == "the value is no JSON"

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
    decoded = Decoded(lake, "raw.t", "decoded.t", broker.http_url, partition)
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
    one, other = (Decoded(lake, "raw.t", "decoded.t", broker.http_url) for _ in range(2))
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
        Decoded(lake, "raw.other", "decoded.t", broker.http_url).catch_up()
    with pytest.raises(InvalidArgument):
        Decoded(lake, "raw.t", "decoded.u", broker.http_url, ("day(",))


def test_fields_without_a_column_are_kept_as_they_are() -> None:
    found = Rows({})
    found.add({}, b'{"a": 1, "A": 2, "_offset": 3, "b c": 4, "big": 99999999999999999999, "deep": {"x": {"y": 5}}}')
    (row,) = found.rows
    assert {name: row[name] for name in ("a", "b_c", "deep_x_y")} == {"a": 1, "b_c": 4, "deep_x_y": 5}
    assert set(json.loads(row["_rest"])) == {"A", "_offset", "big"}
    found.add({}, b"[1]")
    assert json.loads(found.rows[1]["_rest"]) == {"value": [1]} and found.rows[1]["_reason"]
