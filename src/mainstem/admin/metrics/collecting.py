"""Reading the figures, when someone asks. Hot paths count plain integers, batches fill histograms; nothing is kept here.

`/metrics` is aggregated: its length is the same however many topics, cursors and connections there are.
`/metrics/per-object` adds a series per cursor and per log, at most OBJECTS_MAX of each;
`/metrics/detailed?family=NAME` answers the named families only, per object where they are.

What belongs to the loop is read on the loop, some hundred things at a time; logs are asked in a thread.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import time
from collections.abc import AsyncIterator, Collection, Iterator
from itertools import islice
from typing import Any

from mainstem import __version__
from mainstem.admin.cursors import cursors_of, groups_of, mqtt_service, queue_service, sessions_of
from mainstem.admin.metrics.exposition import (
    Exemplar,
    Sample,
    Samples,
    by_label,
    histogram,
    one,
    open_metrics_of,
    text_of,
)
from mainstem.admin.metrics.families import BY_NAME, DROP_REASONS, FAMILIES, FLOW_STATES, HOLDERS, TASKS
from mainstem.admin.overview import resident_bytes
from mainstem.admin.pipelines import SILENT, flow_rows
from mainstem.admin.running import Running
from mainstem.admin.tail import Tail
from mainstem.admin.topics import engine_name, local_and_remote, topic_count
from mainstem.broker.namespaces.quotas import NO_LIMITS
from mainstem.broker.pipelines import ENDED
from mainstem.broker.queues.queue import Queue
from mainstem.log.log import Log
from mainstem.model.errors import NotFound
from mainstem.storage.engine import Stat
from mainstem.storage.object.engine import ObjectEngine
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.registry import STATES

OBJECTS_MAX = 10_000
EXEMPLARS_LOOKED_MAX = 200
TURN_OBJECTS = 200  # looked at before the loop may do something else
NS = 1e9


async def metrics_text(
    running: Running, *, per_object: bool = False, wanted: Collection[str] = (), open_metrics: bool = False
) -> str:
    """All families, or those wanted; with `per_object` also the ones with a series for each thing."""
    for name in wanted:
        if name not in BY_NAME:
            raise NotFound(f"there is no metric {name}", fix="see docs/metrics.md, or /metrics")
    per_object = per_object or any(BY_NAME[name].per_object for name in wanted)
    logs = list(running.broker.logs.by_id.values())
    stats = await asyncio.to_thread(_stats, logs)
    found = [*_process(running), *_traffic(running), *_storage(running, stats), *_tier(running)]
    found += _cluster(running)
    found += [samples async for samples in _consumers(running)]
    flows = await _flows(running)
    found += _pipelines(flows)
    if per_object:
        found += [*_logs(stats), *_namespaces(running, stats), *_quotas(running), *_each_flow(flows)]
        found.append(await _queues(running))
        found += [samples async for samples in _cursors(running)]
    told = [samples for samples in found if not wanted or samples[0] in wanted]
    if open_metrics:
        return await asyncio.to_thread(open_metrics_of, told, _exemplars(running))
    return await asyncio.to_thread(text_of, told)  # with thousands of objects this takes a while


def _exemplars(running: Running) -> dict[str, list[Exemplar]]:
    """Of the newest messages that were followed: how long until each was durable, and until it was delivered."""
    found: dict[str, list[Exemplar]] = {"mainstem_ack_seconds": [], "mainstem_deliver_seconds": []}
    for trace in islice(running.broker.tracer.traces.newest(), EXEMPLARS_LOOKED_MAX):
        at = {step.what: step.at_ns for step in reversed(trace.steps)}
        for family, end in (("mainstem_ack_seconds", "durable"), ("mainstem_deliver_seconds", "delivered")):
            if "stored" in at and end in at and at[end] > at["stored"]:
                found[family].append((trace.trace_id, (at[end] - at["stored"]) / NS, at[end] / NS))
    return found


def _stats(logs: list[Log]) -> list[tuple[Log, Stat]]:
    return [(log, log.engine.stat()) for log in logs if not log.removed]


def _process(running: Running) -> Iterator[Samples]:
    yield one("mainstem_build_info", 1, version=__version__)
    yield one("mainstem_uptime_seconds", time.time() - running.started_s)
    yield one("mainstem_ready", int(running.ready))
    yield one("process_resident_memory_bytes", resident_bytes())
    yield one("process_cpu_seconds_total", time.process_time())
    yield one("process_open_fds", _open_files())
    yield one("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    rates = running.rates
    yield one("mainstem_loop_lag_seconds", rates.loop_lag_ms / 1000)
    yield one("mainstem_loop_lag_max_seconds", rates.loop_lag_max_ms / 1000)
    stalls = running.watchdog.stalls.copy()
    yield (
        "mainstem_loop_stall_seconds",
        [
            (suffix, {"cause": cause}, value)
            for cause, one_cause in sorted(stalls.items())
            for suffix, value in (("_sum", one_cause.seconds), ("_count", one_cause.count))
        ],
    )
    yield (
        "mainstem_loop_stall_max_seconds",
        [("", {"cause": cause}, found.longest_s) for cause, found in sorted(stalls.items())],
    )
    yield one("mainstem_ticks_total", running.broker.ticker.ticks)
    tasks = dict.fromkeys(TASKS, 0)
    for task in list(running.broker.maintenance.running):
        kind = task.partition(" of log ")[0].removeprefix("rebuilding the ")
        tasks[kind] = tasks.get(kind, 0) + 1
    yield by_label("mainstem_background_tasks", "task", tasks)
    yield one("mainstem_http_tails", len(Tail.open_tails))
    yield one("mainstem_http_requests_total", getattr(running.servers.get("http"), "requests_total", 0))


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:  # macOS
        return 0


def _traffic(running: Running) -> Iterator[Samples]:
    totals = running.rates.totals()
    for name, counter in (("mainstem_messages_total", "messages"), ("mainstem_bytes_total", "bytes")):
        yield (
            name,
            [
                ("", {"protocol": protocol, "direction": direction}, counters[f"{counter}_{direction}"])
                for protocol, counters in totals.items()
                for direction in ("in", "out")
            ],
        )
    for name, counter in (
        ("mainstem_connections", "connections"),
        ("mainstem_connections_total", "connections_total"),
    ):
        yield by_label(name, "protocol", {protocol: counters[counter] for protocol, counters in totals.items()})
    yield one("mainstem_traces_skipped_total", running.broker.tracer.skipped)
    yield one("mainstem_unsent_bytes", running.unsent.bytes)
    yield one("mainstem_unfinished_bytes", running.unfinished.bytes)
    yield one("mainstem_unfinished_cut_total", running.unfinished.cut_total)
    yield one("mainstem_audit_events_total", running.broker.audit.written_total)
    yield one("mainstem_audit_left_out_total", running.broker.audit.left_out_total)
    yield one("mainstem_login_failures_total", running.broker.identity.failures_total)
    yield (
        "mainstem_drops_total",
        [
            ("", {"protocol": protocol, "reason": reason}, count)
            for (protocol, reason), count in _drops(running).items()
        ],
    )


def _drops(running: Running) -> dict[tuple[str, str], int]:
    """Each reason with the protocol it concerns; `any` where it is nobody's own."""
    broker, found = running.broker, dict[tuple[str, str], int]()
    for listener, protocol in running.protocols.items():
        counters = getattr(running.servers.get(listener), "counters", None)
        key = (protocol, "connection_limit")
        found[key] = found.get(key, 0) + getattr(counters, "refused_total", 0)
    service, keeper = mqtt_service(running), broker.session_keeper
    if service is not None:
        found["mqtt", "slow_consumer"] = service.delivered()[1]
    found["mqtt", "session_expired"] = keeper.expired_total
    found["mqtt", "session_hold_ended"] = keeper.sessions.holds_ended_total
    found["mqtt", "retained_limit"] = keeper.retained_refused()
    found["kafka", "undecodable"] = broker.dispatcher.undecodable
    found["any", "no_space"] = broker.logs.meters.refused
    queues = queue_service(running)
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        found["queue", reason] = queues.drops[reason]
    assert {reason for _, reason in found} <= DROP_REASONS.keys()
    return found


def _storage(running: Running, stats: list[tuple[Log, Stat]]) -> Iterator[Samples]:
    broker = running.broker
    meters, committer = broker.logs.meters, broker.ticker.committer
    yield histogram("mainstem_append_seconds", meters.append_ns, NS)
    yield one("mainstem_appended_records_total", meters.records)
    yield one("mainstem_records_unstored_total", sum(n.unstored_count for n in broker.namespaces.values()))
    yield one("mainstem_records_overflowed_total", meters.overflowed)
    yield histogram("mainstem_fsync_seconds", committer.sync_ns, NS)
    yield histogram("mainstem_fsync_records", committer.sync_records)
    yield histogram("mainstem_ack_seconds", broker.ticker.ack_ns, NS)
    yield histogram("mainstem_deliver_seconds", broker.ticker.deliver_ns, NS)
    yield one("mainstem_unsynced_records", sum(log.written - log.stable for log, _ in stats))
    yield one("mainstem_unsynced_bytes", sum(log.unsynced_bytes for log, _ in stats))
    yield one("mainstem_publishers_held", int(broker.ticker.pressed))
    logs: dict[str, int] = {}
    parts: dict[tuple[str, str], int] = {}
    sizes: dict[tuple[str, str], int] = {}
    for log, stat in stats:
        engine, remote = engine_name(log), 0
        logs[engine] = logs.get(engine, 0) + 1
        if isinstance(log.engine, TieredEngine):
            far = engine, "remote"
            remote = sum(1 for one in log.engine.remote_parts if one.base_offset < log.engine.local.start_offset)
            parts[far] = parts.get(far, 0) + len(log.engine.remote_parts)
            sizes[far] = sizes.get(far, 0) + log.engine.remote_bytes
        if isinstance(log.engine, ObjectEngine):
            far, remote = (engine, "remote"), len(stat.parts)
            parts[far] = parts.get(far, 0) + remote
            sizes[far] = sizes.get(far, 0) + log.engine.remote_bytes
        near = engine, "local"
        parts[near] = parts.get(near, 0) + len(stat.parts) - remote
        sizes[near] = sizes.get(near, 0) + local_and_remote(log)[0]
    yield by_label("mainstem_logs", "engine", logs)
    yield "mainstem_segments", _by_engine(parts)
    yield "mainstem_storage_bytes", _by_engine(sizes)
    yield one("mainstem_search_indexed_bytes_total", broker.search_indexing.read_bytes)
    yield one("mainstem_search_index_bytes_total", broker.search_indexing.written_bytes)
    files, indexes = broker.logs.files.files, broker.logs.files.indexes
    yield one("mainstem_open_files", len(files))
    tier = broker.logs.tier
    caches: dict[str, Any] = {"segment_index": indexes, **({"tier": tier.cache.meters} if tier is not None else {})}
    caches |= {**({"page_cache": files.page_cache} if files.page_cache.known else {})}
    yield (
        "mainstem_cache_requests_total",
        [
            ("", {"cache": name, "result": result}, getattr(cache, counter))
            for name, cache in caches.items()
            for result, counter in (("hit", "hits"), ("miss", "misses"))
        ],
    )
    held = {name: sum(by_log.values()) for name, by_log in broker.maintenance.held_by.items()}
    yield by_label("mainstem_held_bytes", "holder", {**dict.fromkeys(HOLDERS, 0), **held})
    yield one("mainstem_disk_free_bytes", shutil.disk_usage(broker.options.data).free)
    yield one("mainstem_space_low", int(broker.maintenance.space_low))


def _by_engine(values: dict[tuple[str, str], int]) -> list[Sample]:
    return [("", {"engine": engine, "tier": tier}, value) for (engine, tier), value in sorted(values.items())]


def _tier(running: Running) -> Iterator[Samples]:
    """Names without values where no store is set."""
    tier, tiering = running.broker.logs.tier, running.broker.tiering
    if tier is None:
        yield from ((family.name, []) for family in FAMILIES["Object storage"])
        return
    totals, meters = {**dict.fromkeys(STATES, (0, 0)), **tier.totals}, tier.store.meters
    yield by_label("mainstem_tier_objects", "state", {state: count for state, (count, _) in totals.items()})
    yield by_label("mainstem_tier_object_bytes", "state", {state: size for state, (_, size) in totals.items()})
    yield by_label("mainstem_tier_requests_total", "verb", meters.requests)
    yield by_label("mainstem_tier_failures_total", "verb", meters.failures)
    yield (
        "mainstem_tier_request_seconds",
        [
            (suffix, {"verb": verb}, value)
            for verb, took in sorted(meters.latency.items())
            for suffix, value in (("_sum", took.total / NS), ("_count", sum(took.counts)))
        ],
    )
    yield by_label("mainstem_tier_bytes_total", "direction", {"in": meters.bytes_in, "out": meters.bytes_out})
    yield one("mainstem_tier_backlog_bytes", tiering.backlog_bytes)
    since = tiering.backlog_since_stamp
    yield one("mainstem_tier_lag_seconds", max(running.broker.clock.now_ns() - since, 0) / NS if since else 0)
    assert running.broker.logs.objects is not None
    yield one("mainstem_tier_unstored_bytes", running.broker.logs.objects.writer.unstored_bytes)
    yield one("mainstem_tier_unstored_seconds", running.broker.logs.objects.writer.oldest_s)
    yield one("mainstem_tier_fault", int(tier.fault is not None))
    yield one("mainstem_tier_damaged_objects", tier.cache.damaged_objects)
    yield one("mainstem_tier_cache_bytes", tier.cache.bytes)
    yield one("mainstem_tier_cost_month", tier.cost_month())


def _cluster(running: Running) -> Iterator[Samples]:
    """Names without values where the broker is alone."""
    figures = running.cluster
    if figures is None:
        yield from ((family.name, []) for family in FAMILIES["Cluster"])
        return
    yield one("mainstem_cluster_epoch", figures.cell.epoch)
    yield by_label("mainstem_cluster_brokers", "state", figures.brokers)
    yield by_label("mainstem_cluster_cells", "state", figures.cells)
    yield one("mainstem_cluster_commits_total", figures.wal.commits)
    yield histogram("mainstem_cluster_commit_seconds", figures.wal.commit_ns, NS)
    yield one("mainstem_cluster_pending_bytes", figures.wal.pending_bytes)
    yield one("mainstem_cluster_unflushed_bytes", figures.cell.unflushed_bytes)
    yield one("mainstem_cluster_images_total", figures.images.made)
    yield one("mainstem_cluster_postgres_away_seconds", figures.postgres_away_s)
    yield one("mainstem_cluster_relayed_clients", figures.relayed)


async def _consumers(running: Running) -> AsyncIterator[Samples]:
    namespaces = list(running.broker.namespaces.values())
    yield one("mainstem_topics", sum(topic_count(namespace) for namespace in namespaces))
    yield one("mainstem_quotas_near", running.broker.quotas.near_count)
    yield one("mainstem_views", sum(len(namespace.views) for namespace in namespaces))
    yield one("mainstem_groups", len(groups_of(running).groups))
    yield one("mainstem_sessions", len(sessions_of(running)))
    yield one("mainstem_retained_messages", running.broker.session_keeper.retained_count())
    queues = queue_service(running)
    held: list[Queue] = list(queues.by_id.values())
    yield one("mainstem_queues", len(held))
    ready = unacked = dead = 0
    for number, queue in enumerate(held):
        ready += queue.ready
        unacked += queue.unacked
        dead += queue.dead_count
        if number % TURN_OBJECTS == TURN_OBJECTS - 1:
            await asyncio.sleep(0)
    yield one("mainstem_queue_ready_messages", ready)
    yield one("mainstem_queue_unacked_messages", unacked)
    yield one("mainstem_queue_dead_messages", dead)


async def _flows(running: Running) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Each flow's labels, and what it told of itself last."""
    found = []
    for namespace in list(running.broker.namespaces.values()):
        for number, row in enumerate(flow_rows(running, namespace)):
            found.append(({"namespace": namespace.name, "pipeline": row["pipeline"], "flow": row["flow"]}, row))
            if number % TURN_OBJECTS == TURN_OBJECTS - 1:
                await asyncio.sleep(0)
    return found


def _pipelines(flows: list[tuple[dict[str, str], dict[str, Any]]]) -> Iterator[Samples]:
    states = dict.fromkeys(FLOW_STATES, 0)
    for _, row in flows:
        if row["state"] in states:  # a word that only a newer or a foreign client knows
            states[row["state"]] += 1
    yield by_label("mainstem_pipeline_flows", "state", states)
    yield one("mainstem_pipeline_lag_messages", sum(row["lag"] for _, row in flows if row["state"] not in ENDED))


def _each_flow(flows: list[tuple[dict[str, str], dict[str, Any]]]) -> Iterator[Samples]:
    shown = flows[:OBJECTS_MAX]
    for name, fact, scale in (
        ("lag_messages", "lag", 1.0),
        ("rows_total", "rows_total", 1.0),
        ("dead_letters_total", "bad_total", 1.0),
        ("restarts_total", "restarts", 1.0),
        ("batch_seconds", "batch_ms", 1e-3),
        ("batch_end_seconds", "batch_end_ms", 1e-3),
    ):
        values = [("", labels, row[fact] * scale if scale != 1.0 else row[fact]) for labels, row in shown]
        yield f"mainstem_flow_{name}", values
    yield "mainstem_flow_up", [("", labels, int(row["state"] not in (*ENDED, SILENT))) for labels, row in shown]


def _logs(stats: list[tuple[Log, Stat]]) -> Iterator[Samples]:
    shown = [({"log": str(log.id), "engine": engine_name(log)}, log, stat) for log, stat in stats[:OBJECTS_MAX]]
    yield "mainstem_log_bytes", [("", labels, stat.size_bytes) for labels, _, stat in shown]
    yield "mainstem_log_segments", [("", labels, len(stat.parts)) for labels, _, stat in shown]
    yield "mainstem_log_stable_offset", [("", labels, log.stable) for labels, log, _ in shown]


def _namespaces(running: Running, stats: list[tuple[Log, Stat]]) -> Iterator[Samples]:
    """Traffic by topic, of those that the history follows, and by namespace."""
    topics = list(running.history.figures.totals.items())
    yield (
        "mainstem_topic_records_total",
        [("", {"namespace": namespace, "topic": topic}, total) for (namespace, topic), total in topics],
    )
    sizes = {log: stat.size_bytes for log, stat in stats}
    shown = [
        ({"namespace": one.name}, list(one.logs())) for one in islice(running.broker.namespaces.values(), OBJECTS_MAX)
    ]
    yield (
        "mainstem_namespace_records_total",
        [("", labels, sum(log.written for log in logs)) for labels, logs in shown],
    )
    yield "mainstem_namespace_bytes", [("", labels, sum(sizes.get(log, 0) for log in logs)) for labels, logs in shown]


async def _queues(running: Running) -> Samples:
    found: list[Sample] = []
    for number, queue in enumerate(islice(list(queue_service(running).by_id.values()), OBJECTS_MAX)):
        labels = {"namespace": queue.namespace.name, "queue": queue.name}
        for state, count in (("ready", queue.ready), ("unacked", queue.unacked), ("dead", queue.dead_count)):
            found.append(("", {**labels, "state": state}, count))
        if number % TURN_OBJECTS == TURN_OBJECTS - 1:
            await asyncio.sleep(0)
    return "mainstem_each_queue_messages", found


def _quotas(running: Running) -> Iterator[Samples]:
    quotas = running.broker.quotas
    shown = [one for one in quotas.accounts.values() if one.limits != NO_LIMITS][:OBJECTS_MAX]
    used = [(one, *row) for one in shown for row in quotas.use(one)]
    rows = [({"kind": one.kind, "name": one.name, "quota": quota}, value, limit) for one, quota, value, limit in used]
    yield "mainstem_quota_used", [("", labels, value) for labels, value, _ in rows]
    yield "mainstem_quota_limit", [("", labels, limit) for labels, _, limit in rows]
    named = [({"kind": one.kind, "name": one.name}, one) for one in shown]
    yield "mainstem_quota_delays_total", [("", labels, one.delays_total) for labels, one in named]
    yield "mainstem_quota_refusals_total", [("", labels, one.refusals_total) for labels, one in named]


async def _cursors(running: Running) -> AsyncIterator[Samples]:
    lag: list[Sample] = []
    held: list[Sample] = []
    for namespace in list(running.broker.namespaces.values()):
        for row_of in list(islice(cursors_of(running, namespace), OBJECTS_MAX - len(lag))):
            row = row_of()  # counting a lag may take a moment
            await asyncio.sleep(0)
            labels = {
                "namespace": namespace.name,
                "protocol": row["protocol"],
                "cursor": row["name"],
                "kind": row["kind"],
            }
            lag.append(("", labels, row["lag"]))
            if row.get("held_bytes") is not None:
                held.append(("", labels, row["held_bytes"]))
    yield "mainstem_cursor_lag_messages", lag
    yield "mainstem_cursor_held_bytes", held
