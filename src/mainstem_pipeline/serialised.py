"""Values in the registry's wire format (`00`, id, payload) as JSON, decoded where they are read: queries, searches, tasks.

The broker tells which ids exist and what each of them is; schemas never change, so each is asked for and compiled once. What
names an id that nobody registered, or does not match its schema, is null, and counted for whoever asked. Data
that merely begins with a zero costs no call: the list of ids is asked for again at most every IDS_KEPT_S.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.broker.schemas.records import Schema
from mainstem.broker.schemas.values import HEAD_SIZE, MAGIC, Codec, Misfit, Unchecked, compiled
from mainstem.model.errors import NotFound
from mainstem_pipeline.options import Connection

if TYPE_CHECKING:
    import pyarrow as pa

IDS_KEPT_S = 5.0
CODECS_MAX = 1_000
IDS_TOLD_MAX = 5
COUNTED_MAX = 1_000  # ids; of more only the number of values is known
UNKNOWN, MISFIT, UNUSABLE = "unknown", "misfit", "unusable"
Counts = Counter[tuple[str, int]]  # (one of those, schema id) → values


class Serialised:
    """Of one broker and namespace; for several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._codecs: dict[int, Codec | None] = {}
        self._ids: frozenset[int] = frozenset()
        self._has_binary = False
        self._asked_s = float("-inf")
        self._lock = threading.Lock()
        self.counts: Counts = Counter()

    def text(self, value: bytes) -> str | None:
        """The JSON of a value that begins with a zero byte; None: it is not one of the registry's."""
        if len(value) < HEAD_SIZE:
            return None
        schema_id = int.from_bytes(value[1:HEAD_SIZE], "big")
        codec = self._codecs[schema_id] if schema_id in self._codecs else self._codec(schema_id)
        if codec is None:
            self._count(UNUSABLE if schema_id in self._ids else UNKNOWN, schema_id)
            return None
        try:
            return msgspec.json.encode(codec.framed(value[HEAD_SIZE:])).decode()
        except (Misfit, TypeError, ValueError):
            self._count(MISFIT, schema_id)
            return None

    def plain(self, values: pa.Array) -> pa.Array:
        """The values, with JSON in the place of those that a serialiser wrote: null where it cannot be told."""
        import pyarrow as pa
        import pyarrow.compute as pc

        marks = is_framed(values)
        if not marks.true_count:
            return values
        framed = pc.filter(values, marks)
        texts = (self.text(one) for one in framed.to_pylist())
        made = pa.array([text.encode() if text is not None else None for text in texts], pa.binary())
        return pc.replace_with_mask(values, marks, made)

    @property
    def has_binary(self) -> bool:
        """Whether the registry has schemas whose values do not spell their fields' names."""
        with self._lock:
            self._list()
        return self._has_binary

    def taken(self) -> Counts:
        """What was counted since the last call."""
        with self._lock:
            found, self.counts = self.counts, Counter()
        return found

    def look_again(self) -> None:
        """The next unknown id is asked for: whoever calls this has values that came after the list of ids was asked for."""
        with self._lock:
            self._asked_s = float("-inf")

    def _count(self, what: str, schema_id: int) -> None:
        with self._lock:
            known = (what, schema_id) in self.counts or len(self.counts) < COUNTED_MAX
            self.counts[what, schema_id if known else -1] += 1

    def _codec(self, schema_id: int) -> Codec | None:
        with self._lock:
            if schema_id not in self._ids:
                self._list()
            if schema_id not in self._ids:
                return None
            if len(self._codecs) >= CODECS_MAX:
                self._codecs.clear()
            self._codecs[schema_id] = found = self._compiled(schema_id)
            return found

    def _compiled(self, schema_id: int) -> Codec | None:
        told = self._get(f"/v1/scan/schemas/{schema_id}")
        if told is None:
            return None
        try:
            schema = Schema(told["type"], told["schema"], descriptors=told["descriptors"])
            return compiled(schema, [(name, text) for name, text in told["sources"]])
        except Unchecked:
            return None

    def _list(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s >= IDS_KEPT_S:
            told = self._get("/v1/scan/schemas") or {"ids": [], "binary": False}
            self._ids, self._has_binary, self._asked_s = frozenset(told["ids"]), bool(told["binary"]), now_s

    def _get(self, path: str) -> Any:
        client = self._connection.client()
        try:
            return client.get(path)
        except NotFound:
            return None
        finally:
            client.close()


def is_framed(values: pa.Array) -> pa.BooleanArray:
    """Of each value whether its first byte is the serialisers', looked up as the bytes lie."""
    import numpy as np
    import pyarrow as pa

    _, offsets, data = values.buffers()
    marks = np.zeros(len(values), bool)
    if data is not None and data.size:
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        held = ends[1:] > ends[:-1]  # of a null there are no bytes
        marks = held & (np.frombuffer(data, np.uint8)[np.where(held, ends[:-1], 0)] == MAGIC)
    return pa.array(marks)


def notices(counts: Counts, *, at_most: bool = False) -> list[str]:
    """In words, the worst first. `at_most`: some may have been counted twice."""
    found = []
    for what, words in (
        (UNKNOWN, "name a schema id that the registry does not have"),
        (MISFIT, "do not match the schema that they name"),
        (UNUSABLE, "name a schema that values cannot be decoded by"),
    ):
        ids = sorted(schema_id for kind, schema_id in counts if kind == what)
        if ids:
            values = sum(counts[what, one] for one in ids)
            shown = ", ".join(str(one) for one in ids if one >= 0)
            if len(ids) > IDS_TOLD_MAX:
                shown = ", ".join(str(one) for one in [one for one in ids if one >= 0][:IDS_TOLD_MAX]) + ", ..."
            found.append(f"{'at most ' if at_most else ''}{values} values {words} (ids {shown}): their JSON is null")
    return found


@functools.cache
def in_this_process(connection: Connection) -> Serialised:
    """Tasks follow each other in one process: what is compiled is kept."""
    return Serialised(connection)
