"""One flow of a file, checked. See model.py for the words."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from mainstem.model.topic_filter import check_filter
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.layout import check_layout
from mainstem_pipeline.lake.merge import COPY_ON_WRITE, MERGE_ON_READ, Merge
from mainstem_pipeline.pipeline.document import Place
from mainstem_pipeline.pipeline.flows import time_ms
from mainstem_pipeline.pipeline.model import (
    AVRO,
    BAD_RATIO_MAX,
    BAD_ROWS_MIN,
    COLUMN,
    FORMATS,
    LETTERS,
    LETTERS_TABLE,
    MODES,
    ROWS_PER_BATCH_MAX,
    TRIGGER_MS,
    ArchiveTo,
    DeadLetters,
    Decode,
    Flow,
    Rule,
    Sink,
    Source,
    Transform,
    Watermark,
    partition_transform,
)
from mainstem_pipeline.pipeline.syntax import CONDITION, SCHEMA, STATEMENT

if TYPE_CHECKING:
    from mainstem_pipeline.pipeline.checks import PipelineChecks

FLOW = (
    "name",
    "from",
    "start",
    "decode",
    "watermark",
    "rules",
    "sql",
    "python",
    "transform",
    "to",
    "dead_letters",
    "trigger",
    "mode",
    "max_rows_per_batch",
    "archive",
    "loop",
)
SOURCES = ("topic", "topics", "pattern", "filter", "view", "table")
SINKS = ("topic", "table", "parquet", "console")
MERGE = ("order_by", "delete_where", "scd", "writes")  # words of a table with a key
START = re.compile(r"earliest|latest|ts:\S+|stamp:\d+|table:\S+")
DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d|seconds?|minutes?|hours?|days?|milliseconds?)")
UNIT_MS = {"ms": 1, "mi": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
SINK_NAME_BYTES_MAX = 200  # the broker takes 256


def duration_ms(text: str) -> int | None:
    """`10s`, `5 minutes`; None if it is neither."""
    found = DURATION.fullmatch(text.strip().lower())
    if found is None:
        return None
    unit = found[2]
    if unit.startswith("milli"):
        unit = "ms"
    elif unit != "ms":
        unit = unit[0]
    return int(found[1]) * UNIT_MS[unit]


class FlowChecks:
    def __init__(self, checks: PipelineChecks, lake: LakeOptions | None) -> None:
        self._checks, self._lake = checks, lake

    def flow(self, value: Any, place: Place, pipeline: str) -> Flow | None:
        checks = self._checks
        told = checks.mapping(value, place, FLOW)
        if not told:
            return None
        name = checks.text(told.get("name"), (*place, "name"), required=True)
        if name and not NAME.fullmatch(name):
            checks.problem((*place, "name"), f"flow name {name!r} must be letters, digits, - and _")
        if "archive" in told:
            return self._archive_flow(told, place, name)
        watermark = self._watermark(told.get("watermark"), (*place, "watermark"))
        mode = checks.one_of(checks.text(told.get("mode"), (*place, "mode"), default="append"), (*place, "mode"), MODES)
        sinks = self._sinks(told.get("to"), (*place, "to"), mode)
        return Flow(
            name=name,
            line=checks.document.line(*place),
            source=self._source(told.get("from"), (*place, "from")),
            start=self._start(told.get("start"), (*place, "start")),
            decode=self.decode(told.get("decode"), (*place, "decode")),
            transforms=self._transforms(told, place),
            sinks=sinks,
            dead_letters=self._dead_letters(told.get("dead_letters"), (*place, "dead_letters"), pipeline, name),
            rules=self._rules(told.get("rules"), (*place, "rules")),
            watermark=watermark,
            mode=mode,
            trigger_ms=self._trigger(told.get("trigger"), (*place, "trigger")),
            rows_per_batch_max=self._rows_max(told, place),
            loop=told.get("loop") is True,
        )

    def _archive_flow(self, told: dict[str, Any], place: Place, name: str) -> Flow | None:
        """Log slices to a raw table, to a decoded one, or to both: no row is transformed, so nothing else may be said."""
        checks, at = self._checks, (*place, "archive")
        for word in (
            "from",
            "decode",
            "watermark",
            "rules",
            "sql",
            "python",
            "transform",
            "to",
            "dead_letters",
            "mode",
        ):
            if word in told:
                checks.problem((*place, word), f"an archive flow has no {word!r}", "it keeps records as they are")
        archive = checks.mapping(told["archive"], at, (*SOURCES[:-1], "to", "table", "decode"))
        source = self._source({k: v for k, v in archive.items() if k in SOURCES[:-1]}, at)
        return Flow(
            name=name,
            line=checks.document.line(*place),
            source=source,
            start=self._start(told.get("start"), (*place, "start")),
            decode=Decode(),
            transforms=(),
            sinks=(),
            dead_letters=DeadLetters(""),
            trigger_ms=self._trigger(told.get("trigger", "60s"), (*place, "trigger")),
            rows_per_batch_max=self._rows_max(told, place),
            archive=self._archive_to(source, archive, at),
        )

    def _archive_to(self, source: Source, archive: dict[str, Any], at: Place) -> ArchiveTo:
        checks = self._checks
        table = checks.text(archive.get("table"), (*at, "table"), required="decode" not in archive)
        if table:
            checks.needs_lake(self._lake, (*at, "table"), table)
        if "decode" not in archive:
            return ArchiveTo(source, table)
        inside = (*at, "decode")
        told = checks.mapping(archive["decode"], inside, ("table", "partition", "sort"))
        decoded = checks.text(told.get("table"), (*inside, "table"), required=True)
        if decoded:
            checks.needs_lake(self._lake, (*inside, "table"), decoded)
        layout = {name: self._words(told.get(name), (*inside, name)) for name in ("partition", "sort")}
        checks.checked(inside, lambda: check_layout(layout["partition"], layout["sort"]))
        is_only = not table
        return ArchiveTo(source, table or decoded, False, "" if is_only else decoded, is_only, **layout)

    def _words(self, value: Any, place: Place) -> tuple[str, ...]:
        """One text, or a list of them."""
        given = value if isinstance(value, list) else [value] if value is not None else []
        return tuple(self._checks.text(one, place) for one in given)

    # -- reading

    def _source(self, value: Any, place: Place) -> Source:
        checks = self._checks
        if value is None:
            checks.problem(place, "a flow needs a source", "from: {topic: NAME} or from: {filter: 'sensors/#'}")
            return Source("topics", "")
        told = checks.mapping(value, place, SOURCES)
        chosen = [kind for kind in SOURCES if kind in told]
        if len(chosen) != 1:
            checks.problem(place, f"a source is exactly one of {', '.join(SOURCES)}")
            return Source("topics", "")
        kind, given, at = chosen[0], told[chosen[0]], (*place, chosen[0])
        if kind in ("topic", "topics"):
            names = given if isinstance(given, list) else str(given or "").split(",")
            names = [checks.text(one, at) for one in names]
            if not all(names):
                checks.problem(at, "a topic needs a name")
            return Source("topics", ",".join(names))
        text = checks.text(given, at, required=True)
        if kind == "filter":
            checks.checked(at, lambda: check_filter(text.encode()))
        elif kind == "pattern":
            try:
                re.compile(text)
            except re.error as error:
                checks.problem(at, f"{text!r} is not a regular expression: {error}")
        elif kind == "table":
            checks.needs_lake(self._lake, at, text)
        return Source(kind, text)

    def _start(self, value: Any, place: Place) -> str:
        text = self._checks.text(value, place, default="earliest")
        if not START.fullmatch(text):
            self._checks.problem(
                place, f"start {text!r} cannot be read", "earliest, latest, ts:2026-01-31T08:00:00Z, table:NAME"
            )
            return "earliest"
        if text.startswith("ts:"):
            self._checks.checked(place, lambda: time_ms(text[3:]))
        return text

    def decode(self, value: Any, place: Place) -> Decode:
        checks = self._checks
        if value is None:
            return Decode()
        if isinstance(value, str):
            value = {"format": value}
        told = checks.mapping(value, place, ("format", "schema", "infer", "options"))
        kind = checks.one_of(
            checks.text(told.get("format"), (*place, "format"), default="raw"), (*place, "format"), FORMATS
        )
        infer = told.get("infer") is True
        schema = self._schema(told.get("schema"), (*place, "schema"), kind)
        if kind in (*AVRO, "csv", "debezium") and not schema:
            checks.problem(place, f"{kind} needs a schema", "schema: FILE or the schema itself")
        if kind == "json" and not schema and not infer:
            checks.problem(place, "json needs a schema", "schema: 'device string, celsius double', or infer: true")
        if kind == "debezium-avro" and schema:
            self._check_envelope(schema, (*place, "schema"))
        if kind in ("json", "csv", "debezium"):
            checks.phrase((*place, "schema"), SCHEMA, schema)
        if kind == "json" and schema and infer:
            checks.problem((*place, "infer"), "there is a schema already: nothing is inferred")
        return Decode(kind, schema, infer, checks.texts(told.get("options"), (*place, "options")))

    def _check_envelope(self, schema: str, place: Place) -> None:
        told = json.loads(schema)
        names = {one.get("name") for one in told.get("fields", ())} if isinstance(told, dict) else set()
        missing = [name for name in ("before", "after", "op", "source") if name not in names]
        if missing:
            hint = "take the envelope's as Debezium registers it: TOPIC-value, a record Envelope"
            self._checks.problem(
                place, f"this is no schema of Debezium's envelope: it has no {', '.join(missing)}", hint
            )

    def _schema(self, value: Any, place: Place, kind: str) -> str:
        """A DDL text, a mapping of names to types, or a file (.json: JSON Schema; .avsc: Avro; else DDL)."""
        checks = self._checks
        if value is None:
            return ""
        if isinstance(value, dict) and kind in AVRO:
            return json.dumps(value)
        if isinstance(value, dict):
            return ", ".join(f"`{name}` {checks.text(one, (*place, name))}" for name, one in value.items())
        text = checks.text(value, place)
        if not re.search(r"\.(json|avsc|ddl|sql)$", text):
            return self._json_text(text, place, "the schema") if kind in AVRO else text
        path = checks.file(text, place)
        if path is None:
            return ""
        content = path.read_text()
        if path.suffix == ".avsc" or kind in AVRO:
            return self._json_text(content, place, path.name)
        if path.suffix == ".json":
            document = self._json_text(content, place, path.name)
            return schema_ddl(json.loads(document)) if document else ""
        return content.strip()

    def _json_text(self, content: str, place: Place, name: str) -> str:
        try:
            json.loads(content)
        except ValueError as error:
            self._checks.problem(place, f"{name} is not valid JSON: {error}")
            return ""
        return content

    def _watermark(self, value: Any, place: Place) -> Watermark | None:
        checks = self._checks
        if value is None:
            return None
        told = checks.mapping(value, place, ("column", "delay"))
        delay = checks.text(told.get("delay"), (*place, "delay"), default="0s")
        if duration_ms(delay) is None:
            checks.problem((*place, "delay"), f"delay {delay!r} is not a duration", "for example 10 minutes")
            return None
        return Watermark(
            checks.text(told.get("column"), (*place, "column"), required=True), f"{duration_ms(delay)} milliseconds"
        )

    def _rules(self, value: Any, place: Place) -> tuple[Rule, ...]:
        rules = []
        for name, check in self._checks.texts(value, place).items():
            if not check:
                self._checks.problem((*place, name), f"rule {name!r} needs a SQL condition")
            self._checks.phrase((*place, name), CONDITION, check)
            rules.append(Rule(name, check))
        return tuple(rules)

    # -- transforming

    def _transforms(self, told: dict[str, Any], place: Place) -> tuple[Transform, ...]:
        checks = self._checks
        given = [word for word in ("sql", "python", "transform") if word in told]
        if len(given) > 1:
            checks.problem(
                (*place, given[1]), f"{' and '.join(given)} cannot both be given", "use transform: [{sql: ...}, ...]"
            )
        steps: list[tuple[Any, Place]] = []
        if "transform" in told:
            if not isinstance(told["transform"], list):
                checks.problem((*place, "transform"), "transform must be a list of {sql: ...} and {python: ...}")
                return ()
            steps = [(one, (*place, "transform", index)) for index, one in enumerate(told["transform"])]
        elif given:
            steps = [({given[0]: told[given[0]]}, place)]
        return tuple(self._transform(one, at) for one, at in steps)

    def _transform(self, value: Any, place: Place) -> Transform:
        checks = self._checks
        told = checks.mapping(value, place, ("sql", "python"))
        if len(told) != 1:
            checks.problem(place, "a step is exactly one of sql and python")
        sql = checks.text(told.get("sql"), (*place, "sql"))
        if sql and not re.search(r"\binput\b", sql, re.IGNORECASE):
            checks.problem((*place, "sql"), "the SQL reads nothing of this flow", "select ... from input ...")
        checks.phrase((*place, "sql"), STATEMENT, sql)
        python = checks.text(told.get("python"), (*place, "python"))
        if python:
            file, _, function = python.partition(":")
            if not function.isidentifier():
                checks.problem((*place, "python"), f"{python!r} must be file.py:function")
            path = checks.file(file, (*place, "python"))
            if (
                path is not None
                and function
                and not re.search(rf"^def {re.escape(function)}\(", path.read_text(), re.MULTILINE)
            ):
                checks.problem((*place, "python"), f"{path.name} defines no function {function}")
            python = f"{path}:{function}" if path is not None else ""
        return Transform(sql, python)

    # -- writing

    def _sinks(self, value: Any, place: Place, mode: str) -> tuple[Sink, ...]:
        checks = self._checks
        if value is None or value == []:
            checks.problem(
                place, "a flow needs a sink", "to: {topic: NAME}, {table: ns.name}, {parquet: DIR} or {console: true}"
            )
            return ()
        given = value if isinstance(value, list) else [value]
        sinks: list[Sink] = []
        for index, one in enumerate(given):
            at = (*place, index) if isinstance(value, list) else place
            sink = self._sink(one, at, mode)
            if sink is not None:
                self._check_identity(sink, sinks, at)
                sinks.append(sink)
        return tuple(sinks)

    def _check_identity(self, sink: Sink, others: list[Sink], place: Place) -> None:
        """By its name a sink knows a batch that it has: two of one name would each take the other's for its own."""
        if sink.kind == "parquet" and any(one.kind == "parquet" and one.target == sink.target for one in others):
            self._checks.problem(place, f"two sinks write to the folder {sink.target}", "give each a folder of its own")
        elif any(one.name == sink.name for one in others):
            hint = "give each a name of its own: {topic: alerts, name: hot}"
            self._checks.problem(place, f"two sinks of this flow are {sink.name!r}", hint)

    def _sink_name(self, value: Any, place: Place, kind: str, target: str) -> str:
        """What the file calls it; else what it writes to, so that its place in the list does not matter."""
        name = self._checks.text(value, place)
        if not name:
            name = f"{kind}:{target}"
            digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
            return name if len(name.encode()) <= SINK_NAME_BYTES_MAX else f"{kind}:{digest}"
        if not NAME.fullmatch(name) or name in (LETTERS, LETTERS_TABLE):
            self._checks.problem(place, f"a sink cannot be called {name!r}", "letters, digits, - and _")
        return name

    def _sink(self, value: Any, place: Place, mode: str) -> Sink | None:
        checks = self._checks
        words = (*SINKS, "name", "key", "value", "partition_by", "options", "where", *MERGE)
        told = checks.mapping(value, place, words)
        chosen = [kind for kind in SINKS if kind in told]
        if len(chosen) != 1:
            checks.problem(place, f"a sink is exactly one of {', '.join(SINKS)}")
            return None
        kind, at = chosen[0], (*place, chosen[0])
        target = "console" if kind == "console" else checks.text(told[kind], at, required=True)
        if kind == "table":
            checks.needs_lake(self._lake, at, target)
        merge = self._merge(told, place, kind)
        if mode == "update" and (kind == "parquet" or (kind == "table" and merge is None)):
            hint = "key: [COLUMN, ...] lets a row replace the one before" if kind == "table" else "use mode append"
            checks.problem(at, f"mode update cannot be appended to a {kind}: rows would be there twice", hint)
        if kind == "parquet" and "://" not in target:
            target = str((checks.document.path.parent / target).absolute())
        columns = told.get("partition_by") or []
        columns = columns if isinstance(columns, list) else [columns]
        options = checks.texts(told.get("options"), (*place, "options"))
        if "where" in told:
            options = {**options, "where": checks.text(told["where"], (*place, "where"))}
        for word in ("value", "where", "delete_where", *(["key"] if kind == "topic" else [])):
            if not isinstance(told.get(word), list):
                checks.phrase((*place, word), CONDITION, checks.text(told.get(word), (*place, word)))
        for text in COLUMN.findall(target) if kind == "topic" else ():
            checks.phrase(at, CONDITION, text)
        for one in columns:
            checks.checked((*place, "partition_by"), lambda text=str(one): partition_transform(text))  # type: ignore[misc]
        return Sink(
            kind,
            target,
            self._sink_name(told.get("name"), (*place, "name"), kind, target),
            checks.text(told.get("key"), (*place, "key")) if kind == "topic" else "",
            checks.text(told.get("value"), (*place, "value")),
            tuple(checks.text(one, (*place, "partition_by")) for one in columns),
            merge,
            options,
        )

    def _merge(self, told: dict[str, Any], place: Place, kind: str) -> Merge | None:
        """`key` of a table: its rows are merged into it."""
        checks = self._checks
        given = [word for word in MERGE if word in told]
        if kind != "table" or "key" not in told:
            for word in given:
                checks.problem((*place, word), f"{word!r} belongs to a table with a key", "key: [COLUMN, ...]")
            return None
        key = told["key"] if isinstance(told["key"], list) else [told["key"]]
        names = tuple(checks.text(one, (*place, "key"), required=True) for one in key)
        if not names or len(set(names)) != len(names):
            checks.problem((*place, "key"), "a key is one column or more, each once", "key: [device]")
        order = checks.text(told.get("order_by"), (*place, "order_by"))
        scd = int(checks.number(told.get("scd"), (*place, "scd"), 1, least=1, most=2))
        if scd == 2 and not order:
            checks.problem((*place, "scd"), "scd: 2 needs the time from which a row is valid", "order_by: COLUMN")
        writes = checks.text(told.get("writes"), (*place, "writes"), default=COPY_ON_WRITE)
        writes = checks.one_of(writes, (*place, "writes"), (COPY_ON_WRITE, MERGE_ON_READ))
        return Merge(names, order, checks.text(told.get("delete_where"), (*place, "delete_where")), scd, writes)

    def _dead_letters(self, value: Any, place: Place, pipeline: str, flow: str) -> DeadLetters:
        checks = self._checks
        topic = f"dead-letters/{pipeline}/{flow}"
        if value is None:
            return DeadLetters(topic)
        told = checks.mapping(value, place, ("topic", "table", "max_ratio", "min_rows"))
        table = checks.text(told.get("table"), (*place, "table"))
        if table:
            checks.needs_lake(self._lake, (*place, "table"), table)
        return DeadLetters(
            checks.text(told.get("topic"), (*place, "topic"), default=topic),
            table,
            checks.number(told.get("max_ratio"), (*place, "max_ratio"), BAD_RATIO_MAX, least=0, most=1),
            int(checks.number(told.get("min_rows"), (*place, "min_rows"), BAD_ROWS_MIN, least=1, most=1e9)),
        )

    def _trigger(self, value: Any, place: Place) -> int:
        text = self._checks.text(value, place, default=f"{TRIGGER_MS}ms")
        found = duration_ms(text)
        if found is None:
            self._checks.problem(place, f"trigger {text!r} is not a duration", "for example 10s")
            return TRIGGER_MS
        return found

    def _rows_max(self, told: dict[str, Any], place: Place) -> int:
        at = (*place, "max_rows_per_batch")
        return int(self._checks.number(told.get("max_rows_per_batch"), at, ROWS_PER_BATCH_MAX, least=1, most=1e12))


JSON_TYPES = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}


def schema_ddl(schema: dict[str, Any]) -> str:
    """The columns that a JSON Schema's properties describe."""
    return ", ".join(f"`{name}` {_ddl_type(one)}" for name, one in schema.get("properties", {}).items())


def _ddl_type(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "string")
    if kind == "object":
        inner = ", ".join(f"`{name}`: {_ddl_type(one)}" for name, one in schema.get("properties", {}).items())
        return f"struct<{inner}>" if inner else "map<string, string>"
    if kind == "array":
        return f"array<{_ddl_type(schema.get('items', {}))}>"
    if kind == "string" and schema.get("format") == "date-time":
        return "timestamp"
    return JSON_TYPES.get(kind, "string")
