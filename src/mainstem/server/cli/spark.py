"""`pipeline`, `sql` and `lake` live in mainstem_pipeline, which needs Spark; the broker does not."""

from __future__ import annotations

import importlib

import click

from mainstem.server.cli.failures import MissingExtra


def _delegate(verb: str) -> click.Command:
    try:
        module = importlib.import_module("mainstem_pipeline.cli")
    except ImportError as error:
        raise MissingExtra(
            f"`mainstem {verb}` needs what is not installed here ({error})", fix="pip install 'mainstem[pipeline]'"
        ) from error
    command: click.Command = getattr(module, verb)
    return command


def __getattr__(name: str) -> click.Command:
    if name not in ("pipeline", "sql", "lake"):
        raise AttributeError(name)
    return _delegate(name)
