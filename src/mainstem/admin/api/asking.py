"""/v1/query and /v1/search: the log asked, by whoever may consume some of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from mainstem.admin.answers import Lines
from mainstem.admin.answers.system import Rows, SearchEvent
from mainstem.admin.calls import Call, Field, Operation
from mainstem.model.errors import InvalidArgument, MainstemError

ROWS, ROWS_MAX = 1_000, 10_000


def _limit(call: Call, default: int) -> int:
    limit = call.body.get("limit")
    if limit is None:
        return default
    if not 0 <= limit <= ROWS_MAX:
        raise InvalidArgument(f"limit must be 0 to {ROWS_MAX}, not {limit}")
    return int(limit)


async def run_query(call: Call) -> Rows:
    asked = {"kind": "query", "sql": call.body["sql"], "limit": _limit(call, ROWS)}
    told: Rows = {"columns": [], "items": [], "more": False, "notices": []}
    async with contextlib.aclosing(call.running.asking.ask(call.principal, call.namespace.name, asked)) as events:
        async for event in events:
            told["items"].extend(event.get("rows", ()))
            told["columns"] = event.get("columns", told["columns"])
            told["more"] = event.get("more", told["more"])
            told["notices"] = event.get("notices", told["notices"])
    return told


async def run_search(call: Call) -> Lines[SearchEvent]:
    """The first event is waited for, so that what is wrong with the question has a status of its own."""
    asked = {**call.body, "kind": "search", "limit": _limit(call, 100)}
    events = call.running.asking.ask(call.principal, call.namespace.name, asked)
    first = await anext(events, None)

    async def lines() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield msgspec.json.encode(first) + b"\n"
            async for event in events:
                yield msgspec.json.encode(event) + b"\n"
        except MainstemError as error:
            yield msgspec.json.encode({"error": {"code": error.code, "detail": error.message}}) + b"\n"
        finally:
            await events.aclose()

    return Lines(lines())


OPERATIONS = (
    Operation(
        "POST",
        "/v1/query",
        run_query,
        "SQL over topics, filters and views by DuckDB; rows of what the caller may consume.",
        "query.run",
        body=(
            Field("sql", "string", "One SELECT; names as for `mainstem query`.", required=True),
            Field("limit", "integer", f"Rows to answer, {ROWS} by default, at most {ROWS_MAX}; `more` says there are."),
        ),
    ),
    Operation(
        "POST",
        "/v1/search",
        run_search,
        "Search, newest first: JSON lines of `hit`, `progress`, `buckets`, `top`, `notices` and `done`.",
        "search.run",
        body=(
            Field("query", "string", "Words, fields and comparisons, as for `mainstem search`."),
            Field("topic", "string", "A topic filter, or a topic."),
            Field("since", "string", "Not older: 2h, or an RFC 3339 time."),
            Field("before", "string", "Older than."),
            Field("limit", "integer", f"Hits to answer, 100 by default, at most {ROWS_MAX}."),
            Field("histogram", "string", "Counts over time, with bars of this width: 1m."),
            Field("top", "string", "The most frequent values of this path: $.service."),
            Field("top_count", "integer", "How many of them."),
        ),
        streams=True,
    ),
)
