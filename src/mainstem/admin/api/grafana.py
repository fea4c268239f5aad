"""/grafana: what Grafana's JSON data sources ask (simpod-json-datasource and SimpleJson), answered by SQL over the log.

A panel's target is one SELECT, with these words filled in from what the panel shows:

    $__timeFilter, $__timeFilter(column)    the panel's time range, of `timestamp` or another column
    $__interval                             the width of a point, as a DuckDB interval: time_bucket($__interval, timestamp)
    $__from, $__to                          the range in milliseconds since 1970

A result whose first column is a time and whose others hold numbers is a series for each of these, or for each text in the
second column; any other result is a table.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from mainstem.admin.answers.system import GrafanaAnswer, GrafanaHealth, GrafanaValue, Rows
from mainstem.admin.api.asking import ROWS_MAX, run_query
from mainstem.admin.calls import Call, Field, Handler, Operation
from mainstem.model.errors import InvalidArgument

TARGETS_MAX = 20  # of one panel
_TIME_FILTER = re.compile(r"\$__timeFilter(?:\(\s*([\w\"`.]+)\s*\))?")
_NUMBERS = ("int", "uint", "float", "double", "decimal", "halffloat")


async def grafana_health(call: Call) -> GrafanaHealth:
    return {"status": "ok"}


async def grafana_query(call: Call) -> list[GrafanaAnswer]:
    """Each target in turn: a question is a process, and few run at once."""
    targets = call.body.get("targets") or []
    if len(targets) > TARGETS_MAX:
        raise InvalidArgument(f"a panel has at most {TARGETS_MAX} targets, not {len(targets)}")
    answers: list[GrafanaAnswer] = []
    for one in targets:
        if isinstance(one, dict) and not one.get("hide") and (sql := _sql_of(one)):
            answers += shaped(await _asked(call, _filled(sql, call.body)), one)
    return answers


async def grafana_variable(call: Call) -> list[GrafanaValue]:
    """Values of a dashboard's variable: a SELECT of one column, or of text and value."""
    payload = call.body.get("payload")
    sql = _sql_of({"payload": payload if isinstance(payload, dict) else {"target": call.body.get("target")}})
    if not sql:
        return []
    rows = [list(row.values()) for row in (await _asked(call, _filled(sql, call.body)))["items"]]
    return [{"__text": str(row[0]), "__value": str(row[-1])} for row in rows]


def _empty(name: str) -> Handler:
    """Targets are written, not chosen from a list."""

    async def answer(call: Call) -> list[Any]:
        return []

    answer.__name__ = f"grafana_{name}"
    return answer


def _sql_of(target: dict[str, Any]) -> str:
    payload = target.get("payload")
    if isinstance(payload, dict):
        found = payload.get("sql") or payload.get("target")
    else:
        found = payload or target.get("target")
    return found.strip() if isinstance(found, str) else ""


def _filled(sql: str, body: dict[str, Any]) -> str:
    asked = body.get("range") or {}
    begin, end = (_time_ms(asked.get(name), name) for name in ("from", "to"))

    def between(found: re.Match[str]) -> str:
        column = found[1] or "timestamp"
        return f"({column} >= TIMESTAMPTZ '{_text(begin)}' AND {column} < TIMESTAMPTZ '{_text(end)}')"

    width_ms = body.get("intervalMs")
    width_ms = width_ms if isinstance(width_ms, int) and width_ms > 0 else 1_000
    sql = _TIME_FILTER.sub(between, sql).replace("$__interval", f"INTERVAL '{width_ms} milliseconds'")
    return sql.replace("$__from", str(begin)).replace("$__to", str(end))


def _time_ms(text: Any, name: str) -> int:
    if text is None:
        return 0 if name == "from" else 253_402_300_799_000
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        raise InvalidArgument(f"range.{name} is not a time: {text!r}") from None


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


async def _asked(call: Call, sql: str) -> Rows:
    call.body = {"sql": sql, "limit": ROWS_MAX}
    return await run_query(call)


def shaped(told: Rows, target: dict[str, Any]) -> list[GrafanaAnswer]:
    """A result as series, or as a table where it is none or one is asked for."""
    columns, rows = told["columns"], [list(row.values()) for row in told["items"]]
    kinds = [_kind(one["type"]) for one in columns]
    numbers = [at for at, kind in enumerate(kinds) if kind == "number"]
    if target.get("type") == "table" or kinds[:1] != ["time"] or not numbers:
        return [_table(columns, kinds, rows, target)]
    label = 1 if len(kinds) > 1 and kinds[1] == "string" else None
    series: dict[str, list[Any]] = {}
    for row in rows:
        for at in numbers:
            name = columns[at]["name"] if label is None else str(row[label])
            if label is not None and len(numbers) > 1:
                name = f"{name} {columns[at]['name']}"
            series.setdefault(name, []).append([row[at], _point_ms(row[0])])
    return [{"target": name, "refId": target.get("refId", ""), "datapoints": points} for name, points in series.items()]


def _table(columns: list[Any], kinds: list[str], rows: list[Any], target: dict[str, Any]) -> GrafanaAnswer:
    for row in rows:
        for at, kind in enumerate(kinds):
            row[at] = _point_ms(row[at]) if kind == "time" else row[at]
    named = [{"text": one["name"], "type": kind} for one, kind in zip(columns, kinds, strict=True)]
    return {"type": "table", "refId": target.get("refId", ""), "columns": named, "rows": rows}


def _kind(arrow_type: str) -> str:
    if arrow_type.startswith(("timestamp", "date")):
        return "time"
    return "number" if arrow_type.startswith(_NUMBERS) else "string"


def _point_ms(value: Any) -> Any:
    """Times are told in UTC without saying so."""
    if not isinstance(value, str):
        return value
    return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp() * 1000)


_FIELDS = (
    Field("targets", "array", "What the panel shows: `target`, or `payload.sql`, is one SELECT."),
    Field("range", "object", "`from` and `to`, RFC 3339."),
    Field("intervalMs", "integer", "Width of a point."),
)
OPERATIONS = (
    Operation("GET", "/grafana", grafana_health, "Says that it is there.", "query.run"),
    Operation(
        "POST", "/grafana/query", grafana_query, "The targets of a panel.", "query.run", body=_FIELDS, strict=False
    ),
    Operation(
        "POST",
        "/grafana/variable",
        grafana_variable,
        "Values of a variable, by SQL.",
        "query.run",
        body=_FIELDS,
        strict=False,
    ),
    *(
        Operation("POST", f"/grafana/{name}", _empty(name), "Empty: targets are SQL.", "query.run", strict=False)
        for name in ("metrics", "search", "annotations", "tag-keys", "tag-values")
    ),
)
