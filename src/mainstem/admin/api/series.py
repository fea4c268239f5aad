"""/v1/rates and /v1/series: numbers over time, ready to draw."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mainstem.admin.api.messages import SUBJECT, require_consume
from mainstem.admin.calls import Call, Field, Operation
from mainstem.admin.messages import READ_BYTES, open_source, start_offsets
from mainstem.model.record import Record

RECORDS_MAX = 5_000  # a chart has no more pixels than that
STEP = 500  # records read before the loop gets its turn


async def get_rates(call: Call) -> Any:
    return call.running.rates.series()


async def get_series(call: Call) -> Any:
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
