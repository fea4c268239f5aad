"""A name of the statement as DuckDB scans it: it asks for columns and hands over a filter, and never applies it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from mainstem_ask.search.language import EVERYTHING, Node, without_paths
from mainstem_ask.sql.bounds import bounds_of
from mainstem_ask.sql.columns import Fields, scanned_with, stored_of, with_made
from mainstem_ask.sql.sources import LakeTable, Source
from mainstem_pipeline.serialised import Serialised


class Relation(ds.Dataset):  # type: ignore[misc]
    """Rows of the log: of one or two sources that together hold each record once."""

    def __init__(self, sources: Sequence[Source], serialised: Serialised) -> None:
        self._sources, self._serialised = sources, serialised
        self.failures: list[BaseException] = []  # DuckDB tells only their text
        self.fields: Fields = {}
        self.wanted: Node = EVERYTHING  # what the statement says of all of its rows

    @property
    def schema(self) -> pa.Schema:
        return scanned_with(self.fields)

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scanned:  # noqa: A002
        names = list(columns) if columns else ["offset"]
        schema = pa.schema([self.schema.field(name) for name in names])
        return Scanned(schema, _told(self._rows(names, filter), self.failures))

    def _rows(self, names: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
        needed = [*names, *(name for name in _named_in(condition, self.schema) if name not in names)]
        stored, bounds = stored_of(needed, self.fields), bounds_of(condition, self.schema)

        def finish(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            return list(_chosen(with_made(batch, needed, self.fields, self._serialised), names, condition))

        for source in self._sources:
            yield from source.batches(stored, bounds, self._spelled(), finish)

    def _spelled(self) -> Node:
        """Of values that a serialiser of the registry wrote, the bytes spell no field."""
        return without_paths(self.wanted) if self._serialised.has_binary else self.wanted


class LakeRelation(ds.Dataset):  # type: ignore[misc]
    """Rows of a lake table that is nobody's archive."""

    def __init__(self, source: LakeTable) -> None:
        self._source = source
        self.failures: list[BaseException] = []

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scanned:  # noqa: A002
        names = list(columns) if columns else [self.schema.names[0]]
        needed = [*names, *(name for name in _named_in(filter, self.schema) if name not in names)]
        schema = pa.schema([self.schema.field(name) for name in needed])
        rows = self._source.batches(schema, lambda batch: list(_chosen(batch, names, filter)))
        return Scanned(pa.schema([self.schema.field(name) for name in names]), _told(rows, self.failures))


class Scanned:
    """What DuckDB wants of a scanner: the columns, and a plain reader, which it leaves when it has enough."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema, self._batches = schema, batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


def _told(batches: Iterator[pa.RecordBatch], failures: list[BaseException]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as failure:
        failures.append(failure)
        raise


def _named_in(condition: Any, schema: pa.Schema) -> list[str]:
    """Columns that the filter may name; one too many costs little."""
    text = str(condition) if condition is not None else ""
    return [name for name in schema.names if name in text]


def _chosen(batch: pa.RecordBatch, names: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
    if condition is None:
        yield batch.select(names)
        return
    table = pa.Table.from_batches([batch]).filter(condition).select(names)
    yield from (one for one in table.to_batches() if one.num_rows)
