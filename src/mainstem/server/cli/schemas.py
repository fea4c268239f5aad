"""`schema`, and `topic infer`, which proposes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from mainstem.model.errors import InvalidArgument
from mainstem.server.cli.api import Api, segment, url_option
from mainstem.server.cli.asking import confirm, yes_option
from mainstem.server.cli.output import json_option, print_done, print_facts, print_rows

KINDS = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
PAGE_ROWS = 500
type_option = click.option(
    "--type", "kind", type=click.Choice(["avro", "json", "protobuf"]), help="Told from the file's name if not said."
)
reference_option = click.option(
    "--reference", "references", multiple=True, metavar="NAME=SUBJECT:VERSION", help="What it refers to. Repeatable."
)


@click.group()
def schema() -> None:
    """The schema registry: subjects, their versions, and whether a new one may follow (docs/schemas.md)."""


@schema.command("ls")
@json_option
@url_option
def ls(as_json: bool, url: str) -> None:
    """Subjects, with their latest version and the topics that use them."""
    print_rows(
        Api(url).get("/v1/schemas")["items"],
        ["name", "type", "version", "id", "level", "topics"],
        as_json=as_json,
        empty="no schemas; register one: mainstem schema add SUBJECT FILE",
    )


@schema.command()
@click.argument("subject")
@click.option("--version", "number", default="latest", show_default=True, help="Which version to show.")
@json_option
@url_option
def describe(subject: str, number: str, as_json: bool, url: str) -> None:
    """One version in full, and what it changed."""
    api = Api(url)
    facts = api.get(f"/subjects/{segment(subject)}/versions/{number}")
    facts["versions"] = api.get(f"/subjects/{segment(subject)}/versions")
    level = api.get(f"/config/{segment(subject)}", defaultToGlobal="true")
    facts["level"] = level["compatibilityLevel"]
    facts.setdefault("schemaType", "AVRO")
    if as_json:
        print_facts(facts, as_json=True)
        return
    text = facts.pop("schema")
    print_facts(facts, as_json=False)
    if facts["version"] != facts["versions"][0]:
        found = api.get(f"/v1/schemas/{segment(subject)}/differences", new=facts["version"])
        click.echo(f"\nversion {found['old']} to {found['new']}")
        for line in found["lines"]:
            click.echo(f"{line['mark']} {line['text']}")
    else:
        click.echo(f"\n{_laid_out(text)}")


def _laid_out(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


@schema.command()
@click.argument("subject")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@type_option
@reference_option
@json_option
@url_option
def add(subject: str, file: str, kind: str | None, references: tuple[str, ...], as_json: bool, url: str) -> None:
    """Register FILE (.avsc, .json or .proto) as a new version; one that is registered already is found again."""
    body = _body(file, kind, references)
    found = Api(url).post(f"/subjects/{segment(subject)}/versions", body)
    print_done(f"{subject} version {found['version']} has id {found['id']}", found, as_json)


@schema.command()
@click.argument("subject")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--version", "number", help="Against this version only, not those that the level names.")
@type_option
@reference_option
@json_option
@url_option
def check(
    subject: str,
    file: str,
    number: str | None,
    kind: str | None,
    references: tuple[str, ...],
    as_json: bool,
    url: str,
) -> None:
    """Whether FILE could be registered; nothing is stored. Exits with 1 if not."""
    path = f"/compatibility/subjects/{segment(subject)}/versions{f'/{number}' if number else ''}"
    found = Api(url).post(path, _body(file, kind, references), verbose="true")
    if as_json:
        print_facts(found, as_json=True)
    elif found["is_compatible"]:
        click.echo(f"{file} may follow as a new version of {subject}")
    else:
        click.echo(f"{file} may not follow as a new version of {subject}:")
        for line in found["messages"]:
            click.echo(f"  {line}")
    if not found["is_compatible"]:
        raise SystemExit(1)


@schema.command()
@click.argument("subject")
@click.option("--version", "number", help="Only this version.")
@click.option("--permanent", is_flag=True, help="For good, also for records written with it; first without this.")
@yes_option
@json_option
@url_option
def rm(subject: str, number: str | None, permanent: bool, yes: bool, as_json: bool, url: str) -> None:
    """Delete a subject or one version. Records written with it can be read until it is deleted permanently."""
    confirm(f"Delete {subject}{f' version {number}' if number else ''}{' for good' if permanent else ''}?", yes)
    path = f"/subjects/{segment(subject)}{f'/versions/{number}' if number else ''}"
    found = Api(url).delete(path, permanent="true" if permanent else None)
    versions = found if isinstance(found, list) else [found]
    print_done(f"deleted {subject}, versions {', '.join(map(str, versions))}", {"deleted": versions}, as_json)


def _body(file: str, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    path = Path(file)
    found = kind.upper() if kind else KINDS.get(path.suffix)
    if found is None:
        raise InvalidArgument(f"{file}: is it Avro, JSON Schema or Protobuf?", fix="--type avro, json or protobuf")
    body: dict[str, Any] = {"schema": path.read_text(), "schemaType": found}
    if references:
        body["references"] = [_reference(one) for one in references]
    return body


def _reference(text: str) -> dict[str, Any]:
    name, mark, rest = text.partition("=")
    subject, colon, number = rest.rpartition(":")
    if not (mark and colon and number.isdigit()):
        raise InvalidArgument(f"--reference {text!r} must be NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(number)}
