"""An answer as people and programs read it: a table, CSV or JSON lines. Any engine's, if it has what `Rows` has."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

CELL_CHARACTERS_MAX = 80


class Collected(Protocol):
    def collect(self) -> list[Any]: ...


class Rows(Protocol):
    """What Spark's DataFrame has, as far as it is printed."""

    @property
    def columns(self) -> Sequence[str]: ...
    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterable[Any]: ...
    def limit(self, num: int) -> Collected: ...


@contextlib.contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    with output.open("w") as file:
        yield file


def shown(value: Any) -> Any:
    """Bytes as text where they are text."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple) and not hasattr(value, "asDict"):
        return [shown(one) for one in value]
    if hasattr(value, "asDict"):
        return {name: shown(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {str(shown(name)): shown(one) for name, one in value.items()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value


def print_result(frame: Rows, form: str, limit: int, out: TextIO) -> None:
    if form == "json":
        for row in frame.toLocalIterator(prefetchPartitions=True):
            out.write(json.dumps(shown(row), default=str, ensure_ascii=False) + "\n")
    elif form == "csv":
        writer = csv.writer(out)
        writer.writerow(frame.columns)
        for row in frame.toLocalIterator(prefetchPartitions=True):
            writer.writerow(["" if value is None else shown(value) for value in row])
    else:
        _print_table(frame, limit, out)


def _print_table(frame: Rows, limit: int, out: TextIO) -> None:
    rows = frame.limit(limit + 1).collect()
    cells = [[_cell(value) for value in row] for row in rows[:limit]]
    widths = [max([len(name), *(len(line[i]) for line in cells)]) for i, name in enumerate(frame.columns)]
    if frame.columns:
        out.write(
            "  ".join(name.ljust(width) for name, width in zip(frame.columns, widths, strict=True)).rstrip() + "\n"
        )
        out.write("  ".join("-" * width for width in widths) + "\n")
    for line in cells:
        out.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")
    more = f"; more than {limit}, see --limit" if len(rows) > limit else ""
    out.write(f"({len(cells)} row{'s' if len(cells) != 1 else ''}{more})\n")


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(shown(value)).replace("\n", "\\n")
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 3] + "..."
