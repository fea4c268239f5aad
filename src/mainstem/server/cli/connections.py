"""`conn`, `user` and `role`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_facts, print_rows
from mainstem.server.cli.quotas import quota_option, read_quotas
from mainstem.server.protocols import PROTOCOLS

if TYPE_CHECKING:
    from mainstem.metadata.store import MetadataStore


@click.group()
def conn() -> None:
    """List, describe and end connections."""


@conn.command("ls")
@click.option("--protocol", type=click.Choice([one.name for one in PROTOCOLS]), help="Only of this protocol.")
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
    if given is None and context.params.get("nkey"):
        return ""
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


@user.command("kept")
@json_option
@url_option
def user_kept(as_json: bool, url: str) -> None:
    """Rules that Kafka's tools made for names that no user has."""
    rows = Api(url).rows("/v1/kept-rules")
    shown = [{**row, "rules": len(row["rules"])} for row in rows] if not as_json else rows
    print_rows(
        shown, ["user", "namespace", "rules"], as_json=as_json, empty="no rules are kept for names without a user"
    )


@user.command("add")
@click.argument("name")
@click.option("--nkey", default="", is_eager=True, help="A NATS client's public key, U...: then it needs no password.")
@password_option
@click.option("--admin", is_flag=True, help="May do everything; the first user must be one.")
@click.option("--namespace", default="/", show_default=True, help="The namespace of its topics.")
@click.option("--data", metavar="DIR", help="Add it to a data directory of a stopped broker instead.")
@click.option("--cluster", metavar="URL", help="Add it to a cluster that no broker serves (postgresql://...).")
@url_option
def user_add(
    name: str, nkey: str, password: str, admin: bool, namespace: str, data: str | None, cluster: str | None, url: str
) -> None:
    """Add a user."""
    if cluster is not None:
        had = _add_to_cluster(cluster, name, password, admin=admin, namespace=namespace, nkey=nkey)
    elif data is None:
        body = {"name": name, "password": password, "admin": admin, "namespace": namespace, "nkey": nkey}
        had = len(Api(url).post("/v1/users", body)["rules"])
    else:
        had = _add_offline(data, name, password, admin=admin, namespace=namespace, nkey=nkey)
    click.echo(f"added user {name}")
    if had:
        click.echo(f"it has {counted(had, 'rule')} that Kafka's tools made for its name: mainstem user describe {name}")


def _add_offline(data: str, name: str, password: str, **more: Any) -> int:
    from pathlib import Path

    from mainstem.metadata.sqlite import SqliteStore
    from mainstem.storage.directory import DataDirectory

    directory = DataDirectory(Path(data))
    try:
        return _add_to_store(SqliteStore(directory.path / "metadata.sqlite"), name, password, **more)
    finally:
        directory.release()


def _add_to_cluster(dsn: str, name: str, password: str, **more: Any) -> int:
    from mainstem.cluster.cell import CellStore, borrow_cell
    from mainstem.cluster.schema import FIRST_CELL

    with borrow_cell(dsn, f"user {name} was added") as epoch:
        return _add_to_store(CellStore(dsn, FIRST_CELL, epoch, lambda reason: None), name, password, **more)


def _add_to_store(store: MetadataStore, name: str, password: str, **more: Any) -> int:
    """Returns how many rules were kept for its name."""
    from mainstem.broker.rights.access import Access

    try:
        facts = store.load()
        namespaces = {"/", *(row.name for row in facts.namespaces)}  # the default one is made at the first start
        access = Access(store, facts.items, namespaces=namespaces)
        access.add_user(name, password, **more).result()
        return len(access.user(name).rules)
    finally:
        store.close()


@user.command("import")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--namespace", help="Where they all belong; without: RabbitMQ's vhosts, or /.")
@json_option
@url_option
def user_import(file: TextIO, namespace: str | None, as_json: bool, url: str) -> None:
    """Add the users of FILE, a mosquitto password file or RabbitMQ's definitions, with their passwords."""
    body = {"text": file.read(), **({"namespace": namespace} if namespace else {})}
    facts = Api(url).post("/v1/users/import", body)
    if as_json:
        print_facts(facts, as_json=True)
    else:
        click.echo(f"added {counted(len(facts['added']), 'user')}")
        for name, why in facts["skipped"].items():
            click.echo(f"not added: {name}: {why}", err=True)
        for name, what in facts["left_out"].items():
            click.echo(f"{name}: no rule was made for {'; '.join(what)}", err=True)
    if facts["skipped"]:
        raise SystemExit(1)


@user.command("passwd")
@click.argument("name")
@password_option
@url_option
def user_passwd(name: str, password: str, url: str) -> None:
    """Set a user's password."""
    Api(url).patch(f"/v1/users/{segment(name)}", {"password": password})
    click.echo(f"changed the password of {name}")


@user.command("alter")
@click.argument("name")
@click.option("--namespace", help="The namespace it belongs to; its connections end.")
@click.option("--also", multiple=True, help="A namespace that it may choose instead; '' for none. Again for more.")
@click.option("--nkey", help="A NATS client's public key, U...; '' for none.")
@quota_option
@url_option
def user_alter(
    name: str, namespace: str | None, also: tuple[str, ...], nkey: str | None, quotas: tuple[str, ...], url: str
) -> None:
    """Let a user belong to other namespaces, log in by a key, or use less or more."""
    chosen = [one for one in also if one] if also else None
    given = {"namespace": namespace, "also": chosen, "nkey": nkey, "quota": read_quotas(quotas) or None}
    body = {key: value for key, value in given.items() if value is not None}
    if not body:
        fix = "--namespace NAME, --also NAME, --nkey U..., --quota connections_max=10"
        raise InvalidArgument("nothing to change", fix=fix)
    Api(url).patch(f"/v1/users/{segment(name)}", body)
    click.echo(f"changed user {name}")


@user.command("rm")
@click.argument("name")
@yes_option
@url_option
def user_rm(name: str, yes: bool, url: str) -> None:
    """Remove a user and all rules of its name, also those that are kept for it."""
    confirm(f"Remove user {name} and its rules?", yes)
    Api(url).delete(f"/v1/users/{segment(name)}")
    click.echo(f"removed user {name}")


KINDS = ("topic", "queue", "exchange", "group", "transaction", "namespace", "cluster")
kind_option = click.option(
    "--on", "kind", type=click.Choice(KINDS), default="topic", show_default=True, help="What FILTER names."
)


def _rule(name: str, action: tuple[str, ...], topic_filter: str, kind: str, allow: bool, url: str) -> None:
    body = {"allow": allow, "actions": list(action), "filter": topic_filter, "kind": kind}
    Api(url).post(f"/v1/users/{segment(name)}/rules", body)
    what = topic_filter if kind == "topic" else f"{kind} {topic_filter}"
    click.echo(f"{name} {'may' if allow else 'may not'} {', '.join(action)} {what}")


@user.command()
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@kind_option
@url_option
def allow(name: str, action: tuple[str, ...], topic_filter: str, kind: str, url: str) -> None:
    """Allow ACTIONs (publish consume create configure delete describe manage) on what FILTER means."""
    _rule(name, action, topic_filter, kind, True, url)


@user.command()
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@kind_option
@url_option
def deny(name: str, action: tuple[str, ...], topic_filter: str, kind: str, url: str) -> None:
    """Deny ACTIONs on what FILTER means; deny wins over allow."""
    _rule(name, action, topic_filter, kind, False, url)


@user.command()
@click.argument("name")
@click.argument("topic_filter", metavar="FILTER")
@kind_option
@url_option
def forget(name: str, topic_filter: str, kind: str, url: str) -> None:
    """Remove the rules a user has for FILTER."""
    Api(url).delete(f"/v1/users/{segment(name)}/rules", filter=topic_filter, kind=kind)
    click.echo(f"{name} has no rule for {topic_filter} any more")


@user.command("roles")
@click.argument("name")
@click.argument("role", nargs=-1)
@url_option
def user_roles(name: str, role: tuple[str, ...], url: str) -> None:
    """Give a user these ROLEs and no others."""
    Api(url).patch(f"/v1/users/{segment(name)}/roles", {"roles": list(role)})
    click.echo(f"{name} has {'the roles ' + ', '.join(role) if role else 'no role'}")


@user.command("may")
@click.argument("name")
@click.argument("action")
@click.argument("topic_filter", metavar="FILTER")
@click.option("--client", default="", help="The client's id, where a rule has %c.")
@click.option("--why", is_flag=True, help="Show the rules that decide it.")
@json_option
@url_option
def user_may(name: str, action: str, topic_filter: str, client: str, why: bool, as_json: bool, url: str) -> None:
    """Whether a user may do ACTION with all that FILTER means. Ends with 1 if not."""
    wanted = {"action": action, "filter": topic_filter, "client": client}
    facts = Api(url).get(f"/v1/users/{segment(name)}/may", **wanted)
    if as_json:
        print_facts(facts, as_json=True)
    else:
        click.echo(f"{name} {'may' if facts['allowed'] else 'may not'} {action} {topic_filter}")
        for line in facts["why"] if why else ():
            click.echo(f"  {line}")
    if not facts["allowed"]:
        raise SystemExit(1)


@click.group()
def role() -> None:
    """List, make and remove roles: rules that several users have. The role * is everybody's."""


@role.command("ls")
@json_option
@url_option
def role_ls(as_json: bool, url: str) -> None:
    """Roles by name."""
    rows = Api(url).get("/v1/roles")["items"]
    shown = rows if as_json else [{**row, "rules": len(row["rules"]), "users": ", ".join(row["users"])} for row in rows]
    print_rows(shown, ["name", "rules", "users"], as_json=as_json, empty="no roles: mainstem role add NAME")


@role.command("add")
@click.argument("name")
@url_option
def role_add(name: str, url: str) -> None:
    """Make a role without rules; one that exists stays as it is."""
    if all(row["name"] != name for row in Api(url).get("/v1/roles")["items"]):
        Api(url).post("/v1/roles", {"name": name, "rules": []})
    click.echo(f"added role {name}")


def _role_rule(name: str, action: tuple[str, ...], topic_filter: str, kind: str, allow: bool, url: str) -> None:
    found = [row for row in Api(url).get("/v1/roles")["items"] if row["name"] == name]
    if not found:
        raise InvalidArgument(f"there is no role {name}", fix=f"mainstem role add {name}")
    rule = {"allow": allow, "actions": list(action), "filter": topic_filter, "kind": kind}
    Api(url).post("/v1/roles", {"name": name, "rules": [*found[0]["rules"], rule]})
    click.echo(f"role {name}: {'allow' if allow else 'deny'} {', '.join(action)} {topic_filter}")


@role.command("allow")
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@kind_option
@url_option
def role_allow(name: str, action: tuple[str, ...], topic_filter: str, kind: str, url: str) -> None:
    """Allow whoever has the role ACTIONs on what FILTER means."""
    _role_rule(name, action, topic_filter, kind, True, url)


@role.command("deny")
@click.argument("name")
@click.argument("action", nargs=-1, required=True)
@click.argument("topic_filter", metavar="FILTER")
@kind_option
@url_option
def role_deny(name: str, action: tuple[str, ...], topic_filter: str, kind: str, url: str) -> None:
    """Deny whoever has the role ACTIONs on what FILTER means; deny wins over allow."""
    _role_rule(name, action, topic_filter, kind, False, url)


@role.command("rm")
@click.argument("name")
@yes_option
@url_option
def role_rm(name: str, yes: bool, url: str) -> None:
    """Remove a role that no user has."""
    confirm(f"Remove role {name} and its rules?", yes)
    Api(url).delete(f"/v1/roles/{segment(name)}")
    click.echo(f"removed role {name}")
