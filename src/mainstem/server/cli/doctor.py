"""`doctor`: each check with its reason and, where something is wrong, the command that mends it. It changes nothing."""

from __future__ import annotations

import json

import click

from mainstem.model.counted import counted
from mainstem.server.cli.api import Api, url_option
from mainstem.server.cli.failures import EX_FAILED
from mainstem.server.cli.output import show_bytes

MARKS = {"ok": ("✔", "green"), "note": ("!", "yellow"), "bad": ("✖", "red")}


@click.command()
@click.option("--data", default="./mainstem-data", show_default=True, help="The data directory to look at.")
@click.option("--config", "file", type=click.Path(), envvar="MAINSTEM_CONFIG", help="The configuration to look at.")
@click.option("--fsync", is_flag=True, help="Measure the disk's fsync for a second.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one check per line.")
@url_option
def doctor(data: str, file: str | None, fsync: bool, as_json: bool, url: str) -> int:
    """Check this machine, the data directory and the broker. Exit code 1 if anything is wrong."""
    from mainstem.server.checks import run_checks

    worst = 0
    for check in run_checks(data=data, file=file, url=url, fsync=fsync):
        worst = max(worst, int(check.state == "bad"))
        if as_json:
            click.echo(
                json.dumps({"check": check.name, "state": check.state, "reason": check.reason, "fix": check.fix})
            )
            continue
        mark, colour = MARKS[check.state]
        click.echo(f"{click.style(mark, fg=colour)} {check.name:<22} {check.reason}")
        if check.fix and check.state != "ok":
            click.echo(f"  {'':<22} fix: {check.fix}")
    return worst


@click.command()
@url_option
def check(url: str) -> int:
    """The broker's health in one line: exit code 0 if it is well, 1 if not, 69 if nobody answers."""
    facts = Api(url).get("/v1/overview")
    free = show_bytes(facts["disk"]["free_bytes"])
    problems = [f"{one['name']}: {one['reason']}" for one in facts["health"] if not one["ok"]]
    told = f"Mainstem {facts['version']}, {counted(facts['topics'], 'topic')}, {free} free"
    click.echo(f"not well: {'; '.join(problems)} ({told})" if problems else f"ok: {told}")
    return EX_FAILED if problems else 0
