"""A decoded table beside a raw one: the fields of the values as columns, made from the raw table, and made again from it.

| column | |
|---|---|
| `_log`, `_offset`, `_topic`, `_timestamp`, `_key` | the record, as in the raw table |
| one for each field of the JSON | boolean, long, double or string; those of objects inside as `outer_inner` |
| `_rest` | JSON of what has no column: lists, values of another type than their column's, fields beyond COLUMNS_MAX |
| `_reason` | why a value has no fields: it is no JSON object |

Values that a serialiser of the registry wrote are decoded here by its schemas, all others are read as JSON. A field that is
new gets a column. Where a column of longs meets a fraction, Iceberg cannot widen it: the column becomes one of
doubles, and the table is emptied and made again from the raw one.

The table's property POSITIONS says up to which offset of each log it goes; it moves with the rows, in one commit. A
commit that another one came before is planned again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.codec.raw_table import LOG_ID, OFFSET_ID, current_columns
from mainstem.model.errors import ConfigError, InvalidArgument, Overloaded
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, load_table, open_catalog
from mainstem_pipeline.lake.commits import TABLE_PROPERTIES, settled
from mainstem_pipeline.lake.deletes import planned, planned_tasks
from mainstem_pipeline.lake.reading import file_batches
from mainstem_pipeline.options import Given
from mainstem_pipeline.serialised import Serialised

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.sorting import SortOrder

POSITIONS, OF = "mainstem.decoded.positions", "mainstem.decoded.of"
ROWS_PER_COMMIT = 100_000
COLUMNS_MAX = 500
DEPTH_MAX = 4
ATTEMPTS_MAX = 10
OWN = ("_log", "_offset", "_topic", "_timestamp", "_key")
TOLD = ("_rest", "_reason")
KINDS = {bool: "boolean", int: "long", float: "double", str: "string"}
LONG_MAX = (1 << 63) - 1
_TRANSFORM = re.compile(r"(?:(day|hour|month|year)\((\w+)\)|(bucket|truncate)\((\d+), *(\w+)\)|(\w+))")


@dataclass(slots=True)
class Rows:
    """Decoded rows, and what columns they need."""

    kinds: dict[str, str]  # columns that are there, and those that came
    rows: list[dict[str, Any]] = field(default_factory=list)
    widened: set[str] = field(default_factory=set)
    positions: dict[str, int] = field(default_factory=dict)

    def add(self, own: dict[str, Any], text: bytes | None, reason: str = "") -> None:
        row, rest = dict(own), dict[str, Any]()
        found: Any = None
        if text is not None:
            try:
                found = msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                reason = reason or "the value is no JSON"
        if isinstance(found, dict):
            self._flatten(found, "", row, rest, 0)
        elif found is not None:
            rest, reason = {"value": found}, "the value is no JSON object"
        row["_rest"] = msgspec.json.encode(rest).decode() if rest else None
        row["_reason"] = reason or None
        self.rows.append(row)

    def _flatten(
        self, value: dict[str, Any], prefix: str, row: dict[str, Any], rest: dict[str, Any], depth: int
    ) -> None:
        for name, one in value.items():
            column = prefix + re.sub(r"\W", "_", name)
            if isinstance(one, dict) and depth < DEPTH_MAX:
                self._flatten(one, f"{column}_", row, rest, depth + 1)
            elif one is not None and not self._put(column, one, row):
                rest[column] = one

    def _put(self, column: str, value: Any, row: dict[str, Any]) -> bool:
        kind = KINDS.get(type(value))
        if kind is None or column in row or column in (*OWN, *TOLD) or (kind == "long" and abs(value) > LONG_MAX):
            return False
        known = self.kinds.get(column)
        if known is None:
            if len(self.kinds) >= COLUMNS_MAX or column.lower() in {name.lower() for name in self.kinds}:
                return False
            self.kinds[column] = known = kind
        if known == "long" and kind == "double":
            self.widened.add(column)
            self.kinds[column] = known = "double"
        if known != kind and not (known == "double" and kind == "long"):
            return False
        row[column] = float(value) if known == "double" else value
        return True


class Decoded:
    """One decoded table; `catch_up` brings it to where its raw table is."""

    def __init__(
        self,
        lake: LakeOptions,
        raw: str,
        table: str,
        url: str,
        partition: Sequence[str] = (),
        sort: Sequence[str] = (),
    ) -> None:
        self._catalog, self._raw, self.name = open_catalog(lake), raw, table
        self._partition, self._sort = tuple(partition), tuple(sort)
        self._serialised = Serialised(Given({"url": url}, ()).connection())
        for one in self._partition:
            if not _TRANSFORM.fullmatch(one):
                raise InvalidArgument(
                    f"--partition {one!r}", fix="day(_timestamp), bucket(16, device), truncate(4, device), device"
                )

    def begin_again(self) -> None:
        """Forget what was decoded: by schemas that came late, everything is decoded anew from the raw table."""
        table = self._table()
        if table is not None:
            self._begin_again(table, set())

    def catch_up(self) -> int:
        """Returns how many rows it added."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        added, lost = 0, 0
        while True:
            table = self._table()
            try:
                count = self._step(table)
            except (CommitFailedException, ValidationException):
                lost += 1
                if lost >= ATTEMPTS_MAX:
                    raise Overloaded(
                        f"table {self.name}: {ATTEMPTS_MAX} commits lost against others",
                        fix="let one process decode it",
                    ) from None
                continue
            if count is None:
                return added
            added += count

    def _table(self) -> Table | None:
        if not self._catalog.table_exists(identifier(self.name)):
            return None
        table = self._catalog.load_table(identifier(self.name))
        if table.properties.get(OF) != self._raw:
            raise ConfigError(
                f"table {self.name} is not decoded from {self._raw}",
                fix="give it another name: --decode-table NAMESPACE.NAME",
            )
        return table

    def _step(self, table: Table | None) -> int | None:
        """One commit's worth; None: there is nothing new."""
        kinds = {} if table is None else _kinds(table)
        positions = {} if table is None else json.loads(table.properties.get(POSITIONS, "{}"))
        rows = self._read(Rows(dict(kinds), positions=dict(positions)))
        if rows.positions == positions:
            return None
        wider = {name for name in rows.widened if kinds.get(name) == "long"}
        if table is not None and wider:
            self._begin_again(table, wider)
            return 0
        if table is None:
            table = self._make(rows.kinds)
        self._append(table, rows, [name for name in rows.kinds if name not in _kinds(table)])
        return len(rows.rows)

    # -- reading the raw table

    def _read(self, rows: Rows) -> Rows:
        raw = load_table(self._catalog, self._raw)
        columns = current_columns(raw)
        names = {number: columns[number][1] for number in columns}
        ends: list[tuple[int, int, FileScanTask]] = []
        for task in planned_tasks(raw):
            log, first, last = _bounds(task, columns[LOG_ID][0], columns[OFFSET_ID][0])
            if last >= rows.positions.get(str(log), 0):
                ends.append((log, first, task))
        for _, _, task in sorted(ends, key=lambda one: one[:2]):
            for batch in file_batches(raw.io, planned(task), raw.schema()):
                self._take(batch, rows, names)
            if len(rows.rows) >= ROWS_PER_COMMIT:
                break
        return rows

    def _take(self, batch: pa.RecordBatch, rows: Rows, names: dict[int, str]) -> None:
        wanted = [names[number] for number in (LOG_ID, OFFSET_ID, 8, 4, 10, 11)]
        found = []
        for log, offset, topic, at, key, value in zip(*(batch.column(one).to_pylist() for one in wanted), strict=True):
            if offset >= rows.positions.get(str(log), 0):
                rows.positions[str(log)] = offset + 1
                found.append((dict(zip(OWN, (log, offset, topic, at, key), strict=True)), value))
        self._decode(found, rows)

    def _decode(self, found: list[tuple[dict[str, Any], bytes | None]], rows: Rows) -> None:
        for own, value in found:
            if value is None or value[:1] != b"\0":
                rows.add(own, value, "" if value is not None else "the value is null")
            else:
                text = self._serialised.text(value)
                reason = "" if text is not None else "no schema of the registry fits the value"
                rows.add(own, text.encode() if text is not None else None, reason)

    # -- writing

    def _make(self, kinds: dict[str, str]) -> Table:
        schema = _schema(kinds)
        place = identifier(self.name)

        def make() -> Table:
            self._catalog.create_namespace_if_not_exists(place[:-1])
            return self._catalog.create_table(
                place,
                schema,
                partition_spec=_spec(schema, self._partition),
                sort_order=_order(schema, self._sort),
                properties={**TABLE_PROPERTIES, OF: self._raw, POSITIONS: "{}"},
            )

        return settled(make)

    def _append(self, table: Table, rows: Rows, new: list[str]) -> None:
        with table.transaction() as transaction:
            if new:
                with transaction.update_schema() as change:
                    for name in new:
                        change.add_column(name, _iceberg(rows.kinds[name]))
            transaction.set_properties({POSITIONS: json.dumps(rows.positions)})
            if rows.rows:
                transaction.append(_sorted(table, _arrow(rows)))

    @staticmethod
    def _begin_again(table: Table, wider: set[str]) -> None:
        """Empty, with columns that take fractions; the raw table has everything."""
        with table.transaction() as transaction:
            transaction.delete("true")
            if wider:
                with transaction.update_schema(allow_incompatible_changes=True) as change:
                    for name in wider:
                        change.delete_column(name)
                with transaction.update_schema() as change:
                    for name in wider:
                        change.add_column(name, _iceberg("double"))
            transaction.set_properties({POSITIONS: "{}"})


def _bounds(task: FileScanTask, log_id: int, offset_id: int) -> tuple[int, int, int]:
    """The log of a file and its first and last offset, as its statistics tell; without them it may hold anything."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    lower, upper = task.file.lower_bounds or {}, task.file.upper_bounds or {}
    if log_id not in lower or offset_id not in lower or offset_id not in upper:
        return 0, 0, LONG_MAX
    kind = LongType()
    return tuple(int(from_bytes(kind, one)) for one in (lower[log_id], lower[offset_id], upper[offset_id]))  # type: ignore[return-value]


def _iceberg(kind: str) -> Any:
    from pyiceberg import types as t

    kinds: dict[str, Any] = {
        "boolean": t.BooleanType,
        "long": t.LongType,
        "double": t.DoubleType,
        "string": t.StringType,
    }
    return kinds[kind]()


def _schema(kinds: dict[str, str]) -> Schema:
    from pyiceberg import types as t
    from pyiceberg.schema import Schema

    own = (t.LongType(), t.LongType(), t.StringType(), t.TimestamptzType(), t.BinaryType())
    named: list[tuple[str, Any]] = [
        *zip(OWN, own, strict=True),
        *((name, t.StringType()) for name in TOLD),
        *((name, _iceberg(kind)) for name, kind in kinds.items()),
    ]
    return Schema(*(t.NestedField(number, name, kind) for number, (name, kind) in enumerate(named, 1)))


def _kinds(table: Table) -> dict[str, str]:
    own = (*OWN, *TOLD)
    return {one.name: str(one.field_type) for one in table.schema().fields if one.name not in own}


def _spec(schema: Schema, partition: Sequence[str]) -> PartitionSpec:
    from pyiceberg import transforms
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    found = []
    for number, text in enumerate(partition, 1_000):
        match = _TRANSFORM.fullmatch(text)
        assert match is not None
        time, timed, cut, width, cut_of, plain = match.groups()
        name = timed or cut_of or plain
        try:
            source = schema.find_field(name)
        except ValueError:
            raise ConfigError(
                f"--partition {text}: there is no column {name} in the first records",
                fix="name one of the data, or _timestamp",
            ) from None
        made: Any = transforms.IdentityTransform() if plain else None
        if time:
            made = {"day": transforms.DayTransform, "hour": transforms.HourTransform}.get(
                time, transforms.MonthTransform if time == "month" else transforms.YearTransform
            )()
        elif cut:
            made = (
                transforms.BucketTransform(int(width)) if cut == "bucket" else transforms.TruncateTransform(int(width))
            )
        label = f"{name}_{time or cut}" if not plain else f"{name}_part"
        found.append(PartitionField(source_id=source.field_id, field_id=number, transform=made, name=label))
    return PartitionSpec(*found)


def _order(schema: Schema, sort: Sequence[str]) -> SortOrder:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    made = []
    for text in sort:
        name, _, direction = text.partition(" ")
        try:
            source = schema.find_field(name)
        except ValueError:
            raise ConfigError(
                f"--sort {text}: there is no column {name} in the first records",
                fix="name one of the data, or _timestamp",
            ) from None
        falling = direction.strip().lower() == "desc"
        made.append(
            SortField(
                source_id=source.field_id,
                transform=IdentityTransform(),
                direction=SortDirection.DESC if falling else SortDirection.ASC,
                null_order=NullOrder.NULLS_LAST,
            )
        )
    return SortOrder(*made)


def _sorted(table: Table, rows: pa.Table) -> pa.Table:
    """As the table's own order says; each commit by itself."""
    from pyiceberg.table.sorting import SortDirection

    schema = table.schema()
    keys = []
    for one in table.sort_order().fields:
        name = schema.find_column_name(one.source_id)
        if name is not None and name in rows.schema.names:
            keys.append((name, "ascending" if one.direction == SortDirection.ASC else "descending"))
    return rows.sort_by(keys) if keys else rows


def _arrow(rows: Rows) -> pa.Table:
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "boolean": pa.bool_(),
        "long": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
    }
    own = (pa.int64(), pa.int64(), pa.string(), pa.timestamp("us", tz="UTC"), pa.binary())
    fields = [
        *zip(OWN, own, strict=True),
        *((name, pa.string()) for name in TOLD),
        *((name, kinds[kind]) for name, kind in rows.kinds.items()),
    ]
    return pa.Table.from_pylist(rows.rows, schema=pa.schema(fields))
