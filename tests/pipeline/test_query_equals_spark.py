"""`mainstem query` and `mainstem sql` give the same rows: of the log, and of an archive with the log behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions
from tests.pipeline.conftest import produce, publish
from tests.pipeline.lake_kit import archive, sql

pytest.importorskip("duckdb")
from mainstem_ask.sql.engine import Answer, Engine, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def query(broker: BrokerProcess, lake: LakeOptions, statement: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def take(answer: Answer) -> None:
        found.extend(tuple(row) for row in answer.toLocalIterator())

    with Engine(Place({"url": broker.http_url}, lake)) as engine:
        engine.answer(statement, take)
    return found


def plain(rows: list[Any]) -> list[str]:
    """Rows of either engine, without what is only their way to say it."""

    def one(value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            return bytes(value).hex()
        if isinstance(value, list):
            return [one(item) for item in value]
        if hasattr(value, "asDict"):
            return {name: one(item) for name, item in value.asDict().items()}
        if isinstance(value, dict):
            return {name: one(item) for name, item in value.items()}
        return str(value)

    return sorted(json.dumps([one(value) for value in row]) for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_rows_are_the_same_by_both(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    rng = random.Random(8)
    lake = LakeOptions(str(tmp_path / "lake"))

    def write(count: int) -> None:
        publish(broker, [(f"{topic}/{rng.choice('abc')}", rng.randbytes(rng.randrange(20))) for _ in range(count)])
        produce(broker, f"{topic}.k", [rng.choice([None, b"", b'{"a": 1}', rng.randbytes(9)]) for _ in range(count)])

    columns = "key, value, topic, partition, offset, timestamp, timestampType, headers, canonical_topic, levels, origin"
    asked = [
        (f"{topic}/#", "true"),
        (f"{topic}/#", f"topic = '{topic}.a' or offset >= 50"),
        (f"{topic}/#", f"canonical_topic = '{topic}/k' and offset < 120"),
        (f"{topic}/k", "offset >= 50"),
    ]
    write(200)
    for turn in ("the log", "its archive", "archive and log"):
        if turn == "its archive":
            archive(spark, broker, lake, f"{topic}/#", "raw.t")
        elif turn == "archive and log":
            write(100)
        for name, where in asked:
            statement = f"select {columns}, content_type from `{name}` where {where}"
            ours, sparks = query(broker, lake, statement), sql(spark, broker, lake, statement)
            assert plain(ours) == plain(sparks), (turn, statement)
        count = 600 if turn == "archive and log" else 400
        assert query(broker, lake, f"select count(*) from '{topic}/#'") == [(count,)], turn
    assert query(broker, lake, "select count(*) from raw.t") == sql(spark, broker, lake, "select count(*) from raw.t")
