"""/v1/namespaces: the boundary between tenants, with what each holds, who uses it, and what its topics begin with."""

from __future__ import annotations

from mainstem.admin.answers import Page
from mainstem.admin.answers.tenants import NamespaceFacts, NamespaceRow, RemovedNamespace
from mainstem.admin.calls import AFTER, LIMIT, Call, Field, Operation, page
from mainstem.admin.connections import connections_in
from mainstem.admin.rights import admit
from mainstem.admin.topics import topic_count
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.namespaces.placement import FIRST_CELL
from mainstem.broker.namespaces.quotas import NAMESPACE
from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.model.errors import InvalidArgument


def namespace_row(call: Call, namespace: Namespace) -> NamespaceRow:
    broker = call.running.broker
    return {
        "name": namespace.name,
        "topics": topic_count(namespace),
        "views": len(namespace.views),
        "queues": sum(1 for _ in broker.queues.of(namespace)),
        "users": sum(user.namespace == namespace.name for user in broker.access.users.values()),
        "connections": sum(1 for _ in connections_in(call.running, namespace)),
        "stored_bytes": sum(log.engine.stat().size_bytes for log in namespace.logs()),
    }


async def list_namespaces(call: Call) -> Page[NamespaceRow]:
    """Of a cluster all of them; what those of other cells hold their owners tell, one by one."""
    namespaces, after = call.running.broker.namespaces, call.query.get("after", "")
    cluster = call.running.cluster
    elsewhere = cluster.places.cell_names() if cluster is not None else {}
    names = [name for name in sorted({*namespaces, *elsewhere}) if name > after]
    rows: list[NamespaceRow] = [
        namespace_row(call, namespaces[name]) if name in namespaces else {"name": name, "cell": elsewhere[name]}
        for name in names[: call.limit]
    ]
    return page(rows, names[call.limit - 1] if len(names) > call.limit else None)


async def add_namespace(call: Call) -> NamespaceRow:
    """One that exists stays as it is, so that the same call may be made again."""
    broker, cluster, name = call.running.broker, call.running.cluster, call.body["name"]
    cell = call.body.get("cell") or ""
    if cell and cluster is None:
        raise InvalidArgument(
            "this broker is not part of a cluster and has no cells", fix=f"mainstem namespace add {name}"
        )
    if cluster is not None and not cell and call.running.config.cluster.cells == "per-namespace":
        cell = NEW_CELL
    if cell and name not in broker.namespaces:
        broker.check_namespace_name(name)
        placed: NamespaceRow = await cluster.places.place(name, cell)
        if broker.placement.elsewhere(name) is not None or placed["owner"] is None:
            return placed
    namespace = await broker.declare_namespace(name)
    return namespace_row(call, namespace)


async def describe_namespace(call: Call) -> NamespaceFacts:
    return namespace_facts(call, admit(call.running.broker, call.principal, call.need, call.path["name"]))


def namespace_facts(call: Call, namespace: Namespace) -> NamespaceFacts:
    broker, settings = call.running.broker, namespace.settings
    users = sorted(user.name for user in broker.access.users.values() if user.namespace == namespace.name)
    return {
        **namespace_row(call, namespace),
        "user_names": users,
        "policy": dict(settings.policy),
        "auto_create": settings.auto_create,
        "quota": settings.quota.to_document(),
        "use": broker.quotas.shown(NAMESPACE, namespace.name),
        "contents": broker.removal.contents(namespace),
    }


async def put_namespace(call: Call) -> NamespaceFacts:
    """All of its settings at once, so that the same call may be made again: what is left out is the configuration's."""
    broker, name = call.running.broker, call.path["name"]
    settings = NamespaceSettings().changed(call.body, broker.options.defaults)
    namespace = await broker.declare_namespace(name, settings)
    if namespace.settings != settings:
        await broker.alter_namespace(namespace, settings)
    return namespace_facts(call, namespace)


async def alter_namespace(call: Call) -> NamespaceFacts:
    broker = call.running.broker
    namespace = broker.namespace(call.path["name"])
    if not call.body:
        raise InvalidArgument("nothing to change", fix="policy, auto_create, quota")
    await broker.alter_namespace(namespace, namespace.settings.changed(call.body, broker.options.defaults))
    return namespace_facts(call, namespace)


async def remove_namespace(call: Call) -> RemovedNamespace:
    broker = call.running.broker
    namespace = broker.namespace(call.path["name"])
    placed = call.running.cluster is not None and broker.placement.cell_of(namespace.name) != FIRST_CELL
    held = await broker.removal.remove(namespace, with_data=call.flag("with_data"))
    if placed:
        await call.running.cluster.places.take_away(namespace.name)
    return {"deleted": namespace.name, "contents": held}


NEW_CELL = "new"
SETTINGS = (
    Field("policy", "object", "Defaults of its topics by name, as in [topics]: engine, durability, retention_ms, ..."),
    Field("auto_create", "boolean", "Whether Kafka clients make topics by asking for them; else [topics] auto_create."),
    Field("quota", "object", "Limits by name: publish_bytes_per_s, connections_max, topics_max, stored_bytes_max, ..."),
)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/namespaces",
        list_namespaces,
        "Namespaces: what each holds, who uses it.",
        "namespace.list",
        (LIMIT, AFTER),
    ),
    Operation(
        "POST",
        "/v1/namespaces",
        add_namespace,
        "Add a namespace; one that exists stays as it is.",
        "namespace.add",
        body=(
            Field("name", "string", "Its name, also as AMQP's virtual host.", required=True),
            Field("cell", "string", "In a cluster: `new` for a cell of its own, or the name of one."),
        ),
    ),
    Operation("GET", "/v1/namespaces/{name:path}", describe_namespace, "One namespace in full.", "namespace.describe"),
    Operation(
        "PUT",
        "/v1/namespaces/{name:path}",
        put_namespace,
        "Make a namespace, or give it exactly these settings. The same call again changes nothing.",
        "namespace.alter",
        body=SETTINGS,
    ),
    Operation(
        "PATCH",
        "/v1/namespaces/{name:path}",
        alter_namespace,
        "Change settings of a namespace; null goes back to the configuration's.",
        "namespace.alter",
        body=SETTINGS,
    ),
    Operation(
        "DELETE",
        "/v1/namespaces/{name:path}",
        remove_namespace,
        "Remove an empty namespace, or with_data one with everything in it, for good: topics, queues, users.",
        "namespace.remove",
        query=(Field("with_data", "boolean", "Delete what it holds; else a namespace that holds something stays."),),
    ),
)
