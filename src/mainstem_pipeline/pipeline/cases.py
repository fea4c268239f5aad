"""Tests of a pipeline as a file: given records, expected rows. Spark runs the flow; no broker and no lake are needed.

pipeline: pipeline.yaml
tests:
  - name: a hot device raises an alarm
    flow: readings                            where the pipeline has several
    given:
      - {topic: sensors/a, value: {device: a, celsius: 90}}        a mapping or list is written as JSON
      - {topic: sensors/b, value: "no json", key: b, headers: {x: y}, at: 2026-01-31T08:00:00Z}
      - {base64: AAAAAAc=}                                         any bytes
    tables: {devices: [{id: a, site: north}]}                      in place of those of the pipeline
    expect:
      iot.readings: [{device: a, celsius: 90}]                     by what a sink writes to, or its name
      "alerts/{device}": [{topic: alerts/a, value: {device: a}}]
      dead_letters: [{topic: sensors/b, reason: the value is not json}]

Rows may come in any order. Of a row the named columns are compared; a `reason` only has to contain the text. Sinks that are
not named are not looked at. `fails: TEXT` expects that the flow stops, and says so.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError
from mainstem_pipeline.lake.merge import GONE
from mainstem_pipeline.pipeline.checks import Checks, load_pipeline
from mainstem_pipeline.pipeline.decoding import RECORD_COLUMNS, inferred_schema
from mainstem_pipeline.pipeline.document import BadPipeline, Place, read_document
from mainstem_pipeline.pipeline.failures import understood
from mainstem_pipeline.pipeline.flows import FlowRun
from mainstem_pipeline.pipeline.model import LETTERS, LETTERS_TABLE, Flow, Pipeline, Sink
from mainstem_pipeline.pipeline.sinks import BatchOf, Sinks, last_of_each_key, topic_rows
from mainstem_pipeline.pipeline.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD_LETTERS, FAILS = "dead_letters", "fails"
GIVEN = ("topic", "key", "value", "base64", "headers", "at", "partition", "offset", "origin")
CASE = ("name", "flow", "given", "tables", "expect")
SHOWN_MAX = 5
SHOWN_CHARACTERS_MAX = 300
RECORD_SCHEMA = (
    "key binary, value binary, canonical_topic string, levels array<string>, partition int, offset bigint, "
    "timestamp timestamp, origin string, headers array<struct<key:string,value:binary>>"
)
COLUMN_ORDER = ("key", "value", "canonical_topic", "levels", "partition", "offset", "timestamp", "origin", "headers")
assert set(COLUMN_ORDER) == set(RECORD_COLUMNS.values())

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    line: int
    flow: Flow
    given: list[Row]
    tables: dict[str, list[Row]] = field(default_factory=dict)
    expect: dict[str, list[Row]] = field(default_factory=dict)
    fails: str = ""


def load_cases(path: Path) -> tuple[Pipeline, list[Case]]:
    """The pipeline and its tests; BadPipeline with all that is wrong with the file."""
    document = read_document(path)
    checks = _CaseChecks(document)
    content = checks.mapping(document.content, (), ("pipeline", "tests"))
    file = checks.file(checks.text(content.get("pipeline"), ("pipeline",), required=True), ("pipeline",))
    if file is None:
        raise BadPipeline(path, document.problems)
    pipeline = load_pipeline(file)
    given = content.get("tests")
    if not isinstance(given, list) or not given:
        checks.problem(("tests",), "tests must be a list with at least one test", "see docs/pipelines.md")
        given = []
    cases = [checks.case(one, ("tests", index), pipeline) for index, one in enumerate(given)]
    if document.problems:
        raise BadPipeline(path, document.problems)
    return pipeline, [one for one in cases if one is not None]


class _CaseChecks(Checks):
    def case(self, value: Any, place: Place, pipeline: Pipeline) -> Case | None:
        told = self.mapping(value, place, CASE)
        name = self.text(told.get("name"), (*place, "name"), required=True)
        flow = self._flow(self.text(told.get("flow"), (*place, "flow")), (*place, "flow"), pipeline)
        if flow is None:
            return None
        given = self._rows(told.get("given"), (*place, "given"))
        if flow.source.kind != "table":
            given = [self.mapping(one, (*place, "given", index), GIVEN) for index, one in enumerate(given)]
        tables = self._named_rows(told.get("tables"), (*place, "tables"), {one.name for one in pipeline.tables})
        expected = told.get("expect")
        known = {DEAD_LETTERS, *(one.target for one in flow.sinks), *(one.name for one in flow.sinks)}
        fails = ""
        if isinstance(expected, dict) and FAILS in expected:
            fails = self.text(expected[FAILS], (*place, "expect", FAILS), required=True)
            expected = {key: one for key, one in expected.items() if key != FAILS}
        if expected is None:
            self.problem((*place, "expect"), "a test expects something", f"rows by sink: {', '.join(sorted(known))}")
        expect = self._named_rows(expected, (*place, "expect"), known)
        return Case(name, self.document.line(*place), flow, given, tables, expect, fails)

    def _flow(self, name: str, place: Place, pipeline: Pipeline) -> Flow | None:
        flows = [one for one in pipeline.flows if one.archive is None]
        found = pipeline.flow(name) if name else flows[0] if len(flows) == 1 else None
        if found is None or found.archive is not None:
            self.problem(
                place, f"which flow? {name!r} is none of them", f"one of {', '.join(one.name for one in flows)}"
            )
            return None
        return found

    def _named_rows(self, value: Any, place: Place, known: set[str]) -> dict[str, list[Row]]:
        told = self.mapping(value or {}, place, tuple(sorted(known)))
        return {name: self._rows(one, (*place, name)) for name, one in told.items() if name in known}

    def _rows(self, value: Any, place: Place) -> list[Row]:
        rows = value if isinstance(value, list) else [] if value is None else [value]
        for index, one in enumerate(rows):
            if not isinstance(one, dict):
                self.problem((*place, index), "a row is a mapping of columns to values")
        return [one for one in rows if isinstance(one, dict)]


# -- running


def run_case(spark: SparkSession, pipeline: Pipeline, case: Case) -> list[str]:
    """What is not as expected, in lines; empty if all is."""
    recorded = _Recorded()
    run = _Tested(pipeline, case, spark, recorded)
    try:
        run.run()
    except Exception as error:
        said = str(run.failure or understood(error, case.flow.name))
        if case.fails and case.fails in said:
            return []
        return [f"the flow failed: {said}"] if not case.fails else [f"it failed otherwise: {said}"]
    if case.fails:
        return [f"expected that it fails with {case.fails!r}, and it did not"]
    problems: list[str] = []
    for name, wanted in case.expect.items():
        found = [row for one in recorded.rows if name in one[:2] for row in one[2]]
        problems += [f"{name}: {line}" for line in differences(wanted, found)]
    return problems


class _Recorded(Sinks):
    """Sinks that only remember: (target, name, rows)."""

    def __init__(self) -> None:
        super().__init__({}, None, lambda _: None)
        self.rows: list[tuple[str, str, list[Row]]] = []

    def last_batch(self, sink: Sink, query: str) -> int:
        return -1

    def take(self, sink: Sink, frame: DataFrame, batch: BatchOf) -> None:
        if sink.name.startswith(LETTERS_TABLE):
            return  # the same as the topic's
        if sink.name.startswith(LETTERS):
            letters = [_letter(row.asDict(recursive=True)) for row in frame.collect()]
            self.rows.append((DEAD_LETTERS, DEAD_LETTERS, letters))
            return
        rows = frame
        if sink.merge is not None:
            rows = last_of_each_key(rows, sink.merge).where(f"not {GONE}").drop(GONE)
        elif sink.kind == "topic":
            rows = topic_rows(rows, sink)
        found = [row.asDict(recursive=True) for row in rows.collect()]
        if sink.kind == "topic":
            found = [{"topic": sink.target, **one} for one in found]
        self.rows.append((sink.target, sink.name, found))


def _letter(record: Row) -> Row:
    added = {
        one["key"].removeprefix("dead-"): one["value"] for one in record["headers"] if one["key"].startswith("dead-")
    }
    return {"key": record["key"], "value": record["value"], **added}


class _Tested(FlowRun):
    def __init__(self, pipeline: Pipeline, case: Case, spark: SparkSession, sinks: Sinks) -> None:
        super().__init__(pipeline, case.flow, spark, State(pipeline), lambda _: None, sinks)
        self._case = case
        self._records = self._given()

    def run(self) -> None:
        self._process(self._records, 0, "test", "test", self.session, persist=True)

    def schema(self) -> str:
        return inferred_schema(self._records) if self.flow.decode.infer else self.flow.decode.schema

    def _given(self) -> DataFrame:
        if self.flow.source.kind == "table":
            return _frame(self.session, self._case.given, "")
        rows = [_record(one, number, self.flow) for number, one in enumerate(self._case.given)]
        return self.session.createDataFrame(rows, RECORD_SCHEMA)

    def _register_tables(self, session: SparkSession, *, live: bool = False) -> None:
        for table in self.pipeline.tables:
            given = self._case.tables.get(table.name)
            if given is not None:
                _frame(session, given, table.schema).createOrReplaceTempView(table.name)
            elif table.kind in ("table", "topic"):
                raise ConfigError(
                    f"the test says nothing of the table {table.name}, which is a {table.kind}",
                    fix=f"tables: {{{table.name}: [{{COLUMN: VALUE, ...}}]}} in the test",
                )
            else:
                self._register(session, table)


def _frame(session: SparkSession, rows: list[Row], schema: str) -> DataFrame:
    texts = [json.dumps(one, default=_as_text) for one in rows]
    reader = session.read.schema(schema) if schema else session.read
    return reader.json(session.sparkContext.parallelize(texts, 1))


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


def _record(given: Row, number: int, flow: Flow) -> tuple[Any, ...]:
    topic = str(given.get("topic") or (flow.source.value.split(",")[0] if flow.source.kind == "topics" else "test"))
    value = base64.b64decode(given["base64"]) if "base64" in given else _bytes(given.get("value"))
    at = given.get("at") or datetime.now(UTC)
    at = datetime.fromisoformat(str(at)) if not isinstance(at, datetime) else at
    headers = [(str(name), _bytes(one)) for name, one in (given.get("headers") or {}).items()]
    return (
        _bytes(given.get("key")),
        value,
        topic,
        topic.split("/"),
        int(given.get("partition") or 0),
        int(given.get("offset", number)),
        at if at.tzinfo else at.replace(tzinfo=UTC),
        str(given.get("origin") or "kafka"),
        headers,
    )


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, default=_as_text)).encode()


# -- comparing


def differences(wanted: list[Row], found: list[Row]) -> list[str]:
    """Each wanted row is one of those found, and no other was found."""
    left, missing = list(found), []
    for row in wanted:
        at = next((index for index, one in enumerate(left) if _same_row(row, one)), None)
        if at is None:
            missing.append(row)
        else:
            del left[at]
    return [*_listed("missing", missing), *_listed("unexpected", left)]


def _listed(word: str, rows: list[Row]) -> list[str]:
    lines = [
        f"{word}: {json.dumps(_plain(one), ensure_ascii=False)[:SHOWN_CHARACTERS_MAX]}" for one in rows[:SHOWN_MAX]
    ]
    return [*lines, f"and {len(rows) - SHOWN_MAX} more {word}"] if len(rows) > SHOWN_MAX else lines


def _same_row(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    return all(
        name in found and (_plain(one) in str(_plain(found[name])) if name == "reason" else same(one, found[name]))
        for name, one in wanted.items()
    )


def same(wanted: Any, found: Any) -> bool:
    """Whether a value of the file means the one of a row."""
    found = _plain(found)
    if isinstance(wanted, datetime) and wanted.tzinfo is None:
        wanted = wanted.replace(tzinfo=UTC)
    if wanted is None or found is None:
        return wanted is found
    if isinstance(wanted, dict | list) and isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return False
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and same(one, found[name]) for name, one in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(wanted) == len(found) and all(map(same, wanted, found))
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float | str):
        try:
            return math.isclose(wanted, float(found), rel_tol=1e-9)
        except ValueError:
            return False
    return bool(_moment(_plain(wanted)) == _moment(found))


def _moment(value: Any) -> Any:
    """A time, however it is written; anything else as it is."""
    if isinstance(value, str) and value[:4].isdigit() and len(value) > 10:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return value


def _plain(value: Any) -> Any:
    """As JSON would have it: times in UTC, bytes as text."""
    match value:
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case datetime():
            return value.astimezone(UTC).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
    return value
