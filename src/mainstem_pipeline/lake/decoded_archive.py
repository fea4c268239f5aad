"""An archive that is decoded and nothing else: Spark's tasks read the log and write the fields of the values.

There is no raw table to decode again from. So nothing is emptied here: columns are only added, a value that has no
fields is kept as it is (`_value`), and what came before a schema was registered stays without fields.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem_pipeline.lake.archive import Archive, range_of
from mainstem_pipeline.lake.catalog import LakeOptions
from mainstem_pipeline.lake.commits import DECODED_SOURCE, ensure_table, next_offsets_of, remove_files
from mainstem_pipeline.lake.decode_tasks import OUTCOME, Outcome, Target, slice_decoder
from mainstem_pipeline.lake.decoded import add_columns, is_plain, joined, own_schema, shapes_of
from mainstem_pipeline.lake.layout import check_layout, lay_out
from mainstem_pipeline.lake.shapes import Fields, fields_of
from mainstem_pipeline.options import Given

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

PASSES_MAX = 3  # over one batch: two where there are new fields, a third if another changed the table meanwhile


class DecodedArchive(Archive):
    """One decoded table and its only committer."""

    source_property = DECODED_SOURCE

    def __init__(
        self,
        lake: LakeOptions,
        table: str,
        source: str,
        broker: Mapping[str, str],
        partition: Sequence[str] = (),
        sort: Sequence[str] = (),
    ) -> None:
        check_layout(partition, sort)
        self._connection = Given(dict(broker), ()).connection()
        self._partition, self._sort = tuple(partition), tuple(sort)
        super().__init__(lake, table, source)

    def _made(self, properties: dict[str, str]) -> Table:
        return ensure_table(self._catalog, self.name, own_schema(keeps_values=True), None, properties)

    def _written(self, table: Table, tasks: DataFrame, prefix: str) -> tuple[list[DataFile], dict[str, Any]]:
        for number in range(1, PASSES_MAX + 1):
            target = Target(
                table.metadata_location,
                self.lake.file_properties(),
                self._connection,
                prefix,
                learns=number < PASSES_MAX,
                fixed=None,
                keeps_values=True,
            )
            told = tasks.mapInArrow(slice_decoder(target), f"{OUTCOME}, offsets string").collect()
            outcomes: list[Outcome] = [pickle.loads(one["outcome"]) for one in told if one["outcome"] is not None]
            files = [one for outcome in outcomes for one in outcome.files]
            grown = shapes_of(outcomes)
            lays_out = bool(files or grown) and self._is_to_be_laid_out(table)
            if not grown and not lays_out:
                return files, range_of(told)
            remove_files(table, [one.file_path for one in files])
            self._evolve(table, grown, lays_out=lays_out)
            table = table.refresh()
        raise AssertionError("the last pass learns nothing")

    def _is_to_be_laid_out(self, table: Table) -> bool:
        return bool(self._partition or self._sort) and is_plain(table) and not next_offsets_of(table)

    def _evolve(self, table: Table, grown: Sequence[Fields], *, lays_out: bool) -> None:
        learner = joined(fields_of(table.schema(), None), grown)
        if learner.has_grown:
            add_columns(table, learner.fields)
        if lays_out:
            lay_out(table.refresh(), self._partition, self._sort)
