"""`up` for development, `serve` for production."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mainstem import __version__
from mainstem.server.cli.settings import default_file
from mainstem.server.listeners import LISTENERS
from mainstem.storage.engines import ENGINES

if TYPE_CHECKING:
    from mainstem.server.app import App
    from mainstem.server.settings import Config

_Command = Callable[..., Any]


def common_options(command: _Command) -> _Command:
    options = [
        click.option(
            "--config",
            "-c",
            "file",
            type=click.Path(path_type=Path),
            envvar="MAINSTEM_CONFIG",
            metavar="FILE",
            help="TOML file; see `mainstem config show`.",
        ),
        click.option("--data", metavar="DIR", help="The data directory."),
        click.option("--host", metavar="H", help="Address to listen on."),
        *(
            click.option(f"--{name}-port", metavar="N", help=f"Port of {name}; 0 takes any free one, off none.")
            for name in LISTENERS
        ),
        click.option(
            "--set", "flags", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other setting; repeatable."
        ),
        click.option("--insecure-allow-anonymous", is_flag=True, help="Serve beyond loopback without users."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@common_options
@click.option("--ephemeral", is_flag=True, help="Keep everything in memory; nothing is left when it stops.")
def up(file: Path | None, ephemeral: bool, **given: Any) -> int:
    """Start a broker for development.

    Listens on loopback, keeps its data in ./mainstem-data, reads ./mainstem.toml if it is there. A port that is taken
    is moved, with a message, instead of failing. Stop it with Ctrl-C.
    """
    if not ephemeral:
        return _run(default_file(file), given, move_ports=True)
    with tempfile.TemporaryDirectory(prefix="mainstem-") as directory:
        given["data"] = str(Path(directory) / "data")
        given["flags"] = ("topics.engine=memory", *given["flags"])
        return _run(default_file(file), given, move_ports=True)


@click.command()
@common_options
@click.option(
    "--cluster", metavar="URL", help="postgresql://...: serve the same data as others there. See docs/cluster.md."
)
@click.option("--store", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY: the object store (tier.store).")
@click.option("--single-postgres", is_flag=True, help="The PostgreSQL has no synchronous standby, and that is meant.")
@click.option("--cell", is_flag=True, hidden=True, help="The process of a cell, started by a broker of a cluster.")
def serve(file: Path | None, **given: Any) -> int:
    """Start a broker for production.

    Nothing is guessed: a taken port, an unsafe bind or any mistake in the configuration is an error (exit code 78) that
    says what to do. SIGTERM drains and exits with 0, SIGHUP reloads what can be changed while running.
    """
    return _run(file, given, move_ports=False)


def flags_of(given: dict[str, Any]) -> list[str]:
    """The named options as `section.key=value`, after which --set has the last word."""
    flags = [f"listeners.{name}_port={given[f'{name}_port']}" for name in LISTENERS if given.get(f"{name}_port")]
    if given.get("data"):
        flags.append(f"data.directory={given['data']}")
    if given.get("host"):
        flags.append(f"listeners.host={given['host']}")
    if given.get("insecure_allow_anonymous"):
        flags.append("listeners.allow_anonymous=true")
    if given.get("cluster"):
        flags.append(f"cluster.postgres={given['cluster']}")
    if given.get("store"):
        flags.append(f"tier.store={given['store']}")
    if given.get("single_postgres"):
        flags.append("cluster.single_postgres=true")
    return [*flags, *given.get("flags", ())]


def _run(file: Path | None, given: dict[str, Any], *, move_ports: bool) -> int:
    gc.disable()  # until it serves: what a start imports and recovers stays, and is not looked at meanwhile
    from mainstem.server.config import load_config
    from mainstem.server.lifecycle import run

    def load() -> Config:
        return load_config(file, os.environ, flags_of(given))

    config = load()
    try:
        if given.get("cell"):
            from mainstem.server.cell_process import run_cell_process

            return run_cell_process(config, reload=load)
        if config.cluster.postgres:
            from mainstem.server.cluster_node import run_node

            return run_node(config, reload=load)
        return run(config, move_ports=move_ports, announce=announce, reload=load)
    finally:
        gc.enable()


def announce(app: App, seconds: float) -> None:
    """Where it listens, and what to try next."""
    config, host = app.config, in_url(app.config.listeners.host)
    on_disk = ENGINES[config.topics.engine].on_disk
    data = str(Path(config.data.directory).resolve()) if on_disk else "in memory"
    lines = [f"Mainstem {__version__}  ready in {seconds:.2f} s  data: {data}"]
    lines += [f"  {notice}" for notice in app.notices]
    for name, port in app.ports.items():
        path = config.mqtt.ws_path if name in ("ws", "wss") else ""
        lines.append(f"  {'console' if name in ('http', 'https') else name:<8} {name}://{host}:{port}{path}")
    lines += ["Try:", *(f"  {line}" for line in next_commands(app.ports, config.listeners.host, _ca(config)))]
    if config.listeners.allow_anonymous and not app.broker.access.users:
        lines.append("warning: anyone who can reach this address may do anything: --insecure-allow-anonymous was given")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _ca(config: Config) -> str:
    """What clients are to trust: the broker's own certificate if it vouches for itself, else a file we do not know."""
    if not config.tls.certificate:
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=config.tls.certificate)
    vouches = any(one.get("subject") == one.get("issuer") for one in context.get_ca_certs())
    return shlex.quote(config.tls.certificate) if vouches else "FILE"


def next_commands(ports: dict[str, int], host: str = "127.0.0.1", ca: str = "FILE") -> list[str]:
    """Commands that reach this broker: by name where it listens to all of the machine, or to loopback."""
    mainstem = command_name()
    place = "localhost" if host in ("localhost", "127.0.0.1", "0.0.0.0", "::") else in_url(host)

    def at(name: str, usual: int) -> str:
        return place if ports.get(name) in (usual, None) else f"{place}:{ports[name]}"

    def url(name: str, usual: int, path: str) -> str:
        """By TLS where there is nothing else."""
        if name in ports or f"{name}s" not in ports:
            return f"{name}://{at(name, usual)}/{path}"
        return f"{name}s://{place}:{ports[f'{name}s']}/{path} --ca {ca}"

    if "http" not in ports and "https" in ports:
        create = (
            f"MAINSTEM_CA={ca} {mainstem} view create all-sensors 'sensors/#' --url https://{place}:{ports['https']}"
        )
        return [*_tried(mainstem, url), create]
    return [
        *_tried(mainstem, url),
        f"{mainstem} view create all-sensors 'sensors/#'"
        + (f" --url http://{at('http', 0)}" if ports.get("http", 7070) != 7070 or place != "localhost" else ""),
    ]


def _tried(mainstem: str, url: Callable[[str, int, str], str]) -> list[str]:
    return [
        f"{mainstem} sub {url('kafka', 9092, 'sensors.kitchen.temp')} --from earliest",
        f"{mainstem} pub {url('mqtt', 1883, 'sensors/kitchen/temp')} 21.5",
    ]


def command_name() -> str:
    """How this command was called, so that what is printed can be copied."""
    called = Path(sys.argv[0])
    if called.name == "mainstem":
        return "mainstem" if shutil.which("mainstem") else os.path.relpath(called)
    return f"{Path(sys.executable).name} -m mainstem"
