"""A lake table as a stream: the rows of each snapshot that appended some, in order. `format("mainstem_table")`.

The offset is a snapshot's sequence number. A stream begins with all the rows that the table has, whichever snapshots are
left, and goes on with what each later one appended. Compaction (replace) adds no rows, and what is deleted was read: both
are passed over. Rows changed in place (overwrite) are none that a stream could tell, so it ends with an error, as it does
when it is so late that its next snapshot has expired; it can start over.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.deletes import PlannedFile, planned_files
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
    def __init__(self, file: PlannedFile, metadata: str) -> None:
        super().__init__(None)
        self.file, self.metadata = file, metadata


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
            return [DataFileRows(one, table.metadata_location) for one in self._whole(table, last)]
        wanted = [s for s in table.metadata.snapshots if first < int(s.sequence_number or 0) <= last]
        seen = {int(s.sequence_number or 0) for s in wanted}
        if not seen >= set(range(first + 1, last + 1)):
            raise self._expired(first, last)
        for snapshot in wanted:
            self._check_appended(snapshot)
        return [DataFileRows(one, table.metadata_location) for snapshot in wanted for one in _added(table, snapshot)]

    def _check_appended(self, snapshot: Any) -> None:
        from pyiceberg.table.snapshots import Operation

        told = snapshot.summary
        if (
            told is not None
            and told.operation == Operation.OVERWRITE
            and "added-data-files" in told.additional_properties
        ):
            raise DataLoss(
                f"table {self.name}: snapshot {snapshot.sequence_number} changed rows in place (an update or a merge), "
                "and a stream can only follow rows that are added",
                fix="read it as a side table (tables:), or start over with --reset FLOW to read it as it is now",
            )

    def _whole(self, table: Table, last: int) -> list[PlannedFile]:
        """All files as of that snapshot: those that appended the older ones may have expired."""
        snapshot = next((one for one in table.metadata.snapshots if one.sequence_number == last), None)
        if snapshot is None:
            raise self._expired(0, last)
        return planned_files(table, snapshot_id=snapshot.snapshot_id)

    def _expired(self, first: int, last: int) -> DataLoss:
        return DataLoss(
            f"table {self.name}: snapshots between {first} and {last} have expired before this flow read them",
            fix="start over with --reset FLOW",
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_data_file(self.lake, partition, self.schema)


def read_data_file(lake: LakeOptions, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one data file, as a task reads them."""
    from pyiceberg.table import StaticTable
    from pyspark.sql.pandas.types import to_arrow_schema

    from mainstem_pipeline.lake.reading import file_batches, fitted

    if not isinstance(partition, DataFileRows):  # Spark's stand-in where there is nothing to read
        return
    table = StaticTable.from_metadata(partition.metadata, lake.file_properties())
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in file_batches(table.io, partition.file, table.schema().select(*wanted.names)):
        yield fitted(batch, wanted)


def _added(table: Table, snapshot: Any) -> list[PlannedFile]:
    """The data files this very snapshot appended."""
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table.snapshots import Operation

    if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
        return []
    return [
        PlannedFile(entry.data_file.file_path)
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
