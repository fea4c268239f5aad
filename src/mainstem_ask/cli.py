"""`mainstem query` and `mainstem search`: the log asked."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from mainstem.model.errors import InvalidArgument, NotAuthorized
from mainstem_pipeline.command_options import CATALOG, URL, WAREHOUSE

PROGRESS_AFTER_S = 1.0
PROGRESS_EACH_S = 0.2
BAR_WIDTH = 30
FOLLOW_EACH_S = 0.3


@click.command()
@click.argument("statement")
@URL
@WAREHOUSE
@CATALOG
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True
)
@click.option("--output", type=click.Path(path_type=Path), help="A file for the result (needed for parquet).")
@click.option("--limit", type=int, default=1000, show_default=True, help="Rows shown at most as a table.")
@click.option("--memory", default="1GiB", show_default=True, help="What the statement may use; it spills beyond it.")
@click.option("--accept-loss", is_flag=True, help="Leave out what retention removed before it was archived.")
def query(
    statement: str,
    url: str,
    warehouse: str,
    catalog: str,
    form: str,
    output: Path | None,
    limit: int,
    memory: str,
    accept_loss: bool,
) -> None:
    """SQL over topics, views and tables by DuckDB: an answer in under a second, without Spark.

    \b
    mainstem query "select topic, count(*) from 'sensors/#' group by 1"
    mainstem query "select avg((json->>'$.celsius')::double) from 'sensors/#' where timestamp > now() - interval 1 hour"
    Names are filters, topics, views and tables of the lake, as for `mainstem sql`. An archived topic is read from its table
    and, from where that ends, from the log: each row once. Times are UTC.
    """
    from mainstem_ask.start import without_pandas

    without_pandas()
    from mainstem.server.units import parse_size_bytes
    from mainstem_ask.sql.engine import Answer, Engine, Place
    from mainstem_pipeline.lake.catalog import LakeOptions
    from mainstem_pipeline.query.results import opened, print_result

    try:
        memory_bytes = parse_size_bytes(memory)
    except ValueError as error:
        raise InvalidArgument(f"--memory: {error}", fix="--memory 1GiB") from None
    if form == "parquet" and output is None:
        raise InvalidArgument("Parquet needs a file to go to", fix="--output FILE")
    place = Place({"url": url}, LakeOptions(warehouse, catalog), accept_loss=accept_loss)

    def show(answer: Answer) -> None:
        if form == "parquet":
            assert output is not None
            _write_parquet(answer, output)
            return
        with opened(output) as out:
            print_result(answer, form, limit, out)

    try:
        with Engine(place, memory_bytes=memory_bytes) as engine, _bar(engine.progress):
            engine.answer(statement, show)
        told = engine.notices
    except NotAuthorized:
        from mainstem_ask import by_http

        if form == "parquet":
            raise
        answered = by_http.query(url, statement)
        with opened(output) as out:
            print_result(answered, form, limit, out)
        told = answered.notices
    for notice in told:
        click.echo(f"note: {notice}", err=True)


def _write_parquet(answer: object, output: Path) -> None:
    import pyarrow.parquet as pq

    from mainstem_ask.sql.engine import Answer

    assert isinstance(answer, Answer)
    if output.exists():
        raise InvalidArgument(f"{output} exists", fix="--output with another name")
    part = output.with_name(f".{output.name}.part")
    try:
        with pq.ParquetWriter(part, answer.schema) as writer:
            for batch in answer.batches():
                writer.write_batch(batch)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _bar(progress: object) -> Iterator[None]:
    """On a terminal, for what takes longer than a moment."""
    from mainstem_ask.sql.engine import Progress

    assert isinstance(progress, Progress)
    if not sys.stderr.isatty():
        yield
        return
    began = shown = time.monotonic()

    def changed() -> None:
        nonlocal shown
        now = time.monotonic()
        if now - began < PROGRESS_AFTER_S or now - shown < PROGRESS_EACH_S or not progress.total:
            return
        shown = now
        share = min(progress.done / progress.total, 1.0)
        filled = "#" * int(share * BAR_WIDTH)
        sys.stderr.write(f"\r[{filled:<{BAR_WIDTH}}] {progress.done >> 20} of {progress.total >> 20} MiB ")

    progress.changed = changed
    try:
        yield
    finally:
        if shown != began:
            sys.stderr.write("\r\x1b[K")


@click.command()
@click.argument("query", required=False, default="")
@URL
@click.option("--topic", default="#", show_default=True, metavar="FILTER", help="Where: a topic filter or a topic.")
@click.option("--since", default="", metavar="TIME", help="Not older: 2h, or 2026-01-31T12:00:00Z.")
@click.option("--before", default="", metavar="TIME", help="Older than: 30m, or 2026-01-31T12:00:00Z.")
@click.option("--limit", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Hits shown at most.")
@click.option("--follow", is_flag=True, help="Then show new ones as they arrive, until Ctrl-C.")
@click.option("--histogram", default="", metavar="WIDTH", help="Instead of hits: how many in each 1m, 1h, 1d.")
@click.option(
    "--top", type=(str, click.IntRange(1, 1000)), default=None, metavar="PATH N", help="The N most frequent values."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def search(
    query: str,
    url: str,
    topic: str,
    since: str,
    before: str,
    limit: int,
    follow: bool,
    histogram: str,
    top: tuple[str, int] | None,
    as_json: bool,
) -> None:
    """Find records by words, fields and time: newest first, as they are found.

    \b
    mainstem search 'timeout AND status>=500' --topic 'logs/#' --since 2h
    mainstem search '"connection reset" OR $.error.code = 7' --follow
    mainstem search 'NOT level:debug' --topic 'logs/#' --histogram 1m --top $.service 10
    """
    from mainstem_ask.start import without_pandas

    without_pandas()
    from mainstem_ask.search.engine import Asked, Search, connection_of
    from mainstem_ask.search.printing import Printer
    from mainstem_ask.search.times import bucket_ms_of, time_ms_of

    now_ms = time.time_ns() // 1_000_000
    counts = bool(histogram or top)
    if follow and counts:
        raise InvalidArgument("--follow shows hits; --histogram and --top count them", fix="leave one of them out")
    asked = Asked(
        query,
        topic,
        since_ms=time_ms_of(since, now_ms) if since else 0,
        **({"before_ms": time_ms_of(before, now_ms)} if before else {}),
        limit=0 if counts else limit,
        bucket_ms=bucket_ms_of(histogram) if histogram else 0,
        top=top[0] if top else "",
        top_count=top[1] if top else 10,
    )
    searching = Search(asked, connection_of(url))
    printer = Printer(sys.stdout, sys.stderr, as_json=as_json)
    try:
        for event in searching.events():
            printer.tell(event)
    except NotAuthorized:
        from mainstem_ask import by_http

        if follow:
            raise
        told = {"query": query, "topic": topic, "since": since, "before": before, "limit": 0 if counts else limit}
        wanted = {"histogram": histogram, "top": asked.top, "top_count": asked.top_count}
        for event in by_http.search(url, {**told, **wanted}):
            printer.tell(event)
        return
    while follow:
        for hit in searching.newer():
            printer.tell({"hit": hit})
        time.sleep(FOLLOW_EACH_S)


__all__ = ["query", "search"]
