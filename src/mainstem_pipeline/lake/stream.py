"""A lake table as a stream: the rows of each snapshot that appended some, in order. `format("mainstem_table")`.

The offset is a snapshot's sequence number. A stream begins with all the rows that the table has, whichever snapshots are
left, and goes on with what each later one appended. Compaction (replace, overwrite) adds no rows and is passed over. A
stream that is so late that its next snapshot has expired ends with an error; it can begin anew.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.slices import DataLoss

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType


def table_options(lake: LakeOptions, table: str) -> dict[str, str]:
    return {
        "warehouse": lake.location,
        "catalog": lake.catalog,
        "table": table,
        **{f"property.{name}": value for name, value in lake.properties.items()},
    }


class TableSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        properties = {name[9:]: value for name, value in options.items() if name.startswith("property.")}
        self.lake = LakeOptions(options["warehouse"], options.get("catalog", ""), properties)
        self.table = options["table"]

    @classmethod
    def name(cls) -> str:
        return "mainstem_table"

    def schema(self) -> StructType:
        from mainstem_pipeline.lake.tables import spark_schema

        return spark_schema(load_table(open_catalog(self.lake), self.table))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TableReader(self.lake, self.table, schema)


class DataFileRows(InputPartition):
    def __init__(self, path: str, metadata: str) -> None:
        super().__init__(None)
        self.path, self.metadata = path, metadata


class TableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, lake: LakeOptions, name: str, schema: StructType) -> None:
        self.lake, self.name, self.schema = lake, name, schema
        self._target: int | None = None

    def _table(self) -> Table:
        return load_table(open_catalog(self.lake), self.name)

    def initialOffset(self) -> dict[str, int]:
        return {"sequence": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest()

    def _newest(self) -> int:
        snapshot = self._table().current_snapshot()
        return int(snapshot.sequence_number or 0) if snapshot is not None else 0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        newest = self._newest() if self._target is None else self._target
        return {"sequence": max(newest, int(start["sequence"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        table = self._table()
        first, last = int(start["sequence"]), int(end["sequence"])
        if first == 0 and last:
            paths = self._whole(table, last)
            return [DataFileRows(path, table.metadata_location) for path in paths]
        wanted = [s for s in table.metadata.snapshots if first < int(s.sequence_number or 0) <= last]
        seen = {int(s.sequence_number or 0) for s in wanted}
        if not seen >= set(range(first + 1, last + 1)):
            raise self._expired(first, last)
        return [DataFileRows(path, table.metadata_location) for snapshot in wanted for path in _added(table, snapshot)]

    def _whole(self, table: Table, last: int) -> list[str]:
        """All files as of that snapshot: those that appended the older ones may have expired."""
        snapshot = next((one for one in table.metadata.snapshots if one.sequence_number == last), None)
        if snapshot is None:
            raise self._expired(0, last)
        return [one.file.file_path for one in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()]

    def _expired(self, first: int, last: int) -> DataLoss:
        return DataLoss(
            f"table {self.name}: snapshots between {first} and {last} have expired before this flow read them",
            fix="begin anew with --reset FLOW",
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyiceberg.table import StaticTable
        from pyspark.sql.pandas.types import to_arrow_schema

        from mainstem_pipeline.lake.reading import file_batches, fitted

        if not isinstance(partition, DataFileRows):  # Spark's stand-in where there is nothing to read
            return
        table = StaticTable.from_metadata(partition.metadata, self.lake.file_properties())
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        for batch in file_batches(table.io, partition.path, table.schema().select(*wanted.names)):
            yield fitted(batch, wanted)


def _added(table: Table, snapshot: Any) -> list[str]:
    """The data files this very snapshot appended."""
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table.snapshots import Operation

    if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
        return []
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
