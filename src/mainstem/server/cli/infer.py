"""`topic infer`: a schema proposed from the data, and what it, or the one that is registered, would break."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from mainstem.model.errors import MainstemError
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.output import json_option, print_rows

if TYPE_CHECKING:
    from mainstem.broker.schemas.inference import Inferring, Refused

PAGE_ROWS = 500
REFERENCES_MAX = 200
Values = list[tuple[str, bytes]]  # (where it is, the value)


@click.command()
@click.argument("topic_filter", metavar="FILTER")
@click.option(
    "--records", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="How many to look at."
)
@click.option("--add", "subject", metavar="SUBJECT", help="Register what was found.")
@json_option
@url_option
def infer(topic_filter: str, records: int, subject: str | None, as_json: bool, url: str) -> None:
    """Propose a JSON Schema from the newest records: fields, types, share of records, odd ones, and what would break.

    What would break: records that the proposed schema refuses, those that the registered one refuses (of SUBJECT, and of
    the topics' own `schema`), and whether the proposed schema may follow it.
    """
    from mainstem.broker.schemas.inference import Inferring, refused_by
    from mainstem.broker.schemas.records import JSON, Schema

    api, found = Api(url), Inferring()
    values, long = _read(api, topic_filter, records, found)
    proposed = found.schema()
    text = json.dumps(proposed)
    own = refused_by(Schema(JSON, text), [], values)
    registered = [_compared(api, name, text, values) for name in _subjects(api, topic_filter, subject)]
    if as_json:
        facts = {"records": found.records, "not_json": found.not_json, "too_long": long, "schema": proposed}
        click.echo(json.dumps({**facts, "refused": own.rows(), "registered": registered}))
    elif not found.records:
        click.echo(f"no records of {topic_filter}", err=True)
    else:
        passed = f", {long} too long to be looked at" if long else ""
        click.echo(f"{found.records} records looked at, {found.not_json} are not JSON{passed}\n")
        print_rows(found.fields(), ["field", "type", "share", "odd"], as_json=False)
        click.echo(f"\n{json.dumps(proposed, indent=2)}\n")
        _tell("the proposed schema", own)
        for one in registered:
            _tell_registered(one)
    if subject is not None:
        added = api.post(f"/subjects/{segment(subject)}/versions", {"schema": text, "schemaType": "JSON"})
        click.echo(f"{subject} version {added['version']} has id {added['id']}", err=True)


def _read(api: Api, topic_filter: str, records: int, found: Inferring) -> tuple[Values, int]:
    values: Values = []
    long, start = 0, f"-{records}"
    while start and found.records + long < records:
        page = api.get("/v1/messages", filter=topic_filter, **{"from": start}, limit=PAGE_ROWS)
        for row in page["items"]:
            if row.get("truncated"):
                long += 1
            elif row["format"] != "null" and row["value"]:
                value = row["value"].encode()
                found.add(value)
                values.append((f"{row['topic']} {row['partition']}:{row['offset']}", value))
        start = page["next"] if page["items"] else ""
    return values, long


def _subjects(api: Api, topic_filter: str, named: str | None) -> list[str]:
    """Registered subjects that these records are, or would be, checked by."""
    from mainstem.model.topic_filter import matches

    try:
        rows = api.get("/v1/schemas")["items"]
    except MainstemError:  # a broker without the registry's libraries, or a caller who may not see it
        return []
    return [
        row["name"]
        for row in rows
        if row["name"] == named
        or any(one == topic_filter or matches(topic_filter.encode(), one.encode()) for one in row["topics"])
    ]


def _compared(api: Api, subject: str, text: str, values: Values) -> dict[str, Any]:
    from mainstem.broker.schemas.inference import refused_by
    from mainstem.broker.schemas.records import JSON, Schema

    latest = api.get(f"/subjects/{segment(subject)}/versions/latest")
    kind = latest.get("schemaType", "AVRO")
    sources: dict[str, str] = {}
    _collect(api, latest, sources)
    refused = refused_by(Schema(kind, latest["schema"]), list(sources.items()), values)
    messages = [f"{subject} is {kind}, not JSON Schema"]
    if kind == JSON:
        path = f"/compatibility/subjects/{segment(subject)}/versions"
        messages = api.post(path, {"schema": text, "schemaType": JSON}, verbose="true").get("messages") or []
    return {
        "subject": subject,
        "version": latest["version"],
        "records": refused.records,
        "refused": refused.rows(),
        "unchecked": refused.unchecked,
        "incompatible": messages,
    }


def _collect(api: Api, document: dict[str, Any], sources: dict[str, str]) -> None:
    """What it refers to, each before those that refer to it."""
    for one in document.get("references") or ():
        if one["name"] not in sources and len(sources) < REFERENCES_MAX:
            found = api.get(f"/subjects/{segment(one['subject'])}/versions/{one['version']}", deleted="true")
            _collect(api, found, sources)
            sources[one["name"]] = found["schema"]


def _tell(name: str, refused: Refused) -> None:
    if refused.unchecked:
        click.echo(f"{name}: records are not checked: {refused.unchecked}")
    else:
        click.echo(f"{name} would refuse {refused.records} of these records")
        _print_reasons(refused.rows())


def _tell_registered(one: dict[str, Any]) -> None:
    name = f"{one['subject']} version {one['version']}"
    if one["unchecked"]:
        click.echo(f"{name}: records are not checked: {one['unchecked']}")
    else:
        click.echo(f"{name} refuses {one['records']} of these records")
        _print_reasons(one["refused"])
    if one["incompatible"]:
        click.echo(f"the proposed schema may not follow {name}:")
        for line in one["incompatible"]:
            click.echo(f"  {line}")
    else:
        click.echo(f"the proposed schema may follow {name}")


def _print_reasons(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo(f"  {row['records']:>6}  {row['reason']}  (first: {row['first']})")
