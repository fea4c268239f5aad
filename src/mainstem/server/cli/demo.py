"""`demo`: the whole idea in a few lines, and the smoke test: it fails if any leg does."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mainstem import __version__

PAYLOADS = {"mqtt": b"21.5", "kafka": b"22.0", "amqp": b"22.5", "nats": b"23.0"}
TOPICS = {
    "mqtt": "sensors/kitchen/temp",
    "kafka": "sensors/hall/temp",
    "amqp": "sensors/garden/temp",
    "nats": "sensors/attic/temp",
}
AVERAGE = 22.25
SQL_S_MAX = 300.0


@click.command()
@click.option("--keep", is_flag=True, help="Keep the broker running at the end, until Ctrl-C.")
@click.option(
    "--sql/--no-sql",
    default=True,
    show_default=True,
    help="Run the SQL too: by DuckDB, and by Spark, which needs Java.",
)
def demo(keep: bool, sql: bool) -> int:
    """One message by each protocol, appended once, arriving by all others; then a view and SQL over the same data.

    Starts a temporary broker on free ports, leaves nothing behind. Exit code 1 if any leg fails.
    """
    legs = Legs()
    with _broker() as broker:
        ports = "   ".join(f"{name} {port}" for name, port in broker.ports.items() if name != "ws")
        click.echo(f"  Mainstem {__version__}  data: temporary  console: {broker.http_url}")
        click.echo(f"  {ports}          ready in {broker.ready_s:.2f} s")
        _cross(broker, legs)
        _view(broker, legs)
        if sql:
            _query(broker, legs)
            _sql(broker, legs)
        click.echo(f"  {legs.summary()}")
        if keep:
            click.echo(f"  running until Ctrl-C; console: {broker.http_url}")
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(3600)
    return 0 if legs.fine else 1


class Legs:
    """What was tried and how it went."""

    def __init__(self) -> None:
        self.tried = self.failed = self.skipped = 0

    @property
    def fine(self) -> bool:
        return not self.failed

    def line(self, arrow: str, who: str, what: str, text: str, end: str = "", *, error: str | None = None) -> None:
        self.tried += 1
        if error is not None:
            self.failed += 1
            click.echo(click.style(f"  {arrow} {who:<6}{what:<10}{text:<26}{error}", fg="red"))
        else:
            click.echo(f"  {arrow} {who:<6}{what:<10}{text:<26}{end}")

    def skip(self, who: str, why: str) -> None:
        self.skipped += 1
        click.echo(click.style(f"  · {who:<6}skipped: {why}", fg="yellow"))

    def summary(self) -> str:
        if self.failed:
            return f"{self.failed} of {self.tried} legs failed"
        done = f"{self.tried} legs, one append each, no bridge"
        return f"{done}; {self.skipped} skipped" if self.skipped else done


@contextlib.contextmanager
def _broker() -> Iterator[Any]:
    from mainstem.testing import Broker

    with tempfile.TemporaryDirectory(prefix="mainstem-demo-", ignore_cleanup_errors=True) as directory:
        began = time.monotonic()
        with Broker(engine="segment", data=Path(directory) / "data") as broker:
            broker.directory = directory  # type: ignore[attr-defined]
            broker.ready_s = time.monotonic() - began  # type: ignore[attr-defined]
            yield broker


def _cross(broker: Any, legs: Legs) -> None:
    from mainstem.model.errors import MainstemError
    from mainstem.server.round_trip import round_trip, spelled

    for protocol, topic in TOPICS.items():
        value = PAYLOADS[protocol]
        legs.line("→", protocol, "publish", spelled(protocol, topic), value.decode())
        try:
            arrivals = round_trip(broker.ports, broker.host, protocol, topic, value)
        except MainstemError as error:
            legs.line("✖", protocol, "publish", topic, error=str(error))
            continue
        for arrival in arrivals:
            end = f"{arrival.value:<8}+{arrival.microseconds} µs"
            legs.line("←", arrival.protocol, "receive", arrival.name, end, error=arrival.error)


def _view(broker: Any, legs: Legs) -> None:
    """A wildcard view over what is already stored, read as a Kafka topic."""
    from mainstem.model.errors import MainstemError
    from mainstem.server.cli.api import Api
    from mainstem.server.clients import open_client
    from mainstem.server.clients.client import Address, Start

    try:
        Api(broker.http_url).post("/v1/views", {"name": "all-sensors", "filter": "sensors/#"})
        legs.line("+", "view", "create", "all-sensors", "sensors/#")
        address = Address("kafka", broker.host, broker.kafka_port, "", "", "all-sensors", {})
        with contextlib.closing(open_client(address)) as client:
            client.subscribe("all-sensors", Start("earliest"))
            values = []
            for message in client.messages(2.0):
                values.append((message.value or b"").decode())
                if len(values) == len(PAYLOADS):
                    break
    except MainstemError as error:
        legs.line("✖", "kafka", "read view", "all-sensors", error=str(error))
        return
    wanted = sorted(value.decode() for value in PAYLOADS.values())
    error_text = None if sorted(values) == wanted else f"expected {wanted}, got {sorted(values)}"
    legs.line("←", "kafka", "read view", "all-sensors", " ".join(values), error=error_text)


def _query(broker: Any, legs: Legs) -> None:
    """The same records by DuckDB: what a person at a prompt gets."""
    if importlib.util.find_spec("duckdb") is None:
        legs.skip("query", "no DuckDB: pip install 'mainstem[ask]'")
        return
    statement = "select count(*) as records, avg(text::double) as average from 'all-sensors'"
    _select(broker, legs, "query", statement, [])


def _sql(broker: Any, legs: Legs) -> None:
    """And by Spark SQL, which wants a JVM."""
    import shutil

    if shutil.which("java") is None:
        legs.skip("sql", "no Java: apt install openjdk-17-jre-headless")
        return
    if importlib.util.find_spec("pyspark") is None:
        legs.skip("sql", "no Spark: pip install 'mainstem[pipeline]'")
        return
    query = "select count(*) as records, avg(cast(cast(value as string) as double)) as average from `all-sensors`"
    _select(broker, legs, "sql", query, ["--master", "local[1]"])


def _select(broker: Any, legs: Legs, verb: str, statement: str, more: list[str]) -> None:
    """In a process of its own, whose standard output is the answer."""
    import subprocess

    command = [sys.executable, "-m", "mainstem", verb, statement, "--url", broker.http_url, *more]
    command += ["--format", "json", "--warehouse", str(Path(broker.directory) / "lake")]
    began = time.monotonic()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SQL_S_MAX, check=False, env=environment)
    except subprocess.TimeoutExpired:
        legs.line("✖", verb, "select", "all-sensors", error=f"no answer within {SQL_S_MAX:.0f} s")
        return
    answer = _json_answer(ran.stdout)
    shown = ", ".join(f"{name} {value}" for name, value in answer.items())
    right = answer.get("records") == len(PAYLOADS) and answer.get("average") == AVERAGE
    error = None if right else shown or (ran.stderr.strip().splitlines() or ["no answer"])[-1]
    legs.line("←", verb, "select", "from all-sensors", f"{shown}   {time.monotonic() - began:.1f} s", error=error)


def _json_answer(text: str) -> dict[str, Any]:
    """The last line that is a JSON object; Spark may say more around it."""
    import json

    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, list) and found:
                found = found[0]
            if isinstance(found, dict):
                return found
    return {}
