"""The `mainstem` command. Verbs live in the files beside this one and are imported when used: small ones stay fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from mainstem import __version__

VERBS: dict[str, tuple[str, str]] = {  # verb → (module:object, one line of help)
    "up": ("run:up", "Start a broker for development: loopback, ./mainstem-data, ports moved when taken."),
    "serve": ("run:serve", "Start a broker for production: nothing is guessed, every problem is an error."),
    "demo": ("demo:demo", "One message by each protocol, arriving by all others; then a view and SQL over it."),
    "pub": ("messages:pub", "Publish by mqtt://, kafka:// or amqp://."),
    "sub": ("messages:sub", "Consume by mqtt://, kafka:// or amqp://, live or from history."),
    "topic": ("topics:topic", "List, describe, create, alter and remove topics."),
    "schema": ("schemas:schema", "List, describe, add, check and remove schemas of the registry."),
    "view": ("topics:view", "List, describe, create and remove views: named filters over everything stored."),
    "stream": ("streams:stream", "List, describe, create and alter streams of JetStream."),
    "queue": ("queues:queue", "List, describe, create, alter, purge and remove queues."),
    "group": ("queues:group", "List, describe, create, reset and remove consumer groups."),
    "exchange": ("exchanges:exchange", "List, describe, create and remove AMQP exchanges."),
    "binding": ("exchanges:binding", "List, add and remove bindings of exchanges."),
    "session": ("sessions:session", "List, describe and remove the sessions of MQTT clients."),
    "cursor": ("cursors:cursor", "All cursors of all protocols in one table: their lag, what is kept for them."),
    "conn": ("connections:conn", "List, describe and end connections."),
    "user": ("connections:user", "List, add and remove users; allow and deny."),
    "role": ("connections:role", "List, make and remove roles: rules that several users have."),
    "namespace": (
        "namespaces:namespace",
        "List, describe, add, alter and remove namespaces: the boundary between tenants.",
    ),
    "cluster": (
        "cluster:cluster",
        "Brokers that serve the same data: status, ls, drain, move, doctor, import, export.",
    ),
    "top": ("watch:top", "What moves right now, each second."),
    "events": ("watch:events", "What happens, live: who comes and goes, refusals, rebalances, topics moved."),
    "bench": ("bench:bench", "Load any broker by MQTT, Kafka or AMQP: how fast, how late, what was lost."),
    "check": ("doctor:check", "The broker's health in one line, for scripts."),
    "doctor": ("doctor:doctor", "Check this machine, the data directory and the broker, with fixes."),
    "context": ("contexts:context", "Save brokers' addresses by name, and choose one."),
    "config": ("settings:config", "Check, show and document the configuration."),
    "explain": ("settings:explain", "What an error code means and what to do."),
    "log": ("logs:log", "Look into, verify and repair logs on disk."),
    "backup": ("logs:backup", "Back up a running broker or a data directory."),
    "restore": ("logs:restore", "Restore a backup into an empty directory."),
    "query": ("ask:query", "SQL over topics and tables by DuckDB: an answer in under a second."),
    "search": ("ask:search", "Find records by words, fields and time, newest first; count them over time."),
    "trace": ("tracing:trace", "Where one message went: who published it, where it lies, who got it and when."),
    "pipeline": ("spark:pipeline", "Run data pipelines on Spark."),
    "sql": ("spark:sql", "Query topics and tables with Spark SQL."),
    "lake": ("spark:lake", "Tables of cold data."),
    "completion": ("settings:completion", "Print shell completion for bash, zsh or fish."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: parse, run, and turn whatever went wrong into one message and an exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:  # answered before anything is imported
        sys.stdout.write(f"mainstem {__version__}\n")
        return
    from mainstem.server.cli.group import run

    sys.exit(run(list(arguments)))


def load_verb(name: str) -> Any:
    module, _, attribute = VERBS[name][0].partition(":")
    return getattr(importlib.import_module(f"mainstem.server.cli.{module}"), attribute)
