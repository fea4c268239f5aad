"""`context`: brokers by name. The file holds what an address holds, passwords too, so only its owner may read it.

{"current": "prod", "contexts": {"prod": "https://user:password@broker.example:7443"}}
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click

from mainstem.model.errors import InvalidArgument, NotFound
from mainstem.server.cli.output import json_option, print_rows

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PASSWORD = re.compile(r"(//[^/:@]*):[^/@]*@")


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "mainstem" / "contexts.json"


def chosen_url(default: str) -> str:
    """Of the context that MAINSTEM_CONTEXT names, else of the current one, else the default."""
    known = _read()
    name = os.environ.get("MAINSTEM_CONTEXT") or known["current"]
    if not name:
        return default
    return _url_of(known, name)


def _url_of(known: dict[str, Any], name: str) -> str:
    url = known["contexts"].get(name)
    if url is None:
        raise NotFound(f"there is no context {name}", fix="mainstem context ls, mainstem context add NAME URL")
    return str(url)


def _read() -> dict[str, Any]:
    file = contexts_file()
    try:
        known = json.loads(file.read_text())
        return {"current": str(known["current"]), "contexts": dict(known["contexts"])}
    except FileNotFoundError:
        return {"current": "", "contexts": {}}
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(f"{file} is not a file of contexts", fix=f"rm {file}, mainstem context add") from None


def _write(known: dict[str, Any]) -> None:
    file = contexts_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps(known, indent=2) + "\n")
    new.replace(file)


@click.group()
def context() -> None:
    """Save the addresses of brokers by name, and choose the one that commands use.

    --url and MAINSTEM_URL win over it; MAINSTEM_CONTEXT=NAME chooses for one command.
    """


@context.command("add")
@click.argument("name")
@click.argument("url")
def context_add(name: str, url: str) -> None:
    """Save URL (https://USER:PASSWORD@HOST:PORT) as NAME and use it; an existing one is replaced."""
    from mainstem.server.cli.api import Api

    if not NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} cannot be a context's name", fix="letters, digits, '.', '_' and '-'")
    Api(url)  # refuses what is not an address
    known = _read()
    known["contexts"][name] = url
    known["current"] = name
    _write(known)
    click.echo(f"context {name}: commands use {_without_password(url)}")


@context.command("ls")
@json_option
def context_ls(as_json: bool) -> None:
    """The saved ones; the one in use is marked."""
    known = _read()
    rows = [
        {"name": name, "url": _without_password(url), "current": name == known["current"]}
        for name, url in sorted(known["contexts"].items())
    ]
    print_rows(rows, ["name", "url", "current"], as_json=as_json, empty="no contexts; mainstem context add NAME URL")


@context.command("use")
@click.argument("name")
def context_use(name: str) -> None:
    """Commands use NAME from now on; `-` means none of them, so http://127.0.0.1:7070."""
    known = _read()
    if name != "-":
        _url_of(known, name)
    known["current"] = "" if name == "-" else name
    _write(known)
    click.echo("no context is in use" if name == "-" else f"context {name} is in use")


@context.command("rm")
@click.argument("name")
def context_rm(name: str) -> None:
    """Delete a saved address."""
    known = _read()
    _url_of(known, name)
    del known["contexts"][name]
    if known["current"] == name:
        known["current"] = ""
    _write(known)
    click.echo(f"removed context {name}")


def _without_password(url: str) -> str:
    return PASSWORD.sub(r"\1:***@", url)
