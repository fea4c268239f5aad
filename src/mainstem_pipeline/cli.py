"""`mainstem pipeline`, `mainstem sql`, `mainstem lake`: the commands that run Spark."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import quote

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.command_options import CATALOG, URL, WAREHOUSE
from mainstem_pipeline.deploy.commands import COMMANDS

if TYPE_CHECKING:
    from mainstem_pipeline.pipeline.model import Pipeline
    from mainstem_pipeline.pipeline.runner import RunOptions

FILE = click.argument("file", type=click.Path(path_type=Path))
MASTER = click.option(
    "--master", default="local[*]", show_default=True, help="Spark master: local[N], spark://HOST:PORT, ..."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")


P = ParamSpec("P")
T = TypeVar("T")


def with_spark(command: Callable[P, T]) -> Callable[..., T]:
    """A command that runs Spark: what goes wrong is one message, with its cause; the rest with --debug."""

    @click.option("--debug", is_flag=True, help="Show where an error comes from, traceback and all.")
    @functools.wraps(command)
    def run_it(*arguments: P.args, **named: P.kwargs) -> T:
        debug = named.pop("debug", False)
        try:
            return command(*arguments, **named)
        except (click.exceptions.Exit, click.ClickException, click.Abort, ModuleNotFoundError):
            raise  # of a missing package the caller knows which extra brings it
        except Exception as error:
            if debug:
                traceback.print_exc()
            from mainstem_pipeline.pipeline.failures import shortly

            raise shortly(error) from None

    return run_it


def _ended(error: MainstemError, code: int) -> None:
    """Tell the failure as every other command does, with the exit code that is its own."""
    click.echo(f"error[{error.code}] {error}", err=True)
    if error.fix:
        click.echo(f"  fix: {error.fix}", err=True)
    sys.stdout.flush()
    click.get_current_context().exit(code)


# -- pipeline ----------------------------------------------------------------------------------------------------------


@click.group()
def pipeline() -> None:
    """Declared pipelines: from device to table in one YAML file, run by Spark.

    \b
    Exit codes of `run`: 0 done, 1 failed, 2 bad file or changed flow, 3 data aged out, 4 too many bad records,
    5 a sink failed, 69 no broker answers.
    """


@pipeline.command()
@FILE
@click.option("--once", is_flag=True, help="Read what is there now, then end.")
@click.option("--from", "start", default="", metavar="TIME", help="Backfill from a time (RFC 3339 or epoch ms).")
@click.option("--to", "end", default="", metavar="TIME", help="Backfill up to a time.")
@click.option("--flow", "flows", multiple=True, metavar="NAME", help="Only this flow; may be repeated.")
@click.option("--reset", multiple=True, metavar="FLOW", help="Start the flow over.")
@click.option(
    "--accept-change", multiple=True, metavar="FLOW", help="Go on with the checkpoint although the flow changed."
)
@MASTER
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this port (0: any).")
@click.option("--fast-start", is_flag=True, help="For runs of seconds: a faster start, slower batches.")
@AS_JSON
@with_spark
def run(
    file: Path,
    once: bool,
    start: str,
    end: str,
    flows: tuple[str, ...],
    reset: tuple[str, ...],
    accept_change: tuple[str, ...],
    master: str,
    metrics_port: int | None,
    fast_start: bool,
    as_json: bool,
) -> None:
    """Run the flows of FILE: until stopped, --once, or over a past range with --from and --to."""
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.runner import RunOptions

    options = RunOptions(once, start, end, flows, reset, accept_change, master, metrics_port, fast_start)
    _run(lambda: load_pipeline(file), options, as_json=as_json)


def _run(load: Callable[[], Pipeline], options: RunOptions, *, as_json: bool) -> None:
    """Run it, and end with the exit code that tells how it went."""
    from mainstem_pipeline.pipeline.failures import exit_code
    from mainstem_pipeline.pipeline.progress import display_for
    from mainstem_pipeline.pipeline.runner import PipelineFailed, Runner, run_with_signals

    try:
        code = run_with_signals(Runner(load(), options, display_for(as_json=as_json)))
    except PipelineFailed as error:
        _ended(error, error.exit_code)
    except MainstemError as error:
        _ended(error, exit_code(error))
    else:
        click.get_current_context().exit(code)


@pipeline.command()
@FILE
@click.argument("version")
@click.option("--from", "start", required=True, metavar="TIME", help="RFC 3339, epoch ms, or earliest.")
@click.option("--to", "end", default="", metavar="TIME", help="Up to a time, once; without it the version goes on.")
@click.option("--once", is_flag=True, help="Without --to: read what is there now, then end.")
@click.option("--flow", "flows", multiple=True, metavar="NAME", help="Only this flow; may be repeated.")
@click.option("--reset", multiple=True, metavar="FLOW", help="Start the flow of this version over.")
@click.option("--accept-change", multiple=True, metavar="FLOW", help="Go on although the flow changed.")
@MASTER
@AS_JSON
@with_spark
def replay(
    file: Path,
    version: str,
    start: str,
    end: str,
    once: bool,
    flows: tuple[str, ...],
    reset: tuple[str, ...],
    accept_change: tuple[str, ...],
    master: str,
    as_json: bool,
) -> None:
    """Run the flows of FILE again from a time on, into a VERSION beside the one that is there.

    \b
    Of version v2: table iot.readings is iot.readings_v2, topic alerts is v2/alerts, folder out is out-v2.
    Its state is its own, the version that runs is not touched. Archive flows are left out.
    """
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.runner import RunOptions
    from mainstem_pipeline.pipeline.versions import versioned

    options = RunOptions(once, start if end else "", end, flows, reset, accept_change, master)
    _run(lambda: versioned(load_pipeline(file), version, "" if end else start), options, as_json=as_json)


@pipeline.command("test")
@FILE
@click.option("--only", default="", metavar="TEXT", help="Only tests whose name contains this.")
@AS_JSON
@with_spark
def test_pipeline(file: Path, only: str, as_json: bool) -> None:
    """Run the tests of FILE (given records, expected rows) with Spark on this machine; no broker is needed."""
    from mainstem_pipeline.pipeline.cases import load_cases, run_case
    from mainstem_pipeline.pipeline.failures import BAD_FILE, FAILED
    from mainstem_pipeline.session import SparkOptions, start_session

    try:
        loaded, cases = load_cases(file)
    except MainstemError as error:
        return _ended(error, BAD_FILE)
    spark = start_session(SparkOptions(master="local[1]", settings=dict(loaded.spark), fast_start=True))
    failed = 0
    try:
        for case in (one for one in cases if only in one.name):
            problems = run_case(spark, loaded, case)
            failed += bool(problems)
            if as_json:
                click.echo(json.dumps({"test": case.name, "line": case.line, "problems": problems}))
            else:
                click.echo(f"{'FAILED' if problems else 'ok'}  {case.name}" + "".join(f"\n  {one}" for one in problems))
    finally:
        spark.stop()
    if failed:
        click.get_current_context().exit(FAILED)


@pipeline.command()
@FILE
@click.option("--offline", is_flag=True, help="Do not ask the broker about topics and views.")
@AS_JSON
def validate(file: Path, offline: bool, as_json: bool) -> None:
    """Check FILE without starting Spark: every problem at once, with its line."""
    from mainstem_pipeline.pipeline.document import BadPipeline
    from mainstem_pipeline.pipeline.failures import BAD_FILE, exit_code
    from mainstem_pipeline.pipeline.validation import validated

    try:
        notes = validated(file, offline=offline)
    except BadPipeline as error:
        if as_json:
            problems = [{"line": one.line, "problem": one.what, "hint": one.hint} for one in error.problems]
            click.echo(json.dumps({"file": str(file), "problems": problems}))
            click.get_current_context().exit(BAD_FILE)
        _ended(error, BAD_FILE)
    except MainstemError as error:
        _ended(error, exit_code(error))
    else:
        if as_json:
            click.echo(json.dumps({"file": str(file), "problems": [], "notes": notes}))
        else:
            for note in notes:
                click.echo(note)
            click.echo(f"{file}: no problems")


@pipeline.command()
@FILE
@AS_JSON
def explain(file: Path, as_json: bool) -> None:
    """Say in words what each flow of FILE does, from source to sinks."""
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.validation import explained

    loaded = load_pipeline(file)
    told = explained(loaded)
    click.echo(json.dumps(told) if as_json else "\n".join(line for flow in told for line in flow["lines"]))


@pipeline.command()
@FILE
@AS_JSON
def status(file: Path, as_json: bool) -> None:
    """The last known state of each flow of FILE."""
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.state import State

    for one in State(load_pipeline(file)).statuses():
        if as_json:
            click.echo(json.dumps(one))
        else:
            facts = "  ".join(f"{name} {one[name]}" for name in ("batch", "rows", "bad", "lag") if name in one)
            click.echo(f"{one['flow']}: {one['state']}  {facts}".rstrip())
            if one.get("error"):
                click.echo(f"  {one['error']}")


@pipeline.command()
@FILE
@click.argument("flow")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(file: Path, flow: str, yes: bool) -> None:
    """Forget where FLOW of FILE stands: it starts over from its `start`. What it wrote stays."""
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.state import State

    state = State(load_pipeline(file))
    if not yes:
        click.confirm(f"Forget the checkpoint of flow {flow}? It will read everything again.", abort=True)
    state.take()
    try:
        there_was = state.reset(flow)
    finally:
        state.release()
    click.echo(f"{flow}: {'forgotten' if there_was else 'there was nothing to forget'}")


@pipeline.command()
@FILE
@click.argument("flow", default="")
@click.option("--all", "everything", is_flag=True, help="Also those that were given back before.")
def redrive(file: Path, flow: str, everything: bool) -> None:
    """Give the dead letters of FLOW back to the topics they came from, once each: after the mistake is corrected.

    All readers of these topics get them again. Letters that no record is behind (rows of tables, of groups) stay.
    """
    from mainstem_pipeline.pipeline import redrive as letters
    from mainstem_pipeline.pipeline.checks import load_pipeline

    loaded = load_pipeline(file)
    chosen = letters.flow_of(loaded, flow)
    done = letters.redrive(loaded, chosen, everything=everything)
    left = f"; {done.left} letters have no record to give back" if done.left else ""
    click.echo(f"{chosen.name}: {done.records} records are back in their topics{left}")


for _command in COMMANDS:
    pipeline.add_command(_command)

# -- sql and lake ------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("statement", required=False)
@URL
@WAREHOUSE
@CATALOG
@MASTER
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True
)
@click.option("--output", type=click.Path(path_type=Path), help="A file for the result (needed for parquet).")
@click.option("--limit", type=int, default=1000, show_default=True, help="Rows shown at most as a table.")
@click.option("--accept-loss", is_flag=True, help="Leave out what retention removed before it was archived.")
@with_spark
def sql(
    statement: str | None,
    url: str,
    warehouse: str,
    catalog: str,
    master: str,
    form: str,
    output: Path | None,
    limit: int,
    accept_loss: bool,
) -> None:
    """Spark SQL over topics, views and tables; a prompt without a statement.

    \b
    mainstem sql 'select count(*) from `sensors/#`'                a filter, over all history
    mainstem sql 'select * from `orders` where offset > 100'       a topic (or a view, or a lake table ns.name)
    An archived topic is read from its table and, from where that ends, from the log: each row once. Times are UTC.
    """
    from mainstem_pipeline.query.shell import SqlShell

    def announce(text: str) -> None:
        click.echo(text, err=True)

    shell = SqlShell(url, warehouse, catalog, master, announce, accept_loss=accept_loss)
    with shell:
        if statement is not None:
            shell.run(statement, form=form, output=output, limit=limit)
        else:
            shell.prompt(limit=limit)


@click.group()
def lake() -> None:
    """The lakehouse: topics as Iceberg tables."""


@lake.command()
@click.argument("source", metavar="TOPIC|FILTER")
@click.option("--table", help="The table; by default raw.<topic>.")
@click.option("--once", is_flag=True, help="Archive what is there now, then end.")
@click.option("--state", help="Folder or URL where the archive's position is kept (default: in the lake).")
@click.option("--trigger", default="60s", show_default=True, help="How often the table is brought up to date.")
@click.option("--accept-loss", is_flag=True, help="Go on without what retention removed before it was archived.")
@click.option(
    "--decode",
    type=click.Choice(["auto", "only"]),
    help="Keep a table of the values' fields: beside the raw one (auto), or in its place (only).",
)
@click.option("--decode-table", help="Its name; by default decoded.<topic>.")
@click.option(
    "--partition", multiple=True, help="Of the decoded table: day(_timestamp), bucket(16, device), device. Repeatable."
)
@click.option("--sort", multiple=True, help="Of the decoded table: device, or '_timestamp desc'. Repeatable.")
@URL
@WAREHOUSE
@CATALOG
@MASTER
@AS_JSON
@with_spark
def archive(
    source: str,
    table: str | None,
    once: bool,
    state: str | None,
    trigger: str,
    accept_loss: bool,
    decode: str | None,
    decode_table: str | None,
    partition: tuple[str, ...],
    sort: tuple[str, ...],
    url: str,
    warehouse: str,
    catalog: str,
    master: str,
    as_json: bool,
) -> None:
    """Keep an Iceberg table of a topic (or of all topics a filter means) up to date."""
    from mainstem_pipeline.lake.commands import archive_pipeline, table_name
    from mainstem_pipeline.pipeline.flow_checks import duration_ms
    from mainstem_pipeline.pipeline.runner import RunOptions

    trigger_ms = duration_ms(trigger)
    if trigger_ms is None:
        raise InvalidArgument(f"--trigger {trigger!r} is not a duration", fix="--trigger 60s")
    if decode is None and (decode_table or partition or sort):
        raise InvalidArgument("--decode-table, --partition and --sort are of a decoded table", fix="--decode auto")
    if decode == "only" and table:
        raise InvalidArgument("--decode only keeps no raw table to be called by --table", fix="--decode-table NAME")
    made = archive_pipeline(
        source,
        table,
        decoded=(decode_table or f"decoded.{table_name(source)}") if decode else "",
        decoded_only=decode == "only",
        partition=partition,
        sort=sort,
        url=url,
        warehouse=warehouse,
        catalog=catalog,
        state=state,
        trigger_ms=trigger_ms,
        accept_loss=accept_loss,
    )
    # No row passes through the JVM: compiling it well would cost more than it ever gives back.
    _run(lambda: made, RunOptions(once=once, master=master, fast_start=True), as_json=as_json)


@lake.command()
@click.argument("raw", metavar="TABLE")
@click.option("--table", help="The decoded table; by default decoded.<name of the raw one>.")
@click.option(
    "--partition", multiple=True, help="day(_timestamp), bucket(16, device), truncate(4, device), device. Repeatable."
)
@click.option("--sort", multiple=True, help="By this column: device, or '_timestamp desc'. Repeatable.")
@click.option("--again", is_flag=True, help="Decode everything again, by the schemas that are registered now.")
@URL
@WAREHOUSE
@CATALOG
def decode(
    raw: str,
    table: str | None,
    partition: tuple[str, ...],
    sort: tuple[str, ...],
    again: bool,
    url: str,
    warehouse: str,
    catalog: str,
) -> None:
    """Bring a table of the values' fields to where the raw TABLE is, from all its history. Needs no Spark.

    How it is partitioned and sorted is said when it is made.
    """
    from mainstem_pipeline.lake.catalog import LakeOptions, identifier
    from mainstem_pipeline.lake.decoded import Decoded

    place = identifier(raw)
    name = table or f"decoded.{place[-1]}"
    made = Decoded(LakeOptions(warehouse, catalog), ".".join(place), name, {"url": url}, partition, sort)
    if again:
        made.begin_again()
    click.echo(f"{made.catch_up():,} rows decoded into {name}")


@lake.command("ls")
@WAREHOUSE
@CATALOG
@AS_JSON
def list_tables(warehouse: str, catalog: str, as_json: bool) -> None:
    """The tables of the lake, with rows, files and bytes."""
    from mainstem_pipeline.lake.commands import tables

    for one in tables(warehouse, catalog):
        if as_json:
            click.echo(json.dumps(one))
        else:
            size = f"{one['bytes'] / 1e6:,.1f} MB"
            click.echo(
                f"{one['table']}: {counted(one['rows'], 'row')}, {counted(one['files'], 'file')}, {size}, "
                f"{counted(one['snapshots'], 'snapshot')}"
            )


@lake.command()
@URL
@AS_JSON
def archives(url: str, as_json: bool) -> None:
    """How far archives have reported that they are: what retention waits for."""
    client = BrokerClient(url, retry_s=1.0)
    for one in client.get("/v1/archives")["items"]:
        if as_json:
            click.echo(json.dumps(one))
            continue
        for at in one["positions"]:
            meant = f" of {at['filter']}" if at["filter"] else ""
            click.echo(f"{one['name']}: log {at['log']}{meant} up to offset {at['offset']:,}")
    client.close()


@lake.command()
@click.argument("name")
@URL
def forget(name: str, url: str) -> None:
    """Wait no longer for the archive NAME, which was given up. Its table stays."""
    client = BrokerClient(url, retry_s=1.0)
    client.delete(f"/v1/archives/{quote(name)}")
    client.close()
    click.echo(f"{name}: forgotten")


@lake.command()
@click.argument("table", required=False)
@click.option("--target-mb", type=int, default=128, show_default=True, help="Compact small files up to this size.")
@click.option("--keep-snapshots", type=int, default=20, show_default=True, help="Snapshots that stay.")
@click.option("--grace", default="1h", show_default=True, help="Files nobody names any more go after this time.")
@WAREHOUSE
@CATALOG
@MASTER
@AS_JSON
@with_spark
def maintain(
    table: str | None,
    target_mb: int,
    keep_snapshots: int,
    grace: str,
    warehouse: str,
    catalog: str,
    master: str,
    as_json: bool,
) -> None:
    """Compact small files, expire old snapshots, remove files nobody names. All tables, or one."""
    from mainstem_pipeline.lake.commands import maintained

    for one in maintained(table, target_mb, keep_snapshots, grace, warehouse, catalog, master):
        click.echo(json.dumps(one) if as_json else one["text"])


__all__ = ["lake", "pipeline", "sql"]
