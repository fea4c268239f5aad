"""/v1/overview, /v1/config, /v1/logs, /v1/backup: the broker as a whole."""

from __future__ import annotations

from typing import Any

from mainstem.admin.calls import ADMIN, Call, Operation, page
from mainstem.admin.overview import config_rows, log_row, overview


async def get_overview(call: Call) -> Any:
    return overview(call.running)


async def get_config(call: Call) -> Any:
    return page(config_rows(call.running))


async def list_logs(call: Call) -> Any:
    logs = call.running.broker.logs.by_id
    return page([log_row(logs[log_id]) for log_id in sorted(logs)])


OPERATIONS = (
    Operation("GET", "/v1/overview", get_overview, "Rates, sizes, listeners and health, in one answer."),
    Operation("GET", "/v1/config", get_config, "Every setting with its value and where it came from.", ADMIN),
    Operation("GET", "/v1/logs", list_logs, "The logs on disk: engine, offsets, segments, bytes.", ADMIN),
)
