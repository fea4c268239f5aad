"""Writing to topics from Spark, exactly once: tasks stage, the driver commits, the broker remembers.

| option | |
|---|---|
| `url`, `user`, `password`, `namespace` | as for reading |
| `topic` | all rows go there; without it the column `topic` says where |
| `sink` | a name for this sink within its query (default "sink"); needed where one query has several |
| `query`, `batch` | for `foreachBatch`: the ids by which a repeated write is recognised |
| `compression` | none (default), gzip, snappy, lz4, zstd |
| `createTopics` | false: refuse topics that are not there (only with the option `topic`) |

Columns: `value` (binary or string), and if there are such `key`, `topic`, `partition`, `headers`, `timestamp`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from mainstem.codec.compression import Codec
from mainstem.model.errors import InvalidArgument
from mainstem_pipeline.options import Connection, Given
from mainstem_pipeline.source import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_OPTIONS = ("topic", "sink", "query", "batch", "run", "compression", "createTopics", "partition")
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: Connection
    topic: str
    sink: str
    query: str
    run: str
    batch: int | None
    partition: int | None
    compression: int
    create_topics: bool
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver: where its rows are staged."""

    query: str
    run: str
    batch: int
    task: int
    attempt: int
    parts: int
    rows: int = 0


def write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    given = Given(options, SINK_OPTIONS)
    topic = given.text("topic")
    _check_schema(schema, topic)
    method = given.text("compression", "none").upper()
    if method not in Codec.__members__:
        raise InvalidArgument(
            f"compression {method.lower()!r} is not one of {', '.join(c.name.lower() for c in Codec)}"
        )
    return WriteOptions(
        connection=given.connection(),
        topic=topic,
        sink=given.text("sink", "sink"),
        query=given.text("query"),
        run=given.text("run"),
        batch=given.number("batch", least=0),
        partition=given.number("partition", least=0),
        compression=int(Codec[method]),
        create_topics=given.flag("createTopics", True),
        columns=tuple(field.name for field in schema.fields),
    )


def _check_schema(schema: StructType, topic: str) -> None:
    problems = []
    types = {one.name: one.dataType.simpleString() for one in schema.fields}
    if "value" not in types:
        problems.append("a column `value` (binary or string) is needed; make one with to_json(struct(*)) AS value")
    if not topic and "topic" not in types:
        problems.append("where should rows go? set option topic, or add a column `topic`")
    for name, kind in types.items():
        allowed = COLUMN_TYPES.get(name)
        if allowed is None:
            problems.append(f"column {name!r} is not one of {', '.join(COLUMN_TYPES)}; drop it or put it into value")
        elif kind.lower() not in allowed:
            problems.append(f"column {name!r} must be {' or '.join(allowed)}, not {kind}")
    if problems:
        raise InvalidArgument("cannot write these rows to topics: " + "; ".join(problems))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise InvalidArgument("topics are append-only: use mode('append'), not overwrite")
    return BatchWriter(write_options(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    return StreamWriter(write_options(options, schema))


class BatchWriter(DataSourceArrowWriter):
    """One batch of its own; with the options `query` and `batch`, a repeat of it has no effect."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.query = options.query or f"batch-{uuid.uuid4()}"
        self.batch = options.batch or 0
        self.run = options.run or f"run-{uuid.uuid4()}" if not options.query else options.run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _write(self.options, iterator, self.query, self.run, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_staged(self.options, messages, self.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages, self.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Query, run and batch ids come with each task from Spark."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _write(self.options, iterator, "", "", -1)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_staged(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self.options, messages, batchId)


@told()
def _write(options: WriteOptions, rows: Iterator[pa.RecordBatch], query: str, run: str, batch: int) -> Staged:
    from pyspark import TaskContext

    from mainstem_pipeline.stager import Stager

    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    query = query or context.getLocalProperty("sql.streaming.queryId") or ""
    run = run or context.getLocalProperty("spark.jobGroup.id") or query
    if batch < 0:
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    # The attempt must be unique among all tasks that ever write this partition of this batch: Spark's task id is.
    stager = Stager(options, query, run, batch, context.partitionId(), context.taskAttemptId())
    try:
        for one in rows:
            stager.add(one)
        return Staged(query, run, batch, stager.task, stager.attempt, stager.finish(), stager.rows)
    finally:
        stager.close()


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


@told()
def commit_staged(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    staged = _staged(messages)
    if not any(one.parts for one in staged):
        return  # an empty batch: there is nothing that could be written twice
    parts = [[one.task, one.attempt, part] for one in staged for part in range(one.parts)]
    client = options.connection.client()
    try:
        first = staged[0]
        body = {"query": first.query, "sink": options.sink, "batch": batch, "run": first.run, "parts": parts}
        client.post("/v1/stage/commit", body)
    finally:
        client.close()


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """The broker does nothing to a batch that is committed: Spark aborts also where only the answer was lost."""
    staged = _staged(messages)
    if not staged:
        return
    client = options.connection.client()
    try:
        first = staged[0]
        client.post("/v1/stage/abort", {"query": first.query, "sink": options.sink, "batch": batch, "run": first.run})
    finally:
        client.close()
