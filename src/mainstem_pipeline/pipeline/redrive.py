"""Dead letters of a flow given back to the topics they came from, once each, whatever crashes: no Spark is needed.

<state>/<flow>/redrive.json    {"id": of this state, "batch": n, "start": offsets, "end": offsets}

is written before the letters of that range are staged, and the broker remembers the last batch that was committed: so the
next run knows whether the range was given back, or gives back the very same one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mainstem.model.errors import NotFound
from mainstem_pipeline.offsets import Offsets
from mainstem_pipeline.options import ReadOptions, read_options
from mainstem_pipeline.pipeline.dead_letters import ADDED
from mainstem_pipeline.pipeline.model import Flow, Pipeline
from mainstem_pipeline.pipeline.state import State
from mainstem_pipeline.scans import Scan

ROWS_MAX = 50_000  # letters of one batch


@dataclass(slots=True)
class Redriven:
    records: int = 0
    left: int = 0  # letters that no record is behind, or of another flow: they stay where they are


def redrive(pipeline: Pipeline, flow: Flow, *, everything: bool = False) -> Redriven:
    """What came since the last time; with `everything` all letters that are there, once more."""
    topic = flow.dead_letters.topic
    options = read_options({**pipeline.broker, "subscribe": topic, "includeHeaders": "true"}, streaming=True)
    scan, client = Scan(options), options.connection.client()
    told = Redriven()
    try:
        try:
            first = scan.initial_offsets_of("earliest")
        except NotFound:  # no letter was ever written
            return told
        state = State(pipeline)
        known = state.redriven(flow.name)
        if known is None or everything:
            known = {"id": uuid.uuid4().hex, "batch": -1, "end": first}
        query = f"redrive {pipeline.name} {known['id']}"
        batch, start, end = known["batch"] + 1, known["end"], None
        if known["batch"] > int(client.get("/v1/stage/last", query=query, sink=flow.name)["batch"]):
            batch, start, end = known["batch"], known["start"], known["end"]  # begun, and not committed
        while True:
            if end is None:
                end = scan.limited(start, scan.advanced(start, scan.latest_offsets()), rows_max=ROWS_MAX)[0]
            if end == start:
                return told
            state.keep_redriven(flow.name, {"id": known["id"], "batch": batch, "start": start, "end": end})
            _give_back(options, scan, (start, end), flow, query, batch, told)
            batch, start, end = batch + 1, end, None
    finally:
        client.close()
        scan.close()


def _give_back(
    options: ReadOptions, scan: Scan, span: tuple[Offsets, Offsets], flow: Flow, query: str, batch: int, told: Redriven
) -> None:
    from mainstem_pipeline.sink import Staged, WriteOptions, commit_staged
    from mainstem_pipeline.stager import Stager

    run = uuid.uuid4().hex
    columns = ("topic", "key", "value", "headers", "timestamp")
    target = WriteOptions(options.connection, "", flow.name, query, run, batch, None, 0, False, columns)
    stager = Stager(target, query, run, batch, 0, 0)
    try:
        for rows in _letters(scan, span, flow, told):
            stager.add(rows)
        staged = Staged(query, run, batch, stager.task, stager.attempt, stager.finish(), stager.rows)
        told.records += stager.rows
    finally:
        stager.close()
    commit_staged(target, [staged], batch)


def _letters(scan: Scan, span: tuple[Offsets, Offsets], flow: Flow, told: Redriven) -> Iterator[Any]:
    """The records behind the letters, as Arrow batches."""
    import pyarrow as pa

    from mainstem_pipeline.conditions import HEADERS_TYPE
    from mainstem_pipeline.slices import read_task

    read = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE)])
    out = pa.schema([("topic", pa.string()), *read, ("timestamp", pa.timestamp("us", tz="UTC"))])
    for task in scan.plan(*span):
        for rows in read_task(task, read):
            found = [one for row in rows.to_pylist() if (one := _record(row, flow)) is not None]
            told.left += rows.num_rows - len(found)
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=out)


def _record(letter: Mapping[str, Any], flow: Flow) -> dict[str, Any] | None:
    headers = letter["headers"] or []
    said = {one["key"]: (one["value"] or b"").decode(errors="replace") for one in headers if one["key"] in ADDED}
    if said.get("dead-flow") != flow.name or not said.get("dead-topic") or said.get("dead-origin") in ("table", "flow"):
        return None
    kept = [one for one in headers if one["key"] not in ADDED]
    try:
        time = datetime.fromisoformat(said.get("dead-timestamp", ""))
    except ValueError:
        time = datetime.now(UTC)
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return {**letter, "topic": said["dead-topic"], "headers": kept or None, "timestamp": time}


def flow_of(pipeline: Pipeline, name: str) -> Flow:
    """The flow of that name; without one, the only flow that has dead letters."""
    flows = [flow for flow in pipeline.flows if flow.archive is None and (not name or flow.name == name)]
    if len(flows) == 1:
        return flows[0]
    names = ", ".join(flow.name for flow in pipeline.flows if flow.archive is None)
    raise NotFound(f"which flow of pipeline {pipeline.name}? It has {names}", fix="mainstem pipeline redrive FILE FLOW")
