"""DuckDB around one statement: its names become relations, nothing else can be reached, and memory is bounded.

Each statement has a database of its own, in memory, with external access off and its configuration locked: no file, no
network, no extension, no setting. Relations are looked up once, before anything is read: what is written meanwhile is not
part of the answer. If an archive goes on in between and the log drops that stretch, the look-up is made again.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.model.topic_filter import is_pattern
from mainstem_ask.reading import Permit
from mainstem_ask.rights import Rights
from mainstem_ask.search.language import EVERYTHING
from mainstem_ask.sql.columns import SHOWN, Fields
from mainstem_ask.sql.relation import LakeRelation, Relation
from mainstem_ask.sql.sources import ColdTable, HotLog, LakeTable, Source
from mainstem_ask.sql.statement import admitted, names_in, said, with_fields
from mainstem_ask.sql.wanted import Wanted, wanted_of
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.options import Connection, Given, read_options
from mainstem_pipeline.query.naming import Names, Selection, column_names, may_hold, normal_source
from mainstem_pipeline.serialised import Serialised, notices
from mainstem_pipeline.slices import DataLoss

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyiceberg.table import Table

MEMORY_BYTES = 1 << 30
SPILL_BYTES_MAX = 8 << 30
THREADS_MAX = 4
BATCH_ROWS = 10_000  # of an answer
ANSWERS_MAX = 3  # attempts, when data moves from the log to a table while it is read
SCHEMA_PARTS_MAX = 2
# header_of(headers, 'region'): of several with the name the first, as text; null if there is none, or it is not a text.
HEADER_OF = """create macro header_of(all_headers, header_name) as
    try(decode(list_filter(all_headers, lambda one: one.key = header_name)[1].value))"""


class OutOfMemory(MainstemError):
    code = "MS-8001"


class Stopped(MainstemError):
    code = "MS-8002"


@dataclass(slots=True)
class Progress:
    """Bytes of the log read, and to be read: the total grows as DuckDB asks for its tables."""

    done: int = 0
    total: int = 0
    changed: Callable[[], None] = field(default=lambda: None)

    def tell(self, done: int, total: int) -> None:
        self.done, self.total = self.done + done, self.total + total
        self.changed()


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows come from and who may see which: the same for every statement of a session."""

    broker: dict[str, str]
    lake: LakeOptions | None = None
    rights: Rights | None = None  # None: the broker itself asks whether the caller may read everything
    accept_loss: bool = False
    connection: Connection | None = None  # instead of one by HTTP

    def connected(self) -> Connection:
        return self.connection or Given(self.broker, ()).connection()


class Tables(Names):
    """The relations of one statement."""

    def __init__(self, place: Place, progress: Progress) -> None:
        super().__init__(place.lake or LakeOptions())
        self._place, self._progress = place, progress
        self.serialised = Serialised(place.connected())
        self._has_lake = place.lake is not None and _exists(place.lake)

    def relation(self, parts: list[str]) -> Relation | LakeRelation:
        """What a (possibly dotted) name means; NotFound if nothing has it."""
        name = ".".join(parts)
        if self._has_lake and len(parts) <= SCHEMA_PARTS_MAX and not is_pattern(name.encode()):
            with contextlib.suppress(InvalidArgument):
                table = self.table(name)
                if table is not None:
                    return LakeRelation(LakeTable(table))
        permit = self._place.rights.of_name(name) if self._place.rights is not None else None
        client = self._place.connected().client()
        try:
            asked, is_there = self.selection(client, name)
        finally:
            client.close()
        if self._place.rights is not None and "view" in asked.options:
            permit = self._place.rights.of_view(name)
        archived = self.archive_of(asked) if self._has_lake else None
        if archived is None and is_there:
            return Relation([self._log(asked.options, permit)], self.serialised)
        if archived is None or (not is_there and not may_hold(archived, asked)):
            raise NotFound(f"{name!r} is not a table, view or topic", fix="mainstem topic ls, mainstem lake ls")
        return Relation(self._hot_and_cold(archived, asked, permit), self.serialised)

    def _log(self, options: dict[str, str], permit: Permit | None, **more: str) -> HotLog:
        loss = {"failOnDataLoss": str(not self._place.accept_loss).lower()}
        made = read_options({**self._place.broker, **options, **more, **loss}, streaming=False)
        if self._place.connection is not None:
            made = replace(made, connection=self._place.connection)
        return HotLog(made, permit, self._progress.tell)

    def _hot_and_cold(self, table: Table, asked: Selection, permit: Permit | None) -> Sequence[Source]:
        """The table's snapshot, and the log from exactly where that ends; as for Spark."""
        from mainstem_pipeline.lake.commits import SOURCE

        source = normal_source(table.properties[SOURCE])
        by_filter = source.startswith("filter:") and "subscribe" in asked.options
        options = {"filter": asked.filter.decode()} if by_filter else asked.options
        snapshot = table.current_snapshot()
        if snapshot is None:
            return [self._log(options, permit)]
        name = ".".join(table.name())
        self.archives[name] = snapshot.snapshot_id
        is_exact = source == asked.source
        cold = ColdTable(
            table,
            column_names(table),
            topic_filter=None if is_exact else asked.filter,
            condition="" if is_exact else asked.condition,
            permit=permit,
        )
        lake = self._lake.source_options()
        return [cold, self._log(options, permit, startingOffsets=f"table:{name}@{snapshot.snapshot_id}", **lake)]


def _exists(lake: LakeOptions) -> bool:
    """A folder without a catalog holds no table: nothing is opened, or made, for it."""
    if lake.catalog or not lake.is_local:
        return True
    return (Path(lake.location.removeprefix("file://")) / "catalog.db").exists()


class Answer:
    """Rows as they come; what Spark's DataFrame has, as far as it is printed (`query/results.py`)."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema, self._batches = schema, batches

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:
        for batch in self._batches:
            columns = [[_plain(value) for value in column.to_pylist()] for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield Row(self.columns, values)

    def limit(self, num: int) -> Limited:
        return Limited(self, num)


class Limited:
    def __init__(self, answer: Answer, count: int) -> None:
        self._answer, self._count = answer, count
        self.columns = answer.columns

    def collect(self) -> list[Row]:
        rows = self._answer.toLocalIterator()
        return [row for row, _ in zip(rows, range(self._count), strict=False)]


class Row(tuple[Any, ...]):
    """As a row of Spark: a tuple that knows its names."""

    def __new__(cls, names: list[str], values: Sequence[Any]) -> Self:
        made = super().__new__(cls, values)
        made._names = names  # type: ignore[attr-defined]
        return made

    def asDict(self) -> dict[str, Any]:
        return dict(zip(self._names, self, strict=True))  # type: ignore[attr-defined]


def _plain(value: Any) -> Any:
    """Times in UTC without saying so, as Spark shows them."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


class Engine:
    """`with Engine(place) as engine: engine.answer("select ...", lambda rows: ...)`."""

    def __init__(self, place: Place, *, memory_bytes: int = MEMORY_BYTES, threads: int = THREADS_MAX) -> None:
        self._place, self._memory_bytes, self._threads = place, memory_bytes, threads
        self._spill = tempfile.TemporaryDirectory(prefix="mainstem-ask-", ignore_cleanup_errors=True)
        self._running: duckdb.DuckDBPyConnection | None = None
        self._stopped = threading.Event()
        self.progress = Progress()
        self.notices: list[str] = []  # of the last statement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.cleanup()

    def stop(self) -> None:
        """End the statement that runs; from another thread."""
        self._stopped.set()
        running = self._running
        if running is not None:
            running.interrupt()

    def answer(self, statement: str, take: Callable[[Answer], None]) -> None:
        """Run the statement and let `take` have its rows."""
        import duckdb

        with duckdb.connect(":memory:") as fresh:
            fresh.execute(HEADER_OF)
            sql = admitted(fresh, statement)
            names, wanted = names_in(fresh, sql), wanted_of(fresh, sql)
        for attempt in range(1, ANSWERS_MAX + 1):
            tables = Tables(self._place, self.progress)
            try:
                self._run(sql, names, wanted, tables, take)
                self.notices = notices(tables.serialised.taken())
                return
            except DataLoss as error:
                if attempt == ANSWERS_MAX or not (tables.archives and tables.moved_on()):
                    error.fix = "read what is there with --accept-loss"
                    raise

    def _run(
        self, sql: str, names: list[list[str]], wanted: Wanted, tables: Tables, take: Callable[[Answer], None]
    ) -> None:
        import duckdb

        failures: list[BaseException] = []
        with duckdb.connect(":memory:") as database:
            sql = self._register(database, sql, names, wanted, tables, failures)
            self._lock(database)
            self._running = database
            try:
                if self._stopped.is_set():
                    raise Stopped("the statement was stopped")
                reader = database.execute(sql).to_arrow_reader(BATCH_ROWS)
                take(Answer(reader.schema, _each(reader)))
            except (duckdb.Error, OSError, MemoryError) as error:
                raise self._in_our_words(error, failures) from error
            finally:
                self._running = None

    def _register(
        self,
        database: duckdb.DuckDBPyConnection,
        sql: str,
        names: list[list[str]],
        wanted: Wanted,
        tables: Tables,
        failures: list[BaseException],
    ) -> str:
        """The relations, and the statement as it is run over them."""
        seen: dict[str, list[str]] = {}
        shorter, fields = with_fields(sql)
        relations = []
        for at, parts in enumerate(names):
            other = seen.setdefault(".".join(parts).lower(), parts)
            if other != parts:
                raise InvalidArgument(
                    f"{'.'.join(other)} and {'.'.join(parts)} differ only in case, which DuckDB's names do not",
                    fix="ask for them in two statements, or by a filter and the column topic",
                )
            if len(parts) > SCHEMA_PARTS_MAX:
                raise InvalidArgument(f"{'.'.join(parts)} has too many parts", fix=f"write it as '{'.'.join(parts)}'")
            found = tables.relation(parts)
            found.failures = failures
            if isinstance(found, Relation):
                found.wanted = wanted.get(tuple(part.lower() for part in parts), EVERYTHING)
            relations.append((f"#{at}", parts, found))
            if len(parts) == SCHEMA_PARTS_MAX:
                database.execute(f"create schema if not exists {_quoted(parts[0])}")
        database.execute(HEADER_OF)
        _show(database, relations, {})
        if not fields or not all(isinstance(found, Relation) for _, _, found in relations):
            return sql
        columns = _described(database, sql)
        _show(database, relations, fields)
        if columns is not None and _described(database, shorter) == columns:
            return shorter
        _show(database, relations, {})
        return sql

    def _lock(self, database: duckdb.DuckDBPyConnection) -> None:
        for setting in (
            "TimeZone = 'UTC'",
            f"memory_limit = '{max(self._memory_bytes, 32 << 20)}B'",
            f"threads = {self._threads}",
            f"temp_directory = '{self._spill.name}'",
            f"max_temp_directory_size = '{SPILL_BYTES_MAX}B'",
            "preserve_insertion_order = false",
            "allow_community_extensions = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "python_enable_replacements = false",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            database.execute(f"set {setting}")

    def _in_our_words(self, error: Exception, failures: list[BaseException]) -> MainstemError:
        import duckdb

        for failure in failures:
            if isinstance(failure, MainstemError):
                return failure
        if isinstance(error, duckdb.InterruptException) or self._stopped.is_set():
            return Stopped("the statement was stopped")
        if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
            return OutOfMemory(
                f"the statement needs more memory than its {self._memory_bytes >> 20} MiB",
                fix="--memory 4GiB, a narrower statement, or mainstem sql",
            )
        return InvalidArgument(said(error))


def _each(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            yield reader.read_next_batch()
        except StopIteration:
            return


def _show(database: duckdb.DuckDBPyConnection, relations: Sequence[tuple[str, list[str], Any]], fields: Fields) -> None:
    """A view for each name: what the log has, and these fields of its JSON."""
    for scanned, parts, found in relations:
        shown = "*"
        if isinstance(found, Relation):
            found.fields = fields
            shown = ", ".join(_quoted(name) for name in (*SHOWN, *fields)) + ", try_cast(json_text as json) as json"
        database.register(scanned, found)
        database.execute(f'create or replace view {".".join(map(_quoted, parts))} as select {shown} from "{scanned}"')


def _described(database: duckdb.DuckDBPyConnection, sql: str) -> list[Any] | None:
    """Names and types of the columns of its answer; None if it has none that can be told before it runs."""
    import duckdb

    try:
        return database.execute(f"describe {sql}").fetchall()
    except duckdb.Error:
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
