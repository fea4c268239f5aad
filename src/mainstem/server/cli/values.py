"""Kinds of option values: a wrong one is wrong usage, told by its option's name."""

from __future__ import annotations

from typing import Any

import click

from mainstem.server.units import parse_duration_ms


class Duration(click.ParamType[int]):
    """`500ms`, `30s`, `5m` as milliseconds."""

    name = "duration"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < self._least_ms:
            self.fail(f"expected at least {self._least_ms}ms, got {value!r}", param, ctx)
        return found
