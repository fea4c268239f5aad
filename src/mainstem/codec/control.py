"""Control batches: the markers that Kafka clients step over without showing them to anyone.

One record; key = i16 version 0, i16 type (0 abort, 1 commit); value = i16 version 0, i32 coordinator epoch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mainstem.codec.batch import BatchBuilder
from mainstem.model.record import Header

CONTROL_FLAG = 0x100
"""In `Record.flags`, beyond the stored byte: the record lies in a control batch."""

MARKER_KEY = struct.Struct(">hh")
MARKER_VALUE = struct.Struct(">hi")
CONTROL_ATTRIBUTES = 32 | 16  # control and transactional: Kafka writes no other kind


def kafka_marker_batch(
    offset: int,
    *,
    commit: bool = True,
    producer_id: int = -1,
    producer_epoch: int = -1,
    coordinator_epoch: int = 0,
    time_ms: int = 0,
    leader_epoch: int = 0,
    headers: Sequence[Header] = (),
) -> bytes:
    """A batch with one COMMIT or ABORT record at `offset`.

    With producer id -1 and COMMIT it ends no transaction; it only moves a client to `offset + 1`, which is how a fetch
    over a long stretch without matches makes progress.
    """
    builder = BatchBuilder()
    builder.add(MARKER_KEY.pack(0, int(commit)), MARKER_VALUE.pack(0, coordinator_epoch), headers, time_ms)
    return builder.seal_batch(offset, leader_epoch, CONTROL_ATTRIBUTES, producer_id, producer_epoch, -1)


def read_marker(key: bytes) -> bool | None:
    """Whether a control record's key says COMMIT (True) or ABORT (False); None for kinds that are not markers."""
    if len(key) < MARKER_KEY.size:
        return None
    kind: int = MARKER_KEY.unpack_from(key)[1]
    return {0: False, 1: True}.get(kind)
