"""/v1/cursors, /v1/groups and /v1/queues: how far each consumer has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mainstem.admin.api.messages import durable
from mainstem.admin.calls import ADMIN, AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.cursors import (
    apply_reset,
    cursor_rows,
    dead_row,
    group_facts,
    group_key,
    group_names,
    group_row,
    groups_of,
    mqtt_service,
    plan_offsets,
    plan_reset,
    queue_row,
    queues_of,
    sessions_of,
)
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.queues.bindings import ANYTHING, NOW, Reach
from mainstem.broker.queues.settings import LOCK_MS, QueueSettings
from mainstem.model.errors import AlreadyExists, InvalidArgument, NotFound
from mainstem.model.topic_filter import check_filter


async def list_cursors(call: Call) -> Any:
    begin = call.number("after", 0)
    rows = cursor_rows(call.running, call.namespace, begin, call.limit + 1)
    return page(rows[: call.limit], str(begin + call.limit) if len(rows) > call.limit else None)


async def list_groups(call: Call) -> Any:
    after = call.query.get("after", "")
    names = [name for name in group_names(call.running, call.namespace) if name > after]
    rows = [group_row(call.running, call.namespace, name) for name in names[: call.limit]]
    return page(rows, names[call.limit - 1] if len(names) > call.limit else None)


async def describe_group(call: Call) -> Any:
    return group_facts(call.running, call.namespace, call.path["name"])


async def reset_group(call: Call) -> Any:
    """Shows what would change; changes it when `dry_run` is false."""
    body = call.body
    group = body["group"]
    changes = plan_reset(call.running, call.namespace, group, body.get("topic") or "", body["to"])
    dry_run = bool(body.get("dry_run", False))
    if not dry_run and changes:
        ticket = apply_reset(call.running, call.namespace, group, changes)
        if ticket is not None:
            await durable(ticket)
    return {"group": group, "dry_run": dry_run, "changes": changes}


async def delete_group(call: Call) -> Any:
    groups = groups_of(call.running)
    if groups is None:
        raise NotFound("Kafka is switched off")
    fault, ticket = groups.delete_group(group_key(call.namespace, call.path["name"]))
    if fault is GroupFault.NON_EMPTY_GROUP:
        raise InvalidArgument(f"group {call.path['name']} has members", fix="stop its consumers first")
    if fault is not GroupFault.NONE:
        raise NotFound(f"there is no group {call.path['name']}", fix="mainstem group ls")
    if ticket is not None:
        await durable(ticket)
    return {"deleted": call.path["name"]}


async def create_group(call: Call) -> Any:
    """Offsets before there is a consumer: its first member begins there, whatever its own reset policy says."""
    body = call.body
    groups = groups_of(call.running)
    if groups is None:
        raise NotFound("Kafka is switched off")
    key = group_key(call.namespace, body["name"])
    if key in groups.groups or key in groups.offsets:
        raise AlreadyExists(f"group {body['name']} exists", fix=f"mainstem group reset {body['name']} --to WHERE")
    changes = plan_offsets(call.namespace, [body["topic"]], {}, body.get("from") or "earliest")
    ticket = apply_reset(call.running, call.namespace, body["name"], changes)
    if ticket is not None:
        await durable(ticket)
    return group_facts(call.running, call.namespace, body["name"])


async def delete_session(call: Call) -> Any:
    """Only of a client that is away: one that is here would simply go on."""
    service, sessions = mqtt_service(call.running), sessions_of(call.running)
    key = call.namespace.name.encode() + b"\0" + call.path["name"].encode()
    session = next((one for one in sessions or () if one.key == key), None)
    if session is None:
        raise NotFound(f"there is no session {call.path['name']}", fix="mainstem cursor ls")
    if session.here is not None:
        raise InvalidArgument(f"{call.path['name']} is connected", fix="mainstem conn ls, mainstem conn rm, then again")
    ticket = service.end_session(session)
    if ticket is not None:
        await durable(ticket)
    return {"deleted": call.path["name"]}


async def list_queues(call: Call) -> Any:
    queues = sorted(queues_of(call.running, call.namespace), key=lambda one: one.name)
    after = call.query.get("after", "")
    shown = [one for one in queues if one.name > after]
    rows = [queue_row(one) for one in shown[: call.limit]]
    return page(rows, rows[-1]["name"] if len(shown) > call.limit else None)


async def describe_queue(call: Call) -> Any:
    queue = queues_of(call.running, call.namespace).get(call.path["name"])
    return {**queue_row(queue), "settings": queue.settings.to_document()}


async def create_queue(call: Call) -> Any:
    """As MQTT's `$queue/NAME/FILTER` makes one: every protocol may take from it."""
    body, namespace = call.body, call.namespace
    topic_filter = body["filter"].encode()
    check_filter(topic_filter)
    start = 0 if body.get("from") == "earliest" else NOW
    settings = QueueSettings(
        message_ttl_ms=body.get("message_ttl_ms"),
        length_max=body.get("length_max"),
        deliveries_max=body.get("deliveries_max") or 0,
        lock_ms=body.get("lock_ms") or LOCK_MS,
        dead_letter_exchange=body.get("dead_letter_exchange"),
    )
    queues = queues_of(call.running, namespace)
    reaches = [Reach(ANYTHING, topic_filter, start=start)]
    queue, written = queues.declare(body["name"], settings, reaches=reaches, condition=body.get("where") or "")
    if written is not None:
        await written
    return queue_row(queue)


async def alter_queue(call: Call) -> Any:
    """What it was declared with by AMQP stays as it is, so that declaring it again still finds it the same."""
    queues = queues_of(call.running, call.namespace)
    queue = queues.get(call.path["name"])
    if not call.body:
        raise InvalidArgument("nothing to change", fix=f"one of {', '.join(one.name for one in QUEUE_LIMITS)}")
    changes: dict[str, Any] = dict(call.body)
    for name in ("deliveries_max", "lock_ms"):  # these have a value for "no limit"
        if name in changes:
            changes[name] = changes[name] or getattr(QueueSettings(), name)
    written = queues.alter(queue, replace(queue.settings, **changes))
    if written is not None:
        await written
    return {**queue_row(queue), "settings": queue.settings.to_document()}


async def purge_queue(call: Call) -> Any:
    return {"purged": queues_of(call.running, call.namespace).get(call.path["name"]).purge()}


async def list_dead(call: Call) -> Any:
    """Dead letters that a queue without a dead-letter exchange keeps: where they lie, why and since when."""
    queue = queues_of(call.running, call.namespace).get(call.path["name"])
    found = queue.browse_dead(call.limit)
    return page([dead_row(taken, reason, time_ms) for taken, reason, time_ms in found], None, total=queue.dead_count)


async def redrive_queue(call: Call) -> Any:
    """Nothing is copied: their state is forgotten, so they are ready again."""
    queue = queues_of(call.running, call.namespace).get(call.path["name"])
    position = call.body.get("position")
    return {"redriven": queue.redrive(None if position is None else [position])}


async def delete_queue(call: Call) -> Any:
    queues = queues_of(call.running, call.namespace)
    written = queues.delete(queues.get(call.path["name"]))
    if written is not None:
        await written
    return {"deleted": call.path["name"]}


QUEUE_LIMITS = (
    Field("message_ttl_ms", "integer", "How long a message may wait."),
    Field("length_max", "integer", "Messages it holds; the oldest go first."),
    Field("deliveries_max", "integer", "Attempts before a message is dead-lettered; 0 is no limit."),
    Field("lock_ms", "integer", "How long a consumer that pulls may hold a message; 30,000 by default."),
    Field("dead_letter_exchange", "string", "Where dead letters are published; without, the queue keeps them."),
)

OPERATIONS = (
    Operation(
        "GET",
        "/v1/cursors",
        list_cursors,
        "Groups, queues and sessions of all protocols, with their lag.",
        ADMIN,
        query=(LIMIT, AFTER),
    ),
    Operation("GET", "/v1/groups", list_groups, "Kafka consumer groups.", ADMIN, query=(LIMIT, AFTER)),
    Operation("GET", "/v1/groups/{name:path}", describe_group, "One group: members, offsets, lag.", ADMIN),
    Operation(
        "POST",
        "/v1/groups-reset",
        reset_group,
        "Move a group's offsets; with dry_run only show what would change.",
        ADMIN,
        body=(
            Field("group", "string", "The group; it must have no members.", required=True),
            Field("topic", "string", "The topic as Kafka spells it; all of the group's if left out."),
            Field("to", "string", "earliest, latest, @offset, -10 or ts:<RFC 3339 or ms>.", required=True),
            Field("dry_run", "boolean", "Change nothing."),
        ),
    ),
    Operation(
        "POST",
        "/v1/groups",
        create_group,
        "Make a group with a place in a topic, before its consumers start.",
        ADMIN,
        body=(
            Field("name", "string", "The group.", required=True),
            Field("topic", "string", "The topic as Kafka spells it.", required=True),
            Field("from", "string", "earliest (the default), latest, @offset, -10 or ts:<RFC 3339 or ms>."),
        ),
    ),
    Operation(
        "DELETE", "/v1/sessions/{name:path}", delete_session, "Forget the session of an absent MQTT client.", ADMIN
    ),
    Operation("DELETE", "/v1/groups/{name:path}", delete_group, "Forget a group and its offsets.", ADMIN),
    Operation("GET", "/v1/queues", list_queues, "Queues of all protocols.", ADMIN, query=(LIMIT, AFTER)),
    Operation(
        "POST",
        "/v1/queues",
        create_queue,
        "Make a durable queue over a topic filter.",
        ADMIN,
        body=(
            Field("name", "string", "Its name.", required=True),
            Field("filter", "string", "What enters it, for example jobs/#.", required=True),
            Field("where", "string", "A condition on key and headers, as for views."),
            Field("from", "string", "earliest: what is already stored enters too."),
            *QUEUE_LIMITS,
        ),
    ),
    Operation(
        "PATCH",
        "/v1/queues/{name}",
        alter_queue,
        "Change the limits of a queue while it is used; null takes one away.",
        ADMIN,
        body=QUEUE_LIMITS,
    ),
    Operation("POST", "/v1/queues/{name}/purge", purge_queue, "Take everything that is ready out of a queue.", ADMIN),
    Operation(
        "GET", "/v1/queues/{name}/dead", list_dead, "Dead letters a queue keeps, oldest first.", ADMIN, query=(LIMIT,)
    ),
    Operation(
        "POST",
        "/v1/queues/{name}/redrive",
        redrive_queue,
        "Dead letters a queue keeps become ready again, their attempts forgotten.",
        ADMIN,
        body=(Field("position", "integer", "Only this one, by the position that the list tells."),),
    ),
    Operation("GET", "/v1/queues/{name:path}", describe_queue, "One queue in full.", ADMIN),
    Operation("DELETE", "/v1/queues/{name:path}", delete_queue, "Remove a queue; the records stay in the log.", ADMIN),
)
