"""Pipeline files, checked without Spark: every problem at once, with its line and what was meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from mainstem.model.errors import ConfigError
from mainstem_pipeline import session
from mainstem_pipeline.cli import pipeline as command
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.document import BadPipeline
from mainstem_pipeline.pipeline.failures import reason_of
from mainstem_pipeline.pipeline.flows import time_ms
from mainstem_pipeline.pipeline.model import Pipeline
from mainstem_pipeline.pipeline.state import ChangedFlow, State
from mainstem_pipeline.pipeline.validation import validated

EXAMPLES = Path(__file__).parents[2] / "examples"

GOOD = """
name: p
lake: {warehouse: ./lake}
flows:
  - name: f
    from: {topic: a}
    decode: {format: json, schema: "x int"}
    sql: select x from input
    to: {topic: b}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(dedent(text))
    return path


def loaded(folder: Path, text: str) -> Pipeline:
    return load_pipeline(write(folder, text))


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(BadPipeline) as caught:
        loaded(folder, text)
    return [str(one) for one in caught.value.problems]


@pytest.mark.parametrize("name", ["telemetry", "orders", "logs"])
def test_the_examples_have_no_problems(name: str) -> None:
    assert load_pipeline(EXAMPLES / name / "pipeline.yaml").name == name


ARCHIVE = """
name: kept
lake: {warehouse: ./lake}
flows:
  - name: all
    archive: {filter: "sensors/#", TABLES}
"""


def test_an_archive_flow_keeps_a_raw_table_a_decoded_one_or_both(tmp_path: Path) -> None:
    def made(tables: str) -> Any:
        return loaded(tmp_path, ARCHIVE.replace("TABLES", tables)).flows[0].archive

    decode = "decode: {table: decoded.s, partition: ['day(_timestamp)', 'bucket(16, device)'], sort: device}"
    both = made(f"table: raw.s, {decode}")
    assert (both.table, both.decoded, both.decoded_only) == ("raw.s", "decoded.s", False)
    assert both.partition == ("day(_timestamp)", "bucket(16, device)") and both.sort == ("device",)
    only = made(decode)
    assert (only.table, only.decoded, only.decoded_only) == ("decoded.s", "", True)
    assert made("table: raw.s").decoded == ""
    (told,) = problems(tmp_path, ARCHIVE.replace("TABLES", "decode: {table: decoded.s, partition: ['week(x)']}"))
    assert "week(x)" in told
    (told,) = problems(tmp_path, ARCHIVE.replace("TABLES", "decode: {}"))
    assert "table" in told


def test_every_problem_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        name: my pipeline
        lake: {warehous: ./lake}
        flows:
          - name: a
            form: {topic: x}
            decode: {format: jsn, schema: "x int"}
            rules: {positive: }
            sql: select 1
            to: {topc: y}
          - name: a
            from: {topic: x, filter: y}
            decode: json
            trigger: soon
            python: nowhere.py:f
            to: {table: t}
        """,
    )
    text = "\n".join(found)
    for line, words in [
        (2, "must be letters, digits"),
        (3, "unknown word 'warehous' in lake (did you mean 'warehouse'?)"),
        (6, "unknown word 'form' in flows[0] (did you mean 'from'?)"),
        (7, "cannot be 'jsn' (did you mean 'json'?)"),
        (8, "rule 'positive' needs a SQL condition"),
        (9, "the SQL reads nothing of this flow"),
        (10, "unknown word 'topc' in flows[0].to (did you mean 'topic'?)"),
        (11, "two flows are called 'a'"),
        (12, "a source is exactly one of"),
        (13, "json needs a schema"),
        (14, "trigger 'soon' is not a duration"),
        (15, "there is no file"),
    ]:
        assert any(one.startswith(f"line {line}:") and words in one for one in found), (line, words, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the file is empty"),
        ("name: p\nflows: []", "line 2: flows must be a list with at least one flow"),
        ("name: p\n  flows: x: y", "line 2: not valid YAML"),
        ("name: p\nname: q\nflows: []", "line 2: 'name' is there twice (the first is in line 1)"),
        ("name: p\nflows: \a\n", "line 2: not valid YAML: special characters"),
        ("name: p\nflows: &again [*again, *again]", "line 2: too much is nested here"),
        (GOOD.replace("to: {topic: b}", "to: []"), "a flow needs a sink"),
        (GOOD + "    start: ts:soon\n", "'soon' is not a time"),
        (GOOD.replace('json, schema: "x int"', "avro, schema: a string"), "the schema is not valid JSON"),
        (GOOD.replace("lake: {warehouse: ./lake}", "").replace("topic: b", "table: b.c"), "table 'b.c' needs a lake"),
        (GOOD.replace("topic: b", "table: a.b.c"), "is not a table name"),
        (GOOD.replace("topic: a", "filter: a/b#"), "must fill a whole level"),
        (GOOD.replace("warehouse: ./lake", "warehouse: s3://b"), "needs a catalog"),
        (GOOD.replace("topic: b", "parquet: b") + "    mode: update\n", "mode update cannot be appended to a parquet"),
        (GOOD + "    watermark: {delay: 1s}\n", "watermark.column is missing"),
        (GOOD + "    dead_letters: {max_ratio: 7}\n", "must be a number from 0 to 1"),
        (GOOD + "    python: x.py:f\n", "sql and python cannot both be given"),
        (GOOD + "tables: {input: {csv: p.yaml}}\n", "cannot be called 'input'"),
        (GOOD + "tables: {t: {csv: missing.csv}}\n", "there is nothing at"),
        (GOOD + "spark: {sql.shuffle.partitions: 2}\n", "did you mean spark.sql.shuffle.partitions"),
    ],
)
def test_a_mistake_is_named_where_it_is(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in one for one in problems(tmp_path, text)), problems(tmp_path, text)


def test_a_file_in_another_encoding_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes("name: größe\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="not a text in UTF-8"):
        load_pipeline(tmp_path / "p.yaml")


def test_times_are_read_to_the_millisecond() -> None:
    assert [time_ms(f"2026-01-31T08:00:00.{n:03d}Z") for n in range(1_000)] == [
        1_769_846_400_000 + n for n in range(1_000)
    ]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_pipeline(tmp_path / "none.yaml")


def test_schemas_may_be_files(tmp_path: Path) -> None:
    schema = {
        "properties": {
            "id": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
            "n": {"type": ["integer", "null"]},
        }
    }
    (tmp_path / "s.json").write_text(json.dumps(schema))
    made = loaded(tmp_path, GOOD.replace('"x int"', "s.json"))
    assert made.flows[0].decode.schema == "`id` string, `at` timestamp, `n` bigint"


def test_a_change_that_the_checkpoint_cannot_follow_is_refused_with_its_flag(tmp_path: Path) -> None:
    before = loaded(tmp_path, GOOD)
    state = State(before)
    state.remember(before.flows[0])
    state.store.write("f/checkpoint/metadata", b"{}")
    harmless = loaded(tmp_path, GOOD.replace("select x", "select x + 1 as x"))
    State(harmless).check_unchanged(harmless.flows[0], frozenset())
    other = loaded(tmp_path, GOOD.replace("{topic: a}", "{topic: c}"))
    with pytest.raises(ChangedFlow, match="flow f: from changed") as caught:
        State(other).check_unchanged(other.flows[0], frozenset())
    assert "--reset f" in caught.value.fix
    State(other).check_unchanged(other.flows[0], frozenset({"f"}))
    State(other).remember(other.flows[0])
    stateful = loaded(tmp_path, GOOD.replace("{topic: a}", "{topic: c}") + "    watermark: {column: x, delay: 1s}\n")
    with pytest.raises(ChangedFlow, match="transforms"):
        State(stateful).check_unchanged(stateful.flows[0], frozenset())


def test_two_runs_of_one_pipeline_do_not_meet(tmp_path: Path) -> None:
    first, second = State(loaded(tmp_path, GOOD)), State(loaded(tmp_path, GOOD))
    first.take()
    with pytest.raises(ConfigError, match="is running already"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_a_store_that_nobody_knows_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match=r"state: there is no store s4://; a folder, or one of file://, s3://"):
        loaded(tmp_path, "state: s4://bucket/p\n" + GOOD)
    assert loaded(tmp_path, "state: s3://bucket/p\n" + GOOD).state == "s3://bucket/p"


BROKEN = """
name: p
lake: {warehouse: ./lake}
tables:
  sites: {csv: sites.csv, schema: "k strin g"}
flows:
  - name: f
    from: {topic: a}
    decode: {format: json, schema: "x nonsense"}
    rules: {r: "x >"}
    sql: "selec x from input"
    to: [{table: t.x, partition_by: "bukket(8, x)"}, {topic: "o/{x +}", where: "x = = 1"}]
"""


@pytest.mark.parametrize("by", ["spark", "sqlglot"])
def test_sql_conditions_schemas_and_transforms_are_parsed_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    (tmp_path / "sites.csv").write_text("k\n")
    if by == "sqlglot":
        monkeypatch.setattr(session, "spark_java", _no_java)  # a session that runs already would do without looking
    with pytest.raises(BadPipeline) as caught:
        validated(write(tmp_path, BROKEN), offline=True)
    told = {(one.line, one.what.partition(":")[0].split(" '")[0]) for one in caught.value.problems}
    wanted = {(12, "partition_by"), (10, "flows[0].rules.r"), (11, "flows[0].sql"), (12, "flows[0].to[1].where")}
    wanted |= {(12, "flows[0].to[1].topic")}
    if by == "spark":
        wanted |= {(5, "tables.sites.schema"), (9, "flows[0].decode.schema")}
    assert told == wanted
    (tmp_path / "sites.csv").write_text("k\n")
    good = BROKEN.replace("strin g", "string").replace("nonsense", "int").replace("x >", "x > 1")
    good = good.replace("selec ", "select ").replace("bukket", "bucket").replace("{x +}", "{x}").replace("= =", "=")
    notes = validated(write(tmp_path, good), offline=True)
    assert [("sqlglot only" in one) for one in notes] == ([True] if by == "sqlglot" else [])


def _no_java() -> Any:
    raise ConfigError("Spark needs Java 17 or later, and none is found")


def test_what_spark_says_outside_a_flow_is_one_message_and_debug_shows_the_rest(tmp_path: Path) -> None:
    for flags, has_traceback in (((), False), (("--debug",), True)):
        environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--nonsense pyspark-shell"}  # it ends at once
        command = [sys.executable, "-m", "mainstem", "sql", "select 1", *flags]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode != 0
        assert ("Traceback" in done.stderr) == has_traceback, done.stderr
        assert "error[MS-7007] Spark failed: " in done.stderr
        assert "fix: look at the end of Spark's log" in done.stderr


def test_a_run_that_was_killed_is_not_told_as_one_that_waits(tmp_path: Path) -> None:
    state = State(loaded(tmp_path, GOOD))
    state.take()
    state.keep_status("f", {"state": "waiting", "batch": 3})
    assert [one["state"] for one in State(loaded(tmp_path, GOOD)).statuses()] == ["waiting"]
    state.release()  # as the kernel does for a process that is killed
    (told,) = State(loaded(tmp_path, GOOD)).statuses()
    assert (told["state"], told["batch"]) == ("killed", 3)
    assert "goes on where its checkpoint is" in told["error"]


def test_the_command_line_tells_problems_and_ends_with_two(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("format: json", "format: xml"))
    result = CliRunner().invoke(command, ["validate", str(path)])
    assert result.exit_code == 2
    assert "p.yaml:7: flows[0].decode.format cannot be 'xml'" in result.output
    result = CliRunner().invoke(command, ["validate", str(path), "--json"])
    assert json.loads(result.output)["problems"][0]["line"] == 7
    good = write(tmp_path, GOOD)
    assert CliRunner().invoke(command, ["validate", "--offline", str(good)]).output.strip().endswith("no problems")
    result = CliRunner().invoke(command, ["validate", str(good)], env={"MAINSTEM_URL": "http://127.0.0.1:9"})
    assert result.exit_code == 69
    assert "no broker answers at http://127.0.0.1:9" in result.output


def test_an_error_of_the_jvm_is_told_by_its_own_sentence() -> None:
    gone = """An error occurred while calling o65.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file a.parquet.
You can explicitly invalidate the cache. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.fileNotExistError(QueryExecutionErrors.scala:1)
Caused by: java.io.FileNotFoundException: File a.parquet does not exist
"""
    assert reason_of(gone) == "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file a.parquet."
    stopped = "An error occurred while calling o1.sql.\n: java.lang.IOException: it was stopped\n\tat x.Y.z(Y.java:1)"
    assert reason_of(stopped) == "it was stopped"


def test_explain_says_what_a_flow_does(tmp_path: Path) -> None:
    output = CliRunner().invoke(command, ["explain", str(EXAMPLES / "telemetry" / "pipeline.yaml")]).output
    assert "reads filter sensors/+/+/reading from earliest" in output
    assert "rule plausible: celsius between -60 and 120" in output
    assert "what cannot be used goes to topic sensors/dead and table iot.dead_readings" in output


def test_status_and_reset(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    state = State(loaded(tmp_path, GOOD))
    state.keep_status("f", {"state": "failed", "batch": 3, "rows": 10, "bad": 1, "lag": 7, "error": "why"})
    output = CliRunner().invoke(command, ["status", str(path)]).output
    assert "f: failed  batch 3  rows 10  bad 1  lag 7\n  why" in output
    assert "forgotten" in CliRunner().invoke(command, ["reset", str(path), "f", "--yes"]).output
    assert "never ran" in CliRunner().invoke(command, ["status", str(path)]).output
    assert CliRunner().invoke(command, ["reset", str(path), "g", "--yes"]).exit_code != 0
