"""A batch that a failure left half done, and whether the flow as it is now may finish it.

Spark writes down where a batch ends before it runs (`checkpoint/offsets/N`) and that it is done afterwards
(`checkpoint/commits/N`). A batch with the one and without the other is run again, with the same records. Each sink knows
by its name whether it has the batch. So the flow may be edited in between, but for two changes that would lose or change
rows in silence: a sink that does not have the batch is gone, or rows are made in another way while a sink already has those
made in the old way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mainstem_pipeline.pipeline.model import Flow, Sink
from mainstem_pipeline.pipeline.state import ChangedFlow, State
from mainstem_pipeline.pipeline.store import Store

REWRITTEN = ("parquet",)  # kinds of sinks whose batch is written over, however often it is run


@dataclass(frozen=True, slots=True)
class Unfinished:
    query: str
    batch: int


def unfinished_batch(store: Store, flow: str) -> Unfinished | None:
    """The batch that Spark would run again; None if all that began are done."""
    try:
        query = json.loads(store.read(f"{flow}/checkpoint/metadata") or b"")["id"]
    except (ValueError, KeyError):
        return None
    begun, done = (_newest(store, f"{flow}/checkpoint/{name}") for name in ("offsets", "commits"))
    return Unfinished(str(query), begun) if begun > done else None


def _newest(store: Store, folder: str) -> int:
    return max((int(name) for name in store.names(folder) if name.isdigit()), default=-1)


def check_finishable(flow: Flow, state: State, last_batch: Callable[[Sink, str], int]) -> None:
    """ChangedFlow, with the choices, if the flow was changed so that its unfinished batch would be lost or mixed.

    `last_batch` asks a sink for the last batch it has of a query.
    """
    before, now = state.remembered(flow), flow.batch_shape()
    left = unfinished_batch(state.store, flow.name)
    if before is None or left is None or {name: before.get(name) for name in now} == now:
        return
    if "sinks" not in before:
        told = [
            "it was begun by an older version, which knew sinks by their place in the list: one may have it already"
        ]
    else:
        told = _told(before, now, left, last_batch)
    if told:
        lines = "".join(f"\n  {one}" for one in told)
        raise ChangedFlow(
            f"flow {flow.name}: its batch {left.batch} is not finished and cannot follow the change of the file{lines}",
            fix=f"undo the change until the batch is done (run --once), or run with --accept-change {flow.name} to go on "
            f"as told above, or with --reset {flow.name} to start over",
        )


def _told(
    before: dict[str, Any], now: dict[str, Any], left: Unfinished, last_batch: Callable[[Sink, str], int]
) -> list[str]:
    known = [Sink(kind, target, name) for name, (kind, target) in before["sinks"].items()]
    has_it = {sink.name: last_batch(sink, left.query) >= left.batch for sink in known}
    kept = now["sinks"]
    told = [
        f"{sink.kind} {sink.target} does not have it and is gone from the file: it would never get it"
        for sink in known
        if kept.get(sink.name) != [sink.kind, sink.target] and not has_it[sink.name]
    ]
    if before["rows"] != now["rows"]:
        told += [
            f"{sink.kind} {sink.target} has it, made by the former decode, rules or transforms: it would stay so, "
            "while the others get it as it is made now"
            for sink in known
            if sink.name in kept and has_it[sink.name] and sink.kind not in REWRITTEN
        ]
    return told
