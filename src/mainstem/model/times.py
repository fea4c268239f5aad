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
