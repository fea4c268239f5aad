"""What the tests of the lakehouse share: archives run in the one Spark session, and looks into tables, files and logs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.codec.batch import FRAME_HEAD_SIZE
from mainstem.model.origin import Origin
from mainstem.testing.broker import Endpoints
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.lake.catalog import LakeOptions, load_table, open_catalog
from mainstem_pipeline.lake.commands import archive_pipeline
from mainstem_pipeline.lake.maintain import listed, referenced
from mainstem_pipeline.pipeline.flows import FlowRun
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.query.shell import SqlShell

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KIND_DATA, CONTROL = 1, 32


class ArchiveRun:
    """`mainstem lake archive` in a session that is there already."""

    def __init__(
        self,
        spark: SparkSession,
        broker: Endpoints,
        lake: LakeOptions,
        source: str,
        table: str,
        state: Path | None = None,
        *,
        once: bool = True,
        **options: Any,
    ) -> None:
        pipeline = archive_pipeline(
            source, table, url=broker.http_url, warehouse=lake.warehouse, catalog=lake.catalog, state=state, **options
        )
        self.run = FlowRun(pipeline, pipeline.flows[0], spark, State(pipeline), lambda text: None)
        self.query: StreamingQuery = self.run.start(once=once, run="test")

    def wait(self) -> dict[str, int]:
        """Until it has read what is there; the rows, files and batches it wrote."""
        assert self.query.awaitTermination(100)
        done = [one.written for one in self.run.results.values()]
        return {
            "rows": sum(one["rows"] for one in done),
            "files": sum(one["files"] for one in done),
            "batches": len(done),
        }


def archive(
    spark: SparkSession, broker: Endpoints, lake: LakeOptions, source: str, table: str, state: Path | None = None
) -> dict[str, int]:
    return ArchiveRun(spark, broker, lake, source, table, state).wait()


def table_of(lake: LakeOptions, name: str) -> Table:
    return load_table(open_catalog(lake), name)


def rows_of(lake: LakeOptions, name: str) -> pa.Table:
    """The table as pyiceberg reads it, in the order of the log."""
    return table_of(lake, name).scan().to_arrow().sort_by([("log", "ascending"), ("offset", "ascending")])


def orphans(lake: LakeOptions, name: str) -> set[str]:
    """Data files that no snapshot names."""
    table = table_of(lake, name)
    known = referenced(table)
    return {path for path, _ in listed(table) if path.endswith(".parquet") and path not in known}


def stored_frames(broker: Endpoints, select: dict[str, Any]) -> dict[tuple[int, int], bytes]:
    """(log, base offset) → a client's data frame, as the log holds it, read through the broker."""
    client = BrokerClient(broker.http_url)
    partitions = client.post("/v1/scan/lanes", {"select": select})["lanes"]
    ranges = [
        [one["topic"], one["partition"], one["start"], one["end"]] for one in partitions if one["start"] < one["end"]
    ]
    plan = client.post("/v1/scan/plan", {"select": select, "ranges": ranges, "files": False})
    found: dict[tuple[int, int], bytes] = {}
    for piece in plan["slices"]:
        at = piece["start"]
        while at < piece["end"]:
            data, headers = client.get_bytes("/v1/scan/frames", log=piece["log"], start=at, end=piece["end"])
            found |= {(piece["log"], base): frame for base, frame in _frames(data)}
            at = int(headers["mainstem-next-offset"])
    client.delete(f"/v1/scan/plans/{plan['plan']}")
    client.close()
    return found


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        size = FRAME_HEAD_SIZE + int.from_bytes(data[at + 8 : at + 12], "big")
        frame = data[at : at + size]
        if (
            frame[5] == KIND_DATA
            and frame[6] != Origin.BROKER  # its history, every ten seconds
            and not int.from_bytes(frame[FRAME_HEAD_SIZE + 21 : FRAME_HEAD_SIZE + 23], "big") & CONTROL
        ):
            yield int.from_bytes(frame[16:24], "big"), frame
        at += size


def sql(spark: SparkSession, broker: Endpoints, lake: LakeOptions, statement: str) -> list[tuple[Any, ...]]:
    shell = SqlShell.over(spark, {"url": broker.http_url}, lake)
    return shell.answer(statement, lambda frame: [tuple(row) for row in frame.collect()])


def is_prefix(numbers: list[int]) -> bool:
    """0, 1, 2, ... with nothing missing and nothing twice, in any order."""
    return sorted(numbers) == list(range(len(numbers)))


unique = itertools.count()
