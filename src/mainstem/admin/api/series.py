"""/v1/rates, /v1/history and /v1/series: numbers over time, ready to draw."""

from __future__ import annotations

import asyncio
import json
import re

from mainstem.admin.answers.system import HistorySeries, Series
from mainstem.admin.api.messages import SUBJECT, require_consume
from mainstem.admin.calls import Call, Field, Operation
from mainstem.admin.messages import READ_BYTES, open_source, start_offsets
from mainstem.admin.rights import admit
from mainstem.broker.rights.access import Action
from mainstem.broker.rights.operations import NEEDS
from mainstem.model.errors import InvalidArgument, NotAuthorized
from mainstem.model.record import Record

RECORDS_MAX = 5_000  # a chart has no more pixels than that
RANGE_S_MAX = 8 * 86_400
RANGE = re.compile(r"(\d{1,6})([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
STEP = 500  # records read before the loop gets its turn


async def get_rates(call: Call) -> Series:
    return call.running.rates.series()


async def get_history(call: Call) -> HistorySeries:
    """Of the broker for admins; of one topic, queue, group or pipeline for those who may see it."""
    history, range_s = call.running.history, _range_s(call.query.get("range", "1h"))
    figures = tuple(one for one in call.query.get("figures", "").split(",") if one)
    named = {kind: call.query[kind] for kind in ("topic", "queue", "group", "pipeline") if call.query.get(kind)}
    if len(named) > 1:
        raise InvalidArgument("one of topic, queue, group and pipeline, not several")
    for kind, name in named.items():
        if kind == "topic":
            call.require(Action.DESCRIBE, name.encode())
        elif kind == "pipeline":
            admit(call.running.broker, call.principal, NEEDS["pipeline.list"], call.namespace.name)
        else:
            call.require_object(name, f"{kind}.describe")
        return history.of_object(kind, call.namespace.name, name, range_s, figures)
    if not call.principal.admin:
        raise NotAuthorized("only an admin may see the broker's figures", fix="?topic=, ?queue= or ?group=")
    return history.of_broker(figures, range_s)


def _range_s(text: str) -> int:
    found = RANGE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"range must be like 30m, 6h or 7d, not {text[:100]!r}")
    return max(60, min(int(found[1]) * UNITS_S[found[2]], RANGE_S_MAX))


async def get_series(call: Call) -> Series:
    """The newest values of a numeric field; records without it are left out."""
    topic, view, topic_filter = (call.query.get(name, "") for name in ("topic", "view", "filter"))
    require_consume(call, topic, view, topic_filter)
    source = open_source(call.namespace, topic=topic, view=view, topic_filter=topic_filter, denied=call.denied())
    now_ms = call.running.broker.clock.now_ns() // 1_000_000
    offsets = start_offsets(source, call.query.get("from") or f"-{RECORDS_MAX}", now_ms=now_ms, limit=RECORDS_MAX)
    path = [part for part in call.query.get("field", "").split(".") if part not in ("", "value")]
    points: list[tuple[int, float]] = []
    for number, reader in source.readers.items():
        at = offsets.get(number, reader.start_offset)
        while at < reader.stable_offset and len(points) < RECORDS_MAX:
            records, after = reader.records(at, READ_BYTES, count_max=STEP)
            points += ((one.time_ms, value) for one in records if (value := number_in(one, path)) is not None)
            if after <= at:  # the rest belongs to an open transaction
                break
            at = after
            await asyncio.sleep(0)
    points.sort()
    name = call.query.get("field") or "value"
    return {"time": [time_ms / 1000 for time_ms, _ in points], "series": {name: [value for _, value in points]}}


def number_in(record: Record, path: list[str]) -> float | None:
    """The number at a path of a JSON value, or the value itself."""
    try:
        found = json.loads(record.value or b"")
        for part in path:
            found = found[int(part)] if isinstance(found, list) else found[part]
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        return None


OPERATIONS = (
    Operation(
        "GET", "/v1/rates", get_rates, "Messages a second by protocol, for the last ten minutes.", "overview.rates"
    ),
    Operation(
        "GET",
        "/v1/history",
        get_history,
        "Figures over time, for up to eight days: of the broker, or of one topic, queue, group or pipeline.",
        "history.read",
        query=(
            Field("range", "string", "How far back: 30m, 6h, 7d. Up to six hours in steps of 10 s, beyond of 5 min."),
            Field(
                "figures",
                "string",
                "Only these, comma-separated: in,out,ack_p99; of a pipeline lag or rows.",
            ),
            Field("topic", "string", "Of this topic: what came in."),
            Field("queue", "string", "Of this queue: ready and unacked."),
            Field("group", "string", "Of this group: its lag."),
            Field("pipeline", "string", "Of this pipeline: lag and rows a second of each flow."),
        ),
    ),
    Operation(
        "GET",
        "/v1/series",
        get_series,
        "A numeric field of the newest records over time.",
        "topic.consume",
        query=(
            *SUBJECT,
            Field("field", "string", "Path in the JSON value, for example a.b; empty where the value is the number."),
            Field("from", "string", "As for /v1/messages; the newest 5000 if left out."),
        ),
    ),
)
