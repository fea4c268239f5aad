"""/v1/views: named filters over everything stored."""

from __future__ import annotations

from typing import Any

from mainstem.admin.answers import CountedPage, Deleted, Page
from mainstem.admin.answers.topics import MessageFacts, SlotFacts, ViewFacts, ViewRow
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, check_ordinary, page
from mainstem.admin.messages import record_facts
from mainstem.admin.running import Running
from mainstem.broker.rights.access import Action
from mainstem.broker.topics.views import View
from mainstem.model.errors import InvalidArgument, NotAuthorized, NotFound
from mainstem.model.record import Record


def view_row(view: View) -> ViewRow:
    return {
        "name": view.name.decode(),
        "filter": view.filter.decode(),
        "where": view.condition.text if view.condition is not None else "",
        "grants": view.grants,
        "slots": len(view.slots),
    }


def view_facts(running: Running, view: View) -> ViewFacts:
    slots = list[SlotFacts]()
    for number in range(len(view.slots)):
        slot = view.slot(number)
        if slot is None:
            slots.append({"slot": number, "log": None})
            continue
        start, end = slot.start_offset, slot.stable_offset
        # With a condition counting means reading everything: making a view must not, however much is stored.
        records = slot.count(start, end) if view.condition is None else None
        slots.append({"slot": number, "log": slot.log.id, "start_offset": start, "end_offset": end, "records": records})
    return {**view_row(view), "spellings": running.spellings(view.name), "created": view.created, "partitions": slots}


def view_named(call: Call) -> View:
    view = call.namespace.views.get(call.path["name"].encode())
    if view is None:
        raise NotFound(f"there is no view {call.path['name']}", fix="mainstem view ls")
    return view


async def list_views(call: Call) -> CountedPage[ViewRow]:
    views = call.namespace.views
    after, limit = call.query.get("after", "").encode(), call.limit
    names = [name for name in sorted(views) if name > after and call.allows(Action.DESCRIBE, name)]
    rows = [view_row(views[name]) for name in names[:limit]]
    after_them = names[limit - 1].decode() if len(names) > limit else None
    return {"items": rows, "next": after_them, "total": call.counted(len(views))}


async def create_view(call: Call) -> ViewFacts:
    name, topic_filter = call.body["name"].encode(), call.body["filter"].encode()
    check_ordinary(name)
    if not call.running.broker.access.allows_all(call.principal, Action.CONSUME, topic_filter):
        raise NotAuthorized(f"user {call.principal.name} may not consume all that {call.body['filter']} means")
    options: dict[str, Any] = {"last_by": call.body["last_by"]} if call.body.get("last_by") else {}
    if call.body.get("grants"):
        if not call.principal.admin:
            raise NotAuthorized("only an admin may make a view that shows what rules deny its readers")
        options["grants"] = True
    where = call.body.get("where") or ""
    view = await call.running.broker.begin_view(call.namespace, name, topic_filter, where=where, options=options)
    return view_facts(call.running, view)


async def describe_view(call: Call) -> ViewFacts:
    return view_facts(call.running, view_named(call))


async def read_table(call: Call) -> Page[MessageFacts] | MessageFacts:
    """The rows of a last-value view: one key's, or a page of them in the order of their keys."""
    view = view_named(call)
    if view.table is None:
        raise InvalidArgument(
            f"view {call.path['name']} is not a table",
            fix=f"mainstem view create NAME '{view.filter.decode()}' --last-by key",
        )
    access = call.running.broker.access

    def is_hidden(row: Record) -> bool:
        return not view.grants and access.denies(call.principal, Action.CONSUME, row.topic)

    key = call.query.get("key")
    if key is not None:
        found = view.table.get(key.encode())
        if found is None or is_hidden(found):
            raise NotFound(f"view {call.path['name']} has no row {key!r}")
        return record_facts(0, found)
    prefix, after = call.query.get("prefix", "").encode(), call.query.get("after", "").encode()
    rows = view.table.items(prefix, after, call.limit)  # a page may show fewer than it has
    last = view.table.key_of(rows[-1]) if len(rows) == call.limit else None
    return page(
        [record_facts(0, row) for row in rows if not is_hidden(row)], last.decode(errors="replace") if last else None
    )


async def delete_view(call: Call) -> Deleted:
    view = view_named(call)
    await call.running.broker.drop_view(call.namespace, view.name)
    return {"deleted": call.path["name"]}


OPERATIONS = (
    Operation("GET", "/v1/views", list_views, "Views by name.", "view.list", query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/views",
        create_view,
        "Make a view; it shows everything already stored that matches, and costs nothing to make.",
        "view.create",
        body=(
            Field("name", "string", "Its name: a Kafka topic, a stream queue, a subscription.", required=True),
            Field("filter", "string", "A topic filter, for example sensors/#.", required=True),
            Field("where", "string", "A condition on key and headers: key ^= 'dev-' and header.region = 'eu'."),
            Field("grants", "boolean", "Show its readers also what rules deny them; an admin may mean so."),
            Field("last_by", "string", "key or topic: a table of the newest record of each."),
        ),
        names="name",
    ),
    Operation(
        "GET",
        "/v1/tables/{name:path}",
        read_table,
        "The newest record of each key of a last-value view.",
        "view.consume",
        query=(
            LIMIT,
            AFTER,
            Field("key", "string", "This row only."),
            Field("prefix", "string", "Keys that begin so."),
        ),
        names="name",
    ),
    Operation("GET", "/v1/views/{name:path}", describe_view, "One view in full.", "view.describe", names="name"),
    Operation(
        "DELETE", "/v1/views/{name:path}", delete_view, "Delete a view; its records stay.", "view.delete", names="name"
    ),
)
