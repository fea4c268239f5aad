"""Frames for tests of engines and logs: values in, frames out, and back."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.codec.batch import KIND_DATA, BatchBuilder, decode_frames
from mainstem.storage.engine import Buffer, Engine, FrameRef, Slice

STAMP_FIRST = 1_000
INFLATED_BYTES_MAX = 1 << 20


def make_test_frame(
    log_id: int, base_offset: int, values: Sequence[bytes], *, stamp: int, durable_offset: int = 0, epoch: int = 0
) -> tuple[bytes, FrameRef]:
    """One frame holding `values`, as the log would append it."""
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, (), 0, 0)
    frame = builder.seal_frame(log_id, base_offset, stamp, durable_offset, KIND_DATA, 0, 0, epoch)
    return bytes(frame), FrameRef(base_offset, len(values), stamp, len(frame))


def values_of(data: Buffer, log_id: int) -> list[tuple[int, bytes]]:
    """The (offset, value) pairs in a run of whole frames; checksums are verified."""
    records = decode_frames(data, log_id, inflated_bytes_max=INFLATED_BYTES_MAX)
    return [(record.offset, record.value or b"") for record in records]


def read_everything(engine: Engine, log_id: int, start: int = 0, bytes_max: int = 1 << 16) -> list[tuple[int, bytes]]:
    """All (offset, value) pairs of a log, read piece by piece as a consumer does."""
    found: list[tuple[int, bytes]] = []
    piece: Slice | None
    while (piece := engine.read(start, bytes_max)) is not None:
        found += values_of(piece.data, log_id)
        start = piece.end_offset
    return found


class Writer:
    """Plays the log above an engine: gives out dense offsets and growing stamps."""

    def __init__(self, engine: Engine, log_id: int) -> None:
        self.engine = engine
        self.log_id = log_id
        stat = engine.stat()
        self.next_offset = stat.end_offset
        self.next_stamp = max(stat.last_stamp + 1, STAMP_FIRST)

    def append(self, *batches: Sequence[bytes]) -> list[FrameRef]:
        """One append of one frame per batch; a refused one uses no offsets."""
        data: list[bytes] = []
        frames: list[FrameRef] = []
        offset, stamp = self.next_offset, self.next_stamp
        for values in batches:
            frame, ref = make_test_frame(
                self.log_id, offset, values, stamp=stamp, durable_offset=self.engine.durable_offset
            )
            data.append(frame)
            frames.append(ref)
            offset, stamp = offset + len(values), stamp + len(values)
        self.engine.append(data, frames)
        self.next_offset, self.next_stamp = offset, stamp
        return frames

    def skip(self, count: int) -> None:
        """Leave offsets out, as the log does after an unclean stop."""
        self.next_offset += count
