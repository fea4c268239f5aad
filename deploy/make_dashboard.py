"""Writes the dashboards of this folder from these lists of panels: python deploy/make_dashboard.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PERCENTILES = (("0.5", "half"), ("0.99", "99 %"))


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[1m])))", name) for q, name in PERCENTILES)


def mean(metric: str) -> tuple[str, str]:
    return f"sum(rate({metric}_sum[1m])) / sum(rate({metric}_count[1m]))", "mean"


HITS = (
    'sum by (cache) (rate(mainstem_cache_requests_total{result="hit"}[5m]))'
    " / sum by (cache) (rate(mainstem_cache_requests_total[5m]))"
)
PANELS = (  # title, unit, width of 24, ((expression, legend), ...)
    (
        "Messages in",
        "ops",
        12,
        (('sum by (protocol) (rate(mainstem_messages_total{direction="in"}[1m]))', "{{protocol}}"),),
    ),
    (
        "Messages out",
        "ops",
        12,
        (('sum by (protocol) (rate(mainstem_messages_total{direction="out"}[1m]))', "{{protocol}}"),),
    ),
    ("Bytes", "Bps", 8, (("sum by (direction) (rate(mainstem_bytes_total[1m]))", "{{direction}}"),)),
    ("Connections", "short", 8, (("mainstem_connections", "{{protocol}}"),)),
    (
        "Drops and failed logins",
        "ops",
        8,
        (
            ("sum by (protocol, reason) (rate(mainstem_drops_total[1m])) > 0", "{{protocol}} {{reason}}"),
            ("rate(mainstem_login_failures_total[1m])", "failed logins"),
        ),
    ),
    ("Append", "s", 8, quantiles("mainstem_append_seconds")),
    ("Publish until ack", "s", 8, quantiles("mainstem_ack_seconds")),
    ("Publish until live delivery", "s", 8, quantiles("mainstem_deliver_seconds")),
    ("Group commit: time", "s", 8, (*quantiles("mainstem_fsync_seconds"), mean("mainstem_fsync_seconds"))),
    ("Group commit: records", "short", 8, (*quantiles("mainstem_fsync_records"), mean("mainstem_fsync_records"))),
    (
        "Not yet durable",
        "bytes",
        8,
        (("mainstem_unsynced_bytes", "unsynced"), ("mainstem_publishers_held * 1e6", "publishers wait")),
    ),
    ("Loop lag", "s", 8, (("mainstem_loop_lag_seconds", "now"), ("mainstem_loop_lag_max_seconds", "largest ever"))),
    ("Background tasks", "short", 8, (("mainstem_background_tasks", "{{task}}"),)),
    ("Stored", "bytes", 8, (("mainstem_storage_bytes", "{{engine}} {{tier}}"), ("mainstem_disk_free_bytes", "free"))),
    ("Segments", "short", 8, (("mainstem_segments", "{{engine}} {{tier}}"), ("mainstem_open_files", "open files"))),
    ("Held past their time", "bytes", 8, (("mainstem_held_bytes", "{{holder}}"),)),
    ("Read from memory", "percentunit", 8, ((HITS, "{{cache}}"),)),
    (
        "Queues",
        "short",
        8,
        (
            ("mainstem_queue_ready_messages", "ready"),
            ("mainstem_queue_unacked_messages", "unacked"),
            ("mainstem_queue_dead_messages", "dead"),
        ),
    ),
    ("Memory", "bytes", 8, (("process_resident_memory_bytes", "resident"),)),
    (
        "Lag per cursor (scrape /metrics/per-object)",
        "short",
        12,
        (("topk(20, mainstem_cursor_lag_messages)", "{{protocol}} {{cursor}}"),),
    ),
    (
        "Held per cursor (scrape /metrics/per-object)",
        "bytes",
        12,
        (("topk(20, mainstem_cursor_held_bytes) > 0", "{{protocol}} {{cursor}}"),),
    ),
)


OBJECTS = (  # of /metrics/per-object
    (
        "Records by topic",
        "ops",
        12,
        (('topk(20, rate(mainstem_topic_records_total{namespace=~"$namespace"}[1m]))', "{{topic}}"),),
    ),
    (
        "Records by namespace",
        "ops",
        12,
        (('rate(mainstem_namespace_records_total{namespace=~"$namespace"}[1m])', "{{namespace}}"),),
    ),
    (
        "Ready by queue",
        "short",
        8,
        (('topk(20, mainstem_each_queue_messages{namespace=~"$namespace",state="ready"})', "{{queue}}"),),
    ),
    (
        "Unacked by queue",
        "short",
        8,
        (('topk(20, mainstem_each_queue_messages{namespace=~"$namespace",state="unacked"})', "{{queue}}"),),
    ),
    (
        "Dead letters by queue",
        "short",
        8,
        (('topk(20, mainstem_each_queue_messages{namespace=~"$namespace",state="dead"}) > 0', "{{queue}}"),),
    ),
    (
        "Lag by cursor",
        "short",
        12,
        (('topk(20, mainstem_cursor_lag_messages{namespace=~"$namespace"})', "{{protocol}} {{cursor}}"),),
    ),
    (
        "Held by cursor",
        "bytes",
        12,
        (('topk(20, mainstem_cursor_held_bytes{namespace=~"$namespace"}) > 0', "{{protocol}} {{cursor}}"),),
    ),
    ("Stored by namespace", "bytes", 8, (('mainstem_namespace_bytes{namespace=~"$namespace"}', "{{namespace}}"),)),
    ("Largest logs", "bytes", 8, (("topk(20, mainstem_log_bytes)", "log {{log}} ({{engine}})"),)),
    (
        "Quotas: share used",
        "percentunit",
        8,
        (("topk(20, mainstem_quota_used / mainstem_quota_limit)", "{{kind}} {{name}} {{quota}}"),),
    ),
    ("Flows: lag", "short", 12, (("mainstem_flow_lag_messages", "{{pipeline}} {{flow}}"),)),
    ("Flows: dead letters", "ops", 12, (("rate(mainstem_flow_dead_letters_total[5m])", "{{pipeline}} {{flow}}"),)),
)
DATASOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus"}
NAMESPACE = {
    "name": "namespace",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": "label_values(mainstem_namespace_bytes, namespace)",
    "includeAll": True,
    "allValue": ".*",
    "multi": True,
    "refresh": 2,
}


def dashboard() -> dict[str, Any]:
    return made("Mainstem", "mainstem", PANELS, [DATASOURCE])


def objects() -> dict[str, Any]:
    return made("Mainstem: topics, queues, namespaces", "mainstem-objects", OBJECTS, [DATASOURCE, NAMESPACE])


def made(title: str, uid: str, listed: Any, variables: list[dict[str, Any]]) -> dict[str, Any]:
    panels, x, y = [], 0, 0
    for number, (name, unit, width, targets) in enumerate(listed, 1):
        if x + width > 24:
            x, y = 0, y + 8
        panels.append(
            {
                "id": number,
                "type": "timeseries",
                "title": name,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": x, "y": y, "w": width, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(65 + at), "expr": expression, "legendFormat": legend}
                    for at, (expression, legend) in enumerate(targets)
                ],
            }
        )
        x += width
    return {
        "title": title,
        "uid": uid,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


if __name__ == "__main__":
    for name, made_of in (("grafana-dashboard.json", dashboard), ("grafana-objects.json", objects)):
        Path(__file__).with_name(name).write_text(json.dumps(made_of(), indent=2) + "\n")
