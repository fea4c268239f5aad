"""What a setting's value may be. A kind reads a value from TOML or from text, and spells it back.

TOML gives typed values, the environment and `--set` give text; each kind takes both. A refused value raises
BadValue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mainstem.server.units import (
    parse_duration_ms,
    parse_size_bytes,
    show_duration_ms,
    show_size_bytes,
)

UNLIMITED = -1  # as Kafka spells it


class BadValue(ValueError):
    """The reason, in words; the loader adds where the value stood."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str  # as the reference page shows it
    parse: Callable[[object], Any]
    show: Callable[[Any], str]


def _number(raw: object, low: int, high: int, what: str = "a whole number") -> int:
    if isinstance(raw, str) and re.fullmatch(r"-?\d+", raw.strip()):
        raw = int(raw)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise BadValue(f"expected {what}, got {raw!r}")
    if not low <= raw <= high:
        raise BadValue(f"expected {what} from {low} to {high}, got {raw}")
    return raw


def count(low: int = 0, high: int = 2**63 - 1) -> Kind:
    return Kind("number", lambda raw: _number(raw, low, high), str)


def _port(raw: object) -> int | None:
    if raw is False or (isinstance(raw, str) and raw.lower() == "off"):
        return None
    return _number(raw, 0, 65_535, 'a port number or "off"')


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "1", "yes", "on"):
        return True
    if isinstance(raw, str) and raw.lower() in ("false", "0", "no", "off"):
        return False
    raise BadValue(f"expected true or false, got {raw!r}")


def _duration(raw: object) -> int:
    return (
        parse_duration_ms(raw) if isinstance(raw, str) else _number(raw, 0, 2**63 - 1, "a duration such as 30s or 7d")
    )


def _size(raw: object) -> int:
    return parse_size_bytes(raw) if isinstance(raw, str) else _number(raw, 0, 2**63 - 1, "a size such as 64MiB")


def _unless_unlimited(parse: Callable[[object], int]) -> Callable[[object], int]:
    return lambda raw: UNLIMITED if raw in (UNLIMITED, "-1", "unlimited") else parse(raw)


def _show_unless_unlimited(show: Callable[[int], str]) -> Callable[[int], str]:
    return lambda value: "unlimited" if value == UNLIMITED else show(value)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise BadValue(f"expected text in quotes, got {raw!r}")
    return raw


def _names(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, list) and all(isinstance(part, str) for part in raw):
        return tuple(raw)
    raise BadValue(f'expected a list of texts such as ["a", "b"], got {raw!r}')


def _durability(raw: object) -> str:
    text = _text(raw)
    mode, _, rest = text.partition(":")
    if (mode in ("sync", "os", "none") and not rest) or (
        mode == "interval" and rest.isdecimal() and 0 < int(rest) <= 3_600_000
    ):
        return text
    raise BadValue(f'expected "sync", "interval:<ms>", "os" or "none", got {text!r}')


def _amount(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, (int, float, str)) and not isinstance(raw, bool) else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise BadValue(f"expected a number that is not negative, got {raw!r}")
    return value


def choice(*values: str) -> Kind:
    def parse(raw: object) -> str:
        if raw not in values:
            raise BadValue(f"expected one of {', '.join(values)}, got {raw!r}")
        return str(raw)

    return Kind(" \\| ".join(f"`{value}`" for value in values), parse, str)


PORT = Kind('port or `"off"`', _port, lambda port: "off" if port is None else str(port))
FLAG = Kind("true or false", _flag, lambda flag: "true" if flag else "false")
DURATION = Kind("duration", _duration, show_duration_ms)
SIZE = Kind("size", _size, show_size_bytes)
DURATION_OR_UNLIMITED = Kind(
    "duration or `unlimited`",
    _unless_unlimited(_duration),
    _show_unless_unlimited(show_duration_ms),
)
SIZE_OR_UNLIMITED = Kind(
    "size or `unlimited`",
    _unless_unlimited(_size),
    _show_unless_unlimited(show_size_bytes),
)
TEXT = Kind("text", _text, str)
ADDRESS = Kind(
    "address", _text, lambda value: re.sub(r"(://[^:@/]*:)[^@/]*@", r"\1***@", value)
)  # no password is shown
AMOUNT = Kind("number", _amount, str)
NAMES = Kind("list of texts", _names, ", ".join)
DURABILITY = Kind("`sync`, `interval:<ms>`, `os`, `none`", _durability, str)


def share() -> Kind:
    """Of a hundred, as a percentage; empty is none."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(r"(\d{1,3}(\.\d{1,6})?%)?", raw) or float(raw[:-1] or 0) > 100:
            raise BadValue(f'expected a share like "1%", got {raw!r}')
        return raw

    return Kind('share, e.g. `"1%"`', parse, str)
