"""/v1/cursors, /v1/groups and /v1/sessions: how far each consumer has come."""

from __future__ import annotations

from itertools import islice

from mainstem.admin.answers import Deleted, Page
from mainstem.admin.answers.consumers import CursorRow, GroupFacts, Reset, SessionFacts
from mainstem.admin.api.messages import durable
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.cursors import (
    apply_reset,
    cursor_rows,
    group_facts,
    group_key,
    group_names,
    group_row,
    groups_of,
    plan_offsets,
    plan_reset,
    session_facts,
    session_row,
    sessions_in,
    sessions_of,
)
from mainstem.admin.long_lists import in_slices
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.rights.rules import Action, Kind
from mainstem.broker.sessions.sessions import Session
from mainstem.model.errors import AlreadyExists, InvalidArgument, NotFound
from mainstem.model.topic import topic_of_kafka


async def list_cursors(call: Call) -> Page[CursorRow]:
    begin = call.begin
    rows = await cursor_rows(call.running, call.namespace, begin, call.limit + 1)
    return page(rows[: call.limit], str(begin + call.limit) if len(rows) > call.limit else None)


async def list_groups(call: Call) -> Page[CursorRow]:
    after = call.query.get("after", "")
    turns, tenant, names = call.running.broker.turns, call.namespace.name, list[str]()
    async for name in in_slices(turns, tenant, await group_names(call.running, call.namespace, after)):
        if call.may(name):
            names.append(name)
        if len(names) > call.limit:
            break
    shown = in_slices(turns, tenant, names[: call.limit], at_once=1)
    rows = [group_row(call.running, call.namespace, name) async for name in shown]
    return page(rows, names[call.limit - 1] if len(names) > call.limit else None)


async def describe_group(call: Call) -> GroupFacts:
    return group_facts(call.running, call.namespace, call.path["name"])


async def reset_group(call: Call) -> Reset:
    """Shows what would change; changes it when `dry_run` is false."""
    body = call.body
    group = body["group"]
    if not body["to"]:  # an empty variable in someone's script must not rewind
        raise InvalidArgument("to is empty", fix="earliest, latest, @offset, -10 or ts:2026-01-31T12:00:00Z")
    changes = plan_reset(call.running, call.namespace, group, body.get("topic") or "", body["to"])
    dry_run = bool(body.get("dry_run", False))
    if not dry_run and changes:
        await durable(apply_reset(call.running, call.namespace, group, changes))
    return {"group": group, "dry_run": dry_run, "changes": changes}


async def delete_group(call: Call) -> Deleted:
    groups = groups_of(call.running)
    fault, ticket = groups.delete_group(group_key(call.namespace, call.path["name"]))
    if fault is GroupFault.NON_EMPTY_GROUP:
        raise InvalidArgument(f"group {call.path['name']} has members", fix="stop its consumers first")
    if fault is not GroupFault.NONE:
        raise NotFound(f"there is no group {call.path['name']}", fix="mainstem group ls")
    call.running.broker.owners.forget(Kind.GROUP, call.namespace.name, call.path["name"])
    await durable(ticket)
    return {"deleted": call.path["name"]}


async def create_group(call: Call) -> GroupFacts:
    """Offsets before there is a consumer: its first member begins there, whatever its own reset policy says."""
    body = call.body
    groups = groups_of(call.running)
    if not body["name"]:
        raise InvalidArgument("a group must have a name")
    key = group_key(call.namespace, body["name"])
    if key in groups.groups or key in groups.offsets:
        raise AlreadyExists(f"group {body['name']} exists", fix=f"mainstem group reset {body['name']} --to WHERE")
    call.require_object(topic_of_kafka(body["topic"]).decode(), "topic.consume")
    changes = plan_offsets(call.namespace, [body["topic"]], {}, body.get("from") or "earliest")
    owners, where = call.running.broker.owners, call.namespace.name
    owners.use(call.principal, Action.CREATE, Kind.GROUP, where, body["name"], exists=False)
    await durable(apply_reset(call.running, call.namespace, body["name"], changes))
    return group_facts(call.running, call.namespace, body["name"])


async def list_sessions(call: Call) -> Page[CursorRow]:
    after = call.query.get("after", "").encode()
    found = list(islice(await sessions_in(call.running, call.namespace, after), call.limit + 1))
    shown = in_slices(call.running.broker.turns, call.namespace.name, found[: call.limit], at_once=1)
    rows = [session_row(call.running, call.namespace, one) async for one in shown]
    return page(rows, rows[-1]["name"] if len(found) > call.limit else None)


async def describe_session(call: Call) -> SessionFacts:
    return session_facts(call.running, call.namespace, _session(call))


def _session(call: Call) -> Session:
    key = call.namespace.name.encode() + b"\0" + call.path["name"].encode()
    session = sessions_of(call.running).find(key)
    if session is None:
        raise NotFound(f"there is no session {call.path['name']}", fix="mainstem session ls")
    return session


async def delete_session(call: Call) -> Deleted:
    """Only of a client that is away: one that is here would simply go on."""
    session = _session(call)
    if session.here is not None:
        raise InvalidArgument(f"{call.path['name']} is connected", fix="mainstem conn ls, mainstem conn rm, then again")
    await durable(call.running.broker.session_keeper.end_session(session))
    return {"deleted": call.path["name"]}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/cursors",
        list_cursors,
        "Groups, queues and sessions of all protocols, with their lag.",
        "cursor.list",
        query=(LIMIT, AFTER),
    ),
    Operation("GET", "/v1/groups", list_groups, "Kafka consumer groups.", "group.list", query=(LIMIT, AFTER)),
    Operation(
        "GET",
        "/v1/groups/{name:path}",
        describe_group,
        "One group: members, offsets, lag.",
        "group.describe",
        names="name",
    ),
    Operation(
        "POST",
        "/v1/groups-reset",
        reset_group,
        "Move a group's offsets; with dry_run only show what would change.",
        "group.reset",
        body=(
            Field("group", "string", "The group; it must have no members.", required=True),
            Field("topic", "string", "The topic as Kafka spells it; all of the group's if left out."),
            Field("to", "string", "earliest, latest, @offset, -10 or ts:<RFC 3339 or ms>.", required=True),
            Field("dry_run", "boolean", "Change nothing."),
        ),
        names="group",
    ),
    Operation(
        "POST",
        "/v1/groups",
        create_group,
        "Make a group with a place in a topic, before its consumers start.",
        "group.create",
        body=(
            Field("name", "string", "The group.", required=True),
            Field("topic", "string", "The topic as Kafka spells it.", required=True),
            Field("from", "string", "earliest (the default), latest, @offset, -10 or ts:<RFC 3339 or ms>."),
        ),
        names="name",
    ),
    Operation("GET", "/v1/sessions", list_sessions, "Sessions of MQTT clients.", "session.list", query=(LIMIT, AFTER)),
    Operation(
        "GET",
        "/v1/sessions/{name:path}",
        describe_session,
        "One session: subscriptions, what is in flight, when it expires.",
        "session.describe",
    ),
    Operation(
        "DELETE",
        "/v1/sessions/{name:path}",
        delete_session,
        "Delete the session of an absent MQTT client.",
        "session.delete",
    ),
    Operation(
        "DELETE",
        "/v1/groups/{name:path}",
        delete_group,
        "Delete a group and its offsets.",
        "group.delete",
        names="name",
    ),
)
