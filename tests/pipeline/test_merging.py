"""Rows merged into tables by key: once, whatever fails. The newest wins, deletes delete, versions begin and end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.lake.catalog import LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import Committer
from mainstem_pipeline.lake.maintain import compact
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.dead_letters import Quality
from mainstem_pipeline.pipeline.document import BadPipeline
from mainstem_pipeline.pipeline.failures import SinkFailed
from mainstem_pipeline.pipeline.runner import PipelineFailed, Runner, RunOptions
from tests.pipeline.conftest import produce, read
from tests.pipeline.lake_kit import table_of
from tests.pipeline.test_pipelines import Told, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Flow:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, folder: Path, words: str) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        self.lake = LakeOptions(str(folder / "lake"))
        (folder / "p.yaml").write_text(f"""
name: p
broker: {{url: {broker.http_url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {{format: json, schema: "id string, n int, at timestamp, op string"}}
    sql: select id, n, at, op from input
    to: {{table: t.latest, key: [id], {words}}}
    dead_letters: {{topic: {topic}-dead, max_ratio: 1}}
""")

    def take(self, *rows: tuple[str | None, int, int, str]) -> None:
        """(id, n, minute, op) as one batch."""
        values = [{"id": i, "n": n, "at": f"2026-11-16T08:{m:02d}:00Z", "op": op} for i, n, m, op in rows]
        produce(self.broker, self.topic, [json.dumps(one).encode() for one in values])
        assert Runner(load_pipeline(self.folder / "p.yaml"), RunOptions(once=True), Told(), self.spark).run() == 0

    def rows(self) -> list[Any]:
        return list(table(self.spark, self.folder, "t.latest"))

    def latest(self) -> dict[str, int]:
        found = {row.id: row.n for row in self.rows()}
        assert len(found) == len(self.rows()), "one row of each key"
        return found


@pytest.mark.parametrize("writes", ["copy-on-write", pytest.param("merge-on-read", marks=pytest.mark.slow)])
def test_the_newest_row_of_a_key_replaces_the_one_before_and_deletes_delete(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(spark, broker, topic, tmp_path, f"order_by: at, delete_where: \"op = 'd'\", writes: {writes}")
    flow.take(("a", 1, 1, "c"), ("b", 1, 1, "c"), ("a", 2, 2, "u"), ("c", 1, 1, "c"))
    assert flow.latest() == {"a": 2, "b": 1, "c": 1}
    flow.take(("a", 0, 0, "u"), ("b", 5, 3, "u"), ("c", 0, 3, "d"), ("x", 0, 3, "d"), (None, 7, 3, "c"))
    assert flow.latest() == {"a": 2, "b": 5}, "what comes late is passed over"
    assert read(spark, broker, subscribe=f"{topic}-dead").count() == 1, "a row without a key"
    lost: list[int] = []
    commit = Committer.attempt

    def unanswered(self: Committer, change: Any) -> bool:
        done = commit(self, change)
        if not lost and done:
            lost.append(1)
            raise ConnectionResetError("the answer is lost")
        return done

    monkeypatch.setattr(Committer, "attempt", unanswered)
    with pytest.raises(PipelineFailed):
        flow.take(("a", 9, 9, "u"), ("d", 9, 9, "c"))
    flow.take()
    assert flow.latest() == {"a": 9, "b": 5, "d": 9}
    snapshots = [
        one.summary.operation.value for one in table_of(flow.lake, "t.latest").metadata.snapshots if one.summary
    ]
    assert len(snapshots) == 3, "the batch whose answer was lost is there once"
    compact(spark, open_catalog(flow.lake), "t.latest", flow.lake.file_properties(), 128 << 20)
    assert flow.latest() == {"a": 9, "b": 5, "d": 9}


@pytest.mark.slow
def test_versions_of_a_row_follow_each_other_without_gap(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    flow = Flow(spark, broker, topic, tmp_path, "order_by: at, delete_where: \"op = 'd'\", scd: 2")
    flow.take(("a", 1, 1, "c"), ("b", 1, 1, "c"))
    flow.take(("a", 2, 5, "u"))
    flow.take(("b", 0, 7, "d"), ("a", 0, 3, "u"))
    found = sorted(
        (row.id, row.n, row.valid_from.minute, row.valid_to.minute if row.valid_to else None) for row in flow.rows()
    )
    assert found == [("a", 1, 1, 5), ("a", 2, 5, None), ("b", 1, 1, 7)]


def test_two_rows_of_a_key_without_an_order_are_told(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    flow = Flow(spark, broker, topic, tmp_path, "writes: copy-on-write")
    with pytest.raises(
        PipelineFailed, match="two rows of one key and order_by does not say which is newer: id = a"
    ) as told:
        flow.take(("a", 1, 1, "c"), ("a", 2, 2, "c"))
    assert "order_by: COLUMN" in told.value.fix


def test_words_of_merging_that_do_not_belong_are_told(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    text = "name: p\nlake: {warehouse: ./lake}\nflows:\n  - {name: f, from: {topic: a}, mode: update, to: SINK}\n"
    for sink, words in (
        ("{table: t.x}", r"mode update cannot be appended to a table.*key: \[COLUMN"),
        ("{table: t.x, scd: 2}", "'scd' belongs to a table with a key"),
        ("{table: t.x, key: [a], scd: 2}", "scd: 2 needs the time from which a row is valid; order_by: COLUMN"),
        ("{table: t.x, key: [a], writes: twice}", "writes cannot be 'twice'"),
    ):
        file.write_text(text.replace("SINK", sink))
        with pytest.raises(BadPipeline, match=words):
            load_pipeline(file)


def test_a_table_follows_a_databases_changes(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"""
name: p
broker: {{url: {broker.http_url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {{format: debezium, schema: "id int, name string"}}
    sql: select id, name, _op, _order from input
    to: {{table: t.customers, key: [id], order_by: _order, delete_where: "_op = 'd'"}}
    dead_letters: {{topic: {topic}-dead, table: t.dead, max_ratio: 1}}
""")

    def change(op: str, lsn: int, before: Any, after: Any, *, wrapped: bool = False) -> bytes:
        told = {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "table": "customers"}, "ts_ms": 1}
        return json.dumps({"schema": {}, "payload": told} if wrapped else told).encode()

    ada, bob, eve = ({"id": n, "name": name} for n, name in ((1, "Ada"), (2, "Bob"), (3, "Eve")))
    first = [change("r", 100, None, ada), change("c", 9, None, bob, wrapped=True), change("c", 101, None, eve)]
    produce(broker, topic, [*first, change("u", 102, ada, {"id": 1, "name": "Ada L."})])
    runner = Runner(load_pipeline(file), RunOptions(once=True), Told(), spark)
    assert runner.run() == 0
    late = change("u", 99, ada, {"id": 1, "name": "old"})
    bad = [change("t", 104, None, None), change("d", 105, None, None), b"{}", b"no json"]
    produce(broker, topic, [change("d", 103, bob, None), None, late, *bad])
    assert Runner(load_pipeline(file), RunOptions(once=True), Told(), spark).run() == 0
    assert sorted((row.id, row.name) for row in table(spark, tmp_path, "t.customers")) == [(1, "Ada L."), (3, "Eve")]
    assert sorted(row.reason for row in table(spark, tmp_path, "t.dead")) == [
        "a delete without `before`: set REPLICA IDENTITY FULL",
        "the source table was truncated (op t), which is not followed",
        "the value is not a Debezium change of this schema",
        "the value is not a Debezium change: it has no op",
    ]


def test_rows_without_a_key_are_dead_letters_also_where_the_run_stopped_between(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(spark, broker, topic, tmp_path, "order_by: at")

    def no_letters(*_: Any, **__: Any) -> None:
        raise SinkFailed("the wire was cut")

    with monkeypatch.context() as patch:
        patch.setattr(Quality, "keep_letters", no_letters)
        with pytest.raises(PipelineFailed, match="the wire was cut"):
            flow.take(("a", 1, 1, "c"), (None, 2, 2, "c"))
    flow.take()
    assert flow.latest() == {"a": 1}
    assert read(spark, broker, subscribe=f"{topic}-dead").count() == 1


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "table", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}


def test_a_table_follows_a_databases_changes_in_avro(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    import fastavro

    file, schema = tmp_path / "p.yaml", fastavro.parse_schema(ENVELOPE)
    (tmp_path / "envelope.avsc").write_text(json.dumps(ENVELOPE))
    text = f"""
name: p
broker: {{url: {broker.http_url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {{format: debezium-avro, schema: envelope.avsc, options: {{wire: confluent}}}}
    sql: select id, name, _op, _order from input
    to: {{table: t.customers, key: [id], order_by: _order, delete_where: "_op = 'd'"}}
    dead_letters: {{topic: {topic}-dead, table: t.dead, max_ratio: 1}}
"""
    file.write_text(text)

    def change(op: str, lsn: int, before: Any, after: Any) -> bytes:
        out = io.BytesIO(b"\x00\x00\x00\x00\x07")
        out.seek(5)
        told = {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "table": "customers"}, "ts_ms": 1}
        fastavro.schemaless_writer(out, schema, told)
        return out.getvalue()

    ada, bob = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}
    good = [change("r", 100, None, ada), change("c", 9, None, bob), change("u", 102, ada, {"id": 1, "name": "Ada L."})]
    bad = [change("t", 104, None, None), change("d", 105, None, None), change("c", 1, None, bob)[:9]]
    produce(broker, topic, [*good, change("d", 103, bob, None), None, change("u", 99, ada, ada), *bad])
    assert Runner(load_pipeline(file), RunOptions(once=True), Told(), spark).run() == 0
    assert [(row.id, row.name) for row in table(spark, tmp_path, "t.customers")] == [(1, "Ada L.")]
    reasons = sorted(row.reason for row in table(spark, tmp_path, "t.dead"))
    assert reasons[0] == "a delete without `before`: set REPLICA IDENTITY FULL"
    assert reasons[1] == "the source table was truncated (op t), which is not followed"
    assert reasons[2].startswith("the value is not avro of this schema: ")
    (tmp_path / "envelope.avsc").write_text(json.dumps(ENVELOPE["fields"][0]["type"][1]))  # type: ignore[index]
    with pytest.raises(BadPipeline, match="no schema of Debezium's envelope: it has no before, after, op, source"):
        load_pipeline(file)
