"""`query` and `search` live in mainstem_ask, which need DuckDB and Arrow; the broker does not."""

from __future__ import annotations

import importlib

import click


def __getattr__(name: str) -> click.Command:
    if name not in ("query", "search"):
        raise AttributeError(name)
    command: click.Command = getattr(importlib.import_module("mainstem_ask.cli"), name)
    return command
