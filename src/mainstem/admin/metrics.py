"""/metrics in Prometheus' text format. Hot paths count plain integers; they are only read here, when someone asks.

`/metrics` is aggregated and costs the same however many topics, cursors and connections there are. `/metrics/per-object`
adds one series per cursor and per log, at most OBJECTS_MAX of each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from itertools import islice

from mainstem import __version__
from mainstem.admin.cursors import cursor_rows, groups_of, queue_service, sessions_of
from mainstem.admin.overview import resident_bytes
from mainstem.admin.rates import PROTOCOLS
from mainstem.admin.running import Running
from mainstem.admin.tail import Tail
from mainstem.admin.topics import engine_name, topic_count
from mainstem.model.compiled import COMPILED

OBJECTS_MAX = 10_000
Labels = dict[str, str]
Sample = tuple[str, Labels, float]
Family = tuple[str, str, str, list[Sample]]  # name, type, help, samples (suffix, labels, value)

REASONS = {"messages_dropped": "slow_consumer", "refused_total": "connection_limit"}


def metrics_text(running: Running, *, per_object: bool = False) -> str:
    lines: list[str] = []
    for name, kind, text, samples in _families(running, per_object):
        if not samples:
            continue
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        lines += (f"{name}{suffix}{_labels(labels)} {_number(value)}" for suffix, labels, value in samples)
    return "\n".join(lines) + "\n"


def _families(running: Running, per_object: bool) -> Iterator[Family]:
    yield from _process(running)
    yield from _protocols(running)
    yield from _storage(running)
    yield from _consumers(running)
    if per_object:
        yield from _objects(running)


def _one(name: str, kind: str, text: str, value: float, **labels: str) -> Family:
    return name, kind, text, [("", labels, value)]


def _process(running: Running) -> Iterator[Family]:
    build = {"version": __version__, "compiled": str(COMPILED).lower()}
    yield "mainstem_build_info", "gauge", "What is running.", [("", build, 1)]
    yield _one("mainstem_uptime_seconds", "gauge", "Since the start.", time.time() - running.started_s)
    yield _one("mainstem_ready", "gauge", "1 while listeners are open.", int(running.ready))
    yield _one("process_resident_memory_bytes", "gauge", "Memory in use.", resident_bytes())
    yield _one("process_cpu_seconds_total", "counter", "Processor time used.", time.process_time())
    rates = running.rates
    yield _one("mainstem_loop_lag_seconds", "gauge", "How late the loop woke up last.", rates.loop_lag_ms / 1000)
    yield _one("mainstem_loop_lag_max_seconds", "gauge", "The latest it ever woke up.", rates.loop_lag_max_ms / 1000)
    yield _one("mainstem_ticks_total", "counter", "Turns of the loop that wrote or sent.", running.broker.ticker.ticks)
    running_tasks = [("", {"task": task}, 1.0) for task in sorted(running.broker.maintenance.running)]
    yield "mainstem_background_tasks", "gauge", "What runs in the background now.", running_tasks
    yield _one("mainstem_http_tails", "gauge", "Live tails that are open.", len(Tail.open_tails))
    http = running.servers.get("http")
    yield _one("mainstem_http_requests_total", "counter", "HTTP requests.", getattr(http, "requests_total", 0))


def _protocols(running: Running) -> Iterator[Family]:
    totals = running.rates.totals()
    messages: list[Sample] = []
    sizes: list[Sample] = []
    for protocol, counters in totals.items():
        for direction in ("in", "out"):
            labels = {"protocol": protocol, "direction": direction}
            messages.append(("", labels, counters[f"messages_{direction}"]))
            sizes.append(("", labels, counters[f"bytes_{direction}"]))
    yield "mainstem_messages_total", "counter", "Messages published (in) and delivered (out).", messages
    yield "mainstem_bytes_total", "counter", "Bytes read from (in) and written to (out) sockets.", sizes
    yield (
        "mainstem_connections",
        "gauge",
        "Open connections.",
        [("", {"protocol": protocol}, counters["connections"]) for protocol, counters in totals.items()],
    )
    yield (
        "mainstem_connections_total",
        "counter",
        "Connections ever accepted.",
        [("", {"protocol": protocol}, counters["connections_total"]) for protocol, counters in totals.items()],
    )
    drops: dict[tuple[str, str], int] = {}
    for listener, protocol in PROTOCOLS.items():
        counters_of = getattr(running.servers.get(listener), "counters", None)
        for name, reason in REASONS.items():
            key = (protocol, reason)
            drops[key] = drops.get(key, 0) + getattr(counters_of, name, 0)
    yield (
        "mainstem_drops_total",
        "counter",
        "Messages not delivered and connections not accepted, by reason.",
        [("", {"protocol": protocol, "reason": reason}, count) for (protocol, reason), count in drops.items()],
    )


def _storage(running: Running) -> Iterator[Family]:
    broker = running.broker
    parts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    unsynced = appended = 0
    for log in broker.logs.by_id.values():
        stat, engine = log.engine.stat(), engine_name(log)
        parts[engine] = parts.get(engine, 0) + len(stat.parts)
        sizes[engine] = sizes.get(engine, 0) + stat.size_bytes
        unsynced += log.written - log.stable
        appended += log.written
    yield "mainstem_logs", "gauge", "Logs.", [("", {}, len(broker.logs.by_id))]
    yield "mainstem_segments", "gauge", "Segments, or other parts kept as a whole.", _by_engine(parts)
    yield "mainstem_storage_bytes", "gauge", "Bytes stored.", _by_engine(sizes)
    yield _one("mainstem_appended_records_total", "counter", "Offsets given out by all logs.", appended)
    yield _one("mainstem_unsynced_records", "gauge", "Written, not yet durable.", unsynced)
    committer = broker.ticker.committer
    yield (
        "mainstem_fsync_seconds",
        "summary",
        "Group commits: how many, and the time they took.",
        [("_sum", {}, committer.sync_ns_total / 1e9), ("_count", {}, committer.rounds)],
    )
    held = {engine: size for engine, size in held_bytes(running).items() if size}
    yield (
        "mainstem_held_bytes",
        "gauge",
        "Kept past their time for queues and sessions that still need them.",
        [("", {"engine": engine}, size) for engine, size in sorted(held.items())] or [("", {"engine": "segment"}, 0)],
    )
    disk = shutil.disk_usage(broker.options.data)
    yield _one("mainstem_disk_free_bytes", "gauge", "Free on the disk of the data directory.", disk.free)
    yield _one("mainstem_space_low", "gauge", "1 while publishes are refused.", int(broker.maintenance.space_low))
    read = _read_bytes()
    if read is not None:
        cached, disk_read = read
        yield (
            "mainstem_read_bytes_total",
            "counter",
            "Bytes read, from the page cache and from the disk.",
            [("", {"source": "page_cache"}, cached), ("", {"source": "disk"}, disk_read)],
        )


def held_bytes(running: Running) -> dict[str, int]:
    """By engine: parts that retention would have dropped by now, were they not needed."""
    broker, found = running.broker, dict[str, int]()
    now_ns = broker.clock.now_ns()
    for namespace in broker.namespaces.values():
        policies = [(stem, namespace.stem_policies[stem]) for stem in namespace.stems.values()]
        for topic in islice(namespace.topics.values(), OBJECTS_MAX):
            policies += [(span.log, topic.policy) for p in topic.partitions for span in p.spans if not span.shared]
        for log, policy in policies:
            if policy.retention_ms <= 0 or "delete" not in policy.cleanup:
                continue
            due = now_ns - policy.retention_ms * 1_000_000
            size = sum(part.size_bytes for part in log.engine.stat().parts if part.sealed and part.last_stamp < due)
            found[engine_name(log)] = found.get(engine_name(log), 0) + size
    return found


def _by_engine(values: dict[str, int]) -> list[Sample]:
    return [("", {"engine": engine, "tier": "local"}, value) for engine, value in sorted(values.items())]


def _read_bytes() -> tuple[int, int] | None:
    """(from the page cache, from the disk), as the kernel counts them for this process; None where it does not."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            facts = dict(line.strip().split(": ") for line in file)
    except (OSError, ValueError):
        return None
    total, disk = int(facts.get("rchar", 0)), int(facts.get("read_bytes", 0))
    return max(0, total - disk), disk


def _consumers(running: Running) -> Iterator[Family]:
    broker = running.broker
    namespaces = broker.namespaces.values()
    yield _one("mainstem_topics", "gauge", "Topics.", sum(topic_count(one) for one in namespaces))
    yield _one("mainstem_views", "gauge", "Views.", sum(len(one.views) for one in namespaces))
    groups, sessions, queues = groups_of(running), sessions_of(running), queue_service(running)
    yield _one("mainstem_groups", "gauge", "Kafka consumer groups.", len(groups.groups) if groups is not None else 0)
    yield _one("mainstem_sessions", "gauge", "Persistent MQTT sessions.", len(sessions) if sessions is not None else 0)
    held = list(queues.by_id.values()) if queues is not None else []
    yield _one("mainstem_queues", "gauge", "Queues.", len(held))
    ready = sum(queue.ready for queue in held[:OBJECTS_MAX])
    yield _one("mainstem_queue_ready_messages", "gauge", "Ready in all queues.", ready)
    unacked = sum(queue.unacked for queue in held[:OBJECTS_MAX])
    yield _one("mainstem_queue_unacked_messages", "gauge", "Delivered and not settled, in all queues.", unacked)


def _objects(running: Running) -> Iterator[Family]:
    lag: list[Sample] = []
    for namespace in running.broker.namespaces.values():
        for row in cursor_rows(running, namespace, 0, OBJECTS_MAX - len(lag)):
            labels = {
                "namespace": namespace.name,
                "protocol": row["protocol"],
                "cursor": row["name"],
                "kind": row["kind"],
            }
            lag.append(("", labels, row["lag"]))
    yield "mainstem_cursor_lag_messages", "gauge", "Records a cursor has not read or settled.", lag
    sizes: list[Sample] = []
    ends: list[Sample] = []
    for log in islice(running.broker.logs.by_id.values(), OBJECTS_MAX):
        labels = {"log": str(log.id), "engine": engine_name(log)}
        sizes.append(("", labels, log.engine.stat().size_bytes))
        ends.append(("", labels, log.stable))
    yield "mainstem_log_bytes", "gauge", "Bytes of each log.", sizes
    yield "mainstem_log_stable_offset", "gauge", "The durable end of each log.", ends


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
