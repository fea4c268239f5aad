"""Walking the frames of a file, with or without trust in what is there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mainstem.codec.batch import FRAME_HEAD_SIZE, FrameHead, read_frame_head, verify_frame
from mainstem.model.errors import CorruptFrame
from mainstem.storage.disk import Readable, read_all, read_stretch

READ_BYTES_MIN = 16 << 10  # less costs the same system call
SCAN_BYTES = 4 << 20
MAGIC = b"MSF1"


_PLACE = struct.Struct(">8xI4xq16xI")  # of a frame's head: payload size, base offset, count


class Fitting(NamedTuple):
    position: int  # behind the last frame that fits
    last: int  # where that one begins, -1 if none fits


class Window:
    """A stretch of a file in memory, moved where it is needed. Positions are the file's."""

    __slots__ = ("_chunk", "_disk", "_end", "_fd", "_log_id", "_name", "data", "start")

    def __init__(self, disk: Readable, fd: int, name: str, log_id: int, end: int, chunk: int = READ_BYTES_MIN) -> None:
        self._disk, self._fd, self._name, self._log_id = disk, fd, name, log_id
        self._end = end  # nothing beyond it is looked at
        self._chunk = chunk
        self.start = 0
        self.data: bytes | memoryview = b""

    def load(self, start: int, size: int) -> None:
        self.data = read_stretch(self._disk, self._fd, start, max(min(size, self._end - start), 0))
        self.start = start

    def forget(self) -> None:
        """What was read may be older than the file by now."""
        self.data = b""

    def covers(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.start + len(self.data)

    def skip(self, position: int, end: int, offset: int) -> int:
        """Where the first frame lies that reaches beyond `offset`, or `end`. Heads on the way are not checked; who
        uses the one that is found does."""
        while position < end:
            if not self.covers(position, position + FRAME_HEAD_SIZE):
                self.load(position, self._chunk)
                if len(self.data) < FRAME_HEAD_SIZE:
                    return position
            payload_size, base_offset, count = _PLACE.unpack_from(self.data, position - self.start)
            if base_offset + count > offset:
                return position
            position += FRAME_HEAD_SIZE + payload_size
        return end

    def skip_fitting(self, position: int, limit: int, end_offset: int | None) -> Fitting:
        """Over the frames that end at or before `limit` and begin below `end_offset`; heads are not checked."""
        last = -1
        while position < limit:
            if not self.covers(position, position + FRAME_HEAD_SIZE):
                self.load(position, self._chunk)
                if len(self.data) < FRAME_HEAD_SIZE:
                    break
            payload_size, base_offset, _ = _PLACE.unpack_from(self.data, position - self.start)
            after = position + FRAME_HEAD_SIZE + payload_size
            if after > limit or (end_offset is not None and base_offset >= end_offset):
                break
            last, position = position, after
        return Fitting(position, last)

    def size_at(self, position: int) -> int:
        """Of the frame at `position`, as its head says, which is not checked."""
        if not self.covers(position, position + FRAME_HEAD_SIZE):
            self.load(position, self._chunk)
        at = position - self.start
        return FRAME_HEAD_SIZE + int.from_bytes(self.data[at + 8 : at + 12])

    def head(self, position: int, *, verify: bool = False) -> FrameHead:
        """The head of the whole frame at `position`; with `verify` its batch's checksum is computed too."""
        size = self.size_at(position)
        if not self.covers(position, position + size):
            self.load(position, max(size, self._chunk))
        try:
            return (verify_frame if verify else read_frame_head)(self.data, position - self.start, self._log_id)
        except CorruptFrame as error:
            raise CorruptFrame(
                f"{self._name}: no complete frame at byte {position} ({error.message})", fix="mainstem log verify"
            ) from error


def scan_frames(
    disk: Readable, fd: int, name: str, log_id: int, start: int, end: int, *, verify: bool = False
) -> Iterator[tuple[int, FrameHead]]:
    """Every frame of `start`..`end` with its position; CorruptFrame at the first that is not whole."""
    window = Window(disk, fd, name, log_id, end, SCAN_BYTES)
    position = start
    while position < end:
        head = window.head(position, verify=verify)
        yield position, head
        position += head.size


def search_frames(
    disk: Readable, fd: int, name: str, log_id: int, start: int, end: int
) -> Iterator[tuple[int, FrameHead]]:
    """Every valid frame of this log that begins anywhere in `start`..`end`, whatever lies between them."""
    window = Window(disk, fd, name, log_id, end, SCAN_BYTES)
    chunk_start, chunk = start, b""
    position = start
    while position < end:
        if not chunk_start <= position <= chunk_start + len(chunk) - len(MAGIC):
            chunk_start, chunk = position, read_all(disk, fd, position, min(SCAN_BYTES, end - position))
        found = chunk.find(MAGIC, position - chunk_start)
        if found < 0:
            if chunk_start + len(chunk) >= end or len(chunk) < len(MAGIC):
                return
            position = chunk_start + len(chunk) - len(MAGIC) + 1  # the mark may lie across two chunks
            continue
        position = chunk_start + found
        try:
            head = window.head(position, verify=True)
        except CorruptFrame:
            position += 1
            continue
        yield position, head
        position += head.size
