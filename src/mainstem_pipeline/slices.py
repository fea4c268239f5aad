"""Reading the slices of a scan plan as Arrow batches, in a task: from the segment file, from the object of the store that it
lies in, or through the broker.

A slice's file is read if it is there and the frame the plan names stands at the byte it names, with this log's checksum.
If the file is gone, was rewritten, or turns out damaged on the way, the task goes on through the broker at the same
offset: rows come exactly once either way. Memory is bounded by one chunk of frames and one batch of rows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.codec.arrow_rows import flags_of, kafka_headers, record_batch, unreadable_row
from mainstem.codec.columns import Column, ColumnDecoder, TopicRow
from mainstem.codec.compression import inflate
from mainstem.model.condition import parse_condition
from mainstem.model.errors import (
    ConfigError,
    CorruptFrame,
    MainstemError,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    UnreadableBatch,
)
from mainstem.model.topic import kafka_name, topic_levels
from mainstem.model.topic_filter import matches
from mainstem_pipeline.broker_frames import BrokerFrames
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.options import BATCH_ROWS, Connection

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET_MAX = (1 << 63) - 1
CHUNK_BYTES = 4 << 20  # read at once; a larger frame is read whole
FRAME_BYTES_MAX = 256 << 20
# Of rows: what was just written is still in the cache when it is sent on, and all columns of a chunk fit. (Below that each
# chunk would be a large batch and a scrap, and a batch costs as much as some hundred rows.)
BATCH_BYTES = 6 << 20
INFLATED_BYTES_MAX = 128 << 20
SLICE_BYTES = 64 << 20  # of a range: a file at once, mostly
RENEW_AFTER_S = 240.0  # of a lease of ten minutes


@dataclass(frozen=True)
class ScanTask:
    """What one task reads; small, and pickled to it."""

    connection: Connection
    plan: str
    slices: Sequence[Mapping[str, Any]]
    selection: Mapping[str, Any]
    aborted: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    direct: bool = True
    fail_on_data_loss: bool = True
    batch_rows: int = BATCH_ROWS
    planned_s: float = 0.0
    keys: tuple[bytes, ...] | None = None  # of which rows are wanted, if of some only


class DataLoss(MainstemError):
    code = "MS-7002"


def read_task(task: ScanTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the task's slices, in the columns of the schema."""
    client = task.connection.client()
    try:
        for piece in task.slices:
            for one in _cut(task, piece, client):
                yield from SliceReader(task, one, schema, client).batches()
    finally:
        client.close()


def _cut(task: ScanTask, piece: Mapping[str, Any], client: BrokerClient) -> Iterator[Mapping[str, Any]]:
    """A range of a large plan as slices of files, asked for when the task comes to it; what is not cut, as it is."""
    start, end = int(piece["start"]), int(piece["end"])
    while piece.get("ranged") and task.direct and start < end:
        try:
            path = f"/v1/scan/plans/{task.plan}/slices"
            cut = client.get(path, log=piece["log"], start=start, end=end, slice_bytes=SLICE_BYTES)["slices"]
        except NotFound:  # the lease has ended: through the broker
            break
        cut = [one for one in cut if one["start"] < one["end"]]
        if not cut or cut[0]["start"] != start:
            break  # its beginning aged out, which is told when it is read
        for one in cut:
            yield {**one, "lanes": piece["lanes"]}
        start = int(cut[-1]["end"])
    if start < end:
        yield {**piece, "start": start}


class SliceReader:
    def __init__(self, task: ScanTask, piece: Mapping[str, Any], schema: pa.Schema, client: BrokerClient) -> None:
        self._task, self._piece, self._schema, self._client = task, piece, schema, client
        self._condition = parse_condition(task.selection.get("where") or "")
        self._position = int(piece["start"])
        self._topics = TopicRows(task.selection, piece, client)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._task.direct and self._piece.get("path"):
            self._renew()
            with contextlib.suppress(CorruptFrame, OSError):
                yield from self._from_file()
        if self._task.direct and self._piece.get("object"):
            with contextlib.suppress(CorruptFrame, Overloaded, ConfigError):  # missing, away, or not ours to read
                yield from self._from_object()
        if self._position < self._piece["end"]:
            yield from self._through_broker()

    # -- from the object

    def _from_object(self) -> Iterator[pa.RecordBatch]:
        from mainstem_pipeline.objects import frames_of

        decoder, rest, end = self._decoder(), b"", int(self._piece["end"])
        for data in frames_of(self._piece["object"], self._position, end):
            fed = rest + data if rest else data
            decoder.feed(fed)
            yield from self._rows(decoder)
            rest = fed[decoder.consumed :]
            if decoder.finished:
                break
        if not rest or decoder.finished:
            self._position = end

    # -- from the file

    def _from_file(self) -> Iterator[pa.RecordBatch]:
        fd = os.open(self._piece["path"], os.O_RDONLY)
        try:
            decoder = self._decoder()
            at, end = int(self._piece["at"]), int(self._piece["at"]) + int(self._piece["bytes"])
            first = os.pread(fd, 48, at)
            if int.from_bytes(first[16:24], "big") != self._piece["frame"]:
                raise CorruptFrame("another frame stands where the plan named one")
            # One buffer, filled again and again: fresh memory costs more than reading.
            buffer = bytearray(min(CHUNK_BYTES, end - at))
            while at < end and not decoder.finished:
                size = os.preadv(fd, [memoryview(buffer)[: end - at]], at)
                decoder.feed(memoryview(buffer)[:size])
                yield from self._rows(decoder)
                if decoder.consumed == 0:
                    if size < len(buffer) or size >= FRAME_BYTES_MAX:
                        break
                    buffer = bytearray(min(len(buffer) * 4, FRAME_BYTES_MAX))  # a frame larger than that
                at += decoder.consumed
            if at >= end or decoder.finished:
                self._position = int(self._piece["end"])
        finally:
            os.close(fd)

    def _renew(self) -> None:
        if time.time() - self._task.planned_s > RENEW_AFTER_S:
            with contextlib.suppress(NotFound):  # ended: the file may be gone, which is seen when it is read
                self._client.post(f"/v1/scan/plans/{self._task.plan}/renew", {})

    # -- through the broker

    def _through_broker(self) -> Iterator[pa.RecordBatch]:
        yield from self._broker_rows(self._decoder(), int(self._piece["end"]))

    def _broker_rows(self, decoder: ColumnDecoder, end: int) -> Iterator[pa.RecordBatch]:
        log, view = int(self._piece["log"]), self._task.selection.get("view")
        with BrokerFrames(self._client, self._task.connection, log, end, view) as frames:
            while self._position < end and not decoder.finished:
                data, after = self._read(frames, self._position, end)
                if data:
                    decoder.feed(data)
                    yield from self._rows(decoder)
                self._position = max(self._position, after)

    def _read(self, frames: BrokerFrames, start: int, end: int) -> tuple[bytes, int]:
        try:
            return frames.read(start)
        except OffsetOutOfRange as error:
            what = (
                f"offsets {start} to {min(error.start, end)} of log {self._piece['log']} aged out while they were read"
            )
            if self._task.fail_on_data_loss:
                raise data_loss(what) from error
            return b"", min(error.start, end)
        except NotFound as error:
            if self._task.fail_on_data_loss:
                raise data_loss(error.message) from error
            return b"", end

    # -- rows

    def _decoder(self) -> ColumnDecoder:
        piece = self._piece
        columns = flags_of(self._schema.names)
        if self._condition is not None:
            columns |= Column.KEY | Column.HEADERS
        return ColumnDecoder(
            int(columns),
            self._topics,
            lambda method, data: inflate(method, data, INFLATED_BYTES_MAX),
            start=self._position,
            end=int(piece["end"]),
            topic=None if piece["shared"] else piece["lanes"][0][2].encode(),
            log_id=int(piece["log"]),
            aborted=[(one[0], one[1], one[2]) for one in self._task.aborted.get(str(piece["log"]), ())],
            translate=kafka_headers,
        )

    def _rows(self, decoder: ColumnDecoder) -> Iterator[pa.RecordBatch]:
        more = True
        while more:
            unreadable: UnreadableBatch | None = None
            try:
                more = decoder.decode(self._task.batch_rows, BATCH_BYTES)
            except UnreadableBatch as error:
                unreadable = error
            if decoder.rows:
                yield from self._take(decoder)
            if unreadable is not None:
                yield from self._pass(decoder, unreadable)
        self._position = max(self._position, decoder.position)

    def _pass(self, decoder: ColumnDecoder, error: UnreadableBatch) -> Iterator[pa.RecordBatch]:
        """A batch that its client made unreadable: kept whole where the schema has room for it, else told, or left out."""
        frame, offset = decoder.pass_unreadable()
        self._position = max(self._position, offset)
        if "batch" in self._schema.names:
            named = (
                int.from_bytes(frame[12:16], "big") if self._piece["shared"] else self._piece["lanes"][0][2].encode()
            )
            topic = self._topics(named)
            if topic is not None and offset < decoder.position:
                yield unreadable_row(frame, offset, topic, self._schema)
        elif self._task.fail_on_data_loss:
            raise UnreadableBatch(
                f"log {self._piece['log']}: {error.message}",
                fix='read on without them with .option("failOnDataLoss", "false")',
            ) from error
        self._position = max(self._position, decoder.position)

    def _take(self, decoder: ColumnDecoder) -> Iterator[pa.RecordBatch]:
        rows, taken = decoder.rows, decoder.take()
        if self._condition is not None:
            from mainstem_pipeline.conditions import filtered

            batch = filtered(taken, rows, self._schema, self._condition)
        else:
            batch = record_batch(taken, rows, self._schema)
        if self._task.keys is not None and "key" in batch.schema.names:
            batch = _of_keys(batch, self._task.keys)
        self._position = max(self._position, decoder.position)
        if batch.num_rows:
            yield batch


def _of_keys(batch: pa.RecordBatch, keys: Sequence[bytes]) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column("key")
    return batch.filter(pc.is_in(column, value_set=pa.array(keys, column.type)))


class TopicRows:
    """What a row says of its topic, or that the scan does not mean it. Asked once per distinct topic."""

    def __init__(self, selection: Mapping[str, Any], piece: Mapping[str, Any], client: BrokerClient) -> None:
        wanted = selection.get("filter")
        self._filter = wanted.encode() if wanted is not None else None
        self._low_marks, self._aliases = selection.get("low_marks", {}), selection.get("aliases", {})
        self._ids: dict[int, bytes] = {int(number): name.encode() for number, name in selection.get("ids", {}).items()}
        self._partitions = {canonical.encode(): (topic, partition) for topic, partition, canonical in piece["lanes"]}
        self._view = selection.get("view")  # that who may not consume everything reads through
        self._client = client

    def __call__(self, topic: bytes | int) -> TopicRow | None:
        name = self._name(topic) if isinstance(topic, int) else topic
        known = self._partitions.get(name)
        if known is None and (self._filter is None or not matches(self._filter, name)):
            return None
        canonical = name.decode("utf-8", "replace")
        kafka = known[0] if known is not None else self._aliases.get(canonical) or kafka_name(name)
        start = int(self._low_marks.get(canonical, 0))
        return (
            kafka.encode(),
            canonical.encode(),
            _levels(name),
            known[1] if known is not None else 0,
            start,
            OFFSET_MAX,
        )

    def _name(self, number: int) -> bytes:
        """A topic declared since the plan was made is looked up; one that is gone means nothing."""
        if number not in self._ids:
            self._ids[number] = self._client.get("/v1/scan/topics", number=number, view=self._view)["name"].encode()
        return self._ids[number]


def _levels(topic: bytes) -> list[bytes]:
    return [level.decode("utf-8", "replace").encode() for level in topic_levels(topic)]


def data_loss(what: str) -> DataLoss:
    return DataLoss(
        f"{what}; rows are missing",
        fix='read on without them with .option("failOnDataLoss", "false"), or keep more: mainstem topic alter --help',
    )
