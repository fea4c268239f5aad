"""The way of one message, for people: who published it, where it lies, who has it, and when, as far as it was followed."""

from __future__ import annotations

from typing import cast

from mainstem.admin.answers.consumers import TraceFacts, WayFacts
from mainstem.admin.messages import record_facts
from mainstem.admin.running import Running
from mainstem.admin.topics import engine_name, find, local_and_remote
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.topics.reading import PartitionReader
from mainstem.broker.topics.topic import Partition
from mainstem.broker.tracing.stations import stations
from mainstem.broker.tracing.traces import Trace
from mainstem.model.errors import NotFound
from mainstem.model.record import Record

READ_BYTES = 4 << 20  # a record larger than that comes alone


def way_of(running: Running, namespace: Namespace, topic: str, partition: int, offset: int) -> WayFacts:
    found = find(namespace, topic.encode())
    if not 0 <= partition < len(found.partitions):
        raise NotFound(f"topic {topic} has no partition {partition}", fix=f"mainstem topic describe {topic}")
    place = found.partitions[partition]
    record = _record_at(namespace, place, offset)
    if record is None:
        raise NotFound(
            f"there is no message of {topic} at {partition}·{offset} (any more)",
            fix=f"mainstem sub kafka://localhost/{running.spellings(topic.encode())['kafka']} --from -10 --json",
        )
    span = next(one for one in reversed(place.spans) if one.first <= offset)
    log = span.log
    local, remote = local_and_remote(log)
    trace = running.broker.tracer.traces.get(record.stamp)
    rows = stations(namespace, record.topic, record.stamp, partition, offset, log.id)
    return {
        "message": record_facts(partition, record),
        "published": {
            "protocol": record_facts(partition, record)["origin"],
            "client": _client(record),
            "stamp": record.stamp,
            "time_ms": record.time_ms,
        },
        "place": {
            "log": log.id,
            "engine": engine_name(log),
            "shared": span.shared,
            "offset": offset,
            "durable": log.stable > offset,
            "durability": str(log.durability),
            "remote": bool(remote) and not local,
        },
        "stations": list(rows),
        "trace": trace_facts(trace) if trace is not None else None,
        "traced": found.policy.trace or namespace.policy(record.topic).trace,
    }


def trace_facts(trace: Trace) -> TraceFacts:
    return cast("TraceFacts", trace.to_document())


def _record_at(namespace: Namespace, place: Partition, offset: int) -> Record | None:
    reader = PartitionReader(place, namespace.topic_of)
    if not reader.start_offset <= offset < reader.stable_offset:
        return None
    records, _ = reader.records(offset, READ_BYTES, count_max=1)
    return records[0] if records and records[0].offset == offset else None


def _client(record: Record) -> str:
    for name, value in record.headers:
        if name == b"ms-client" and value is not None:
            return value.decode(errors="replace")
    return ""
