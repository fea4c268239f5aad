"""`conn` and `user`."""

from __future__ import annotations

import sys

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_facts, print_rows


@click.group()
def conn() -> None:
    """List, describe and end connections."""


@conn.command("ls")
@click.option("--protocol", type=click.Choice(["mqtt", "kafka", "amqp"]), help="Only of this protocol.")
@json_option
@url_option
def conn_ls(protocol: str | None, as_json: bool, url: str) -> None:
    """Who is connected."""
    rows = Api(url).rows("/v1/connections", protocol=protocol)
    columns = ["id", "protocol", "client", "user", "address", "connected_s", "state"]
    print_rows(rows, columns, as_json=as_json, empty="nobody is connected")


@conn.command("describe")
@click.argument("connection")
@json_option
@url_option
def conn_describe(connection: str, as_json: bool, url: str) -> None:
    """One connection in full."""
    print_facts(Api(url).get(f"/v1/connections/{segment(connection)}"), as_json=as_json)


@conn.command("rm")
@click.argument("connection")
@url_option
def conn_rm(connection: str, url: str) -> None:
    """End a connection; the client may come back."""
    Api(url).delete(f"/v1/connections/{segment(connection)}")
    click.echo(f"disconnected {connection}")


@click.group()
def user() -> None:
    """List, add and remove users; allow and deny. From the first user on nobody gets in without a login."""


def _asked(context: click.Context, option: click.Parameter, given: str | None) -> str:
    if given is None and not sys.stdin.isatty():
        raise InvalidArgument("no password, and no terminal to ask for one", fix="MAINSTEM_NEW_PASSWORD, or --password")
    return given if given is not None else str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


password_option = click.option(
    "--password",
    envvar="MAINSTEM_NEW_PASSWORD",
    callback=_asked,
    help="Asked for if not given (environment MAINSTEM_NEW_PASSWORD).",
)


@user.command("ls")
@json_option
@url_option
def user_ls(as_json: bool, url: str) -> None:
    """Users by name."""
    rows = [{**row, "rules": len(row["rules"])} if not as_json else row for row in Api(url).rows("/v1/users")]
    empty = "no users: every login on this machine is accepted; add one: mainstem user add NAME --admin"
    print_rows(rows, ["name", "namespace", "admin", "rules"], as_json=as_json, empty=empty)


@user.command("describe")
@click.argument("name")
@json_option
@url_option
def user_describe(name: str, as_json: bool, url: str) -> None:
    """One user with its rules."""
    print_facts(Api(url).get(f"/v1/users/{segment(name)}"), as_json=as_json)


@user.command("add")
@click.argument("name")
@password_option
@click.option("--admin", is_flag=True, help="May do everything; the first user must be one.")
@click.option("--namespace", default="/", show_default=True, help="The namespace of its topics.")
@click.option("--data", metavar="DIR", help="Add it to a data directory of a stopped broker instead.")
@url_option
def user_add(name: str, password: str, admin: bool, namespace: str, data: str | None, url: str) -> None:
    """Add a user."""
    if data is None:
        Api(url).post("/v1/users", {"name": name, "password": password, "admin": admin, "namespace": namespace})
    else:
        _add_offline(data, name, password, admin, namespace)
    click.echo(f"added user {name}")


def _add_offline(data: str, name: str, password: str, admin: bool, namespace: str) -> None:
    from pathlib import Path

    from mainstem.broker.access import Access
    from mainstem.metadata.sqlite import SqliteStore
    from mainstem.storage.directory import DataDirectory

    directory = DataDirectory(Path(data))
    store = SqliteStore(directory.path / "metadata.sqlite")
    try:
        Access(store, store.load().items).add_user(name, password, admin=admin, namespace=namespace).result()
    finally:
        store.close()
        directory.release()


@user.command("passwd")
@click.argument("name")
@password_option
@url_option
def user_passwd(name: str, password: str, url: str) -> None:
    """Set a user's password."""
    Api(url).patch(f"/v1/users/{segment(name)}", {"password": password})
    click.echo(f"changed the password of {name}")


@user.command("rm")
@click.argument("name")
@yes_option
@url_option
def user_rm(name: str, yes: bool, url: str) -> None:
    """Remove a user and its rules."""
    confirm(f"Remove user {name} and its rules?", yes)
    Api(url).delete(f"/v1/users/{segment(name)}")
    click.echo(f"removed user {name}")


def _rule(name: str, action: tuple[str, ...], topic_filter: str, allow: bool, url: str) -> None:
    body = {"allow": allow, "actions": list(action), "filter": topic_filter}
    Api(url).post(f"/v1/users/{segment(name)}/rules", body)
    click.echo(f"{name} {'may' if allow else 'may not'} {', '.join(action)} {topic_filter}")


@user.command()
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@url_option
def allow(name: str, action: tuple[str, ...], topic_filter: str, url: str) -> None:
    """Allow ACTIONs (publish consume create configure delete describe) on what FILTER means."""
    _rule(name, action, topic_filter, True, url)


@user.command()
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@url_option
def deny(name: str, action: tuple[str, ...], topic_filter: str, url: str) -> None:
    """Deny ACTIONs on what FILTER means; deny wins over allow."""
    _rule(name, action, topic_filter, False, url)


@user.command()
@click.argument("name")
@click.argument("topic_filter", metavar="FILTER")
@url_option
def forget(name: str, topic_filter: str, url: str) -> None:
    """Remove the rules a user has for FILTER."""
    Api(url).delete(f"/v1/users/{segment(name)}/rules", filter=topic_filter)
    click.echo(f"{name} has no rule for {topic_filter} any more")
