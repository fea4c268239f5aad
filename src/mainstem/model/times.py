"""Times as text: RFC 3339 with nanoseconds, as NATS has them."""

from __future__ import annotations

from datetime import UTC, datetime

NO_TIME = "0001-01-01T00:00:00Z"
NS_PER_S = 1_000_000_000


def time_text(ns: int) -> str:
    """RFC 3339, with as many of nine digits as are needed."""
    if ns <= 0:
        return NO_TIME
    seconds, rest = divmod(ns, NS_PER_S)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{rest:09d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def time_ns(text: str) -> int:
    """Raises ValueError."""
    head, dot, rest = text.partition(".")
    digits = ""
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        head += rest[len(digits) :]
    when = datetime.fromisoformat(head.replace("Z", "+00:00"))
    if when.tzinfo is None:
        raise ValueError(text)
    return int(when.timestamp()) * NS_PER_S + int((digits + "0" * 9)[:9])


def duration_text(ns: int) -> str:
    """As Go writes it: 90 seconds are `1m30s`, a tenth of one is `100ms`."""
    if 0 < ns < NS_PER_S:
        unit, size = next((unit, size) for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if ns >= size)
        return f"{_decimal(ns, size)}{unit}"
    seconds, rest = divmod(ns, NS_PER_S)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(seconds * NS_PER_S + rest, NS_PER_S)}s"
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    fraction = str(rest).zfill(len(str(unit)) - 1).rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
