"""A search over everything a filter means: newest first, streaming, and no further back than it must.

The plan's slices of each log are read from the last one backwards, a few at a time by threads. A hit may be told once no log
can still hold a newer one: each log is known to have nothing beyond the stamp of the slice it stands at. Counts over
time and the most frequent values need all of it, so they are made in the same pass and tell how far it is.

    plan → logs → slices, newest first → frames with a needle → rows → hits, counts
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.broker.schemas.values import MAGIC, schema_id_of
from mainstem.model.errors import InvalidArgument
from mainstem.model.topic_filter import is_pattern
from mainstem_ask.reading import Permit, Piece, pieces_of
from mainstem_ask.search.language import Node, parse_path, parse_query, required, uses, without_paths
from mainstem_ask.search.meaning import Batch, meant, values_at
from mainstem_ask.search.reading import STAMP_MAX, SearchedSlice, columns_of
from mainstem_ask.search.skipping import Indexes
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.offsets import Offsets
from mainstem_pipeline.options import Clip, Connection, Given, ReadOptions, read_options
from mainstem_pipeline.scans import Scan
from mainstem_pipeline.serialised import Serialised, notices

SLICE_BYTES = 4 << 20
THREADS_MAX = 4
AHEAD = 2  # slices of a log that are searched before they are asked for, for each thread
LIMIT_MAX = 10_000
BUCKETS_MAX = 10_000
TOP_VALUES_MAX = 10_000  # distinct values counted; beyond it the rarest are forgotten, and it is said
VALUE_CHARACTERS_MAX = 20_000
TIME_MS_MAX = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Asked:
    """One search."""

    query: str = ""
    topic: str = "#"
    since_ms: int = 0
    before_ms: int = TIME_MS_MAX + 1
    limit: int = 100
    bucket_ms: int = 0  # 0: no counts over time
    top: str = ""  # a path
    top_count: int = 10


@dataclass(slots=True)
class Found:
    """Of one slice."""

    hits: list[dict[str, Any]]
    floor: int  # the slice's first stamp: what is older lies before it
    rows: int = 0
    size_bytes: int = 0
    buckets: Counter[int] = field(default_factory=Counter)
    top: Counter[str] = field(default_factory=Counter)


class Search:
    def __init__(self, asked: Asked, connection: Connection, permit: Permit | None = None) -> None:
        if not 0 <= asked.limit <= LIMIT_MAX:
            raise InvalidArgument(f"a search shows at most {LIMIT_MAX} hits, not {asked.limit}")
        if asked.bucket_ms < 0:
            raise InvalidArgument("a bar of the histogram must have a width")
        self._asked, self._connection, self._permit = asked, connection, permit
        self._node: Node = parse_query(asked.query)
        self._serialised = Serialised(connection)
        self._look_for(self._node)
        self._path = parse_path(asked.top) if asked.top else ()
        self._schema = columns_of(uses(self._node) | ({"value"} if self._path else set()), hits=asked.limit > 0)
        self._clients = threading.local()
        self._opened: list[BrokerClient] = []
        self._stopped = threading.Event()
        self.progress = {"rows": 0, "bytes": 0, "total_bytes": 0, "back_to_ms": 0}
        self._end: Offsets = {}

    def _look_for(self, node: Node) -> None:
        """What must stand in the bytes of a record that is meant."""
        self._needles = required(node) or ()
        self._indexes = Indexes(node, self._asked.since_ms, self._asked.before_ms)

    @property
    def counts_all(self) -> bool:
        return bool(self._asked.bucket_ms or self._asked.top)

    def stop(self) -> None:
        self._stopped.set()

    # -- what is read

    def _options(self) -> ReadOptions:
        name = self._asked.topic
        # A name without wildcards is a filter too, one that means itself; so views are not looked up here.
        kind = "filter" if is_pattern(name.encode()) or "/" in name else "subscribe"
        made = read_options({kind: name, "failOnDataLoss": "false"}, streaming=False)
        clip = Clip(time_ms=self._asked.since_ms)
        return replace(made, connection=self._connection, clip=clip, task_bytes=SLICE_BYTES, latest_if_no_time=True)

    def _planned(self) -> list[Piece]:
        spelled = without_paths(self._node)
        if spelled != self._node and self._serialised.has_binary:
            self._look_for(spelled)
        scan = Scan(self._options())
        try:
            start, self._end = scan.batch_range()
            return pieces_of(scan.plan(start, self._end))
        finally:
            scan.close()

    def newer(self) -> Iterator[dict[str, Any]]:
        """Hits that arrived since the last look, in the order in which they arrived."""
        self._stopped.clear()
        scan = Scan(self._options())
        try:
            start, self._end = self._end, scan.advanced(self._end, scan.latest_offsets())
            pieces = pieces_of(scan.plan(start, self._end))
        finally:
            scan.close()
        hits = [hit for piece in pieces for hit in self._searched(piece).hits]
        yield from sorted(hits, key=lambda hit: int(hit["stamp"]))

    # -- the search

    def events(self) -> Iterator[dict[str, Any]]:
        """`hit`s newest first, `progress` now and then, at the end `buckets`, `top`, `notices` and `done`."""
        logs: dict[int, list[Piece]] = {}
        for piece in self._planned():
            logs.setdefault(int(piece[1]["log"]), []).append(piece)
        self.progress["total_bytes"] = sum(int(piece["bytes"]) for pieces in logs.values() for _, piece in pieces)
        told, buckets, top = 0, Counter[int](), Counter[str]()
        try:
            for found in self._merged(logs):
                for hit in found.hits[: self._asked.limit - told]:
                    told += 1
                    yield {"hit": hit}
                buckets.update(found.buckets)
                _add(top, found.top)
                yield {"progress": dict(self.progress)}
                if (told >= self._asked.limit and not self.counts_all) or self._stopped.is_set():
                    break
        finally:
            self.stop()
            for client in self._opened:
                client.close()
        if self._asked.bucket_ms:
            yield {"buckets": sorted(buckets.items())[-BUCKETS_MAX:], "bucket_ms": self._asked.bucket_ms}
        if self._asked.top:
            yield {"top": top.most_common(self._asked.top_count), "exact": len(top) < TOP_VALUES_MAX}
        noted = notices(self._serialised.taken())
        if noted:
            yield {"notices": noted}
        yield {"done": {"hits": told, **self.progress}}

    def _merged(self, logs: Mapping[int, list[Piece]]) -> Iterator[Found]:
        """What each slice gives, hits held back until no log can have newer ones."""
        threads = min(os.cpu_count() or 1, THREADS_MAX)
        with ThreadPoolExecutor(threads, "search") as pool:
            open_logs = [
                _OpenLog(sorted(pieces, key=lambda one: -int(one[1]["start"])), self, pool, threads)
                for pieces in logs.values()
            ]
            held: list[tuple[int, int, dict[str, Any]]] = []
            while open_logs and not self._stopped.is_set():
                newest = max(open_logs, key=lambda one: one.bound)
                found = newest.next()
                for hit in found.hits:
                    heapq.heappush(held, (-int(hit["stamp"]), int(hit["offset"]), hit))
                if newest.is_done:
                    open_logs.remove(newest)
                bound = max((one.bound for one in open_logs), default=-1)
                ripe = []
                while held and -held[0][0] >= bound:
                    ripe.append(heapq.heappop(held)[2])
                self.progress["rows"] += found.rows
                self.progress["bytes"] += found.size_bytes
                self.progress["back_to_ms"] = max(bound, 0) // 1_000_000
                yield replace(found, hits=ripe)
            self._stopped.set()  # the pool's end waits for what runs

    def _client(self, task: Any) -> BrokerClient:
        found: BrokerClient | None = getattr(self._clients, "client", None)
        if found is None:
            found = self._clients.client = task.connection.client()
            self._opened.append(found)
        return found

    def _searched(self, piece: Piece) -> Found:
        task, told = piece
        found = Found([], STAMP_MAX, size_bytes=int(told["bytes"]))
        kept: deque[dict[str, Any]] = deque(maxlen=max(self._asked.limit, 1))
        reader = SearchedSlice(task, told, self._schema, self._client(task), self._permit, self._needles, self._indexes)
        for rows in reader.batches():
            if self._stopped.is_set():
                break
            found.rows += rows.num_rows
            batch = Batch(rows, self._serialised)
            chosen = self._chosen(batch)
            if len(chosen):
                self._count(found, batch, chosen)
                kept.extend(self._hit(rows, int(row)) for row in chosen[-self._asked.limit or len(chosen) :])
        found.hits = list(kept) if self._asked.limit else []
        found.floor = reader.floor
        return found

    def _chosen(self, batch: Batch) -> np.ndarray[Any, Any]:
        times = np.asarray(batch.rows.column("timestamp").cast(pa.int64()))
        asked = (times >= self._asked.since_ms * 1000) & (times < self._asked.before_ms * 1000)
        return np.flatnonzero(meant(self._node, batch, asked)) if asked.any() else np.zeros(0, np.int64)

    def _hit(self, rows: pa.RecordBatch, row: int) -> dict[str, Any]:
        """A value that a serialiser wrote is told as JSON, with its schema's id."""
        told = _hit(rows, row)
        value = rows.column("value")[row].as_py()
        if value and value[0] == MAGIC and (text := self._serialised.text(value)) is not None:
            told.pop("encoding", None)
            told.update(value=text[:VALUE_CHARACTERS_MAX], schema_id=schema_id_of(value))
        return told

    def _count(self, found: Found, batch: Batch, chosen: np.ndarray[Any, Any]) -> None:
        if self._asked.bucket_ms:
            width = self._asked.bucket_ms
            times = np.asarray(batch.rows.column("timestamp").cast(pa.int64()))[chosen] // 1000
            starts, counts = np.unique(times // width * width, return_counts=True)
            found.buckets.update(dict(zip(starts.tolist(), counts.tolist(), strict=True)))
        if self._path:
            _add(found.top, values_at(batch, self._path, chosen))


def _add(into: Counter[str], more: Counter[str]) -> None:
    into.update(more)
    if len(into) > TOP_VALUES_MAX:
        kept = into.most_common(TOP_VALUES_MAX)
        into.clear()
        into.update(dict(kept))


class _OpenLog:
    """A log whose slices are searched from the newest back, some ahead of where it is asked."""

    def __init__(self, pieces: list[Piece], search: Search, pool: ThreadPoolExecutor, threads: int) -> None:
        self._pieces, self._search, self._pool = pieces, search, pool
        self._next = 0
        self._ahead: deque[Future[Found]] = deque()
        self._width = threads * AHEAD
        self.bound = int(pieces[0][1].get("last_stamp", STAMP_MAX))

    @property
    def is_done(self) -> bool:
        return self._next >= len(self._pieces) and not self._ahead

    def next(self) -> Found:
        """The next older slice. The first is searched alone: mostly it is all that is wanted."""
        width = self._width if self._next else 1
        while len(self._ahead) < width and self._next < len(self._pieces):
            self._ahead.append(self._pool.submit(self._search._searched, self._pieces[self._next]))
            self._next += 1
        found = self._ahead.popleft().result()
        self.bound = min(self.bound, found.floor)
        return found


def connection_of(url: str) -> Connection:
    return Given({"url": url}, ()).connection()


def _hit(rows: pa.RecordBatch, row: int) -> dict[str, Any]:
    def value(name: str) -> Any:
        return rows.column(name)[row].as_py()

    told: dict[str, Any] = {
        "topic": value("canonical_topic"),
        "partition": value("partition"),
        "offset": value("offset"),
        "time_ms": rows.column("timestamp").cast(pa.int64())[row].as_py() // 1000,
        "stamp": str(value("stamp")),
        "origin": value("origin"),
        "key": _text(value("key"))[0],
    }
    text, encoding = _text(value("value"))
    told["value"] = text[:VALUE_CHARACTERS_MAX] if text is not None else None
    if encoding:
        told["encoding"] = encoding
    if text is not None and len(text) > VALUE_CHARACTERS_MAX:
        told["cut"] = True
    if "headers" in rows.schema.names:
        told["headers"] = {one["key"]: _text(one["value"])[0] for one in value("headers") or ()}
    return told


def _text(data: bytes | None) -> tuple[str | None, str]:
    if data is None:
        return None, ""
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return data.hex(), "hex"
