"""The HTTP API, a file per kind of thing. Each lists its operations; routes, documents and permissions come from them."""

from __future__ import annotations

from mainstem.admin.api import (
    asking,
    connections,
    cursors,
    grafana,
    messages,
    namespaces,
    queues,
    schemas,
    series,
    streams,
    system,
    topics,
    tracing,
    users,
    views,
)
from mainstem.admin.calls import Operation

OPERATIONS: tuple[Operation, ...] = (
    *system.OPERATIONS,
    *topics.OPERATIONS,
    *views.OPERATIONS,
    *streams.OPERATIONS,
    *messages.OPERATIONS,
    *schemas.OPERATIONS,
    *asking.OPERATIONS,
    *grafana.OPERATIONS,
    *cursors.OPERATIONS,
    *queues.OPERATIONS,
    *connections.OPERATIONS,
    *series.OPERATIONS,
    *tracing.OPERATIONS,
    *namespaces.OPERATIONS,
    *users.OPERATIONS,
)
