"""/v1/connections: who is connected, and ending a connection."""

from __future__ import annotations

from mainstem.admin.answers import Page
from mainstem.admin.answers.consumers import ConnectionRow, Ended
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.connections import connection_row, find_connection, page_of_connections, seen_by


async def list_connections(call: Call) -> Page[ConnectionRow]:
    rows, after = await page_of_connections(
        call.running,
        seen_by(call),
        protocol=call.query.get("protocol", ""),
        after=call.query.get("after", ""),
        limit=call.limit,
    )
    return page(rows, after)


async def describe_connection(call: Call) -> ConnectionRow:
    protocol, connection = find_connection(call.running, call.path["id"], seen_by(call))
    return connection_row(call.path["id"].partition("-")[0], protocol, connection)


async def end_connection(call: Call) -> Ended:
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
