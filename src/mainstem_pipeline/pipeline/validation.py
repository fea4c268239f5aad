"""`validate` and `explain`: what can be said of a pipeline without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainstem.model.errors import MainstemError, NotFound
from mainstem_pipeline.client import BrokerUnreachable
from mainstem_pipeline.options import Given, read_options
from mainstem_pipeline.pipeline.checks import load_parsed
from mainstem_pipeline.pipeline.document import BadPipeline, Problem
from mainstem_pipeline.pipeline.loops import check_loops
from mainstem_pipeline.pipeline.model import Flow, Pipeline
from mainstem_pipeline.pipeline.state import State

RETRY_S = 3.0


def validated(path: Path, *, offline: bool) -> list[str]:
    """Problems raise BadPipeline; what is returned are notes: things that are fine but worth knowing."""
    pipeline, parsed = load_parsed(path)
    notes = [parsed] if parsed else []
    notes += [f"{flow.name}: {note}" for flow in pipeline.flows for note in _notes(pipeline, flow)]
    if offline:
        return notes
    problems: list[Problem] = []
    for flow in pipeline.flows:
        if flow.source.kind == "table":
            problems += [] if pipeline.makers(flow) else _table_problem(pipeline, flow)
            continue
        try:
            notes += _asked(pipeline, flow)
        except BrokerUnreachable as error:
            raise BrokerUnreachable(error.message, fix=f"{error.fix}; or validate --offline") from error
        except NotFound as error:
            problems.append(Problem(flow.line, f"flow {flow.name}: {error.message}", error.fix))
    if problems:
        raise BadPipeline(path, problems)
    client = Given({**pipeline.broker, "retrySeconds": str(RETRY_S)}, ()).connection().client()
    try:
        return notes + check_loops(pipeline, client)
    finally:
        client.close()


def _asked(pipeline: Pipeline, flow: Flow) -> list[str]:
    """Does the broker know what the flow reads?"""
    source = flow.archive.source if flow.archive is not None else flow.source
    options = read_options({**pipeline.broker, **source.options(), "retrySeconds": str(RETRY_S)}, streaming=True)
    client = options.connection.client()
    try:
        partitions = client.post("/v1/scan/lanes", {"select": dict(options.select)})["lanes"]
    finally:
        client.close()
    if not any(one["end"] > one["start"] for one in partitions):
        return [f"{flow.name}: {source.value} holds no records yet"]
    return []


def _table_problem(pipeline: Pipeline, flow: Flow) -> list[Problem]:
    from mainstem_pipeline.lake.catalog import load_table, open_catalog

    assert pipeline.lake is not None
    try:
        load_table(open_catalog(pipeline.lake), flow.source.value)
    except MainstemError as error:
        return [Problem(flow.line, f"flow {flow.name}: {error.message}", error.fix)]
    return []


def _notes(pipeline: Pipeline, flow: Flow) -> list[str]:
    notes = []
    try:
        State(pipeline).check_changed(flow)
    except MainstemError as error:
        notes.append(f"{error.message}; run with {error.fix}")
    if flow.mode == "append" and flow.watermark is None and any(_groups(one.sql) for one in flow.transforms):
        notes.append("groups rows batch by batch; add a watermark to group over time")
    return notes


def _groups(sql: str) -> bool:
    return "group by" in " ".join(sql.lower().split())


def explained(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Each flow as a few lines of plain words."""
    return [{"flow": flow.name, "lines": _words(pipeline, flow)} for flow in pipeline.flows]


def _words(pipeline: Pipeline, flow: Flow) -> list[str]:
    if flow.archive is not None:
        return [
            f"{flow.name}: every {flow.trigger_ms / 1000:g} s",
            f"  keeps table {flow.archive.table} of {flow.source.kind} {flow.source.value} up to date, from {flow.start}",
            "  log slices become Parquet inside tasks; each batch is committed once, with its end offsets",
        ]
    lines = [f"{flow.name}: every {flow.trigger_ms / 1000:g} s, at most {flow.rows_per_batch_max:,} rows a batch"]
    lines.append(f"  reads {flow.source.kind} {flow.source.value} from {flow.start}")
    if flow.decode.format != "raw":
        what = "a schema inferred from the first records" if flow.decode.infer else flow.decode.schema
        lines.append(f"  decodes {flow.decode.format}: {what}")
    lines += [f"  rule {rule.name}: {rule.check}" for rule in flow.rules]
    if flow.watermark is not None:
        lines.append(f"  waits {flow.watermark.delay} for late rows, by {flow.watermark.column}")
    for step in flow.transforms:
        lines.append(f"  SQL: {' '.join(step.sql.split())}" if step.sql else f"  Python: {step.python}")
    lines += [f"  writes {sink.kind} {sink.target}, exactly once" for sink in flow.sinks if sink.kind != "console"]
    lines += ["  shows rows on the console" for sink in flow.sinks if sink.kind == "console"]
    if flow.decode.format != "raw" or flow.rules:
        dead = flow.dead_letters
        also = f" and table {dead.table}" if dead.table else ""
        lines.append(
            f"  what cannot be used goes to topic {dead.topic}{also}; over {dead.max_ratio:.0%} of a batch stops the flow"
        )
    return lines
