"""When a message's schedule fires next, in the words of NATS's `Nats-Schedule` header.

    @at 2030-01-01T00:00:00Z     once                @every 1h30m    again and again, a second at least
    @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly
    sec min hour day month weekday                   lists `1,2`, ranges `1-5`, steps `*/10`, names `mon`, `jan`

As usual a day matches if both day fields do, or either where neither of them is `*`. A cron pattern may have a time zone.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from mainstem.model.errors import InvalidArgument
from mainstem.model.times import NS_PER_S, time_ns
from mainstem.model.whole_numbers import whole_number

_NAMED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_BOUNDS: list[tuple[int, int, dict[str, int]]] = [
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
]
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
DURATION_NS_MAX = 1 << 62  # 146 years: added to a moment of ours it still fits
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": NS_PER_S, "m": 60 * NS_PER_S, "h": 3_600 * NS_PER_S}
YEARS_MAX = 5


@dataclass(frozen=True, slots=True)
class Fire:
    due_ns: int
    repeats: bool


def next_fire(pattern: str, after_ns: int, now_ns: int, zone: tzinfo | None = None) -> Fire:
    """Times that went by while nobody looked are skipped, but for `@at`'s. InvalidArgument where it is not a schedule."""
    if pattern.startswith("@at "):
        if zone is not None:
            raise InvalidArgument("@at has no time zone")
        try:
            return Fire(time_ns(pattern[4:]), repeats=False)
        except ValueError:
            raise InvalidArgument(f"{pattern!r} is not a time") from None
    if pattern.startswith("@every "):
        every_ns = duration_ns(pattern[7:])
        if zone is not None or every_ns is None or every_ns < NS_PER_S:
            raise InvalidArgument(f"{pattern!r} is not an interval of a second or more")
        due = _rounded(after_ns) + every_ns
        return Fire(due if due >= now_ns else _rounded(now_ns) + every_ns, repeats=True)
    fields = _fields(_NAMED.get(pattern, pattern))
    due = _next_cron(fields, after_ns, zone or UTC)
    if due < now_ns:
        due = _next_cron(fields, _rounded(now_ns), zone or UTC)
    return Fire(due, repeats=True)


def duration_ns(text: str) -> int | None:
    """Go's durations: `1h30m`."""
    found = _PART.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        return None
    length = sum(float(number) * _UNITS[unit] for number, unit in found)
    return int(length) if length < DURATION_NS_MAX else None


def _rounded(ns: int) -> int:
    return (ns + NS_PER_S // 2) // NS_PER_S * NS_PER_S


def _fields(pattern: str) -> list[tuple[frozenset[int], bool]]:
    """What each field allows, and whether it is `*`."""
    texts = pattern.split()
    if len(texts) != len(_BOUNDS):
        raise InvalidArgument(f"a cron pattern has 6 fields, {pattern!r} has {len(texts)}")
    return [_field(text, *bounds) for text, bounds in zip(texts, _BOUNDS, strict=True)]


def _field(text: str, low: int, high: int, names: dict[str, int]) -> tuple[frozenset[int], bool]:
    allowed: set[int] = set()
    star = False
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        step = (whole_number(step_text) or 0) if "/" in part else 1
        if span in ("*", "?"):
            first, last, star = low, high, star or step == 1
        else:
            first_text, dash, last_text = span.partition("-")
            first = _value(first_text, names)
            last = _value(last_text, names) if dash else high if step_text else first
        if step < 1 or not low <= first <= last <= high:
            raise InvalidArgument(f"{part!r} is not between {low} and {high}")
        allowed.update(range(first, last + 1, step))
    return frozenset(allowed), star


def _value(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    number = whole_number(text)
    if number is None:
        raise InvalidArgument(f"{text!r} is not a number")
    return number


def _next_cron(fields: list[tuple[frozenset[int], bool]], after_ns: int, zone: tzinfo) -> int:
    """The first second behind `after_ns` that the fields allow."""
    (seconds, _), (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = fields
    when = datetime.fromtimestamp(after_ns // NS_PER_S + 1, zone)
    last_year = when.year + YEARS_MAX
    day = when.replace(hour=0, minute=0, second=0)
    while day.year <= last_year:
        if day.month not in months:
            day += timedelta(days=monthrange(day.year, day.month)[1] - day.day + 1)
            continue
        in_month, in_week = day.day in days, (day.weekday() + 1) % 7 in weekdays
        if (in_month and in_week) if any_day or any_weekday else (in_month or in_week):
            begin = (when.hour, when.minute, when.second) if day.date() == when.date() else (0, 0, 0)
            found = next(
                (
                    (hour, minute, second)
                    for hour in sorted(hours)
                    if hour >= begin[0]
                    for minute in sorted(minutes)
                    if (hour, minute) >= begin[:2]
                    for second in sorted(seconds)
                    if (hour, minute, second) >= begin
                ),
                None,
            )
            if found is not None:
                due = day.replace(hour=found[0], minute=found[1], second=found[2], tzinfo=zone)
                return int(due.timestamp()) * NS_PER_S
        day += timedelta(days=1)
    raise InvalidArgument("the pattern never fires")
