"""What a pipeline is: its words as dataclasses. `checks.py` makes them from a file, `flows.py` runs them.

name: devices
broker: {url: http://127.0.0.1:7070}
state: ./state                       checkpoints and status; default .mainstem/<name> beside the file
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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainstem_pipeline.lake.catalog import LakeOptions

BAD_RATIO_MAX = 0.05
BAD_ROWS_MIN = 100  # below so many rows in a batch a ratio says nothing
ROWS_PER_BATCH_MAX = 1_000_000
TRIGGER_MS = 5_000

FORMATS = ("json", "avro", "csv", "raw")
MODES = ("append", "update")


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
    name: str  # unique in its flow
    key: str = ""  # SQL for a topic's key
    value: str = ""  # SQL for a topic's value; by default all columns as JSON
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    topic: str
    table: str = ""
    max_ratio: float = BAD_RATIO_MAX
    rows_min: int = BAD_ROWS_MIN


@dataclass(frozen=True, slots=True)
class ArchiveTo:
    source: Source
    table: str
    accept_loss: bool = False  # go on without what retention removed before it was archived


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
    state: Path = Path()
    spark: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[SideTable, ...] = ()
    record: bool = True  # tell the broker how the flows do, for the console

    def flow(self, name: str) -> Flow | None:
        return next((one for one in self.flows if one.name == name), None)

    def makers(self, flow: Flow) -> tuple[str, ...]:
        """The flows above this one that write the table which it reads."""
        if flow.source.kind != "table":
            return ()
        above = self.flows[: self.flows.index(flow)]
        return tuple(one.name for one in above if flow.source.value in one.tables_written)
