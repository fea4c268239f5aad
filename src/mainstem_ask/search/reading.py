"""A slice of the log searched: frames that cannot hold what is wanted are passed over before they are decoded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from mainstem.codec.batch import FRAME_HEAD_SIZE
from mainstem.model.errors import CorruptFrame
from mainstem_ask.reading import Permit, PermittedReader
from mainstem_ask.search.language import HEADER
from mainstem_ask.search.matcher import keep_frames
from mainstem_ask.search.skipping import Indexes
from mainstem_pipeline.broker_frames import BrokerFrames
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.slices import CHUNK_BYTES, FRAME_BYTES_MAX, ScanTask

STAMP_MAX = (1 << 63) - 1
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("canonical_topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("origin", pa.string()),
        ("stamp", pa.int64()),
    ]
)
_COLUMN_OF = {name: name for name in ("key", "value", "origin", "partition", "offset")} | {
    "time": "timestamp",
    "size": "value",
}
HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def columns_of(fields: Iterable[str], *, hits: bool) -> pa.Schema:
    """What is decoded: for hits everything that is shown; for counts the time, and what the query looks at."""
    wanted = {"timestamp"}
    for name in fields:
        wanted.add(_COLUMN_OF.get(name) or ("headers" if name.startswith(HEADER) else "canonical_topic"))
    columns = [field for field in COLUMNS if hits or field.name in wanted]
    return pa.schema([*columns, *([HEADERS] if "headers" in wanted else [])])


class SearchedSlice(PermittedReader):
    def __init__(
        self,
        task: ScanTask,
        piece: Mapping[str, Any],
        schema: pa.Schema,
        client: BrokerClient,
        permit: Permit | None,
        needles: tuple[bytes, ...],
        indexes: Indexes,
    ) -> None:
        super().__init__(task, piece, schema, client, permit)
        self._needles, self._indexes = needles, indexes
        self.floor = STAMP_MAX  # everything before this slice was stamped before

    def _note(self, head: bytes | memoryview) -> None:
        """The head of the first frame."""
        if self.floor == STAMP_MAX and len(head) >= FRAME_HEAD_SIZE:
            offset, stamp = (int.from_bytes(head[at : at + 8], "big", signed=True) for at in (16, 24))
            self.floor = stamp + max(int(self._piece["start"]) - offset, 0)

    def _read(self, frames: BrokerFrames, start: int, end: int) -> tuple[bytes, int]:
        data, after = super()._read(frames, start, end)
        self._note(data[:FRAME_HEAD_SIZE])
        return data, after

    # -- what lies in an object store: only what the part's index does not exclude is fetched

    def _through_broker(self) -> Iterator[pa.RecordBatch]:
        far, end = self._piece.get("far"), int(self._piece["end"])
        if far is None:
            yield from super()._through_broker()
            return
        decoder = self._decoder()
        self._note_stamp(far)
        for start, until in self._indexes.offsets(far, self._position, end):
            self._position = max(self._position, start)
            yield from self._broker_rows(decoder, until)
        self._position = end

    def _from_object(self) -> Iterator[pa.RecordBatch]:
        from mainstem_pipeline.objects import FarPart

        decoder, end = self._decoder(), int(self._piece["end"])
        part, far = FarPart(self._piece["object"]), self._piece["far"]
        self._note_stamp(far)
        for begin, until in self._indexes.spans(far, *part.place_of(self._position, end)):
            rest = b""
            for data in part.read(begin, until):
                fed = rest + data if rest else data
                decoder.feed(fed)
                yield from self._rows(decoder)
                rest = fed[decoder.consumed :]
                if decoder.finished:
                    break
            if decoder.finished:
                break
            if rest:
                raise CorruptFrame("a block of the index ends within a frame")
        self._position = end

    def _note_stamp(self, far: str) -> None:
        stamp = self._indexes.stamp_from(far, int(self._piece["start"]), int(self._piece["end"]))
        if stamp is not None:
            self.floor = stamp

    def _from_file(self) -> Iterator[pa.RecordBatch]:
        fd = os.open(self._piece["path"], os.O_RDONLY)
        try:
            decoder = self._decoder()
            at, end = int(self._piece["at"]), int(self._piece["at"]) + int(self._piece["bytes"])
            first = os.pread(fd, FRAME_HEAD_SIZE, at)
            if int.from_bytes(first[16:24], "big") != self._piece["frame"]:
                raise CorruptFrame("another frame stands where the plan named one")
            self._note(first)
            for begin, until in self._indexes.spans(self._piece["path"], at, end):
                at = begin
                for after, kept in self._frames(fd, begin, until):
                    at = after
                    if kept:
                        decoder.feed(kept)
                        yield from self._rows(decoder)
                    if decoder.finished:
                        break
                if at < until:
                    break
            else:
                self._position = int(self._piece["end"])
            if decoder.finished:
                self._position = int(self._piece["end"])
        finally:
            os.close(fd)

    def _frames(self, fd: int, at: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """(how far it is read, the frames that may hold what is wanted), a chunk at a time."""
        buffer = bytearray(min(CHUNK_BYTES, end - at))
        while at < end:
            size = os.preadv(fd, [memoryview(buffer)[: end - at]], at)
            kept, looked_at, damaged = keep_frames(buffer, size, self._needles)
            if damaged:
                raise CorruptFrame("no frame stands where one should")
            if looked_at == 0:
                if size < len(buffer) or size >= FRAME_BYTES_MAX:
                    return
                buffer = bytearray(min(len(buffer) * 4, FRAME_BYTES_MAX))
                continue
            at += looked_at
            yield at, memoryview(buffer)[:kept]
