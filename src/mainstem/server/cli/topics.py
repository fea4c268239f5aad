"""`topic` and `view`."""

from __future__ import annotations

from typing import Any

import click

from mainstem.model.counted import counted
from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.infer import infer
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows, show, show_time_ns
from mainstem.server.cli.working import WORK_S_MAX, followed
from mainstem.server.protocols import by_name
from mainstem.storage.engines import ENGINES

set_option = click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting, by our name or Kafka's: retention.ms=7d. Repeatable.",
)
setting_options = [
    set_option,
    click.option("--partitions", type=int, help="Partitions; more than one makes the topic dedicated."),
    click.option("--engine", type=click.Choice(list(ENGINES)), help="Where its bytes rest."),
    click.option("--layout", type=click.Choice(["shared", "dedicated"]), help="In the main stem, or a log of its own."),
    click.option("--durability", help="sync, interval:<ms>, os or none."),
    click.option("--store", type=click.Choice(["true", "false"]), help="false: live only, kept nowhere."),
    click.option("--retention", help="How long records are kept: 7d, unlimited."),
]


def with_settings(command: Any) -> Any:
    for option in reversed(setting_options):
        command = option(command)
    return command


def read_settings(pairs: tuple[str, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Options and --set pairs as the API wants them: numbers in milliseconds and bytes."""
    from mainstem.server.config import setting_of

    for pair in pairs:
        if "=" not in pair:
            raise InvalidArgument(f"--set {pair!r} must be KEY=VALUE", fix="--set retention.ms=7d")
    given = [pair.partition("=")[::2] for pair in pairs]
    if named.get("retention"):
        given.append(("retention_ms", named["retention"]))
    given += [(name, str(value)) for name, value in named.items() if value is not None and name != "retention"]
    settings = {}
    for name, text in given:
        known = setting_of(("policies", "", name))
        if known is None:
            raise InvalidArgument(f"unknown topic setting {name!r}", fix=_suggestion(name))
        key, setting = known
        try:
            settings[key] = setting.kind.parse(text)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}") from None
    return settings


def _suggestion(name: str) -> str:
    import difflib
    from dataclasses import fields

    from mainstem.server.settings import ALIASES, Policy

    known = [one.name for one in fields(Policy)] + list(ALIASES)
    near = difflib.get_close_matches(name.replace(".", "_"), known, 1)
    if not near:
        return "see [policies] in: mainstem config reference"
    return f"did you mean {near[0].replace('_', '.') if '.' in name else near[0]}?"


@click.group()
def topic() -> None:
    """List, describe, create, alter and remove topics. Names are spelled as in MQTT: sensors/kitchen/temp."""


topic.add_command(infer)


@topic.command("ls")
@click.argument("topic_filter", metavar="[FILTER]", required=False)
@click.option("--search", help="Only names that contain this.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most so many.")
@json_option
@url_option
def ls(topic_filter: str | None, search: str | None, limit: int, as_json: bool, url: str) -> None:
    """Topics, or those a FILTER such as 'sensors/#' means."""
    import itertools

    found = Api(url).rows("/v1/topics", filter=topic_filter, search=search)
    print_rows(
        itertools.islice(found, limit),
        ["name", "layout", "engine", "partitions", "records", "end_offset"],
        as_json=as_json,
        empty="no topics; publish to one: mainstem pub mqtt://localhost/hello world",
    )
    if next(found, None) is not None:
        click.echo(f"there are more than {limit}: --limit N shows more of them", err=True)


@topic.command()
@click.argument("name")
@json_option
@url_option
def describe(name: str, as_json: bool, url: str) -> None:
    """One topic: its spelling in each protocol, settings with their sources, where its bytes are."""
    facts = Api(url).get(f"/v1/topics/{segment(name)}")
    if not as_json:
        facts["settings"] = {
            key: f"{_shown_setting(key, one['value'])}  ({one['source']})" for key, one in facts["settings"].items()
        }
    print_facts(facts, as_json=as_json)


def _shown_setting(name: str, value: Any) -> str:
    """As one would write it: 7d, 64MiB, unlimited."""
    from mainstem.server.config import setting_of

    known = setting_of(("policies", "", name))
    return (show(value) if known is None or value is None else known[1].kind.show(value)) or "-"


def topic_named(name: str) -> str:
    """A topic as MQTT spells it; an address names it as its protocol does."""
    if "://" not in name:
        return name
    from mainstem.server.clients.client import read_address

    address = read_address(name)
    if not address.path:
        raise InvalidArgument(f"{name} names no topic", fix=f"{name.rstrip('/')}/TOPIC")
    return by_name()[address.scheme].topic_of(address.path).decode()


@topic.command()
@click.argument("name")
@with_settings
@json_option
@url_option
def create(name: str, pairs: tuple[str, ...], as_json: bool, url: str, **named: Any) -> None:
    """Declare a topic with settings of its own. Without any, just publish: the broker creates topics.

    NAME is spelled as in MQTT, or is an address: kafka://localhost/sensors.kitchen.temp.
    """
    name = topic_named(name)
    facts = Api(url).post("/v1/topics", {"name": name, "settings": read_settings(pairs, named)})
    print_done(f"created {name}: {_placed(facts)}{_elsewhere(facts)}", facts, as_json)


@topic.command()
@click.argument("name")
@with_settings
@json_option
@url_option
def alter(name: str, pairs: tuple[str, ...], as_json: bool, url: str, **named: Any) -> None:
    """Change settings while it is used: engine, layout, retention, ... Offsets are kept."""
    settings = read_settings(pairs, named)
    if not settings:
        raise InvalidArgument("nothing to change", fix="--set retention.ms=7d, --engine rocksdb, ...")
    facts = Api(url).patch(f"/v1/topics/{segment(name)}", {"settings": settings})
    print_done(f"changed {name}: {_placed(facts)}", facts, as_json)


@topic.command()
@click.argument("name")
@yes_option
@url_option
def rm(name: str, yes: bool, url: str) -> None:
    """Remove a topic and its records."""
    confirm(f"Remove topic {name} and all its records?", yes)
    Api(url).delete(f"/v1/topics/{segment(name)}")
    click.echo(f"removed {name}")


@topic.command()
@click.argument("name")
@yes_option
@url_option
def erase(name: str, yes: bool, url: str) -> None:
    """Take a topic's records off the disk, also those it had before it was removed. Other topics keep their offsets."""
    confirm(f"Erase all records of {name} from the disk?", yes)
    api = Api(url, timeout_s=WORK_S_MAX)
    facts = followed(api, "erase", name, lambda: api.delete(f"/v1/stored/{segment(name)}"))
    click.echo(f"erased {counted(facts['records'], 'record')} of {name}")


@click.group()
def view() -> None:
    """List, describe, create and remove views: named filters over everything stored, readable by every protocol.

    A view is not altered: making another costs nothing, and both show the same records at the same offsets.
    """


@view.command("ls")
@json_option
@url_option
def view_ls(as_json: bool, url: str) -> None:
    """Views by name."""
    rows = Api(url).rows("/v1/views")
    empty = "no views; make one: mainstem view create all-sensors 'sensors/#'"
    print_rows(rows, ["name", "filter", "where", "slots"], as_json=as_json, empty=empty)


@view.command("describe")
@click.argument("name")
@json_option
@url_option
def view_describe(name: str, as_json: bool, url: str) -> None:
    """One view, with what it shows of each log."""
    facts = Api(url).get(f"/v1/views/{segment(name)}")
    if not as_json:
        facts["created"] = show_time_ns(facts["created"])
    print_facts(facts, as_json=as_json)


@view.command("create")
@click.argument("name")
@click.argument("topic_filter", metavar="FILTER")
@click.option("--where", help="A condition: \"key ^= 'dev-' and header.region = 'eu' and header.trace exists\".")
@click.option("--grants", is_flag=True, help="Show readers also what rules deny them; for admins who mean it.")
@click.option("--last-by", type=click.Choice(["key", "topic"]), help="A table: only the newest record of each.")
@json_option
@url_option
def view_create(
    name: str, topic_filter: str, where: str | None, grants: bool, last_by: str | None, as_json: bool, url: str
) -> None:
    """Make a view of what FILTER means. It shows everything already stored, and costs nothing to make."""
    wanted = {"name": name, "filter": topic_filter, "where": where, "last_by": last_by, "grants": grants or None}
    facts = Api(url).post("/v1/views", wanted)
    counts = [part["records"] for part in facts["partitions"] if part.get("records") is not None]
    stored = f": {counted(sum(counts), 'record')} stored so far" if counts else ""
    print_done(
        f"created view {name}{stored}; read it as Kafka topic {facts['spellings']['kafka']}",
        facts,
        as_json,
    )


@view.command("get")
@click.argument("name")
@click.argument("key", required=False)
@click.option("--prefix", default="", help="Rows whose key begins so.")
@json_option
@url_option
def view_get(name: str, key: str | None, prefix: str, as_json: bool, url: str) -> None:
    """The newest record of KEY in a last-value view, or all of its rows."""
    api = Api(url)
    if key is not None:
        print_facts(api.get(f"/v1/tables/{segment(name)}", key=key), as_json=as_json)
        return
    rows = api.rows(f"/v1/tables/{segment(name)}", prefix=prefix)
    print_rows(rows, ["key", "topic", "value", "offset"], as_json=as_json, empty="the table is empty")


@view.command("alter", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("_", nargs=-1)
def view_alter(name: str, _: tuple[str, ...]) -> None:
    """A view is not altered; here to say so."""
    raise InvalidArgument(
        f"a view is not altered: who reads {name} would miss records, or get them twice, without knowing",
        fix=f"mainstem view create OTHER FILTER, move its readers (offsets are the same), then: mainstem view rm {name}",
    )


@view.command("rm")
@click.argument("name")
@yes_option
@url_option
def view_rm(name: str, yes: bool, url: str) -> None:
    """Delete a view; its records stay."""
    confirm(f"Delete view {name}?", yes)
    Api(url).delete(f"/v1/views/{segment(name)}")
    click.echo(f"removed view {name}")


def _elsewhere(facts: dict[str, Any]) -> str:
    """How the other protocols spell it: who meant `a/b` and wrote `a.b` sees it here."""
    spelled = [f"{protocol} {name}" for protocol, name in facts.get("spellings", {}).items() if name != facts["name"]]
    return f"; it is {', '.join(spelled)}" if spelled else ""


def _placed(facts: dict[str, Any]) -> str:
    return f"{facts['layout']}, {facts['engine']}, {counted(facts['partitions'], 'partition')}"
