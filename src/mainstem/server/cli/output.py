"""Tables for people, JSON lines for programs, progress for long work."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import click

PROGRESS_LINE_S = 5.0  # between lines where there is no terminal
PROGRESS_BAR_S = 0.1
BAR_WIDTH = 30

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def print_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str = "nothing there"
) -> None:
    """A table with a head on standard output, or one JSON object per line. Numbers are right-aligned."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    kept = list(rows)
    if not kept:
        click.echo(empty, err=True)
        return
    cells = [[show(row.get(column)) for column in columns] for row in kept]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in kept) for column in columns]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    head = "  ".join(
        _pad(c.upper().replace("_", " "), w, right=n) for c, w, n in zip(columns, widths, numeric, strict=True)
    )
    click.echo(click.style(head.rstrip(), bold=True))
    for line in cells:
        text = "  ".join(_pad(cell, w, right=n) for cell, w, n in zip(line, widths, numeric, strict=True))
        click.echo(text.rstrip())


def print_done(text: str, facts: Mapping[str, Any], as_json: bool) -> None:
    """What was made or changed: a sentence for people, all of it for programs."""
    if as_json:
        print_facts(facts, as_json=True)
    else:
        click.echo(text)


def print_facts(facts: Mapping[str, Any], *, as_json: bool, indent: str = "") -> None:
    """One thing in full: `name  value` per line, nested things indented."""
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            click.echo(f"{indent}{name}")
            print_facts(value, as_json=False, indent=indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            click.echo(f"{indent}{name}")
            for one in value:
                click.echo(indent + "  " + "  ".join(f"{key}={show(kept)}" for key, kept in one.items()))
        else:
            click.echo(f"{indent}{name:<{width}}  {show(value)}".rstrip())


def show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, int):
        return str(value)  # digits only, so that an offset or a position can be copied into the next command
    if isinstance(value, list | tuple):
        return ", ".join(show(one) for one in value) or "-"
    if isinstance(value, Mapping):
        return f"({', '.join(f'{key}={show(one)}' for key, one in value.items())})" if value else "-"
    return str(value)


def show_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_time_ns(stamp: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stamp / 1e9))


def _pad(text: str, width: int, *, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


class Progress:
    """`with Progress("verify", total, unit="B") as progress: progress.add(n)`: a bar with rate and time left on a
    terminal, a line every five seconds elsewhere, one summary line at the end."""

    def __init__(self, label: str, total: int, *, unit: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._total, self._unit, self._clock = label, total, unit, clock
        self._done = 0
        self._terminal = sys.stderr.isatty()
        self._started = self._shown = clock()

    def __enter__(self) -> Self:
        return self

    def add(self, count: int) -> None:
        self.set(self._done + count)

    def set(self, done: int, total: int | None = None) -> None:
        self._done = done
        self._total = self._total if total is None else total
        now = self._clock()
        if now - self._shown >= (PROGRESS_BAR_S if self._terminal else PROGRESS_LINE_S):
            self._shown = now
            sys.stderr.write(f"\r{self._bar()}\x1b[K" if self._terminal else f"{self._bar()}\n")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        seconds = self._clock() - self._started
        start = "\r\x1b[K" if self._terminal else ""
        rate = self._done / seconds if seconds else 0
        sys.stderr.write(
            f"{start}{self._label}: {self._amount(self._done)} in {seconds:.1f} s ({self._amount(rate)}/s)\n"
        )

    def _bar(self) -> str:
        seconds = self._clock() - self._started
        rate = self._done / seconds if seconds else 0
        text = f"{self._label} {self._amount(self._done)}"
        if self._total:
            share = min(1.0, self._done / self._total)
            left = (self._total - self._done) / rate if rate else 0
            bar = "█" * int(share * BAR_WIDTH)
            text = f"{self._label} {bar:<{BAR_WIDTH}} {share:4.0%} of {self._amount(self._total)}, {left:.0f} s left"
        return f"{text}, {self._amount(rate)}/s"

    def _amount(self, amount: float) -> str:
        return show_bytes(amount) if self._unit == "B" else f"{amount:.0f}{' ' if self._unit else ''}{self._unit}"
