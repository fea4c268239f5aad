"""`mainstem pipeline deploy|ls|stop|logs|supervise`: pipelines that are kept running on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from mainstem.model.errors import ConfigError, MainstemError, NotFound, Overloaded
from mainstem_pipeline.deploy.deployments import STOP, Deployment, Deployments, deployments_directory
from mainstem_pipeline.deploy.supervisor import END_S_MAX, Supervisor, told

START_S_MAX = 15.0
POLL_S = 0.1
KEPT = ("MAINSTEM_URL", "MAINSTEM_NAMESPACE")  # of the environment of `deploy`; secrets are the supervisor's own
AS_JSON = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")


def _deployments() -> Deployments:
    return Deployments(deployments_directory())


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--master", default="local[*]", show_default=True, help="Spark master of its runs.")
@click.option("--version", default="", help="Deploy it beside the one that runs, as `replay` does.")
@click.option("--from", "start", default="", metavar="TIME", help="With --version: where it begins.")
@click.option("--reset", multiple=True, metavar="FLOW", help="Start the flow over, once.")
@click.option("--accept-change", multiple=True, metavar="FLOW", help="Go on although the flow changed.")
@click.option("--replace", "moves", is_flag=True, help="Take over the name from another file.")
@click.option("--no-supervisor", is_flag=True, help="Start none if none runs: one will be.")
def deploy(
    file: Path,
    master: str,
    version: str,
    start: str,
    reset: tuple[str, ...],
    accept_change: tuple[str, ...],
    moves: bool,
    no_supervisor: bool,
) -> None:
    """Keep FILE running on this machine, from now on; again: with what is new in it.

    It is run where it lies: what it names is found beside it. It goes on when its run fails, when the broker is away and
    when this terminal is closed; with `mainstem pipeline supervise` as a service also when the machine was restarted.
    """
    from mainstem_pipeline.pipeline.checks import load_parsed
    from mainstem_pipeline.pipeline.versions import versioned

    loaded, _ = load_parsed(file.absolute())
    if start and not version:
        raise ConfigError("--from needs --version: a deployed pipeline goes on where it is", fix="--version v2")
    name = versioned(loaded, version, start).name if version else loaded.name
    path = str(loaded.path)
    how = ["replay", path, version, "--from", start or "earliest"] if version else ["run", path]
    first = [
        word
        for flag, names in (("--reset", reset), ("--accept-change", accept_change))
        for one in names
        for word in (flag, one)
    ]
    deployment = Deployment(
        name=name,
        file=path,
        arguments=[*how, "--master", master],
        first_arguments=first,
        environment={word: os.environ[word] for word in KEPT if word in os.environ},
    )
    deployments = _deployments()
    made = deployments.deploy(deployment, moves=moves)
    if not no_supervisor:
        _ensure_supervisor(deployments)
    click.echo(f"{name}: deployed ({made.serial}); mainstem pipeline logs {name} -f shows what it says")


def _ensure_supervisor(deployments: Deployments) -> None:
    if deployments.is_supervised():
        return
    log = deployments.root / "supervisor.log"
    with log.open("ab") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "mainstem", "pipeline", "supervise"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
        )
    if not _within(START_S_MAX, lambda: deployments.is_supervised() or started.poll() is not None):
        raise Overloaded("the supervisor does not start", fix=f"look into {log}")
    if not deployments.is_supervised():
        raise MainstemError(f"the supervisor ended with {started.returncode}", fix=f"look into {log}")


def _within(seconds: float, check: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@click.command()
def supervise() -> None:
    """Keep the deployed pipelines running, until stopped. `deploy` starts it in the background; as a service see docs."""
    deployments = _deployments()
    lock = deployments.take()
    if lock is None:
        holder = (deployments.root / "lock").read_text().strip()
        raise ConfigError(f"a supervisor runs already: process {holder}", fix="mainstem pipeline ls")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with lock:
        Supervisor(deployments).run(stop)


@click.command("ls")
@AS_JSON
def list_deployed(as_json: bool) -> None:
    """The pipelines deployed on this machine, and how their flows do."""
    deployments = _deployments()
    supervised, count = deployments.is_supervised(), 0
    for one in deployments.all():
        count += 1
        status = deployments.status(one.name)
        flows = _flows(one)
        if as_json:
            click.echo(
                json.dumps(
                    {"deployment": asdict(one), "status": asdict(status), "supervised": supervised, "flows": flows}
                )
            )
            continue
        click.echo(f"{one.name}: {told(status, is_supervised=supervised)}  {one.file}")
        if status.said and status.state in ("waiting", "failed"):
            click.echo(f"  {status.said}")
        for flow in flows:
            facts = "  ".join(f"{name} {flow[name]}" for name in ("batch", "rows", "bad", "lag") if name in flow)
            click.echo(f"  {flow['flow']}: {flow['state']}  {facts}".rstrip())
    if not count and not as_json:
        click.echo("nothing is deployed here; mainstem pipeline deploy FILE")
    elif not supervised and not as_json:
        click.echo("no supervisor runs: mainstem pipeline supervise", err=True)


def _flows(deployment: Deployment) -> list[dict[str, Any]]:
    from mainstem_pipeline.pipeline.checks import load_pipeline
    from mainstem_pipeline.pipeline.state import State
    from mainstem_pipeline.pipeline.versions import versioned

    try:
        loaded = load_pipeline(Path(deployment.file))
        if deployment.name != loaded.name:
            loaded = versioned(loaded, deployment.name.removeprefix(f"{loaded.name}-"))
        return State(loaded).statuses()
    except MainstemError:
        return []  # the file was broken since; its run tells so


@click.command()
@click.argument("name")
@click.option("--forget", is_flag=True, help="Deploy it no more; what it wrote and its checkpoints stay.")
def stop(name: str, forget: bool) -> None:
    """End the run of NAME after its batch; it stays deployed and stopped until it is deployed again."""
    deployments = _deployments()
    deployments.put(replace(deployments.get(name), wanted=STOP))
    if deployments.is_supervised() and not _within(
        END_S_MAX + START_S_MAX, lambda: deployments.status(name).state == "stopped" or not deployments.is_supervised()
    ):
        raise Overloaded(f"the run of {name} does not end", fix=f"kill process {deployments.status(name).pid}")
    if forget:
        deployments.forget(name)
    click.echo(f"{name}: {'forgotten' if forget else 'stopped'}")


@click.command()
@click.argument("name")
@click.option("-n", "--lines", default=50, show_default=True, help="How many of the last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
def logs(name: str, lines: int, follow: bool) -> None:
    """What the runs of NAME said."""
    deployments = _deployments()
    deployments.get(name)
    path = deployments.log(name)
    if not path.is_file():
        raise NotFound(f"{name} was not started yet", fix="mainstem pipeline ls")
    before = path.with_name("log.1")
    known = [*(before.read_bytes().splitlines() if before.is_file() else ()), *path.read_bytes().splitlines()]
    for line in known[-lines:] if lines else ():
        click.echo(line.decode("utf-8", "replace"))
    at = path.stat().st_size
    while follow:
        size = path.stat().st_size if path.is_file() else 0
        if size < at:  # begun anew
            at = 0
        if size > at:
            with path.open("rb") as file:
                file.seek(at)
                fresh = file.read(size - at)
            at = size
            click.echo(fresh.decode("utf-8", "replace"), nl=False)
        time.sleep(POLL_S)


COMMANDS = (deploy, list_deployed, stop, logs, supervise)
