"""Durations and sizes as people write them: `7d`, `500ms`, `64MiB`, or a plain number of milliseconds or bytes."""

from __future__ import annotations

import re

_DURATION_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_SIZE_BYTES = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


NUMBER_MAX = 2**63 - 1  # what is kept and sent as 64 bits


def parse_duration_ms(text: str) -> int:
    """`90`, `90s`, `1h30m`, `1.5h` → milliseconds. ValueError says what was expected."""
    return _parse(text, _DURATION_MS, "a duration such as 500ms, 30s, 5m, 12h or 7d")


def parse_size_bytes(text: str) -> int:
    """`4096`, `64MiB`, `1.5GB` → bytes."""
    return _parse(text, _SIZE_BYTES, "a size such as 512KiB, 64MiB or 10GB")


def _parse(text: str, units: dict[str, int], expected: str) -> int:
    stripped = text.strip()
    if stripped.isdecimal():
        return _within(int(stripped), text)
    total, end = 0.0, 0
    for part in _PART.finditer(stripped):
        unit = part[2] if part[2] in units else part[2].lower()
        if part.start() != end or unit not in units:
            break
        total += float(part[1]) * units[unit]
        end = part.end()
    if not stripped or end != len(stripped):
        raise ValueError(f"expected {expected}, got {text!r}")
    return _within(total, text)


def _within(number: float, text: str) -> int:
    if number > NUMBER_MAX:
        raise ValueError(f"{text!r} is more than {NUMBER_MAX}")
    return round(number)


def show_duration_ms(ms: int) -> str:
    """The shortest exact spelling: 604800000 → `7d`, 90000 → `90s`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _DURATION_MS[unit] == 0:
            return f"{ms // _DURATION_MS[unit]}{unit}"
    return f"{ms}ms"


def show_size_bytes(size: int) -> str:
    """The shortest exact spelling: 67108864 → `64MiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _SIZE_BYTES[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
