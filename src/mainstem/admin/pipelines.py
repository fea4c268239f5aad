"""Pipelines as they have told of themselves: a row for each flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainstem.admin.running import Running
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.pipelines import ENDED, QUIET_MS

SILENT = "silent"  # a flow that has not ended, of a pipeline that tells nothing any more


def flow_rows(running: Running, namespace: Namespace) -> Iterator[dict[str, Any]]:
    for pipeline in running.broker.pipelines.listed(namespace.name):
        is_quiet = pipeline["quiet_ms"] >= QUIET_MS
        for flow in pipeline["flows"]:
            state = SILENT if is_quiet and flow["state"] not in ENDED else flow["state"]
            yield {"pipeline": pipeline["name"], **flow, "state": state, "told_s": pipeline["quiet_ms"] // 1000}
