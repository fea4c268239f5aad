"""Writes deploy/grafana-dashboard.json from this list of panels: python deploy/make_dashboard.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    ("Bytes", "Bps", 12, (("sum by (direction) (rate(mainstem_bytes_total[1m]))", "{{direction}}"),)),
    ("Connections", "short", 12, (("mainstem_connections", "{{protocol}}"),)),
    (
        "Group commit",
        "s",
        8,
        (("rate(mainstem_fsync_seconds_sum[1m]) / rate(mainstem_fsync_seconds_count[1m])", "mean fsync"),),
    ),
    (
        "Records per commit",
        "short",
        8,
        (("rate(mainstem_appended_records_total[1m]) / rate(mainstem_fsync_seconds_count[1m])", "records"),),
    ),
    ("Loop lag", "s", 8, (("mainstem_loop_lag_seconds", "now"), ("mainstem_loop_lag_max_seconds", "largest ever"))),
    ("Stored", "bytes", 8, (("mainstem_storage_bytes", "{{engine}} {{tier}}"), ("mainstem_disk_free_bytes", "free"))),
    ("Segments", "short", 8, (("mainstem_segments", "{{engine}} {{tier}}"),)),
    ("Reads", "Bps", 8, (("rate(mainstem_read_bytes_total[1m])", "{{source}}"),)),
    (
        "Queues",
        "short",
        8,
        (("mainstem_queue_ready_messages", "ready"), ("mainstem_queue_unacked_messages", "unacked")),
    ),
    ("Drops", "ops", 8, (("sum by (protocol, reason) (rate(mainstem_drops_total[1m]))", "{{protocol}} {{reason}}"),)),
    ("Memory", "bytes", 8, (("process_resident_memory_bytes", "resident"),)),
    (
        "Lag per cursor (scrape /metrics/per-object)",
        "short",
        24,
        (("topk(20, mainstem_cursor_lag_messages)", "{{protocol}} {{cursor}}"),),
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
