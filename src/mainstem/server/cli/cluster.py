"""`cluster`: who takes part, who owns what, and what a person may ask for: drain, move, import, export.

It asks PostgreSQL, not a broker: it answers while no broker does.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mainstem.broker.namespaces.placement import FIRST_CELL
from mainstem.model.counted import counted
from mainstem.model.errors import ConfigError, InvalidArgument, NotFound
from mainstem.server.cli.failures import EX_FAILED
from mainstem.server.cli.output import Progress, json_option, print_rows
from mainstem.server.cli.settings import default_file

if TYPE_CHECKING:
    import asyncpg

    from mainstem.cluster.membership import View
    from mainstem.server.settings import Config
    from mainstem.storage.tier.store import StoreSettings

T = TypeVar("T")
NAMES_MAX = 5
_Command = Callable[..., Any]
store_option = click.option("--store", metavar="URL", help="The object store; default: tier.store.")
single_option = click.option(
    "--single-postgres", is_flag=True, help="The PostgreSQL has no synchronous standby, and that is meant."
)


def where(command: _Command) -> _Command:
    options = [
        click.option("--cluster", "url", metavar="URL", help="postgresql://...; default: cluster.postgres."),
        click.option("--config", "file", type=click.Path(path_type=Path), envvar="MAINSTEM_CONFIG", metavar="FILE"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _config(url: str | None, file: Path | None, store: str | None = None) -> Config:
    from mainstem.server.config import load_config

    flags = [f"cluster.postgres={url}"] if url else []
    config = load_config(default_file(file), os.environ, [*flags, *([f"tier.store={store}"] if store else [])])
    if not config.cluster.postgres:
        raise ConfigError("no cluster is named", fix="--cluster postgresql://..., or [cluster] postgres in the file")
    return config


def _ask(config: Config, run: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    from mainstem.cluster.schema import SCHEMA
    from mainstem.metadata.postgres_session import PostgresSession

    session = PostgresSession(config.cluster.postgres, SCHEMA)
    try:
        return session.use(run)
    finally:
        session.close()


def _change(config: Config, sql: str, *given: object) -> None:
    from mainstem.cluster.membership import hurry

    async def change(connection: asyncpg.Connection[Any]) -> None:
        await connection.execute(sql, *given)
        await hurry(connection)

    _ask(config, change)


def _look(config: Config) -> View:
    from mainstem.cluster.membership import look
    from mainstem.cluster.schema import SCHEMA

    async def look_if_any(connection: asyncpg.Connection[Any]) -> View:
        if await connection.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.cluster") is None:
            raise NotFound(
                "this database holds no cluster", fix="start a broker: mainstem serve --cluster URL --store URL"
            )
        return await look(connection)

    return _ask(config, look_if_any)


@click.group()
def cluster() -> None:
    """Brokers that serve the same data: who takes part and who owns what. See docs/cluster.md."""


@cluster.command()
@where
@json_option
def status(url: str | None, file: Path | None, as_json: bool) -> int:
    """One line for each cell; exit code 1 if one has no owner."""
    view = _look(_config(url, file))
    rows = [
        {
            "cell": one.name,
            "namespaces": _namespaces_of(view, one.cell_id),
            "owner": one.owner if one.lease_s > 0 else None,
            "epoch": one.epoch,
            "lease_s": round(one.lease_s, 1),
            "rows_since_image": one.wal_seq - one.flushed_seq,
            "taken_because": one.reason,
        }
        for one in view.cells.values()
    ]
    columns = ["cell", "namespaces", "owner", "epoch", "lease_s", "rows_since_image", "taken_because"]
    print_rows(rows, columns, as_json=as_json)
    return EX_FAILED if any(row["owner"] is None for row in rows) else 0


def _namespaces_of(view: View, cell_id: int) -> str:
    """Those that were placed there; everyone else is in the first."""
    names = sorted(name for name, cell in view.places.items() if cell == cell_id)
    if cell_id == FIRST_CELL:
        return "all others" if view.places else "all"
    more = f", and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


@cluster.command("ls")
@where
@json_option
def list_brokers(url: str | None, file: Path | None, as_json: bool) -> None:
    """One line for each broker."""
    view = _look(_config(url, file))
    rows = [
        {
            "name": one.name,
            "node_id": one.node_id,
            "address": f"{one.host}:{one.relay_port}",
            "state": one.state,
            "heard_s": round(one.heard_s, 1),
            "owns": ", ".join(cell.name for cell in view.owned_by(one.name)) if one.owns else "-",
            "version": one.version,
        }
        for one in view.brokers.values()
    ]
    print_rows(rows, ["name", "node_id", "address", "state", "heard_s", "owns", "version"], as_json=as_json)


@cluster.command()
@click.argument("broker")
@click.option("--off", is_flag=True, help="It may own cells again.")
@where
def drain(broker: str, off: bool, url: str | None, file: Path | None) -> None:
    """Have BROKER hand over what it owns and take nothing new; it goes on relaying."""
    config = _config(url, file)
    view = _look(config)
    _known(view, broker)
    others = [one for one in view.brokers.values() if one.takes and one.name != broker]
    if not off and not others:
        raise InvalidArgument(f"no other broker could take over from {broker}", fix="start another one first")
    _change(config, "UPDATE broker SET draining = $2 WHERE name = $1", broker, not off)
    click.echo(f"{broker} may own cells again" if off else f"{broker} is drained: mainstem cluster status shows when")


@cluster.command()
@click.argument("cell")
@click.argument("broker")
@where
def move(cell: str, broker: str, url: str | None, file: Path | None) -> None:
    """Have the owner of CELL hand it over to BROKER."""
    config = _config(url, file)
    view = _look(config)
    _known(view, broker)
    if not view.brokers[broker].takes:
        why = "it is away, drained, or its roles are without cells"
        raise InvalidArgument(f"{broker} cannot take a cell now: {why}", fix="mainstem cluster ls")
    found = next((one for one in view.cells.values() if one.name == cell), None)
    if found is None:
        raise NotFound(f"there is no cell {cell!r}", fix="mainstem cluster status")
    if found.owner == broker and found.lease_s > 0:
        raise InvalidArgument(f"{broker} owns {cell} already", fix="mainstem cluster status")
    _change(config, "UPDATE cell SET wanted = $2 WHERE name = $1", cell, broker)
    click.echo(f"{cell} moves to {broker}: mainstem cluster status shows when")


@cluster.command()
@where
@store_option
@single_option
def doctor(url: str | None, file: Path | None, store: str | None, single_postgres: bool) -> int:
    """Check PostgreSQL, the object store and this machine's clock, with fixes. Exit code 1 if anything is wrong."""
    from mainstem.cluster.checks import problems

    config = _config(url, file, store)
    single = single_postgres or config.cluster.single_postgres
    found = problems(config.cluster.postgres, _store(config), single_postgres=single)
    for name, wrong, fix in found:
        click.echo(f"{'✖' if wrong else '✔'} {name:<22} {wrong or 'well'}")
        if wrong and fix:
            click.echo(f"  {'':<22} fix: {fix}")
    return EX_FAILED if any(wrong for _, wrong, _ in found) else 0


@cluster.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@where
@store_option
@single_option
def import_command(
    directory: Path, url: str | None, file: Path | None, store: str | None, single_postgres: bool
) -> None:
    """Make the data of a stopped broker the cluster's, which must be new. DIRECTORY stays as it is."""
    from mainstem.cluster.checks import join
    from mainstem.cluster.moving import import_directory

    config = _config(url, file, store)
    settings = _store(config)
    join(config.cluster.postgres, settings, single_postgres=single_postgres or config.cluster.single_postgres)
    with Progress("import", 0, unit="B") as progress:
        count = import_directory(config.cluster.postgres, settings, directory, progress.set)
    click.echo(f"imported {counted(count, 'file')} of {directory}: start brokers with --cluster")


@cluster.command("export")
@click.argument("directory", type=click.Path(path_type=Path))
@where
@store_option
def export_command(directory: Path, url: str | None, file: Path | None, store: str | None) -> None:
    """Make a data directory of the cluster's data, for a broker that is alone. No broker may serve meanwhile."""
    from mainstem.cluster.moving import export_directory

    config = _config(url, file, store)
    with Progress("export", 0, unit="B") as progress:
        count = export_directory(config.cluster.postgres, _store(config), directory, progress.set)
    click.echo(f"exported {counted(count, 'file')}: mainstem serve --data {directory}")


def _store(config: Config) -> StoreSettings:
    from mainstem.server.app import tier_settings

    tier = tier_settings(config)
    if tier is None:
        raise ConfigError("no object store is named", fix="--store s3://BUCKET/PREFIX")
    return tier.store


def _known(view: View, broker: str) -> None:
    if broker not in view.brokers:
        raise NotFound(f"no broker is called {broker!r}", fix="mainstem cluster ls")
