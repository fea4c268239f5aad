"""`text` and `json` in `mainstem sql`: what a serialiser of the registry wrote is decoded by the tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.query.shell import SqlShell
from tests.pipeline.conftest import create_topic, produce
from tests.pipeline.lake_kit import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = {"type": "record", "name": "R", "fields": [{"name": "celsius", "type": "double"}]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fields_of_serialised_values_in_the_log_and_in_its_archive(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, 1)
    serialise = AvroSerializer(SchemaRegistryClient({"url": broker.http_url}), json.dumps(AVRO))
    context = SerializationContext(topic, MessageField.VALUE)
    values = [serialise({"celsius": float(n)}, context) for n in range(5)]
    values += [b'{"celsius": 5}', b"no json", b"\xff\xfe", None, b"\0\0\1\0\0unknown"]
    lake = LakeOptions(str(tmp_path / "lake"))
    shell = SqlShell.over(spark, {"url": broker.http_url}, lake)
    wanted = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, None, None, None, None]
    statement = f"select get_json_object(json, '$.celsius') * 1.0D as c, text from {topic} order by offset"
    for turn in (1, 2):  # the log, then an archive with the log behind it
        produce(broker, topic, values)
        rows = shell.answer(statement, lambda frame: [tuple(row) for row in frame.collect()])
        assert [row[0] for row in rows] == wanted * turn
        assert [row[1] for row in rows[5:9]] == ['{"celsius": 5}', "no json", None, None]
        (notice,) = shell.notices
        assert "values name a schema id that the registry does not have (ids 65536): their JSON is null" in notice
        archive(spark, broker, lake, topic, "raw.t")
    shell.answer(f"select count(*), max(offset) from {topic}", lambda frame: frame.collect())
    assert shell.notices == [], "nothing is decoded that the statement does not ask for"
