"""Which line of a TOML file a key stands on; `tomllib` does not tell. For messages only."""

from __future__ import annotations

import re

_KEY_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")


def locate_keys(text: str) -> dict[tuple[str, ...], int]:
    """Dotted path of every table and key → its line, counted from 1. The first of equals wins."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    open_until: str | None = None  # inside a multi-line string: its closing quotes
    depth = 0  # inside a multi-line array
    for number, line in enumerate(text.splitlines(), 1):
        if open_until is not None:
            if open_until in line:
                open_until = None
            continue
        if depth > 0:
            depth += _bracket_balance(line)
            continue
        stripped = line.strip()
        if stripped.startswith("["):
            table, _ = _read_path(stripped.lstrip("["))
            lines.setdefault(table, number)
            continue
        path, rest = _read_path(stripped)
        if path and rest.startswith("="):
            for length in range(1, len(path) + 1):
                lines.setdefault(table + path[:length], number)
            value = rest[1:].strip()
            for quotes in ('"""', "'''"):
                if value.startswith(quotes) and quotes not in value[3:]:
                    open_until = quotes
            if value.startswith("["):
                depth = max(0, _bracket_balance(value))
    return lines


def _read_path(text: str) -> tuple[tuple[str, ...], str]:
    parts: list[str] = []
    position = 0
    while match := _KEY_PART.match(text, position):
        parts.append(next(group for group in match.groups() if group is not None))
        position = match.end()
        if not text.startswith(".", position):
            break
        position += 1
    return tuple(parts), text[position:]


def _bracket_balance(text: str) -> int:
    bare = re.sub(r"""("([^"\\]|\\.)*")|('[^']*')|(#.*)""", "", text)
    return bare.count("[") - bare.count("]")
