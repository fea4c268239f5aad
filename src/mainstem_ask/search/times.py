"""Points in time and widths of bars, as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

from mainstem.model.errors import InvalidArgument
from mainstem.server.units import parse_duration_ms


def time_ms_of(text: str, now_ms: int) -> int:
    """`2h` (ago), an RFC 3339 time, or milliseconds since 1970."""
    if text.isdecimal() and len(text) > 10:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
    try:
        return max(now_ms - parse_duration_ms(text), 0)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a time", fix="2h (ago), or 2026-01-31T12:00:00Z") from None


def bucket_ms_of(text: str) -> int:
    try:
        found = parse_duration_ms(text)
    except ValueError as error:
        raise InvalidArgument(f"the width of a bar: {error}", fix="1m") from None
    if found < 1:
        raise InvalidArgument("a bar has a width of at least 1ms", fix="1m")
    return found
