"""`mainstem pipeline test`: given records, expected rows; a version beside the one that runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainstem.model.errors import ConfigError
from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.pipeline.cases import differences, load_cases, run_case, same
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.document import BadPipeline
from mainstem_pipeline.pipeline.runner import Runner, RunOptions
from mainstem_pipeline.pipeline.versions import versioned
from tests.pipeline.conftest import produce, read
from tests.pipeline.test_pipelines import Told, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
name: p
lake: {warehouse: ./lake}
tables: {sites: {table: ref.sites}}
flows:
  - name: readings
    from: {filter: "sensors/#"}
    decode: {format: json, schema: "device string, celsius double, at timestamp"}
    rules: {plausible: "celsius < 1000"}
    sql: >-
      select i.device, cast(i.celsius as decimal(9,2)) as c, i.at, s.site, 1 / i.celsius as inv
      from input i join sites s on s.device = i.device
    to: [{table: iot.readings}, {topic: "alerts/{device}", where: "c > 80"}]
"""
TESTS = """
pipeline: pipeline.yaml
tests:
  - name: hot devices raise an alarm
    given:
      - {topic: sensors/a, value: {device: a, celsius: 90.5, at: "2026-01-31T08:00:00Z"}}
      - {topic: sensors/b, value: {device: b, celsius: 20}, key: k, headers: {h: v}, at: 2026-01-31T08:00:00Z}
      - {topic: sensors/b, value: {device: b, celsius: 0}}
      - {topic: sensors/b, value: "no json", offset: 77}
      - {base64: /w==}
      - {topic: sensors/x, value: {device: a, celsius: 5000}}
    tables: {sites: [{device: a, site: north}, {device: b, site: south}]}
    expect:
      iot.readings: [{device: b, site: south, c: 20}, {device: a, c: 90.5, at: 2026-01-31T08:00:00Z}]
      "alerts/{device}": [{topic: alerts/a, value: {device: a, c: 90.5}}]
      dead_letters:
        - {reason: "the value is not json", offset: 77, topic: sensors/b}
        - {reason: UTF-8}
        - {reason: rule plausible, value: {celsius: 5000}}
        - {reason: SQL failed at 1 / i.celsius}
  - name: is wrong on purpose
    given: {topic: sensors/a, value: {device: a, celsius: 1}}
    tables: {sites: {device: a, site: north}}
    expect: {iot.readings: [{device: a, c: 2}], dead_letters: []}
  - name: the table is missing
    given: []
    expect: {fails: says nothing of the table sites}
"""


def test_given_records_become_the_expected_rows_or_the_difference_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    file = tmp_path / "tests.yaml"
    file.write_text(TESTS)
    pipeline, cases = load_cases(file)
    told = [run_case(spark, pipeline, one) for one in cases]
    assert told[0] == []
    assert [line.partition("{")[0] for line in told[1]] == ["iot.readings: missing: ", "iot.readings: unexpected: "]
    assert json.loads(told[1][1].partition("unexpected: ")[2])["c"] == 1.0
    assert told[2] == []
    assert not (tmp_path / "lake").exists(), "a test writes nothing"
    assert not (tmp_path / ".mainstem").exists()


def test_what_is_wrong_with_a_file_of_tests_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    file = tmp_path / "tests.yaml"
    file.write_text(
        TESTS.replace("iot.readings: [{device: b", "iot.reading: [{device: b").replace(
            "tables: {sites: [", "tables: {site: ["
        )
    )
    with pytest.raises(BadPipeline) as caught:
        load_cases(file)
    assert [(one.line, one.hint) for one in caught.value.problems] == [
        (12, "did you mean 'sites'?"),
        (14, "did you mean 'iot.readings'?"),
    ]
    file.write_text("pipeline: nothing.yaml\n")
    with pytest.raises(BadPipeline, match=r"there is no file .*nothing\.yaml"):
        load_cases(file)


@pytest.mark.parametrize(
    ("wanted", "found", "is_same"),
    [
        (1, 1.0, True),
        (1, Decimal("1.00"), True),
        (True, 1, False),
        (None, 0, False),
        ("2026-01-31T08:00:00Z", datetime(2026, 1, 31, 8, tzinfo=UTC), True),
        ({"a": [1]}, b'{"a": [1.0], "b": 2}', True),
        ({"a": 1}, b"no json", False),
        ([1, 2], [1], False),
        ("x", b"x", True),
        (1, "one", False),
    ],
)
def test_values_are_compared_by_what_they_mean(wanted: Any, found: Any, is_same: bool) -> None:
    assert same(wanted, found) is is_same


def test_each_wanted_row_needs_one_of_its_own() -> None:
    assert differences([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": 2}]) == ['missing: {"a": 1}', 'unexpected: {"a": 2}']
    assert differences([], [{"a": n} for n in range(9)])[-1] == "and 4 more unexpected"


@pytest.mark.slow
def test_a_time_range_is_replayed_into_a_version_beside_the_old_one(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    text = f"""
name: p
broker: {{url: {broker.http_url}}}
lake: {{warehouse: ./lake}}
flows:
  - name: f
    from: {{topic: {topic}}}
    decode: {{format: json, schema: "n int"}}
    sql: select n * 1 as n from input
    to: [{{table: t.n}}, {{topic: "{topic}/out"}}]
    dead_letters: {{topic: {topic}-dead, table: t.dead}}
  - name: g
    from: {{table: t.n}}
    to: {{table: t.copy}}
"""
    file = tmp_path / "p.yaml"
    file.write_text(text)
    times = [1_000_000, 2_000_000, 3_000_000]
    produce(broker, topic, [b'{"n": %d}' % n for n in range(3)], time_ms=lambda index: times[index])
    assert Runner(load_pipeline(file), RunOptions(once=True), Told(), spark).run() == 0
    file.write_text(text.replace("n * 1", "n * 10"))
    for _ in range(2):  # once however often it is run
        replayed = versioned(load_pipeline(file), "v2")
        options = RunOptions(backfill_from="2000000", backfill_to="3000000")
        assert Runner(replayed, options, Told(), spark).run() == 0
    assert sorted(row.n for row in table(spark, tmp_path, "t.n")) == [0, 1, 2]
    assert [row.n for row in table(spark, tmp_path, "t.n_v2")] == [10]
    assert read(spark, broker, subscribe=f"v2/{topic}/out").count() == 1
    assert read(spark, broker, subscribe=f"{topic}/out").count() == 3
    live = versioned(load_pipeline(file), "v3", "ts:2000000")
    for _ in range(2):  # from there on, and from its own checkpoint afterwards
        assert Runner(live, RunOptions(once=True), Told(), spark).run() == 0
        produce(broker, topic, [b'{"n": 7}', b"bad"])
    assert sorted(row.n for row in table(spark, tmp_path, "t.n_v3")) == [10, 20, 70]
    assert sorted(row.n for row in table(spark, tmp_path, "t.copy_v3")) == [10, 20, 70]
    assert len(table(spark, tmp_path, "t.dead_v3")) == 1
    for wrong in ("V2", "", "a/b", "x" * 17):
        with pytest.raises(ConfigError, match="cannot be a version"):
            versioned(load_pipeline(file), wrong)
