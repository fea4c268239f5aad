"""The door to frames and batches, which are read and written by compiled code. FORMAT.md draws the bytes.

Written by `BatchBuilder` (broker-encoded records) or `make_frame` (a Kafka client's batch as it came); read by
`frame_heads`, `decode_frames`, `decode_chosen`; checked by `check_batch` before and `verify_frame` after it was stored.
"""

from __future__ import annotations

from mainstem.codec._batch import (
    BatchBuilder,
    SealedFrame,
    crc32c,
    decode_headers,
    encode_headers,
    make_frame,
    make_marker,
    rebuild_batches,
)
from mainstem.codec._frames import (
    BatchHead,
    FrameHead,
    check_batch,
    frame_heads,
    frames_since,
    pack_batches,
    read_batch_head,
    read_frame_head,
    record_count,
    sent_batches,
    split_batches,
    verify_frame,
)
from mainstem.codec._records import (
    check_records,
    decode_batch,
    decode_chosen,
    decode_frames,
    decode_values,
    keyless_records,
    note_topics,
)
from mainstem.codec.compression import Codec, deflate, inflate

FRAME_HEAD_SIZE = 48
BATCH_HEAD_SIZE = 61
KIND_DATA, KIND_STATE, KIND_MARKER = 1, 2, 3

__all__ = [
    "BATCH_HEAD_SIZE",
    "FRAME_HEAD_SIZE",
    "KIND_DATA",
    "KIND_MARKER",
    "KIND_STATE",
    "BatchBuilder",
    "BatchHead",
    "Codec",
    "FrameHead",
    "SealedFrame",
    "check_batch",
    "check_records",
    "crc32c",
    "decode_batch",
    "decode_chosen",
    "decode_frames",
    "decode_headers",
    "decode_values",
    "deflate",
    "encode_headers",
    "frame_heads",
    "frames_since",
    "inflate",
    "keyless_records",
    "make_frame",
    "make_marker",
    "note_topics",
    "pack_batches",
    "read_batch_head",
    "read_frame_head",
    "rebuild_batches",
    "record_count",
    "sent_batches",
    "split_batches",
    "verify_frame",
]
