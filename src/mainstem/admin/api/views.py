"""/v1/views: named filters over everything stored."""

from __future__ import annotations

from typing import Any

from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.spellings import spellings
from mainstem.broker.access import Action
from mainstem.broker.views import View
from mainstem.model.errors import NotAuthorized, NotFound


def view_row(view: View) -> dict[str, Any]:
    return {
        "name": view.name.decode(),
        "filter": view.filter.decode(),
        "where": str(view.condition) if view.condition is not None else "",
        "slots": len(view.slots),
    }


def view_facts(view: View) -> dict[str, Any]:
    slots = []
    for number in range(len(view.slots)):
        slot = view.slot(number)
        if slot is None:
            slots.append({"slot": number, "log": None})
            continue
        start, end = slot.start_offset, slot.stable_offset
        records = slot.count(start, end)
        slots.append({"slot": number, "log": slot.log.id, "start_offset": start, "end_offset": end, "records": records})
    return {**view_row(view), "spellings": spellings(view.name), "created": view.created, "partitions": slots}


def view_named(call: Call) -> View:
    view = call.namespace.views.get(call.path["name"].encode())
    if view is None:
        raise NotFound(f"there is no view {call.path['name']}", fix="mainstem view ls")
    return view


async def list_views(call: Call) -> Any:
    views = call.namespace.views
    after, limit = call.query.get("after", "").encode(), call.limit
    names = [name for name in sorted(views) if name > after and call.allows(Action.DESCRIBE, name)]
    rows = [view_row(views[name]) for name in names[:limit]]
    return page(rows, names[limit - 1].decode() if len(names) > limit else None, total=len(views))


async def create_view(call: Call) -> Any:
    name, topic_filter = call.body["name"].encode(), call.body["filter"].encode()
    call.require(Action.CREATE, name)
    if not call.running.broker.access.allows_filter(call.principal, Action.CONSUME, topic_filter):
        raise NotAuthorized(f"user {call.principal.name} may not consume all that {call.body['filter']} means")
    view = call.running.broker.create_view(call.namespace, name, topic_filter, where=call.body.get("where") or "")
    await call.running.broker.store.flush()
    return view_facts(view)


async def describe_view(call: Call) -> Any:
    view = view_named(call)
    call.require(Action.DESCRIBE, view.name)
    return view_facts(view)


async def delete_view(call: Call) -> Any:
    view = view_named(call)
    call.require(Action.DELETE, view.name)
    await call.running.broker.drop_view(call.namespace, view.name)
    return {"deleted": call.path["name"]}


OPERATIONS = (
    Operation("GET", "/v1/views", list_views, "Views by name.", query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/views",
        create_view,
        "Make a view; it shows everything already stored that matches, and costs nothing to make.",
        body=(
            Field("name", "string", "Its name: a Kafka topic, a stream queue, a subscription.", required=True),
            Field("filter", "string", "A topic filter, for example sensors/#.", required=True),
            Field("where", "string", "A condition on key and headers: key ^= 'dev-' and header.region = 'eu'."),
        ),
    ),
    Operation("GET", "/v1/views/{name:path}", describe_view, "One view in full."),
    Operation("DELETE", "/v1/views/{name:path}", delete_view, "Forget a view; its records stay."),
)
