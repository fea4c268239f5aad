"""`config check|show|reference`, `explain`, `completion`: what there is to know without a broker."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mainstem.model.errors import NotFound
from mainstem.server.cli.output import json_option, print_rows


@click.group()
def config() -> None:
    """Check, show and document the configuration.

    Values come from defaults, a TOML file, the environment (MAINSTEM_SECTION__KEY) and flags, the later winning.
    """


file_argument = click.argument("file", required=False, type=click.Path(path_type=Path), envvar="MAINSTEM_CONFIG")
set_option = click.option(
    "--set", "flags", multiple=True, metavar="SECTION.KEY=VALUE", help="As with `serve`; repeatable."
)


@config.command()
@file_argument
@set_option
def check(file: Path | None, flags: tuple[str, ...]) -> None:
    """List every problem of FILE (default ./mainstem.toml), the environment and flags; exit code 78 if any."""
    from mainstem.server.config import load_config

    chosen = default_file(file)
    load_config(chosen, os.environ, flags)
    click.echo(f"no problems in {chosen or 'the environment; there is no file'}")


@config.command()
@file_argument
@set_option
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@json_option
def show(file: Path | None, flags: tuple[str, ...], changed: bool, as_json: bool) -> None:
    """Every setting with its value and where it came from."""
    from mainstem.server.config import load_config, show_config

    shown = show_config(load_config(default_file(file), os.environ, flags))
    rows = [
        {"key": one.key, "value": one.value, "source": one.source, "default": one.default}
        for one in shown
        if not changed or one.source != "default"
    ]
    print_rows(rows, ["key", "value", "source"], as_json=as_json, empty="everything is at its default")


@config.command()
def reference() -> None:
    """Print the reference page of all settings, in Markdown."""
    from mainstem.server.config_reference import reference_page

    click.echo(reference_page(), nl=False)


@click.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """What an error CODE such as MS-4001 means and what to do; without CODE, all of them."""
    from mainstem.server.explanations import CATALOGUE, explanation

    if code is None:
        for known, one in CATALOGUE.items():
            click.echo(f"{known}  {one.title}")
        return
    found = explanation(code)
    if found is None:
        raise NotFound(f"there is no error code {code}", fix="mainstem explain")
    click.echo(f"MS-{code.upper().removeprefix('MS-')}: {found.title}\n\n{found.text}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script. For bash: eval "$(mainstem completion bash)" in ~/.bashrc."""
    from click.shell_completion import get_completion_class

    from mainstem.server.cli.group import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "mainstem", "_MAINSTEM_COMPLETE").source())


def default_file(file: Path | None) -> Path | None:
    """The named file; else ./mainstem.toml if it is there."""
    if file is not None:
        return file
    here = Path("mainstem.toml")
    return here if here.exists() else None
