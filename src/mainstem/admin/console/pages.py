"""What each page shows. A loader returns plain facts; the page is their template, its `.json` twin the facts themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from mainstem.admin.answers.topics import ViewRow
from mainstem.admin.api.messages import require_consume
from mainstem.admin.api.queues import page_of_queues
from mainstem.admin.api.users import user_row
from mainstem.admin.api.views import view_row
from mainstem.admin.calls import Call
from mainstem.admin.connections import connections_in, page_of_connections, seen_by
from mainstem.admin.console.details import (
    api_page,
    connection_page,
    exchange_page,
    exchange_row,
    group_page,
    namespace_page,
    pipeline_page,
    queue_page,
    session_page,
    topic_readers,
    trace_page,
    user_page,
    view_page,
)
from mainstem.admin.console.schemas import schema_page, schemas_page
from mainstem.admin.cursors import cursor_rows, group_names, queues_of
from mainstem.admin.long_lists import in_order
from mainstem.admin.messages import at_end, encode_position, open_source, page_before, read_page, start_offsets
from mainstem.admin.overview import config_rows, log_row, overview
from mainstem.admin.pipelines import flow_rows
from mainstem.admin.topics import children, topic_count, topic_facts, topic_page, topic_row
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Action
from mainstem.model.errors import NotFound
from mainstem.model.topic_filter import literal_filter
from mainstem.storage.engines import ENGINES

ROWS = 100
MESSAGES = 50
LAST_CHARACTERS = 80
DISK_FULL_SHOWN_S = 366 * 86_400  # later than that nobody plans
Loader = Callable[[Call], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    title: str
    template: str
    load: Loader
    needs: str  # its line in the table of operations
    under: str = ""  # of one thing: the page in the navigation that leads to it


def overview_facts(call: Call) -> dict[str, Any]:
    only = None if call.principal.admin else call.namespace
    facts = overview(call.running, only)
    rates = facts["rates"].values()
    totals = {
        name: sum(one[name] for one in rates) for name in ("messages_in", "messages_out", "bytes_in", "bytes_out")
    }
    logs = call.running.broker.logs.by_id.values() if only is None else only.logs()
    stored = sum(log.engine.stat().size_bytes for log in islice(logs, 1000))
    syncs = call.running.broker.ticker.committer.sync_ns
    sync_ms = syncs.total / max(1, sum(syncs.counts)) / 1e6
    lag_max = call.running.rates.lag_max() if only is None else 0
    clients = sum(count for protocol, count in facts["connections"].items() if protocol != "http")  # these come and go
    return {
        **facts,
        "totals": totals,
        "clients": clients,
        "stored_bytes": stored,
        "lag_max": lag_max,
        "sync_ms": round(sync_ms, 2),
    }


async def overview_page(call: Call) -> dict[str, Any]:
    admin = call.principal.admin
    full_s = call.running.history.disk_full_s() if admin else None
    near = full_s is not None and full_s - time.time() < DISK_FULL_SHOWN_S
    full = datetime.fromtimestamp(full_s, UTC).date().isoformat() if near and full_s is not None else None
    return {**overview_facts(call), "doors": call.running.doors(), "charts": admin, "disk_full": full}


async def topics_page(call: Call) -> dict[str, Any]:
    namespace, query = call.namespace, call.query
    search, topic_filter = query.get("search", ""), query.get("filter", "")
    mode = query.get("mode") or ("table" if search or topic_filter else "tree")
    facts: dict[str, Any] = {
        "mode": mode,
        "search": search,
        "filter": topic_filter,
        "total": call.counted(topic_count(namespace)),
        "crumbs": [],
        "complete": True,
    }
    if mode == "tree":
        prefix = query.get("prefix", "")
        items, after, complete = await children(
            call.running.broker.turns,
            namespace,
            prefix,
            after=query.get("after", ""),
            limit=ROWS,
            allowed=lambda name: call.allows(Action.DESCRIBE, name),
        )
        levels = prefix.split("/") if prefix else []
        crumbs = [{"level": level, "path": "/".join(levels[: at + 1])} for at, level in enumerate(levels)]
        rows = [{**one, "last": await last_value(call, one["path"]) if one["is_topic"] else None} for one in items]
        return {**facts, "items": rows, "next": after, "complete": complete, "crumbs": crumbs, "prefix": prefix}
    turns = call.running.broker.turns
    names, after = await topic_page(
        turns, namespace, topic_filter=topic_filter, search=search, after=query.get("after", ""), limit=ROWS
    )
    rows = []
    for name in names:
        if call.allows(Action.DESCRIBE, name):
            row = topic_row(namespace, name)
            rows.append({**row, "last": await last_value(call, row["name"])})
    return {**facts, "items": rows, "next": after}


async def last_value(call: Call, topic: str) -> dict[str, Any] | None:
    """The newest record of a topic; None where there is none, or it is not for this reader."""
    await asyncio.sleep(0)  # a page asks for many: others have their turn between them
    if not call.allows(Action.CONSUME, topic.encode()):
        return None
    try:
        source = open_source(call.namespace, topic=topic, shown=call.shown())
    except NotFound:  # gone since
        return None
    begin = start_offsets(source, "-1", now_ms=0, limit=1)
    found, _ = await read_page(call.running.broker.turns, source, begin, limit=len(source.readers))
    if not found:
        return None
    newest = found[-1]
    text = "null" if newest["value"] is None else newest["value"]
    return {"value": text[:LAST_CHARACTERS], "cut": len(text) > LAST_CHARACTERS, "time_ms": newest["time_ms"]}


async def topic_page_facts(call: Call) -> dict[str, Any]:
    name = call.query.get("name", "").encode()
    call.require(Action.DESCRIBE, name)
    facts = topic_facts(call.running, call.namespace, name, call.may_describe)
    total = sum(facts["bytes_by_engine"].values()) or 1
    shares, at = [], 0.0
    for engine, size in facts["bytes_by_engine"].items():
        percent = round(100 * size / total, 2)
        shares.append({"at": at, "percent": percent, "colour": ENGINES[engine].colour if engine in ENGINES else "http"})
        at += percent
    oldest_ms = await oldest_time_ms(call, facts["name"])
    keeps_ms = facts["settings"]["retention_ms"]["value"]
    leaves_ms = oldest_ms + keeps_ms if oldest_ms is not None and keeps_ms >= 0 else None
    readers, hidden = topic_readers(call, name)
    return {
        **facts,
        "shares": shares,
        "oldest_ms": oldest_ms,
        "leaves_ms": leaves_ms,
        "readers": readers,
        "readers_hidden": hidden,
    }


async def oldest_time_ms(call: Call, topic: str) -> int | None:
    """Of the first record that is left; None where there is none, or it is not for this reader."""
    if not call.allows(Action.CONSUME, topic.encode()):
        return None
    source = open_source(call.namespace, topic=topic)
    begin = start_offsets(source, "earliest", now_ms=0, limit=1)
    found, _ = await read_page(call.running.broker.turns, source, begin, limit=1)
    return found[0]["time_ms"] if found else None


async def messages_page(call: Call) -> dict[str, Any]:
    query = call.query
    topic, view, topic_filter = (query.get(name, "") for name in ("topic", "view", "filter"))
    start, contains, field = query.get("from") or "-50", query.get("contains", ""), query.get("field", "")
    facts: dict[str, Any] = {
        "topic": topic,
        "view": view,
        "filter": topic_filter,
        "from_": start,
        "contains": contains,
        "field": field,
        "label": topic or view or topic_filter,
        "items": [],
        "next": None,
        "previous": None,
        "chart_url": "",
        "tail_filter": topic_filter,
    }
    if not facts["label"]:
        return facts
    namespace = call.namespace
    require_consume(call, topic, view, topic_filter)
    source = open_source(
        namespace, topic=topic, view=view, topic_filter=topic_filter, denied=call.denied(), shown=call.shown()
    )
    if topic:
        facts["tail_filter"] = literal_filter(topic.encode()).decode()
    elif view:
        facts["tail_filter"] = namespace.views[view.encode()].filter.decode()
    now_ms = call.running.broker.clock.now_ns() // 1_000_000
    offsets = start_offsets(source, start, now_ms=now_ms, limit=MESSAGES)
    rows, after = await read_page(call.running.broker.turns, source, offsets, limit=MESSAGES, contains=contains)
    facts["items"] = rows
    facts["next"] = None if at_end(source, after) else encode_position(after)
    before = page_before(source, offsets, MESSAGES)
    facts["previous"] = None if before is None else encode_position(before)
    if field:
        subject = {"topic": topic, "view": view, "filter": topic_filter}
        facts["chart_url"] = "/v1/series?" + urlencode({**{k: v for k, v in subject.items() if v}, "field": field})
    return facts


async def search_page(call: Call) -> dict[str, Any]:
    """The question only: its answer is asked for by the page itself, of `/v1/search`."""
    given = {name: call.query.get(name, "") for name in ("query", "topic", "since", "before")}
    return {**given, "histogram": call.query.get("histogram", "1m")}


async def views_page(call: Call) -> dict[str, Any]:
    namespace, after, search = call.namespace, call.query.get("after", ""), call.query.get("find", "")
    queues, following = await page_of_queues(call, after=after, limit=ROWS, search=search)
    return {
        "views": await _view_rows(call, namespace, search) if not after else [],
        "queues": queues,
        "exchanges": _exchange_rows(call, search) if not after else [],
        "find": search,
        "after": after,
        "next": following,
    }


async def _view_rows(call: Call, namespace: Namespace, search: str) -> list[ViewRow]:
    turns, found = call.running.broker.turns, search.encode()
    ordered = await in_order(turns, namespace.name, namespace.views, where=lambda name: found in name)
    allowed = (name for name in ordered if call.allows(Action.DESCRIBE, name))
    return [view_row(namespace.views[name]) for name in islice(allowed, ROWS)]


def _exchange_rows(call: Call, search: str) -> list[dict[str, Any]]:
    exchanges = queues_of(call.running, call.namespace).exchanges
    names = sorted(name for name in exchanges.by_name if search in name and call.may(name, "exchange.describe"))
    return [exchange_row(exchanges.get(name)) for name in names[:ROWS]]


async def cursors_page(call: Call) -> dict[str, Any]:
    begin = call.begin
    rows = await cursor_rows(call.running, call.namespace, begin, ROWS + 1)
    more = str(begin + ROWS) if len(rows) > ROWS else None
    return {
        "items": rows[:ROWS],
        "next": more,
        "groups": [
            one for one in islice(await group_names(call.running, call.namespace), 1000) if call.may(one, "group.reset")
        ],
    }


async def pipelines_page(call: Call) -> dict[str, Any]:
    begin = call.begin
    rows = list(islice(flow_rows(call.running, call.namespace), begin, begin + ROWS + 1))
    return {"items": rows[:ROWS], "next": str(begin + ROWS) if len(rows) > ROWS else None}


async def connections_page(call: Call) -> dict[str, Any]:
    only = seen_by(call)
    rows, after = await page_of_connections(call.running, only, after=call.query.get("after", ""), limit=ROWS)
    totals = call.running.rates.totals().items()
    counted = sum(counters["connections"] for protocol, counters in totals if protocol != "http")  # these come and go
    total = counted if only is None else sum(1 for _ in connections_in(call.running, only))
    return {"items": rows, "next": after, "total": total}


async def try_page(call: Call) -> dict[str, Any]:
    ports = call.running.ports
    return {
        "topic": call.query.get("topic", ""),
        "protocols": [p for p in dict.fromkeys(call.running.protocols.values()) if p in ports and p != "http"],
    }


async def settings_page(call: Call) -> dict[str, Any]:
    broker = call.running.broker
    logs = islice(broker.logs.by_id.values(), ROWS)
    users = broker.access.users
    return {
        "items": config_rows(call.running),
        "logs": [log_row(log) for log in logs],
        "users": [user_row(users[name]) for name in sorted(users)],
        "namespaces": sorted(broker.namespaces)[:ROWS],
    }


async def cluster_page(call: Call) -> dict[str, Any]:
    """Who owns what; empty where the broker is alone."""
    described: dict[str, Any] = call.running.cluster.described() if call.running.cluster is not None else {}
    return {"cells": described.get("cells", []), "brokers": described.get("brokers", [])}


PAGES = (
    Page("/", "Overview", "overview.html", overview_page, "overview.read"),
    Page("/topics", "Topics", "topics.html", topics_page, "topic.list"),
    Page("/topic", "Topic", "topic.html", topic_page_facts, "topic.describe", under="/topics"),
    Page("/queue", "Queue", "queue.html", queue_page, "queue.describe", under="/views"),
    Page("/exchange", "Exchange", "exchange.html", exchange_page, "exchange.describe", under="/views"),
    Page("/view", "View", "view.html", view_page, "view.describe", under="/views"),
    Page("/group", "Group", "group.html", group_page, "group.describe", under="/cursors"),
    Page("/session", "Session", "session.html", session_page, "session.describe", under="/cursors"),
    Page("/connection", "Connection", "connection.html", connection_page, "connection.describe", under="/connections"),
    Page("/user", "User", "user.html", user_page, "user.describe", under="/settings"),
    Page("/namespace", "Namespace", "namespace.html", namespace_page, "namespace.describe", under="/settings"),
    Page("/messages", "Messages", "messages.html", messages_page, "topic.consume"),
    Page("/search", "Search", "search.html", search_page, "search.run"),
    Page("/trace", "Trace", "trace.html", trace_page, "trace.list"),
    Page("/registry", "Schemas", "schemas.html", schemas_page, "schema.list"),
    Page("/subject", "Schema", "schema.html", schema_page, "schema.describe", under="/registry"),
    Page("/views", "Views & queues", "views.html", views_page, "view.list"),
    Page("/cursors", "Cursors", "cursors.html", cursors_page, "cursor.list"),
    Page("/pipelines", "Pipelines", "pipelines.html", pipelines_page, "pipeline.list"),
    Page("/pipeline", "Pipeline", "pipeline.html", pipeline_page, "pipeline.list", under="/pipelines"),
    Page("/connections", "Connections", "connections.html", connections_page, "connection.list"),
    Page("/try", "Try it", "try.html", try_page, "self.read"),
    Page("/cluster", "Cluster", "cluster.html", cluster_page, "config.read", under="/settings"),
    Page("/api-reference", "API", "api.html", api_page, "self.read", under="/settings"),
    Page("/settings", "Settings", "settings.html", settings_page, "config.read"),
)
