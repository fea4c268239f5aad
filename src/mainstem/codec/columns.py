"""Records as Arrow columns, both ways: what Spark, SQL and the lakehouse read and write.

`ColumnDecoder` walks stored frames and fills Arrow buffers; `encode_rows` makes RecordBatches of Arrow buffers. Neither
makes an object per record, and neither needs pyarrow: buffers are bytes-like objects, laid out as Arrow asks.

    decoder = ColumnDecoder(Column.OFFSET | Column.VALUE, resolve, inflate, start=10, end=20, topic=b"a/b", log_id=7)
    decoder.feed(frames)
    while decoder.decode(rows_max, bytes_max): yield decoder.take()

- `resolve(name or topic id)` is asked once per distinct topic and answers a `TopicRow`, or None to skip its records.
- `inflate(method, data)` inflates the records of a compressed batch, within the caller's limit.
- `topic` is for logs that hold one topic only; `log_id` makes the decoder check each frame header's checksum.
- Read are data frames from `start` to before `end`; control batches and batches of `aborted` transactions
  (producer id, first offset, last offset) are skipped. Batch checksums are always checked.
- `translate(origin, count, encoded headers)` turns the headers that another protocol stored into a Kafka reader's;
  without it headers come as stored.
- `decode` returns False once the fed bytes are used up; `consumed` of them are done with (an unfinished frame is not).
  `position`: every offset below it was decoded or passed over. `finished`: `end` was reached.

`take()` returns {column: buffers} for the rows so far. Buffers of a column, in Arrow's words:

    binary, text      (validity or None, int32 offsets, data, null count)
    numbers           (values,)                            int64: OFFSET, TIMESTAMP (µs), STAMP (ns); else int32
    LEVELS            (int32 list offsets, level count, levels as text)
    HEADERS           (validity or None, int32 list offsets, null count, header count, names as text, values as binary)

- A batch whose checksum fits and whose records cannot be read (its client made it so) raises UnreadableBatch; rows before
  it can be taken, and `pass_unreadable()` gives its frame and goes on behind it. Times are shown within the years 1 to 9999.

BATCH holds, in the first row of each batch and null elsewhere, the frame's and the batch's head as stored (48 + 61
bytes), or the whole frame where records alone would not give it back: it is compressed, or the records' own times are
not shown as they are; and it is of one topic. STORED_HEADERS holds the encoded headers, count in front, where HEADERS
does not tell all (headers of other protocols are translated; names may not be text), else null. With FLAGS that is all
it takes to build a batch again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag

from mainstem.codec._column_batches import FrameRebuilder, encode_rows, key_partitions
from mainstem.codec._columns import ColumnDecoder

# What a row says of its topic: Kafka's spelling, the canonical one, its levels, the partition and the offsets wanted.
TopicRow = tuple[bytes, bytes, Sequence[bytes], int, int, int]

__all__ = ["Column", "ColumnDecoder", "FrameRebuilder", "TopicRow", "encode_rows", "key_partitions"]


class Column(IntFlag):
    KEY = 1
    VALUE = 2
    TOPIC = 4  # in Kafka's spelling
    PARTITION = 8
    OFFSET = 16
    TIMESTAMP = 32
    TIMESTAMP_TYPE = 64  # 0 the producer's time, 1 the broker's
    HEADERS = 128
    CANONICAL = 256  # the topic as written, in MQTT's spelling
    LEVELS = 512
    ORIGIN = 1024
    CONTENT_TYPE = 2048
    FLAGS = 4096
    STAMP = 8192
    BATCH = 16384
    STORED_HEADERS = 32768
    ORIGIN_NUMBER = 65536  # as ORIGIN, which says it in a word
