"""Where the rows of a name come from: the log from some offsets to others, and the files of a table's snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mainstem.model.condition import parse_condition
from mainstem.model.topic import topic_of_kafka
from mainstem.model.topic_filter import literal_filter, matches
from mainstem_ask.reading import Finish, Opened, Permit, PermittedReader, Told, pieces_of, read_pieces
from mainstem_ask.search.language import EVERYTHING, Node, required
from mainstem_ask.search.reading import SearchedSlice
from mainstem_ask.search.skipping import Indexes
from mainstem_ask.sql.bounds import OFFSET_MAX, TIME_US_MAX, Bounds
from mainstem_pipeline.offsets import Offsets
from mainstem_pipeline.options import Clip, ReadOptions
from mainstem_pipeline.scans import STEM, Scan
from mainstem_pipeline.slices import ScanTask

if TYPE_CHECKING:
    from pyiceberg.table import Table

SLICE_BYTES = 8 << 20


class Source(Protocol):
    def batches(self, schema: pa.Schema, bounds: Bounds, wanted: Node, finish: Finish) -> Iterator[pa.RecordBatch]:
        """What `finish` makes of rows in the columns of the schema: at least of all that the bounds and `wanted` mean."""


class HotLog:
    """What the log holds from where the options say up to where it ended when this was made."""

    def __init__(self, options: ReadOptions, permit: Permit | None, told: Callable[[int, int], None]) -> None:
        self._options = replace(options, task_bytes=SLICE_BYTES, latest_if_no_time=True)
        self._permit, self._told = permit, told
        scan = Scan(self._options)
        try:
            self._start, self._end = scan.batch_range()
        finally:
            scan.close()

    def batches(self, schema: pa.Schema, bounds: Bounds, wanted: Node, finish: Finish) -> Iterator[pa.RecordBatch]:
        pieces = pieces_of(self._planned(bounds))
        kept = bounds.possible([_known(piece) for _, piece in pieces])
        chosen = [pieces[at] for at in kept]
        total = sum(int(piece["bytes"]) for _, piece in chosen)
        self._told(0, total)
        told: Told = lambda size: self._told(size, 0)  # noqa: E731
        yield from read_pieces(chosen, schema, finish, opened=self._reader(bounds, wanted), told=told)

    def _reader(self, bounds: Bounds, wanted: Node) -> Opened:
        """What no row can be wanted of is passed over, by its time or by what it holds."""
        permit = self._permit
        if wanted == EVERYTHING and bounds.time_us == 0 and bounds.time_last_us == TIME_US_MAX:
            return lambda task, piece, schema, client: PermittedReader(task, piece, schema, client, permit)
        needles = required(wanted) or ()
        indexes = Indexes(wanted, bounds.time_us // 1000, bounds.time_last_us // 1000 + 1)
        return lambda task, piece, schema, client: SearchedSlice(task, piece, schema, client, permit, needles, indexes)

    def _planned(self, bounds: Bounds) -> list[ScanTask]:
        clip = Clip(
            bounds.first,
            bounds.end,
            frozenset({bounds.topic}) if bounds.topic is not None else None,
            time_ms=bounds.time_us // 1000,
        )
        options = replace(self._options, clip=clip)
        scan = Scan(options)
        try:
            start: Offsets = self._start
            if clip.time_ms > 0:
                later, _ = scan.batch_range()
                start = {topic: {**parts, **later.get(topic, {})} for topic, parts in self._start.items()}
            tasks = scan.plan(start, self._end)
            narrow = self._narrowed(options, bounds, tasks)
            return tasks if narrow is None else self._again(narrow, start)
        finally:
            scan.close()

    def _again(self, options: ReadOptions, start: Offsets) -> list[ScanTask]:
        scan = Scan(options)
        try:
            return scan.plan(start, _only_of(self._end, options.clip))
        finally:
            scan.close()

    @staticmethod
    def _narrowed(options: ReadOptions, bounds: Bounds, tasks: Sequence[ScanTask]) -> ReadOptions | None:
        """Of a filter only one topic is meant: the log's topic index then leaves out what holds none of it."""
        if options.select.get("kind") != "filter" or not tasks:
            return None
        name = bounds.canonical.encode() if bounds.canonical is not None else None
        if name is None and bounds.topic is not None and not tasks[0].selection.get("aliases"):
            name = topic_of_kafka(bounds.topic)
        if name is None or not matches(str(options.select["filter"]).encode(), name):
            return None
        names = {one[0] for task in tasks for piece in task.slices for one in piece["lanes"] if one[2] == name.decode()}
        narrow = {"kind": "filter", "filter": literal_filter(name).decode()}
        return replace(options, select=narrow, clip=replace(options.clip, topics=frozenset({*names, STEM})))


def _only_of(end: Offsets, clip: Clip) -> Offsets:
    """The partitions that a narrower selection has as well."""
    assert clip.topics is not None
    return {topic: parts for topic, parts in end.items() if topic in clip.topics}


def _known(piece: Mapping[str, Any]) -> Any:
    """What holds for every row of a slice."""
    offset = ds.field("offset")
    known = (offset >= pa.scalar(int(piece["start"]), pa.int64())) & (
        offset < pa.scalar(min(int(piece["end"]), OFFSET_MAX), pa.int64())
    )
    if not piece["shared"]:
        topic, partition, canonical = piece["lanes"][0]
        known &= (ds.field("topic") == topic) & (ds.field("partition") == pa.scalar(int(partition), pa.int32()))
        known &= ds.field("canonical_topic") == canonical
    return known


class ColdTable:
    """The rows of an archive's snapshot that a name means, as rows of the log."""

    def __init__(
        self,
        table: Table,
        names: Mapping[str, str | None],
        *,
        topic_filter: bytes | None = None,
        condition: str = "",
        permit: Permit | None = None,
    ) -> None:
        from mainstem_pipeline.lake.deletes import planned_files

        self._table, self._names, self._permit = table, names, permit
        self._filter, self._condition = topic_filter, parse_condition(condition)
        self._snapshot_id = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
        self._planned = planned_files

    def batches(self, schema: pa.Schema, bounds: Bounds, wanted: Node, finish: Finish) -> Iterator[pa.RecordBatch]:
        from mainstem_pipeline.lake.reading import file_batches
        from mainstem_pipeline.query.naming import COLD

        needed = {COLD[field.name] or "topic" for field in schema} | {"flags"}
        if self._filter is not None or self._permit is not None:
            needed.add("topic")
        if self._condition is not None:
            needed |= {"key", "headers"}
        now = [name for name in map(self._names.get, sorted(needed)) if name is not None]
        columns = self._table.schema().select(*now)
        for file in self._planned(self._table, self._row_filter(bounds), self._snapshot_id):
            for batch in file_batches(self._table.io, file, columns):
                kept = self._kept(batch)
                if kept.num_rows:
                    arrays = [self._column(kept, one) for one in schema]
                    yield from finish(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _row_filter(self, bounds: Bounds) -> Any:
        """For skipping files by what they say of themselves."""
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThanOrEqual, LessThan

        made: Any = AlwaysTrue()
        equal, least, less, both = map(_untyped, (EqualTo, GreaterThanOrEqual, LessThan, And))
        offset, topic, kafka = self._names["offset"], self._names["topic"], self._names["kafka_topic"]
        if offset is not None and bounds.first > 0:
            made = both(made, least(offset, bounds.first))
        if offset is not None and bounds.end < OFFSET_MAX:
            made = both(made, less(offset, bounds.end))
        if topic is not None and bounds.canonical is not None:
            made = both(made, equal(topic, bounds.canonical))
        if kafka is not None and bounds.topic is not None:
            made = both(made, equal(kafka, bounds.topic))
        time = self._names["timestamp"]
        if time is not None and bounds.time_us > 0:
            from datetime import UTC, datetime, timedelta

            first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=bounds.time_us)
            made = both(made, least(time, first.isoformat()))
        return made

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        flags = self._names["flags"]
        if flags is not None:  # what cannot be read is not a row of the log either
            batch = batch.filter(pc.fill_null(pc.greater_equal(batch.column(flags), 0), True))
        topic = self._names["topic"]
        if topic is not None and (self._filter is not None or self._permit is not None):
            batch = batch.filter(_by_value(batch.column(topic), self._means))
        if self._condition is not None and batch.num_rows:
            from mainstem_pipeline.conditions import holds

            keys, headers = (batch.column(self._names[name]) for name in ("key", "headers"))
            for term in self._condition.terms:
                kept = pa.array(holds(term, keys, headers))
                batch, keys, headers = batch.filter(kept), keys.filter(kept), headers.filter(kept)
        return batch

    def _means(self, topic: str | None) -> bool:
        name = (topic or "").encode()
        return (self._filter is None or matches(self._filter, name)) and (self._permit is None or self._permit(name))

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        from mainstem_pipeline.query.naming import COLD

        name = self._names["topic"] if field.name == "levels" else self._names[COLD[field.name]]
        if name is None:
            return pa.nulls(batch.num_rows, field.type)
        values = batch.column(name)
        if field.name == "levels":
            values = pc.split_pattern(values.cast(pa.string()), "/")
        return values if values.type == field.type else values.cast(field.type)


class LakeTable:
    """Any table of the lake, as it is now."""

    def __init__(self, table: Table) -> None:
        from mainstem_pipeline.lake.deletes import planned_files
        from mainstem_pipeline.lake.reading import written_schema

        self._table, self._files = table, planned_files(table)
        self.schema = pa.schema([field.remove_metadata() for field in written_schema(table.schema())])

    def batches(self, schema: pa.Schema, finish: Finish) -> Iterator[pa.RecordBatch]:
        from mainstem_pipeline.lake.reading import file_batches

        columns = self._table.schema().select(*schema.names)
        for file in self._files:
            for batch in file_batches(self._table.io, file, columns):
                arrays = [batch.column(one.name).cast(one.type) for one in schema]
                yield from finish(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _untyped(kind: Any) -> Any:
    return kind  # pyiceberg's signatures are pydantic's


def _by_value(values: pa.Array, wanted: Callable[[str | None], bool]) -> pa.Array:
    """Asked once for each distinct value."""
    coded = values.cast(pa.string()).dictionary_encode()
    answers = pa.array([wanted(one) for one in coded.dictionary.to_pylist()], pa.bool_())
    return pc.fill_null(answers.take(coded.indices), False)
