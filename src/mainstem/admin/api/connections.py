"""/v1/connections: who is connected, and ending a connection."""

from __future__ import annotations

from itertools import islice
from typing import Any

from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.connections import connection_row, connection_rows, find_connection, seen_by


async def list_connections(call: Call) -> Any:
    found = connection_rows(
        call.running, seen_by(call), protocol=call.query.get("protocol", ""), after=call.query.get("after", "")
    )
    rows = list(islice(found, call.limit + 1))
    return page(rows[: call.limit], rows[call.limit - 1]["id"] if len(rows) > call.limit else None)


async def describe_connection(call: Call) -> Any:
    protocol, connection = find_connection(call.running, call.path["id"], seen_by(call))
    return connection_row(call.path["id"].partition("-")[0], protocol, connection)


async def end_connection(call: Call) -> Any:
    _, connection = find_connection(call.running, call.path["id"], seen_by(call))
    connection.close(f"ended by {call.principal.name} through the API")
    return {"ended": call.path["id"]}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/connections",
        list_connections,
        "Open connections of all protocols.",
        "connection.list",
        query=(Field("protocol", "string", "Only mqtt, kafka or amqp."), LIMIT, AFTER),
    ),
    Operation("GET", "/v1/connections/{id}", describe_connection, "One connection.", "connection.describe"),
    Operation(
        "DELETE",
        "/v1/connections/{id}",
        end_connection,
        "End a connection; the client may come back.",
        "connection.end",
    ),
)
