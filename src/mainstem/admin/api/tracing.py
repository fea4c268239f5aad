"""/v1/trace and /v1/traces: the way of one message, and the messages whose way was followed."""

from __future__ import annotations

from itertools import islice

from mainstem.admin.answers.consumers import Traces, WayFacts
from mainstem.admin.calls import LIMIT, Call, Field, Operation
from mainstem.admin.way import trace_facts, way_of
from mainstem.broker.rights.access import Action


async def get_trace(call: Call) -> WayFacts:
    topic: str = call.query.get("topic", "")
    call.require(Action.CONSUME, topic.encode())
    return way_of(call.running, call.namespace, topic, call.number("partition", 0), call.number("offset", 0))


async def list_traces(call: Call) -> Traces:
    asked = {name: call.query.get(name, "") for name in ("topic", "key", "trace_id")}
    found = call.running.broker.tracer.traces.find(call.namespace.name, **asked)
    seen = (one for one in found if call.allows(Action.CONSUME, one.topic.encode()))
    skipped = call.running.broker.tracer.skipped
    rows = [trace_facts(one) for one in islice(seen, call.limit)]
    return {"items": rows, "next": None, "skipped": skipped}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/trace",
        get_trace,
        "The way of one message: published, stored, and where it stands with each who may take it.",
        "topic.consume",
        query=(
            Field("topic", "string", "Its topic.", required=True),
            Field("partition", "integer", "Its partition; 0 if left out."),
            Field("offset", "integer", "Its offset.", required=True),
        ),
    ),
    Operation(
        "GET",
        "/v1/traces",
        list_traces,
        "Messages of traced topics that were followed, newest first, each step with its time.",
        "trace.list",
        query=(
            LIMIT,
            Field("topic", "string", "Only of this topic."),
            Field("key", "string", "Only with this key."),
            Field("trace_id", "string", "Only this one: a trace id, a whole `traceparent`, or a stamp."),
        ),
    ),
)
