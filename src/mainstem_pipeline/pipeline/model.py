"""What a pipeline is: its words as dataclasses. `checks.py` makes them from a file, `flows.py` runs them.

name: devices
broker: {url: http://127.0.0.1:7070}
state: ./state                       checkpoints and status; default .mainstem/<name> beside the file; or s3://...
lake: {warehouse: ./lake}            for tables
spark: {spark.sql.shuffle.partitions: "2"}
tables:                              to join with, by name
  devices: {csv: devices.csv, schema: "id string, site string"}
flows:
  - name: readings
    from: {filter: "sensors/#"}      or topic, topics, pattern, view, table
    start: earliest                  or latest, ts:..., stamp:..., table:NAME
    decode: {format: json, schema: "device string, celsius double, at timestamp"}
    watermark: {column: at, delay: 10 minutes}
    rules: {plausible: "celsius between -60 and 80"}
    sql: "select * from input"       or python: file.py:function, or transform: [{sql: ...}, {python: ...}]
    to: [{table: iot.readings}, {topic: alerts}]
    dead_letters: {topic: sensors/dead, table: iot.dead, max_ratio: 0.05}
    trigger: 10s
    loop: false                      true: it may read what it writes
  - name: archive_all
    archive: {filter: "sensors/#", table: raw.sensors}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainstem.model.errors import ConfigError
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.merge import Merge

BAD_RATIO_MAX = 0.05
BAD_ROWS_MIN = 100  # below so many rows in a batch a ratio says nothing
ROWS_PER_BATCH_MAX = 1_000_000
TRIGGER_MS = 5_000

FORMATS = ("json", "avro", "csv", "debezium", "debezium-avro", "raw")
AVRO = ("avro", "debezium-avro")  # whose schema is Avro's own
MODES = ("append", "update")
COLUMN = re.compile(r"\{([^{}]+)\}")  # in a topic's name: filled in
TRANSFORM = re.compile(r"(day|hour|month|year|identity)\((\w+)\)|(bucket|truncate)\((\d+),\s*(\w+)\)|(\w+)")
LETTERS, LETTERS_TABLE = "dead-letters", "dead-letters-table"  # names of sinks that no other may have


def partition_transform(text: str) -> tuple[str, str]:
    """`day(at)`, `bucket(16, device)` or a column, as (Iceberg's transform, column); ConfigError for anything else."""
    found = TRANSFORM.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"partition_by {text!r} cannot be read",
            fix="day(column), hour(column), month(column), year(column), bucket(16, column), truncate(4, column), a column",
        )
    simple, simple_column, sized, size, sized_column, column = found.groups()
    if sized and not int(size):
        raise ConfigError(f"partition_by {text!r}: the number must be at least 1", fix=f"{sized}(16, {sized_column})")
    if sized:
        return f"{sized}[{size}]", sized_column
    return simple or "identity", simple_column or column


@dataclass(frozen=True, slots=True)
class Source:
    """What a flow reads: the options of `format("mainstem")`, or a lake table."""

    kind: str  # topics | pattern | filter | view | table
    value: str

    def options(self) -> dict[str, str]:
        names = {"topics": "subscribe", "pattern": "subscribePattern", "filter": "filter", "view": "view"}
        return {names[self.kind]: self.value}


@dataclass(frozen=True, slots=True)
class Decode:
    format: str = "raw"
    schema: str = ""  # DDL; for Avro the schema's JSON
    infer: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: str  # a SQL condition; false and null are bad


@dataclass(frozen=True, slots=True)
class Transform:
    sql: str = ""
    python: str = ""  # file.py:function


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Sink:
    kind: str  # topic | table | parquet | console
    target: str
    name: str  # its identity in the flow, by which a repeated batch is known: given, or what it writes to
    key: str = ""  # SQL for a topic's key
    value: str = ""  # SQL for a topic's value; by default all columns as JSON
    partition_by: tuple[str, ...] = ()
    merge: Merge | None = None  # rows of a table replace those of their key
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    topic: str
    table: str = ""
    max_ratio: float = BAD_RATIO_MAX
    rows_min: int = BAD_ROWS_MIN

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The topic's, and the table's if there is one."""
        topic = Sink("topic", self.topic, LETTERS)
        return (topic, Sink("table", self.table, LETTERS_TABLE)) if self.table else (topic,)


@dataclass(frozen=True, slots=True)
class ArchiveTo:
    source: Source
    table: str
    accept_loss: bool = False  # go on without what retention removed before it was archived
    decoded: str = ""  # a table beside it, of the values' fields
    decoded_only: bool = False  # `table` itself is of the values' fields: there is no raw one
    partition: tuple[str, ...] = ()  # of the decoded table
    sort: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    line: int
    source: Source
    start: str
    decode: Decode
    transforms: tuple[Transform, ...]
    sinks: tuple[Sink, ...]
    dead_letters: DeadLetters
    rules: tuple[Rule, ...] = ()
    watermark: Watermark | None = None
    mode: str = "append"
    trigger_ms: int = TRIGGER_MS
    rows_per_batch_max: int = ROWS_PER_BATCH_MAX
    archive: ArchiveTo | None = None
    loop: bool = False  # it may read what it writes

    @property
    def may_be_bad(self) -> bool:
        """Whether there can be dead letters."""
        return self.decode.format != "raw" or bool(self.rules)

    @property
    def tables_written(self) -> frozenset[str]:
        made = {sink.target for sink in self.sinks if sink.kind == "table"} | {self.dead_letters.table}
        if self.archive is not None:
            made = {self.archive.table}
        return frozenset(made - {""})

    @property
    def stateful(self) -> bool:
        """Whether state outlives a batch: then transforms run on the stream itself, not batch by batch."""
        return self.watermark is not None or self.mode != "append"

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint depends on: a change of it is refused without a flag."""
        told: dict[str, Any] = {"from": [self.source.kind, self.source.value], "archive": self.archive is not None}
        if self.stateful:
            told["watermark"] = [self.watermark.column, self.watermark.delay] if self.watermark else None
            told["transforms"] = [[one.sql, one.python] for one in self.transforms]
            told["mode"] = self.mode
        return told

    def batch_shape(self) -> dict[str, Any]:
        """What an unfinished batch depends on: whom it is for, and what makes its rows."""
        sinks = {one.name: [one.kind, one.target] for one in self.sinks if one.kind != "console"}
        if self.may_be_bad and self.archive is None:
            sinks |= {one.name: [one.kind, one.target] for one in self.dead_letters.sinks}
        functions = [_content(one.python) for one in self.transforms]
        made_by = repr((self.decode, self.rules, self.transforms, functions))
        return {"sinks": sinks, "rows": hashlib.blake2b(made_by.encode(), digest_size=12).hexdigest()}


def _content(function: str) -> str:
    """Of the file that `file.py:function` names."""
    file = Path(function.rpartition(":")[0])
    return file.read_text() if function and file.is_file() else ""


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table to join with."""

    name: str
    kind: str  # csv | json | parquet | table | topic
    target: str
    schema: str = ""
    decode: Decode = Decode()


@dataclass(frozen=True, slots=True)
class Pipeline:
    path: Path
    name: str
    flows: tuple[Flow, ...]
    broker: Mapping[str, str] = field(default_factory=dict)
    lake: LakeOptions | None = None
    state: str = ""  # a folder, or a URL; see store.py
    spark: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[SideTable, ...] = ()
    record: bool = True  # tell the broker how the flows do, for the console

    @property
    def store_properties(self) -> dict[str, str]:
        """Credentials of the state's store: the lake's, or the environment's."""
        return (self.lake or LakeOptions()).file_properties()

    def flow(self, name: str) -> Flow | None:
        return next((one for one in self.flows if one.name == name), None)

    def makers(self, flow: Flow) -> tuple[str, ...]:
        """The flows above this one that write the table which it reads."""
        if flow.source.kind != "table":
            return ()
        above = self.flows[: self.flows.index(flow)]
        return tuple(one.name for one in above if flow.source.value in one.tables_written)
