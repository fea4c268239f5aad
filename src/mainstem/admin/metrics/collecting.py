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
from typing import Any

from mainstem import __version__
from mainstem.admin.cursors import cursors_in_turn, groups_of, mqtt_service, queue_service, sessions_of
from mainstem.admin.metrics.exposition import Sample, Samples, by_label, histogram, one, text_of
from mainstem.admin.metrics.families import BY_NAME, DROP_REASONS, HOLDERS, TASKS
from mainstem.admin.overview import resident_bytes
from mainstem.admin.rates import PROTOCOLS
from mainstem.admin.running import Running
from mainstem.admin.tail import Tail
from mainstem.admin.topics import engine_name, topic_count
from mainstem.broker.queues.queue import Queue
from mainstem.log.log import Log
from mainstem.model.compiled import COMPILED
from mainstem.model.errors import NotFound
from mainstem.storage.engine import Stat

OBJECTS_MAX = 10_000
TURN_OBJECTS = 200  # looked at before the loop may do something else
NS = 1e9


async def metrics_text(running: Running, *, per_object: bool = False, wanted: Collection[str] = ()) -> str:
    """All families, or those wanted; with `per_object` also the ones with a series for each thing."""
    for name in wanted:
        if name not in BY_NAME:
            raise NotFound(f"there is no metric {name}", fix="see docs/metrics.md, or /metrics")
    per_object = per_object or any(BY_NAME[name].per_object for name in wanted)
    logs = list(running.broker.logs.by_id.values())
    stats = await asyncio.to_thread(_stats, logs)
    found = [*_process(running), *_traffic(running), *_storage(running, stats)]
    found += [samples async for samples in _consumers(running)]
    if per_object:
        found += [*_logs(stats), *[samples async for samples in _cursors(running)]]
    return text_of([samples for samples in found if not wanted or samples[0] in wanted])


def _stats(logs: list[Log]) -> list[tuple[Log, Stat]]:
    return [(log, log.engine.stat()) for log in logs if not log.removed]


def _process(running: Running) -> Iterator[Samples]:
    yield one("mainstem_build_info", 1, version=__version__, compiled=str(COMPILED).lower())
    yield one("mainstem_uptime_seconds", time.time() - running.started_s)
    yield one("mainstem_ready", int(running.ready))
    yield one("process_resident_memory_bytes", resident_bytes())
    yield one("process_cpu_seconds_total", time.process_time())
    yield one("process_open_fds", _open_files())
    yield one("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    rates = running.rates
    yield one("mainstem_loop_lag_seconds", rates.loop_lag_ms / 1000)
    yield one("mainstem_loop_lag_max_seconds", rates.loop_lag_max_ms / 1000)
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
    yield one("mainstem_unsent_bytes", running.unsent.bytes)
    yield one("mainstem_login_failures_total", running.broker.access.failures_total)
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
    for listener, protocol in PROTOCOLS.items():
        counters = getattr(running.servers.get(listener), "counters", None)
        key = (protocol, "connection_limit")
        found[key] = found.get(key, 0) + getattr(counters, "refused_total", 0)
    service, sessions = mqtt_service(running), sessions_of(running)
    if service is not None and sessions is not None:
        found["mqtt", "slow_consumer"] = service.delivered()[1]
        found["mqtt", "session_expired"] = service.expired_total
        found["mqtt", "session_hold_ended"] = sessions.holds_ended_total
        found["mqtt", "retained_limit"] = service.retained_refused()
    found["kafka", "undecodable"] = broker.dispatcher.undecodable
    found["any", "no_space"] = broker.logs.meters.refused
    queues = queue_service(running)
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        found["queue", reason] = queues.drops[reason] if queues is not None else 0
    assert {reason for _, reason in found} <= DROP_REASONS.keys()
    return found


def _storage(running: Running, stats: list[tuple[Log, Stat]]) -> Iterator[Samples]:
    broker = running.broker
    meters, committer = broker.logs.meters, broker.ticker.committer
    yield histogram("mainstem_append_seconds", meters.append_ns, NS)
    yield one("mainstem_appended_records_total", meters.records)
    yield histogram("mainstem_fsync_seconds", committer.sync_ns, NS)
    yield histogram("mainstem_fsync_records", committer.sync_records)
    yield one("mainstem_unsynced_records", sum(log.written - log.stable for log, _ in stats))
    yield one("mainstem_unsynced_bytes", sum(log.unsynced_bytes for log, _ in stats))
    yield one("mainstem_publishers_held", int(broker.ticker.pressed))
    logs: dict[str, int] = {}
    parts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for log, stat in stats:
        engine = engine_name(log)
        logs[engine] = logs.get(engine, 0) + 1
        parts[engine] = parts.get(engine, 0) + len(stat.parts)
        sizes[engine] = sizes.get(engine, 0) + stat.size_bytes
    yield by_label("mainstem_logs", "engine", logs)
    yield "mainstem_segments", _by_engine(parts)
    yield "mainstem_storage_bytes", _by_engine(sizes)
    files, indexes = broker.logs.files.files, broker.logs.files.indexes
    yield one("mainstem_open_files", len(files))
    caches = {"segment_index": indexes, **({"page_cache": files.page_cache} if files.page_cache.known else {})}
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


def _by_engine(values: dict[str, int]) -> list[Sample]:
    return [("", {"engine": engine, "tier": "local"}, value) for engine, value in sorted(values.items())]


async def _consumers(running: Running) -> AsyncIterator[Samples]:
    namespaces = list(running.broker.namespaces.values())
    yield one("mainstem_topics", sum(topic_count(namespace) for namespace in namespaces))
    yield one("mainstem_views", sum(len(namespace.views) for namespace in namespaces))
    groups, sessions, service = groups_of(running), sessions_of(running), mqtt_service(running)
    yield one("mainstem_groups", len(groups.groups) if groups is not None else 0)
    yield one("mainstem_sessions", len(sessions) if sessions is not None else 0)
    yield one("mainstem_retained_messages", service.retained_count() if service is not None else 0)
    queues = queue_service(running)
    held: list[Queue] = list(queues.by_id.values()) if queues is not None else []
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


def _logs(stats: list[tuple[Log, Stat]]) -> Iterator[Samples]:
    shown = [({"log": str(log.id), "engine": engine_name(log)}, log, stat) for log, stat in stats[:OBJECTS_MAX]]
    yield "mainstem_log_bytes", [("", labels, stat.size_bytes) for labels, _, stat in shown]
    yield "mainstem_log_segments", [("", labels, len(stat.parts)) for labels, _, stat in shown]
    yield "mainstem_log_stable_offset", [("", labels, log.stable) for labels, log, _ in shown]


async def _cursors(running: Running) -> AsyncIterator[Samples]:
    lag: list[Sample] = []
    held: list[Sample] = []
    for namespace in list(running.broker.namespaces.values()):
        for row_of in cursors_in_turn(running, namespace):
            if len(lag) >= OBJECTS_MAX:
                break
            row: dict[str, Any] = row_of()  # counting a lag may take a moment
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
