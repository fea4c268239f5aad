"""Writes deploy/grafana-dashboard.json from this list of panels: python deploy/make_dashboard.py"""

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


def dashboard() -> dict[str, Any]:
    panels, x, y = [], 0, 0
    for number, (title, unit, width, targets) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y = 0, y + 8
        panels.append(
            {
                "id": number,
                "type": "timeseries",
                "title": title,
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
        "title": "Mainstem",
        "uid": "mainstem",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


if __name__ == "__main__":
    Path(__file__).with_name("grafana-dashboard.json").write_text(json.dumps(dashboard(), indent=2) + "\n")
