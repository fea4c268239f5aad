"""The broker at a glance: what moves, what it holds, whether it is well."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import fields, is_dataclass

from mainstem import __version__
from mainstem.admin.answers.system import HealthCheck, LogRow, OverviewFacts, SettingRow
from mainstem.admin.connections import connections_in
from mainstem.admin.running import Running
from mainstem.admin.topics import engine_name, topic_count
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.log.log import Log

STALL_S_MAX = 1.0  # beyond it people notice, and clients time out


def overview(running: Running, only: Namespace | None = None) -> OverviewFacts:
    """Everything; or what one namespace's users may know of it: theirs, and whether the broker is well."""
    broker = running.broker
    namespaces = list(broker.namespaces.values()) if only is None else [only]
    sample = running.rates.latest()
    disk = shutil.disk_usage(broker.options.data)
    return {
        "version": __version__,
        "uptime_s": round(time.time() - running.started_s, 1),
        "ready": running.ready,
        "listeners": running.ports,
        "notices": running.notices if only is None else [],
        "topics": sum(topic_count(namespace) for namespace in namespaces),
        "views": sum(len(namespace.views) for namespace in namespaces),
        "logs": len(broker.logs.by_id) if only is None else sum(1 for _ in only.logs()),
        "rates": sample.rates if only is None else {},
        "connections": sample.connections if only is None else {"all": sum(1 for _ in connections_in(running, only))},
        "loop_lag_ms": round(sample.loop_lag_ms, 2),
        "resident_bytes": resident_bytes(),
        "disk": {"total_bytes": disk.total, "free_bytes": disk.free, "space_low": broker.maintenance.space_low},
        "health": health(running),
    }


def health(running: Running) -> list[HealthCheck]:
    """Each check with its reason; what is wrong says how to mend it."""
    broker = running.broker
    checks: list[HealthCheck] = [
        {
            "name": "serving",
            "ok": running.ready,
            "reason": "listeners are open" if running.ready else "starting or stopping",
        },
        {
            "name": "disk space",
            "ok": not broker.maintenance.space_low,
            "reason": "publishes are accepted"
            if not broker.maintenance.space_low
            else "publishes are refused: free disk space",
        },
        {
            "name": "login",
            "ok": bool(broker.access.users) or not running.config.listeners.allow_anonymous,
            "reason": "users exist" if broker.access.users else "no user yet: every login is accepted",
        },
        _loop_health(running),
        *([running.cluster.health()] if running.cluster is not None else []),
    ]
    return checks


def _loop_health(running: Running) -> HealthCheck:
    """One loop serves all protocols: who kept it longest."""
    cause, longest_s = running.watchdog.longest()
    reason = f"kept all waiting for {longest_s * 1000:.0f} ms at most, in {cause}" if cause else "kept nobody waiting"
    return {"name": "loop", "ok": longest_s < STALL_S_MAX, "reason": reason}


def config_rows(running: Running) -> list[SettingRow]:
    config, rows = running.config, list[SettingRow]()
    for section in fields(config):
        settings = getattr(config, section.name)
        if not is_dataclass(settings):
            continue
        for one in fields(settings):
            setting = one.metadata["setting"]
            key = f"{section.name}.{one.name}"
            value = getattr(settings, one.name)
            rows.append(
                {
                    "key": key,
                    "value": setting.kind.show(value),
                    "default": setting.kind.show(one.default),
                    "source": config.sources.get(key, "default"),
                    "doc": setting.doc,
                    "live": setting.live,
                }
            )
    return rows


def log_row(log: Log) -> LogRow:
    stat = log.engine.stat()
    return {
        "log": log.id,
        "engine": engine_name(log),
        "shared": log.index is not None,
        "durability": str(log.durability),
        "start_offset": stat.start_offset,
        "end_offset": stat.end_offset,
        "written": log.written,
        "stable": log.stable,
        "parts": len(stat.parts),
        "size_bytes": stat.size_bytes,
    }


def resident_bytes() -> int:
    """Of this process; 0 where it cannot be told (macOS)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
