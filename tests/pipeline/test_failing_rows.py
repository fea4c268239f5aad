"""Rows on which a flow's SQL or Python fails are dead letters that name the expression; the others arrive, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.pipeline import failing_rows
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.dead_letters import Quality
from mainstem_pipeline.pipeline.failures import BAD_RECORDS, SINK_FAILED, SinkFailed
from mainstem_pipeline.pipeline.runner import PipelineFailed, Runner, RunOptions
from mainstem_pipeline.pipeline.sinks import Sinks
from tests.pipeline.conftest import produce, read
from tests.pipeline.test_pipelines import Told, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class File:
    """A flow over rows (k, a, b), its good rows in t.good and its dead letters in t.dead."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, folder: Path) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        (folder / "sites.csv").write_text("k,name\n1,north\n1,also north\n3,south\n")

    def write(self, words: str, max_ratio: str = "1, min_rows: 1") -> None:
        self.path = self.folder / "p.yaml"
        self.path.write_text(f"""
name: p
broker: {{url: {self.broker.http_url}}}
lake: {{warehouse: ./lake}}
tables: {{sites: {{csv: sites.csv, schema: "k int, name string"}}}}
flows:
  - name: f
    from: {{topic: {self.topic}}}
    decode: {{format: json, schema: "k int, a string, b int"}}
    {words}
    dead_letters: {{topic: {self.topic}-dead, table: t.dead, max_ratio: {max_ratio}}}
""")

    def publish(self, *rows: tuple[int, str, int]) -> None:
        produce(self.broker, self.topic, [json.dumps(dict(zip("kab", one, strict=True))).encode() for one in rows])

    def run(self) -> Told:
        told = Told()
        assert Runner(load_pipeline(self.path), RunOptions(once=True), told, self.spark).run() == 0
        return told

    def dead(self) -> dict[int, str]:
        """By k, the reason; each record once, in the topic too."""
        rows = table(self.spark, self.folder, "t.dead")
        assert len(rows) == read(self.spark, self.broker, subscribe=f"{self.topic}-dead").count()
        found = {json.loads(row.value)["k"]: row.reason for row in rows}
        assert len(found) == len(rows)
        return found

    def good(self, name: str = "t.good") -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in table(self.spark, self.folder, name))


@pytest.fixture
def file(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> File:
    return File(spark, broker, topic, tmp_path)


def test_each_row_that_an_expression_fails_on_is_a_dead_letter_and_names_it(file: File) -> None:
    file.write(
        """rules: {positive: "a = 'x' or cast(a as int) > 0"}
    sql: "select i.k, cast(i.a as int) as n, s.name from input i left join sites s on s.k = i.k where 10 / b > 1"
    to: [{table: t.good}, {topic: TOPIC-good, value: "cast(n as string)"}]""".replace("TOPIC", file.topic)
    )
    file.publish((1, "1", 1), (2, "x", 2), (3, "3", 0), (4, "x", 100), (5, "5", 5), (6, "y", 1))
    told = file.run()
    assert file.good() == [(1, 1, "also north"), (1, 1, "north"), (5, 5, None)]
    assert read(file.spark, file.broker, subscribe=f"{file.topic}-good").count() == 3
    assert file.dead() == {
        2: "SQL failed at cast(i.a as int)",
        3: "SQL failed at 10 / b > 1",
        6: "rule positive: a = 'x' or cast(a as int) > 0",
    }, "row 4 is left out by the condition: its cast is never made"
    assert [one.bad_total for one in told.flows] == [3]
    assert [one.bad_total for one in file.run().flows] == [0], "the second run had nothing new"


@pytest.mark.slow
def test_what_fails_in_python_groups_or_a_sinks_expression_is_found_by_halving(file: File) -> None:
    (file.folder / "steps.py").write_text(
        "from pyspark.sql import functions as F\n"
        "@F.udf('string')\n"
        "def checked(a):\n"
        "    if a == 'bad':\n"
        "        raise ValueError('no such device: ' + a)\n"
        "    return a\n"
        "def step(frame):\n"
        "    return frame.withColumn('a', checked('a'))\n"
    )
    file.write(
        """transform:
      - {python: "steps.py:step"}
      - {sql: "select k, max(cast(a as int)) as n, max(a) as a from input group by k"}
    to: [{topic: TOPIC-good, value: "cast(100 / k as string)"}, {table: t.good}]""".replace("TOPIC", file.topic)
    )
    file.publish(*((n, str(n), n) for n in range(1, 8)), (8, "bad", 0), (9, "nine", 0), (0, "0", 0))
    file.run()
    dead = file.dead()
    assert set(dead) == {8, 9, 0}
    assert "ValueError: no such device: bad" in dead[8]
    assert dead[9].startswith("SQL failed at cast(a as int): [CAST_INVALID_INPUT] The value 'nine'")
    assert dead[0].startswith("SQL failed at 100 / k: [DIVIDE_BY_ZERO]")
    assert [row[0] for row in file.good()] == list(range(8)), "only the other sink divides by k"
    assert read(file.spark, file.broker, subscribe=f"{file.topic}-good").count() == 7


def test_too_many_of_them_stop_the_flow_and_nothing_is_written(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write('sql: "select cast(a as int) as n from input"\n    to: {table: t.good}', "0.2, min_rows: 1")
    file.publish((1, "1", 1), (2, "x", 2))
    with pytest.raises(
        PipelineFailed, match=r"1 of 2 records cannot be used(?s:.)*SQL failed at cast\(a as int\)"
    ) as no:
        file.run()
    assert no.value.exit_code == BAD_RECORDS
    monkeypatch.setattr(failing_rows, "PROBES_MAX", 1)
    file.write('sql: "select max(cast(a as int)) as n from input"\n    to: {table: t.good}')
    with pytest.raises(PipelineFailed, match="more rows fail than 1 runs can tell apart") as no:
        file.run()
    assert "try_cast" in no.value.fix


@pytest.mark.parametrize("fails", [pytest.param("letters", marks=pytest.mark.slow), "second sink"])
def test_a_batch_that_stopped_half_way_is_finished_with_each_row_and_letter_once(
    file: File, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    file.write('sql: "select k, cast(a as int) as n from input"\n    to: [{table: t.good}, {table: t.more}]')
    file.publish((1, "1", 1), (2, "x", 2), (3, "3", 3))
    keep, write = Quality.keep_letters, Sinks._to_table

    def no_letters(*_: Any, **__: Any) -> None:
        raise SinkFailed("the wire was cut")

    def no_second(self: Sinks, sink: Any, *rest: Any) -> None:
        if sink.target == "t.more":
            raise SinkFailed("the wire was cut")
        write(self, sink, *rest)

    with monkeypatch.context() as patch:
        if fails == "letters":
            patch.setattr(Quality, "keep_letters", no_letters)
        else:
            patch.setattr(Sinks, "_to_table", no_second)
        with pytest.raises(PipelineFailed, match="the wire was cut") as no:
            file.run()
    assert no.value.exit_code == SINK_FAILED
    assert Quality.keep_letters is keep
    file.run()
    for name in ("t.good", "t.more"):
        assert file.good(name) == [(1, 1), (3, 3)]
    assert file.dead() == {2: "SQL failed at cast(a as int)"}
