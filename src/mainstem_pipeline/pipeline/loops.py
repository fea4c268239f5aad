"""Flows that read what they write, themselves or by way of others: noticed before they run, for they would never end.

What a flow reads and writes is known from its file, but for the topics of a view (the broker is asked) and those with a
column in their name (`alerts/{device}`), which may be any of that form: then a loop is possible, not sure. Of other
pipelines the broker knows what they have told. Dead letters of the file's own flows are not what a wildcard of it means.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mainstem.model.errors import InvalidName, NotAuthorized, NotFound
from mainstem.model.topic import kafka_name, topic_of_kafka
from mainstem.model.topic_filter import filter_levels, is_pattern, literal_filter, overlap
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.pipeline.document import BadPipeline, Problem
from mainstem_pipeline.pipeline.model import Flow, Pipeline

OTHERS_MAX = 300  # flows of other pipelines that are looked at
COLUMN = re.compile(r"\{([^{}]+)\}")
HINT = "read less or write elsewhere; if its rows do end, say loop: true"


@dataclass(frozen=True, slots=True)
class Read:
    kind: str  # filter | pattern | table
    value: str
    is_sure: bool = True  # not, if only some of its records are meant


@dataclass(frozen=True, slots=True)
class Write:
    kind: str  # filter | letters | table
    value: str

    @property
    def is_sure(self) -> bool:
        return self.kind == "table" or not is_pattern(self.value.encode())


@dataclass(frozen=True, slots=True)
class Node:
    """A flow, as far as loops go."""

    pipeline: str
    flow: str
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    line: int = 1
    is_meant: bool = False  # it may be part of a loop


@dataclass(frozen=True, slots=True)
class Loop:
    nodes: tuple[Node, ...]
    by: tuple[Write, ...]  # what the next one reads, each
    is_sure: bool

    def __str__(self) -> str:
        first, last = self.nodes[0], "it never ends" if self.is_sure else "that may never end"
        way = [f"flow {first.flow} writes {self.by[0].value}"]
        for node, write in zip(self.nodes[1:], self.by[1:], strict=True):
            of = "" if node.pipeline == first.pipeline else f" of pipeline {node.pipeline}"
            way.append(f"which flow {node.flow}{of} reads, which writes {write.value}")
        return f"{', '.join(way)}, which flow {first.flow} reads: {last}"


# -- what flows read and write


def canonical_filter(name: str) -> str:
    """A topic as a filter; columns in its name may be anything."""
    text = COLUMN.sub("\0", name)
    if "/" not in text and "\0" in text:
        text = text.replace(".", "/")
    elif "/" not in text:
        try:
            text = topic_of_kafka(text).decode()
        except InvalidName:
            return text  # told elsewhere
    text = literal_filter(text.encode()).decode()
    return "/".join("#" if "\0" in level else level for level in text.split("/"))


def node_of(pipeline: str, flow: Flow, views: Mapping[str, Read]) -> Node:
    source = flow.archive.source if flow.archive is not None else flow.source
    reads: Iterable[Read]
    match source.kind:
        case "topics":
            reads = (Read("filter", canonical_filter(one)) for one in source.value.split(","))
        case "view":
            reads = (views[source.value],) if source.value in views else ()
        case kind:
            reads = (Read(kind, source.value),)
    return Node(pipeline, flow.name, tuple(reads), tuple(_writes(flow)), flow.line, flow.loop)


def _writes(flow: Flow) -> Iterator[Write]:
    for sink in flow.sinks:
        if sink.kind == "topic":
            yield Write("filter", canonical_filter(sink.target))
    for table in flow.tables_written:
        yield Write("table", table)
    if flow.may_be_bad:
        yield Write("letters", canonical_filter(flow.dead_letters.topic))


def letter_topics(flows: Iterable[Flow]) -> list[str]:
    """Where the flows' dead letters go, as the topics are written."""
    filters = [canonical_filter(flow.dead_letters.topic).encode() for flow in flows if flow.may_be_bad]
    return sorted({b"/".join(filter_levels(one)).decode() for one in filters if not is_pattern(one)})


def nodes_of(pipeline: str, flows: Iterable[Flow], views: Mapping[str, Read] | None = None) -> list[Node]:
    return [node_of(pipeline, flow, views or {}) for flow in flows]


def told_topics(node: Node) -> dict[str, str]:
    """What other pipelines need to know, a filter a line; tables are of a lake, patterns of nobody else's business."""
    reads = [one.value for one in node.reads if one.kind == "filter"]
    writes = [one.value for one in node.writes if one.kind != "table"]
    return {"reads": "\n".join(reads), "writes": "\n".join(writes)}


def node_told(pipeline: str, flow: Mapping[str, Any]) -> Node:
    reads = tuple(Read("filter", one) for one in flow.get("reads", "").split("\n") if one)
    writes = tuple(Write("filter", one) for one in flow.get("writes", "").split("\n") if one)
    return Node(pipeline, flow["flow"], reads, writes)


# -- loops


def loops(nodes: Sequence[Node]) -> list[Loop]:
    """The shortest loop through each node, the sure ones first; none that is meant."""
    found: dict[frozenset[tuple[str, str]], Loop] = {}
    usable = [node for node in nodes if not node.is_meant]
    for is_sure in (True, False):
        after = {node: _readers(node, usable, is_sure) for node in usable}
        for node in usable:
            loop = _loop_from(node, after, is_sure)
            if loop is not None:
                found.setdefault(frozenset((one.pipeline, one.flow) for one in loop.nodes), loop)
    return list(found.values())


def _readers(node: Node, nodes: Sequence[Node], is_sure: bool) -> dict[Node, Write]:
    """Who reads what the node writes."""
    return {
        reader: write
        for reader in nodes
        for read in reader.reads
        for write in node.writes
        if _meets(read, write, node.pipeline == reader.pipeline)
        and (not is_sure or (read.is_sure and write.is_sure and node.pipeline == reader.pipeline))
    }


def _meets(read: Read, write: Write, is_own: bool) -> bool:
    if "table" in (read.kind, write.kind):
        return is_own and (read.kind, read.value) == (write.kind, write.value)
    if read.kind == "pattern":
        name = kafka_name(write.value.encode()) if write.is_sure and write.kind != "letters" else None
        return is_own and name is not None and re.fullmatch(read.value, name) is not None
    if write.kind == "letters" and is_own and is_pattern(read.value.encode()):
        return False
    return overlap(filter_levels(read.value.encode()), filter_levels(write.value.encode()))


def _loop_from(start: Node, after: Mapping[Node, Mapping[Node, Write]], is_sure: bool) -> Loop | None:
    came: dict[Node, Node] = {}
    wave = [start]
    while wave:
        following = []
        for node in wave:
            for reader in after[node]:
                if reader is start:
                    return _walked(start, node, came, after, is_sure)
                if reader not in came:
                    came[reader] = node
                    following.append(reader)
        wave = following
    return None


def _walked(
    start: Node, last: Node, came: Mapping[Node, Node], after: Mapping[Node, Mapping[Node, Write]], is_sure: bool
) -> Loop:
    way = [last]
    while way[-1] is not start:
        way.append(came[way[-1]])
    nodes = tuple(reversed(way))
    return Loop(nodes, tuple(after[a][b] for a, b in zip(nodes, (*nodes[1:], start), strict=True)), is_sure)


def check_loops(pipeline: Pipeline, client: BrokerClient) -> list[str]:
    """BadPipeline for loops that are sure; what is returned are notes on others, with running pipelines too."""
    nodes = nodes_of(pipeline.name, pipeline.flows, views_of(pipeline, client))
    running: list[dict[str, Any]] = []
    with contextlib.suppress(NotAuthorized):  # who may not consume everything is not told of others' pipelines
        running = client.get("/v1/pipelines")["items"]
    others = [
        node_told(one["name"], flow)
        for one in running
        if one["running"] and one["name"] != pipeline.name
        for flow in one["flows"]
    ]
    found = [
        one
        for one in loops([*nodes, *others[:OTHERS_MAX]])
        if any(node.pipeline == pipeline.name for node in one.nodes)
    ]
    sure = [Problem(one.nodes[0].line, str(one), HINT) for one in found if one.is_sure]
    if sure:
        raise BadPipeline(pipeline.path, sure)
    return [f"{one}; {HINT}" for one in found]


def views_of(pipeline: Pipeline, client: BrokerClient) -> dict[str, Read]:
    """The views that its flows read."""
    sources = [flow.archive.source if flow.archive is not None else flow.source for flow in pipeline.flows]
    found: dict[str, Read] = {}
    for name in {one.value for one in sources if one.kind == "view"}:
        try:
            view = client.get(f"/v1/views/{quote(name)}")
        except NotFound:  # told where it is read
            continue
        found[name] = Read("filter", view["filter"], is_sure=not view["where"])
    return found
