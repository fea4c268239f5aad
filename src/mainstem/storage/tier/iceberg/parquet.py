"""A part of a log as a Parquet file of a raw table (`codec/raw_table.py` draws it), and back, byte for byte.

Rows give most frames back: the head as stored (in `batch`, in the first row of each) and the records, encoded again. A frame
that they do not give back is kept whole in `batch`; one without rows (offsets that were lost) is a row of its own whose
flags are -1. Both are seen by building every frame again and comparing it. What is slow runs in small steps: the
interpreter is shared with the loop.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.codec.arrow_rows import flags_of, kafka_headers, record_batch, unreadable_row
from mainstem.codec.batch import FrameHead, frame_heads
from mainstem.codec.columns import ColumnDecoder, FrameRebuilder
from mainstem.codec.compression import inflate
from mainstem.codec.raw_table import COLUMNS, Columns, LogRows, parquet_writer
from mainstem.model.errors import CorruptFrame, UnreadableBatch
from mainstem.model.topic import kafka_name
from mainstem.storage.object.bundle import index_frames
from mainstem.storage.segment.index import Summary
from mainstem.storage.tier.iceberg.tables import TableTarget
from mainstem.storage.tier.objects import Footer

ROWS_STEP = 1_024  # decoded or built at once: about a millisecond
ROW_GROUP_ROWS = 65_536
INFLATED_BYTES_MAX = 128 << 20
TRANSACTIONAL, CONTROL = 16, 32  # attributes of a batch
READ_NAMES = ("offset", "timestamp", "key", "value", "headers", "flags", "batch", "stored_headers")
READ = {name: kind for _, name, kind, _ in COLUMNS if name in READ_NAMES}


class NotForTables(Exception):
    """A part that readers of a table would misunderstand: it rests in the store as the segment it is."""


def to_parquet(frames: memoryview, log_id: int, target: TableTarget, columns: Columns) -> bytes:
    """The file, once everything in `frames` was built again from it."""
    heads = frame_heads(frames, log_id)
    if any(_attributes(frames, at) & (TRANSACTIONAL | CONTROL) for at, head in _placed(heads) if head.size > 109):
        raise NotForTables("it holds transactions")
    data = _written(_exact_rows(frames, heads, log_id, target, columns), columns)
    if from_parquet(data) != frames:
        raise NotForTables("what is built again from rows is not what was stored")
    return data


def from_parquet(data: bytes) -> bytearray:
    """The frames, as they were stored."""
    try:
        return _rebuilt(_rows(data))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:  # OSError is what Arrow says of damage, too
        said = str(error).splitlines()  # a schema may follow
        raise CorruptFrame(f"it is not a Parquet file of a raw table: {said[0] if said else error!r}") from error


def _rows(data: bytes) -> pa.Table:
    """In this thread: one of Arrow's pools that had work just now may abort the process when that ends."""
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
        rows = file.read(columns=list(READ), use_threads=False)
    for name, kind in READ.items():
        if rows.schema.field(name).type != kind:  # its buffers would be taken for what they are not
            raise ValueError(f"the column {name} is {rows.schema.field(name).type}, not {kind}")
    return rows


def _placed(heads: list[FrameHead]) -> Iterator[tuple[int, FrameHead]]:
    at = 0
    for head in heads:
        yield at, head
        at += head.size


def _attributes(frames: memoryview, at: int) -> int:
    return int.from_bytes(frames[at + 48 + 21 : at + 48 + 23], "big")


# -- to rows


def _exact_rows(
    frames: memoryview, heads: list[FrameHead], log_id: int, target: TableTarget, columns: Columns
) -> pa.Table:
    """Rows that give all frames back."""
    rows = LogRows({"log": log_id, "lanes": [_partition(target)], "shared": False}, False, columns)
    table = pa.Table.from_batches(list(_decoded(frames, log_id, target, rows)), schema=rows.schema)
    missing = _missing(table, frames, heads)
    if not missing:
        return table
    return _with_whole(table, missing, target, rows)


def _partition(target: TableTarget) -> list[object]:
    return [kafka_name(target.topic), target.partition, target.topic.decode("utf-8", "replace")]


def _decoded(frames: memoryview, log_id: int, target: TableTarget, rows: LogRows) -> Iterator[pa.RecordBatch]:
    decoder = ColumnDecoder(
        int(flags_of(rows.decoded.names)),
        lambda topic: target.row,
        lambda method, data: inflate(method, data, INFLATED_BYTES_MAX),
        topic=target.topic,
        log_id=log_id,
        translate=kafka_headers,
    )
    decoder.feed(frames)
    more = True
    while more:
        unreadable = False
        try:
            more = decoder.decode(ROWS_STEP, 1 << 20)
        except UnreadableBatch:
            unreadable = True
        if decoder.rows:
            count, taken = decoder.rows, decoder.take()
            yield rows.table_batch(record_batch(taken, count, rows.decoded))
        if unreadable:
            frame, offset = decoder.pass_unreadable()
            yield rows.table_batch(unreadable_row(frame, offset, target.row, rows.decoded))


def _missing(table: pa.Table, frames: memoryview, heads: list[FrameHead]) -> list[tuple[FrameHead, bytes]]:
    """Frames that the rows do not give back."""
    built = memoryview(_rebuilt(table)) if table.num_rows else memoryview(b"")
    if built == frames:
        return []
    found, at, there = list[tuple[FrameHead, bytes]](), 0, 0
    for head in heads:
        frame = frames[at : at + head.size]
        at += head.size
        if built[there : there + head.size] == frame:
            there += head.size
            continue
        found.append((head, bytes(frame)))
        if built[there + 16 : there + 24] == frame[16:24]:  # it is there, and differs: to where the next one begins
            there = _after(built, there, head)
    return found


def _after(built: memoryview, at: int, head: FrameHead) -> int:
    """Where the frame behind the one at `at` begins: none begins within it, as a head's magic and offset tell."""
    data, end = built.tobytes() if not isinstance(built.obj, bytes) else built.obj, len(built)
    while (at := data.find(b"MSF1\x01", at + 1)) >= 0:
        if int.from_bytes(built[at + 16 : at + 24], "big") >= head.base_offset + head.count:
            return at
    return end


def _with_whole(
    table: pa.Table, missing: list[tuple[FrameHead, bytes]], target: TableTarget, rows: LogRows
) -> pa.Table:
    """The same rows, and these frames whole: in their first row, or in one of their own where they have none."""
    offsets, batches = table["offset"].to_pylist(), table["batch"].to_pylist()
    pieces, done = list[pa.Table](), 0
    places = {offset: at for at, offset in enumerate(offsets)}
    whole: dict[int, bytes] = {}
    alone: list[tuple[int, pa.RecordBatch]] = []
    for head, frame in missing:
        at = next((places[o] for o in range(head.base_offset, head.base_offset + head.count) if o in places), None)
        if at is not None:
            whole[at] = frame
        else:
            behind = next((n for n, offset in enumerate(offsets) if offset >= head.base_offset), len(offsets))
            row = unreadable_row(frame, head.base_offset, target.row, rows.decoded)
            alone.append((behind, rows.table_batch(row)))
    if whole:
        field = table.schema.get_field_index("batch")
        kept = pa.array([whole.get(at, one) for at, one in enumerate(batches)], pa.binary())
        table = table.set_column(field, table.schema.field(field), kept)
    for at, row in alone:
        pieces += [table.slice(done, at - done), pa.Table.from_batches([row], schema=table.schema)]
        done = at
    return pa.concat_tables([*pieces, table.slice(done)])


def _written(table: pa.Table, columns: Columns) -> bytes:
    stream = io.BytesIO()
    first = table.to_batches(max_chunksize=ROWS_STEP)[0] if table.num_rows else None
    with parquet_writer(stream, table.schema, columns, first) as writer:
        for start in range(0, table.num_rows, ROW_GROUP_ROWS):
            writer.write_table(table.slice(start, ROW_GROUP_ROWS), row_group_size=ROW_GROUP_ROWS)
    return stream.getvalue()


# -- and back


def _rebuilt(table: pa.Table) -> bytearray:
    builder, frames = _rebuilder(table), bytearray()
    for start in range(0, table.num_rows, ROWS_STEP):
        builder.add(start, min(start + ROWS_STEP, table.num_rows))
        frames += builder.take()
    return frames


def _rebuilder(table: pa.Table) -> FrameRebuilder:
    columns = {name: _one(table[name]) for name in READ}
    headers = columns["headers"]
    pairs = headers.values
    listed = headers.buffers()[:2]
    return FrameRebuilder(
        batch=_binary(columns["batch"]),
        offsets=_numbers(columns["offset"]),
        times=_numbers(columns["timestamp"]),
        flags=_numbers(columns["flags"]),
        key=_binary(columns["key"]),
        value=_binary(columns["value"]),
        headers=(*listed, headers.offset, _binary(pairs.field(0)), _binary(pairs.field(1))),
        stored_headers=_binary(columns["stored_headers"]),
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _binary(array: pa.Array) -> tuple[pa.Buffer | None, pa.Buffer, pa.Buffer, int]:
    valid, offsets, data = array.buffers()
    return valid, offsets, data, array.offset


def _numbers(array: pa.Array) -> memoryview:
    width = array.type.bit_width // 8
    return memoryview(array.buffers()[1])[array.offset * width :]


def body_from(data: bytes, footer: Footer) -> bytearray:
    """What an object of the part's frames would hold: these, and their index."""
    body = from_parquet(data)
    body += index_of(body, footer)
    return body


def index_of(frames: bytearray | memoryview, footer: Footer) -> bytes:
    place = footer.log_id, footer.base_offset, footer.end_offset
    index = index_frames(footer.log_id, footer.base_offset, [frames])
    return index.encode(Summary(*place, footer.first_stamp, footer.last_stamp, len(frames)))
