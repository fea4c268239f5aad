"""/v1/topics and /v1/tree."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, check_ordinary, page
from mainstem.admin.topics import children, find, topic_count, topic_facts, topic_page, topic_row
from mainstem.broker.access import Action
from mainstem.broker.policy import Policy
from mainstem.broker.topics import Topic
from mainstem.model.errors import InvalidArgument

NUMBER_MAX = 2**63 - 1
SETTINGS = Field(
    "settings", "object", "Settings by name, as in [topics]: engine, layout, partitions, retention_ms, ..."
)


async def list_topics(call: Call) -> Any:
    namespace = call.namespace
    names, after = topic_page(
        namespace,
        topic_filter=call.query.get("filter", ""),
        search=call.query.get("search", ""),
        after=call.query.get("after", ""),
        limit=call.limit,
    )
    rows = [topic_row(namespace, name) for name in names if call.allows(Action.DESCRIBE, name)]
    return page(rows, after, total=topic_count(namespace))


async def tree(call: Call) -> Any:
    rows, after, complete = children(
        call.namespace,
        call.query.get("prefix", ""),
        after=call.query.get("after", ""),
        limit=call.limit,
        allowed=lambda name: call.allows(Action.DESCRIBE, name),
    )
    return page(rows, after, complete=complete)


def settings_given(call: Call) -> dict[str, Any]:
    """Of the types and signs they are kept in: what cannot be compared later would stop retention for every topic."""
    given: dict[str, Any] = call.body.get("settings") or {}
    kinds = {one.name: one.type for one in fields(Policy)}
    for name, value in given.items():
        kind = kinds.get(name)  # unknown ones are told by the policy itself
        if kind == "int":
            least = -1 if name.startswith("retention_") else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= NUMBER_MAX:
                raise InvalidArgument(f"{name} must be a whole number from {least} to {NUMBER_MAX}, not {value!r}")
        elif (kind == "bool" and not isinstance(value, bool)) or (kind == "str" and not isinstance(value, str)):
            raise InvalidArgument(f"{name} must be {'true or false' if kind == 'bool' else 'a string'}, not {value!r}")
    if given.get("timestamp_type", "create") not in ("create", "append"):
        raise InvalidArgument(f"timestamp_type {given['timestamp_type']!r} is not one of create, append")
    return given


async def create_topic(call: Call) -> Any:
    namespace, name = call.namespace, call.body["name"].encode()
    call.require(Action.CREATE, name)
    check_ordinary(name)
    policy = namespace.policy(name).with_changes(settings_given(call))
    call.running.broker.create_topic(namespace, name, policy)
    await call.running.broker.store.flush()
    return topic_facts(namespace, name)


async def describe_topic(call: Call) -> Any:
    name = call.path["name"].encode()
    call.require(Action.DESCRIBE, name)
    return topic_facts(call.namespace, name)


async def alter_topic(call: Call) -> Any:
    namespace, name = call.namespace, call.path["name"].encode()
    call.require(Action.CONFIGURE, name)
    topic = find(namespace, name)
    if not call.body["settings"]:
        raise InvalidArgument("nothing to change", fix="settings by name, as in [topics]: retention_ms, engine, ...")
    changed = topic.policy.with_changes(settings_given(call))
    _apply(call, topic, changed)
    await call.running.broker.store.flush()
    return topic_facts(namespace, name)


def _apply(call: Call, topic: Topic, changed: Policy) -> None:
    """A setting that decides where records lie moves the topic to another log, offsets kept; others just change."""
    broker, namespace = call.running.broker, call.namespace
    if not topic.declared:
        broker.create_topic(namespace, topic.name, changed)
        return
    if "partitions" in settings_given(call) and changed.partitions < len(topic.partitions):
        raise InvalidArgument(
            f"{call.path['name']} has {len(topic.partitions)} partitions; they can be added, not taken away",
            fix="records would be lost with them: make another topic with fewer",
        )
    if changed.partitions > len(topic.partitions):
        broker.add_partitions(namespace, topic, changed.partitions)
    moves = changed.dedicated != topic.policy.dedicated or changed.stem_key() != topic.policy.stem_key()
    if moves:
        broker.move_topic(namespace, topic, changed)
    else:
        topic.policy = changed
        broker.save_topic(namespace, topic)


async def delete_topic(call: Call) -> Any:
    namespace, name = call.namespace, call.path["name"].encode()
    call.require(Action.DELETE, name)
    find(namespace, name)
    await call.running.broker.delete_topic(namespace, name)
    return {"deleted": call.path["name"]}


async def erase_topic(call: Call) -> Any:
    """Not only out of sight: its sealed parts are rewritten without it, offsets kept."""
    name = call.path["name"].encode()
    call.require(Action.DELETE, name)
    records = await call.running.broker.erase_topic(call.namespace, name)
    return {"erased": call.path["name"], "records": records}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/topics",
        list_topics,
        "Topics: the declared ones by name, then those of the stems as they came.",
        query=(
            Field("filter", "string", "Only those a topic filter means, for example sensors/+/temp."),
            Field("search", "string", "Only those whose name contains this."),
            LIMIT,
            AFTER,
        ),
    ),
    Operation(
        "POST",
        "/v1/topics",
        create_topic,
        "Declare a topic with settings of its own.",
        body=(Field("name", "string", "The topic, as MQTT spells it.", required=True), SETTINGS),
    ),
    Operation("GET", "/v1/topics/{name:path}", describe_topic, "One topic in full."),
    Operation(
        "PATCH",
        "/v1/topics/{name:path}",
        alter_topic,
        "Change settings of a topic while it is used; offsets are kept.",
        body=(Field("settings", "object", SETTINGS.doc, required=True),),
    ),
    Operation("DELETE", "/v1/topics/{name:path}", delete_topic, "Remove a topic and its records."),
    Operation(
        "DELETE", "/v1/stored/{name:path}", erase_topic, "Take a topic's records off the disk, also deleted ones."
    ),
    Operation(
        "GET",
        "/v1/tree",
        tree,
        "The levels below a prefix, with the number of topics below each.",
        query=(Field("prefix", "string", "The levels above, for example sensors/kitchen."), LIMIT, AFTER),
    ),
)
