"""How a record reads in another protocol's words."""

from __future__ import annotations

from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record


def kafka_record(record: Record, *, through_view: bool = False) -> Record:
    headers = list(record.headers)
    if record.origin != Origin.KAFKA:
        headers.append((b"ms-origin", record.origin.name.lower().encode()))
    if through_view:
        headers.append((b"ms-topic", record.topic))
    return Record(record.value, record.key, headers, record.time_ms, 0, record.offset, record.stamp, record.origin, record.topic)


def headers_for_conditions(record: Record) -> list[Header]:
    return record.headers
