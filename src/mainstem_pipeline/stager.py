"""A task's rows as batches for topics, staged with the broker in parts of a few megabytes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.codec.columns import encode_rows, key_partitions
from mainstem.codec.staged import StagedBatch, encode_staged
from mainstem.model.errors import InvalidArgument, MainstemError, MessageTooLarge

if TYPE_CHECKING:
    from mainstem_pipeline.sink import WriteOptions

PART_BYTES = 8 << 20
BATCH_BYTES = 1 << 20
TOPICS_ASKED_MAX = 1_000  # at once
TOPICS_KNOWN_MAX = 100_000
NULL_TOPIC = "topic is null"


class RowRefused(MainstemError):
    """A row that no topic takes as it is: its topic's name, its size, its partition."""

    code = "MS-7009"


class Stager:
    def __init__(self, options: WriteOptions, query: str, run: str, batch: int, task: int, attempt: int) -> None:
        if not query or batch < 0:
            raise InvalidArgument("Spark did not say which query and batch this is: set the options query and batch")
        self._options, self._client = options, options.connection.client()
        self._place = {
            "query": query,
            "sink": options.sink,
            "batch": batch,
            "run": run,
            "task": task,
            "attempt": attempt,
        }
        self.task, self.attempt, self.rows = task, attempt, 0
        self._items: list[StagedBatch] = []
        self._bytes, self._parts = 0, 0
        self._topics: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, str] = {}  # topics that rows name, and why nothing can be written there
        self._sticky = random.randrange(1 << 30)  # rows without a key: one partition per task, as producers do

    def add(self, rows: pa.RecordBatch) -> None:
        columns = {name: rows.column(name) for name in rows.schema.names}
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        for name, partition, numbers in self._groups(rows.num_rows, columns):
            self._encode(name, partition, numbers, rows.num_rows, columns)

    def finish(self) -> int:
        """Stage the rest; returns how many parts there are."""
        if self._items:
            self._stage()
        return self._parts

    def close(self) -> None:
        self._client.close()

    # -- which rows could not be written

    def refusals(self, rows: pa.RecordBatch) -> list[str | None]:
        """For each row why no topic takes it, or None. Nothing is staged."""
        columns = {name: rows.column(name) for name in rows.schema.names}
        names = columns["topic"].to_pylist() if "topic" in columns else [self._options.topic] * rows.num_rows
        declare = bool(self._options.topic) and self._options.create_topics
        self._learn(sorted({name for name in names if name is not None}), declare=declare)
        return [self._refusal(row, name, columns) for row, name in enumerate(names)]

    def _refusal(self, row: int, name: str | None, columns: dict[str, pa.Array]) -> str | None:
        if name is None:
            return f"the {NULL_TOPIC}"
        if name in self._refused:
            return f"topic {name!r}: {self._refused[name]}"
        given = columns["partition"][row].as_py() if "partition" in columns else None
        try:
            if given is not None:
                self._checked(name, given)
            for _ in self._encoded(name, np.array([row], np.int32), 1, columns):
                pass
        except MainstemError as error:
            return error.message
        return None

    # -- which rows go where

    def _groups(self, count: int, columns: dict[str, pa.Array]) -> Iterator[tuple[str, int, np.ndarray | None]]:
        """(topic, partition, row numbers); None for all rows."""
        for name, numbers in self._by_topic(count, columns):
            partitions = self._topic(name)["partitions"]
            if self._options.partition is not None:
                yield name, self._checked(name, self._options.partition), numbers
            elif partitions == 1 and "partition" not in columns:
                yield name, 0, numbers
            else:
                chosen = self._partitions(name, partitions, count, columns)
                own = chosen if numbers is None else chosen[numbers]
                for partition in np.unique(own):
                    rows = np.flatnonzero(own == partition)
                    rows = rows if numbers is None else numbers[rows]
                    yield name, self._checked(name, int(partition)), rows.astype(np.int32)

    def _by_topic(self, count: int, columns: dict[str, pa.Array]) -> Iterator[tuple[str, np.ndarray | None]]:
        if self._options.topic:
            self._learn([self._options.topic], declare=self._options.create_topics)
            yield self._options.topic, None
            return
        topics = columns["topic"]
        if topics.null_count:
            raise RowRefused(f"a row's {NULL_TOPIC}: set the option topic, or filter such rows out")
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        self._learn(names, declare=False)
        for name in names:
            if name in self._refused:
                raise RowRefused(f"a row's topic {name!r} is refused: {self._refused[name]}")
        if len(names) == 1:
            yield names[0], None
            return
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(indices, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(indices, minlength=len(names)))
        for index, name in enumerate(names):
            yield name, order[(ends[index - 1] if index else 0) : ends[index]]

    def _partitions(self, name: str, partitions: int, count: int, columns: dict[str, pa.Array]) -> np.ndarray:
        if "key" in columns:
            chosen = np.frombuffer(key_partitions(count, _binary(columns["key"]), partitions), dtype=np.int32).copy()
        else:
            chosen = np.full(count, -1, dtype=np.int32)
        chosen[chosen < 0] = self._sticky % partitions
        if "partition" in columns:
            given = columns["partition"]
            asked = np.asarray(pc.fill_null(given, -1))
            chosen = np.where(asked >= 0, asked, chosen)
        return chosen

    def _checked(self, name: str, partition: int) -> int:
        partitions = self._topic(name)["partitions"]
        if not 0 <= partition < partitions:
            raise RowRefused(f"topic {name!r} has no partition {partition}, only 0 to {partitions - 1}")
        return partition

    # -- topics

    def _topic(self, name: str) -> dict[str, Any]:
        return self._topics[name]

    def _learn(self, names: list[str], *, declare: bool) -> None:
        unknown = [name for name in names if name not in self._topics and name not in self._refused]
        if len(self._topics) + len(self._refused) + len(unknown) > TOPICS_KNOWN_MAX:
            self._topics.clear()
            self._refused.clear()
            unknown = names
        for at in range(0, len(unknown), TOPICS_ASKED_MAX):
            asked = {"topics": unknown[at : at + TOPICS_ASKED_MAX], "declare": declare, "each": not declare}
            told = self._client.post("/v1/stage/topics", asked)
            self._topics |= told["topics"]
            self._refused |= told.get("refused", {})

    # -- batches

    def _encode(
        self, name: str, partition: int, rows: np.ndarray | None, count: int, columns: dict[str, pa.Array]
    ) -> None:
        topic = self._topic(name)
        try:
            for _, batch in self._encoded(name, rows, count if rows is None else len(rows), columns):
                if self._items and self._bytes + len(batch) > PART_BYTES:
                    self._stage()
                self._items.append(StagedBatch(topic["canonical"].encode(), partition, topic["names_topic"], batch))
                self._bytes += len(batch)
        except MessageTooLarge as error:
            raise RowRefused(f"topic {name!r}: {error.message}") from error

    def _encoded(
        self, name: str, rows: np.ndarray | None, count: int, columns: dict[str, pa.Array]
    ) -> Iterator[tuple[Any, bytes]]:
        topic = self._topic(name)
        return iter(
            encode_rows(
                None if rows is None else np.ascontiguousarray(rows),
                0,
                count,
                key=_binary(columns["key"]) if "key" in columns else None,
                value=_binary(columns["value"]),
                headers=_headers(columns["headers"]) if "headers" in columns else None,
                times=_times(columns["timestamp"]) if "timestamp" in columns else None,
                now_ms=time.time_ns() // 1_000_000,
                batch_bytes_max=BATCH_BYTES,
                record_bytes_max=topic["record_bytes_max"],
                compression=self._options.compression,
                topic=topic["canonical"].encode() if topic["names_topic"] else None,
            )
        )

    def _stage(self) -> None:
        self._client.put_bytes("/v1/stage/data", encode_staged(self._items), **self._place, part=self._parts)
        self._items, self._bytes = [], 0
        self._parts += 1


def _binary(array: pa.Array) -> tuple[Any, Any, Any, int]:
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary())
    valid, offsets, data = array.buffers()
    return valid, offsets, data, array.offset


def _headers(array: pa.Array) -> tuple[Any, ...]:
    valid, offsets, *_ = array.buffers()
    pairs = array.values  # with the whole of the child, whatever the slice: list offsets count from its start
    names, values = pairs.field(0), pairs.field(1)
    return valid, offsets, array.offset, _binary(names), _binary(values)


def _times(array: pa.Array) -> tuple[Any, Any, int]:
    array = array.cast(pa.timestamp("us", tz="UTC"))
    valid, values = array.buffers()
    return valid, values, array.offset
