"""What `mainstem lake` does, behind its words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainstem.model.counted import counted
from mainstem.model.errors import ConfigError, InvalidArgument
from mainstem.model.topic_filter import is_pattern
from mainstem_pipeline.lake.catalog import LakeOptions, identifier, load_table, open_catalog
from mainstem_pipeline.lake.commits import summary_of
from mainstem_pipeline.lake.deletes import UnreadableTable
from mainstem_pipeline.pipeline.flow_checks import duration_ms
from mainstem_pipeline.pipeline.model import ArchiveTo, DeadLetters, Decode, Flow, Pipeline, Source
from mainstem_pipeline.session import SparkOptions, start_session

TRIGGER_MS = 60_000  # SQL reads what is newer from the log: a table need not be fresher, and commits cost
ROWS_PER_BATCH_MAX = 20_000_000


def table_name(source: str) -> str:
    """Of what is archived, as a table may be called."""
    return re.sub(r"\W+", "_", source).strip("_").lower() or "everything"


def archive_pipeline(
    source: str,
    table: str | None,
    *,
    url: str,
    warehouse: str,
    catalog: str,
    state: str | Path | None,
    trigger_ms: int = TRIGGER_MS,
    accept_loss: bool = False,
    decoded: str = "",
    decoded_only: bool = False,
    partition: tuple[str, ...] = (),
    sort: tuple[str, ...] = (),
) -> Pipeline:
    """A pipeline of one archive flow, for the command line.

    `decoded`: the table of the values' fields, beside the raw one; with `decoded_only` in its place.
    """
    kind = "filter" if is_pattern(source.encode()) else "topics"
    name = decoded if decoded_only else table or f"raw.{table_name(source)}"
    identifier(name)
    lake = LakeOptions(warehouse, catalog)
    if state is None:
        if not lake.is_local:
            raise InvalidArgument("an archive to a bucket must keep its position elsewhere", fix="--state DIR")
        digest = hashlib.blake2b(f"{url} {kind} {source} {name}".encode(), digest_size=6).hexdigest()
        state = Path(lake.location.removeprefix("file://")) / ".archive" / f"{name}-{digest}"
    chosen = Source(kind, source)
    flow = Flow(
        name="archive",
        line=1,
        source=chosen,
        start="earliest",
        decode=Decode(),
        transforms=(),
        sinks=(),
        dead_letters=DeadLetters(""),
        trigger_ms=trigger_ms,
        rows_per_batch_max=ROWS_PER_BATCH_MAX,
        archive=ArchiveTo(chosen, name, accept_loss, "" if decoded_only else decoded, decoded_only, partition, sort),
    )
    return Pipeline(Path("lake archive"), name.replace(".", "_"), (flow,), {"url": url}, lake, str(state))


def tables(warehouse: str, catalog: str) -> list[dict[str, Any]]:
    opened = open_catalog(LakeOptions(warehouse, catalog))
    return [
        summary_of(opened.load_table(place))
        for namespace in opened.list_namespaces()
        for place in opened.list_tables(namespace)
    ]


def maintained(
    table: str | None, target_mb: int, keep: int, grace: str, warehouse: str, catalog: str, master: str
) -> Iterator[dict[str, Any]]:
    """Compact, expire, clean up; one line of result per table."""
    from mainstem_pipeline.lake.maintain import compact, expire, remove_unreferenced

    grace_ms = duration_ms(grace)
    if grace_ms is None:
        raise InvalidArgument(f"--grace {grace!r} is not a duration", fix="--grace 1h")
    if keep < 1:
        raise InvalidArgument("--keep-snapshots must be at least 1")
    lake = LakeOptions(warehouse, catalog)
    opened = open_catalog(lake)
    if table:
        load_table(opened, table)  # a wrong name is told before Spark starts
    names = [table] if table else [one["table"] for one in tables(warehouse, catalog)]
    spark = start_session(SparkOptions(master=master, name="mainstem lake maintain", fast_start=True))
    try:
        facts: dict[str, Any]
        for name in names:
            try:
                done = compact(spark, opened, name, lake.file_properties(), target_mb << 20)
            except (ConfigError, UnreadableTable) as error:
                if table:
                    raise
                facts = {"before": 0, "after": 0, "expired": 0, "removed": 0, "left": error.message}
                yield {"table": name, **facts, "text": f"{name}: left as it is: {error.message}"}
                continue  # with the others
            expired = expire(opened, name, keep, grace_ms / 1000)
            removed = remove_unreferenced(opened, name, grace_ms / 1000)
            text = (
                f"{name}: {counted(done.before, 'file')} to {done.after}, {counted(expired, 'snapshot')} expired, "
                f"{counted(removed, 'file')} removed"
            )
            facts = {"before": done.before, "after": done.after, "expired": expired, "removed": removed}
            yield {"table": name, **facts, "text": text}
    finally:
        spark.stop()
