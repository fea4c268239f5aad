"""/v1/topics and /v1/tree."""

from __future__ import annotations

from typing import Any

from mainstem.admin.answers import CountedPage, Deleted
from mainstem.admin.answers.topics import Erased, TopicFacts, TopicRow, Tree
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, check_ordinary
from mainstem.admin.topics import children, find, topic_count, topic_facts, topic_page, topic_row
from mainstem.broker.rights.access import Action
from mainstem.broker.topics.policy import Policy, check_values
from mainstem.broker.topics.topic import Topic
from mainstem.model.errors import InvalidArgument

SETTINGS = Field(
    "settings", "object", "Settings by name, as in [topics]: engine, layout, partitions, retention_ms, ..."
)

ROWS_AT_ONCE = 20  # of a listing, in one turn of the loop


async def list_topics(call: Call) -> CountedPage[TopicRow]:
    namespace = call.namespace
    turns = call.running.broker.turns
    names, after = await topic_page(
        turns,
        namespace,
        topic_filter=call.query.get("filter", ""),
        search=call.query.get("search", ""),
        after=call.query.get("after", ""),
        limit=call.limit,
    )
    rows = []
    for place, name in enumerate(names):
        if place % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await turns.turn(namespace.name)
        if call.allows(Action.DESCRIBE, name) and namespace.find_topic(name) is not None:  # not gone since
            rows.append(topic_row(namespace, name))
    return {"items": rows, "next": after, "total": call.counted(topic_count(namespace))}


async def tree(call: Call) -> Tree:
    rows, after, complete = await children(
        call.running.broker.turns,
        call.namespace,
        call.query.get("prefix", ""),
        after=call.query.get("after", ""),
        limit=call.limit,
        allowed=call.may_describe,
    )
    return {"items": rows, "next": after, "complete": complete}


def settings_given(call: Call) -> dict[str, Any]:
    given: dict[str, Any] = call.body.get("settings") or {}
    check_values(given)
    return given


async def create_topic(call: Call) -> TopicFacts:
    namespace, name = call.namespace, call.body["name"].encode()
    check_ordinary(name)
    policy = namespace.policy(name).with_changes(settings_given(call))
    await call.running.broker.declare_topic(namespace, name, policy)
    return topic_facts(call.running, namespace, name, call.may_describe)


async def describe_topic(call: Call) -> TopicFacts:
    return topic_facts(call.running, call.namespace, call.path["name"].encode(), call.may_describe)


async def alter_topic(call: Call) -> TopicFacts:
    namespace, name = call.namespace, call.path["name"].encode()
    topic = find(namespace, name)
    if not call.body["settings"]:
        raise InvalidArgument("nothing to change", fix="settings by name, as in [topics]: retention_ms, engine, ...")
    changed = topic.policy.with_changes(settings_given(call))
    await _apply(call, topic, changed)
    return topic_facts(call.running, namespace, name, call.may_describe)


async def _apply(call: Call, topic: Topic, changed: Policy) -> None:
    """A setting that decides where records lie moves the topic to another log, offsets kept; others just change."""
    broker, namespace = call.running.broker, call.namespace
    if not topic.declared:
        await broker.declare_topic(namespace, topic.name, changed)
        return
    if "partitions" in settings_given(call) and changed.partitions < len(topic.partitions):
        raise InvalidArgument(
            f"{call.path['name']} has {len(topic.partitions)} partitions; they can be added, not taken away",
            fix="records would be lost with them: make another topic with fewer",
        )
    if changed.partitions > len(topic.partitions):
        await broker.add_partitions(namespace, topic, changed.partitions)
    moves = changed.dedicated != topic.policy.dedicated or changed.stem_key() != topic.policy.stem_key()
    if moves:
        await broker.relocate_topic(namespace, topic, changed)
    else:
        await broker.alter_topic(namespace, topic, changed)


async def delete_topic(call: Call) -> Deleted:
    namespace, name = call.namespace, call.path["name"].encode()
    find(namespace, name)
    await call.running.broker.delete_topic(namespace, name)
    return {"deleted": call.path["name"]}


async def erase_topic(call: Call) -> Erased:
    """Not only out of sight: its sealed parts are rewritten without it, offsets kept."""
    name, broker = call.path["name"].encode(), call.running.broker
    with broker.works.begin("erase", call.path["name"], call.principal.name) as work:
        records = await broker.erase_topic(call.namespace, name, work)
    return {"erased": call.path["name"], "records": records}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/topics",
        list_topics,
        "Topics: the declared ones by name, then those of the stems as they came.",
        "topic.list",
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
        "topic.create",
        body=(Field("name", "string", "The topic, as MQTT spells it.", required=True), SETTINGS),
        names="name",
    ),
    Operation("GET", "/v1/topics/{name:path}", describe_topic, "One topic in full.", "topic.describe", names="name"),
    Operation(
        "PATCH",
        "/v1/topics/{name:path}",
        alter_topic,
        "Change settings of a topic while it is used; offsets are kept.",
        "topic.configure",
        body=(Field("settings", "object", SETTINGS.doc, required=True),),
        names="name",
    ),
    Operation(
        "DELETE",
        "/v1/topics/{name:path}",
        delete_topic,
        "Remove a topic and its records.",
        "topic.delete",
        names="name",
    ),
    Operation(
        "DELETE",
        "/v1/stored/{name:path}",
        erase_topic,
        "Take a topic's records off the disk, also deleted ones.",
        "topic.delete",
        names="name",
    ),
    Operation(
        "GET",
        "/v1/tree",
        tree,
        "The levels below a prefix, with the number of topics below each.",
        "topic.list",
        query=(Field("prefix", "string", "The levels above, for example sensors/kitchen."), LIMIT, AFTER),
    ),
)
