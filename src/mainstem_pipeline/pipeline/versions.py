"""A version of a pipeline beside the one that runs: the same flows, with a name, a state and sinks of their own.

| | of version v2 |
|---|---|
| pipeline `devices` | `devices-v2` |
| state | `<state>-v2` |
| table `iot.readings` | `iot.readings_v2` |
| topic `alerts/{device}` | `v2/alerts/{device}` |
| folder `out` | `out-v2` |

What a flow reads stays what it is, but for tables and topics by name that flows of the same file write.
"""

from __future__ import annotations

import re
from dataclasses import replace

from mainstem.model.errors import ConfigError
from mainstem_pipeline.pipeline.flows import time_ms
from mainstem_pipeline.pipeline.model import Flow, Pipeline, SideTable, Sink, Source

VERSION = re.compile(r"[a-z0-9][a-z0-9_]{0,15}")


def versioned(pipeline: Pipeline, version: str, start: str = "") -> Pipeline:
    """The pipeline as that version of it; its flows begin at the time `start`, if one is given."""
    if not VERSION.fullmatch(version):
        raise ConfigError(
            f"{version!r} cannot be a version: it becomes part of names of tables and topics",
            fix="lower-case letters, digits and _, 16 at most: v2",
        )
    flows = [flow for flow in pipeline.flows if flow.archive is None]  # records as they are have no versions
    if not flows:
        raise ConfigError(f"pipeline {pipeline.name} has only archive flows: there is nothing to build again")
    tables = frozenset(one for flow in flows for one in flow.tables_written)
    topics = frozenset(one.target for flow in flows for one in flow.sinks if one.kind == "topic")
    return replace(
        pipeline,
        name=f"{pipeline.name}-{version}",
        state=f"{pipeline.state.rstrip('/')}-{version}",
        flows=tuple(_flow(flow, version, start, tables, topics) for flow in flows),
        tables=tuple(_side_table(one, version, tables, topics) for one in pipeline.tables),
    )


def _flow(flow: Flow, version: str, start: str, tables: frozenset[str], topics: frozenset[str]) -> Flow:
    letters = flow.dead_letters
    table = _named("table", letters.table, version) if letters.table else ""
    return replace(
        flow,
        source=_source(flow.source, version, tables, topics),
        start=_start(start) or flow.start,
        sinks=tuple(_sink(sink, version) for sink in flow.sinks),
        dead_letters=replace(letters, topic=_named("topic", letters.topic, version), table=table),
    )


def _start(time: str) -> str:
    if time in ("", "earliest", "latest"):
        return time
    return f"ts:{time_ms(time.removeprefix('ts:'))}"


def _sink(sink: Sink, version: str) -> Sink:
    return replace(sink, target=_named(sink.kind, sink.target, version))


def _source(source: Source, version: str, tables: frozenset[str], topics: frozenset[str]) -> Source:
    if source.kind == "table" and source.value in tables:
        return replace(source, value=_named("table", source.value, version))
    if source.kind == "topics":
        names = [_named("topic", one, version) if one in topics else one for one in source.value.split(",")]
        return replace(source, value=",".join(names))
    return source


def _side_table(table: SideTable, version: str, tables: frozenset[str], topics: frozenset[str]) -> SideTable:
    is_ours = (table.kind == "table" and table.target in tables) or (table.kind == "topic" and table.target in topics)
    return replace(table, target=_named(table.kind, table.target, version)) if is_ours else table


def _named(kind: str, target: str, version: str) -> str:
    match kind:
        case "topic":
            return f"{version}/{target}"
        case "table":
            return f"{target}_{version}"
        case "parquet":
            return f"{target.rstrip('/')}-{version}"
    return target
