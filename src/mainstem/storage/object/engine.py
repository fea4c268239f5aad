"""A log without a local disk: new frames travel in bundles with those of other logs, and rest in the object store only.

    parts    |  0 ................ | 3000 ............... | 5000 being written     what retention drops as a whole
    pieces   |  0        | 1200    | 3000 | 4100 | 4700   | 5000 | 5400 | 5500     where the frames of a part lie
               in merged bundles       in bundles as published      in memory: not stored yet

A piece is read through the tier's cache of chunks; what was just published is there already. What is not stored is read from
memory. `sync` returns once the bundle is stored and the registry, on the local disk, says so durably: an ack promises that.

Locks: `_lock` over what is in memory, held for moments only, as the loop appends; `_changing` over trims and rewrites,
which write to the registry.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.model.errors import InvalidArgument, Overloaded, StorageFault
from mainstem.storage.engine import Buffer, FrameRef, Part, Slice, Stat
from mainstem.storage.object.bundle import FINAL, Bundle, Piece
from mainstem.storage.object.pending import Pending
from mainstem.storage.object.pieces import LogEnd, Placed
from mainstem.storage.segment.index import OFFSET_SPAN_MAX
from mainstem.storage.segment.reading import find_frame
from mainstem.storage.segment.segment import Segment, file_name
from mainstem.storage.tier.remote import ObjectReader, RemoteReads, RemoteSegment, that_holds

if TYPE_CHECKING:
    from mainstem.storage.object.shared import ObjectLogs

CLOSE_S = 5.0  # that a close waits for what is on its way
_BASE_OFFSET = attrgetter("base_offset")
_FIRST_STAMP = attrgetter("first_stamp")


@dataclass(slots=True, eq=False)
class _Part:
    base_offset: int
    end_offset: int
    generation: int = 0
    first_stamp: int = 0
    last_stamp: int = 0
    size: int = 0
    sealed: bool = False

    @property
    def name(self) -> str:
        return file_name(self.base_offset, self.generation)

    def part(self) -> Part:
        span = self.base_offset, self.end_offset
        stamps = self.first_stamp, self.last_stamp
        return Part(self.name, self.generation, *span, *stamps, self.size, self.sealed)


def segment_of(directory: Path, piece: Piece, placed: Placed) -> Segment:
    """A piece as it is read: its name is its own, as no two have the same offset in the same bundle."""
    bundle = placed.bundle
    path = directory / f"{piece.base_offset:020d}.{bundle.id if bundle is not None else 'gone'}"
    made: Segment
    if bundle is None:
        made = Segment(path, piece.base_offset, piece.generation)
    else:
        index = piece.index_position, piece.index_size
        made = RemoteSegment(path, piece.base_offset, piece.generation, bundle, piece.position, index)
    made.end_offset, made.size, made.sealed = piece.end_offset, piece.size, True
    made.first_stamp, made.last_stamp = piece.first_stamp, piece.last_stamp
    return made


class ObjectEngine(RemoteReads):
    """See `mainstem.storage.engine.Engine`; it says by itself when something is durable (`PushedEngine`)."""

    def __init__(self, shared: ObjectLogs, log_id: int, directory: Path, segment_bytes: int) -> None:
        self._shared, self._log_id, self._directory, self._segment_bytes = shared, log_id, directory, segment_bytes
        self._lock, self._changing = threading.Lock(), threading.Lock()
        self._closed = False
        self.on_durable: Callable[[int], None] = lambda end: None
        end, placed = shared.load(log_id)
        self._parts = _parts_of(placed)
        self._pieces: tuple[Segment | Pending, ...] = tuple(segment_of(directory, one.piece, one) for one in placed)
        self.end_offset = max(end.end_offset, self._parts[-1].end_offset if self._parts else 0)
        self._last_stamp = max(end.last_stamp, self._parts[-1].last_stamp if self._parts else 0)
        if self._parts:
            self._parts[-1].sealed = end.sealed and end.end_offset == self.end_offset
        self.durable_offset = self.end_offset
        self._clean = shared.was_closed(end)

    # Writing

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        first, last = frames[0], frames[-1]
        assert first.base_offset >= self.end_offset, "offsets never go back"
        size = sum(frame.size for frame in frames)
        end = last.base_offset + last.count
        with self._lock:
            self._check_open()
            part = self._writable(first.base_offset, end, size)
            piece = self._shared.writer.add(self._log_id, part.base_offset, data, frames, size)
            if not self._pieces or self._pieces[-1] is not piece:
                self._pieces = (*self._pieces, piece)
            if not self._parts or self._parts[-1] is not part:
                part.first_stamp = first.stamp
                if self._parts:
                    self._parts[-1].sealed = True
                self._parts = [*self._parts, part]
            part.size += size
            part.end_offset, part.last_stamp = end, last.stamp
            self.end_offset, self._last_stamp = end, last.stamp

    def _writable(self, base_offset: int, end_offset: int, size: int) -> _Part:
        """The part that takes them: the last, or a new one, which is the log's only once something is in it."""
        last = self._parts[-1] if self._parts else None
        if last is None or last.sealed or end_offset - last.base_offset > OFFSET_SPAN_MAX:
            return _Part(base_offset, base_offset)
        if last.size + size <= self._segment_bytes:
            return last
        return _Part(base_offset, base_offset)

    def sync(self) -> None:
        self._check_open()
        if self.durable_offset < self.end_offset:
            self._shared.writer.wait()

    def stored(self, pending: Pending, piece: Piece, placed: Placed) -> None:
        """The writer tells: a piece that was in memory is stored, and written down."""
        segment = segment_of(self._directory, piece, placed)
        with self._lock:
            self._pieces = tuple(segment if one is pending else one for one in self._pieces)
            self.durable_offset = max(self.durable_offset, piece.end_offset)

    def roll(self) -> None:
        with self._lock:
            self._check_open()
            if self._parts:
                self._parts[-1].sealed = True

    # Reading

    def _read(self, offset: int, bytes_max: int, end_offset: int | None, *, wait: bool) -> Slice | None:
        self._check_open()
        pieces = self._pieces
        reader = self._reader(wait=wait)
        for number in range(max(bisect_right(pieces, offset, key=_BASE_OFFSET) - 1, 0), len(pieces)):
            piece = pieces[number]
            if end_offset is not None and piece.base_offset >= end_offset:
                return None
            if offset >= piece.end_offset or not piece.size:
                continue
            if isinstance(piece, Pending):
                found = piece.read(offset, bytes_max, end_offset)
            else:
                assert isinstance(piece, RemoteSegment)
                after = pieces[number + 1] if number + 1 < len(pieces) else None
                after = after if isinstance(after, RemoteSegment) else None
                found = reader.frames(piece, after, self._log_id, offset, bytes_max, end_offset)
            if found is not None:
                return found
        return None

    def _reader(self, *, wait: bool) -> ObjectReader:
        tier = self._shared.tier
        return ObjectReader(tier.cache, tier.indexes, wait=wait)

    def _find_stamp(self, stamp: int, *, wait: bool) -> int:
        pieces = [one for one in self._pieces if one.size]
        reader = self._reader(wait=wait)
        for piece in reversed(pieces[: bisect_right(pieces, stamp, key=_FIRST_STAMP)]):
            if isinstance(piece, Pending):
                found = piece.find_stamp(stamp)
            else:
                assert isinstance(piece, RemoteSegment)
                here = reader.of(piece, None)
                found = find_frame(here, here, piece, self._log_id, stamp)
            if found is not None:
                return found
        return self.start_offset

    def remote_at(self, start: int, end: int) -> RemoteSegment | None:
        """Only an object that holds nothing of other logs: whoever reads it reads all of it."""
        pieces = self._pieces
        first = max(bisect_right(pieces, start, key=_BASE_OFFSET) - 1, 0)
        last = bisect_right(pieces, end - 1, key=_BASE_OFFSET)
        near = pieces[first:last]
        found = None if any(isinstance(one, Pending) for one in near) else that_holds(near, start, end)
        alone = found is not None and isinstance(found.object, Bundle) and found.object.footer.level == FINAL
        return found if alone else None

    def remote_end(self, offset: int) -> int | None:
        """Whichever bundle it is, also one that holds frames of other logs."""
        found = next((one for one in self._pieces if one.size and one.end_offset > offset), None)
        return found.end_offset if isinstance(found, RemoteSegment) else None

    @property
    def start_offset(self) -> int:
        parts = self._parts
        return parts[0].base_offset if parts else self.end_offset

    def stat(self) -> Stat:
        with self._lock:
            parts = tuple(one.part() for one in self._parts)
            size = sum(one.size_bytes for one in parts)
            return Stat(self.start_offset, self.end_offset, self._last_stamp, size, parts, None, self._clean)

    @property
    def remote_bytes(self) -> int:
        return sum(one.size for one in self._pieces if isinstance(one, RemoteSegment))

    @property
    def remote_pieces(self) -> int:
        return sum(isinstance(one, RemoteSegment) for one in self._pieces)

    # Changing; not for the loop

    def trim(self, before_offset: int) -> int:
        with self._changing:
            self._check_open()
            with self._lock:
                gone = list[_Part]()
                for part in self._parts:
                    if not part.sealed or part.end_offset > before_offset:
                        break
                    gone.append(part)
            if gone:
                self._settle(gone)
                bases = [part.base_offset for part in gone]
                self._shared.pieces.trim(self._log_id, bases, self._end(""), self._shared.tier.now_ms())
                with self._lock:
                    self._parts = self._parts[len(gone) :]
                    self._swap_part(range(gone[0].base_offset, max(gone[-1].end_offset, gone[-1].base_offset + 1)), [])
            return self.start_offset

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        with self._changing:
            self._check_open()
            old = next((one for one in self._parts if one.name == part.name), None)
            if old is None or not old.sealed:
                raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
            self._settle([old])
            placed = self._shared.store_part(self._log_id, old.part(), frames)
            self._shared.pieces.replace_part(placed.piece, placed.bundle, self._shared.tier.now_ms())
            new = segment_of(self._directory, placed.piece, placed)
            with self._lock:
                self._swap_part(range(old.base_offset, old.end_offset), [new])
                old.generation, old.size = placed.piece.generation, placed.piece.size

    def merged(self, olds: Sequence[Placed], piece: Piece, placed: Placed) -> None:
        """The merger tells: one piece took the place of these."""
        bases = {(one.piece.base_offset, one.bundle.id if one.bundle is not None else "") for one in olds}
        with self._lock:
            found = [one for one in self._pieces if isinstance(one, RemoteSegment)
                     and (one.base_offset, one.object.id) in bases]  # fmt: skip
            if len(found) == len(olds):
                first, gone = found[0], set(map(id, found[1:]))
                segment = segment_of(self._directory, piece, placed)
                kept = [segment if one is first else one for one in self._pieces if id(one) not in gone]
                self._pieces = tuple(kept)
                self._forget(found)

    def _settle(self, parts: Iterable[_Part]) -> None:
        """What is on its way to the store must be there, before something else is done to it."""
        bases = {part.base_offset for part in parts}
        if any(isinstance(one, Pending) and one.part in bases for one in self._pieces):
            self._shared.writer.wait()

    def _swap_part(self, span: range, new: list[Segment]) -> None:
        gone = [one for one in self._pieces if one.base_offset in span]
        kept: list[Segment | Pending] = [one for one in self._pieces if one.base_offset not in span]
        self._pieces = tuple(sorted([*kept, *new], key=_BASE_OFFSET))
        self._forget(gone)

    def _forget(self, gone: Iterable[Segment | Pending]) -> None:
        for one in gone:
            if isinstance(one, Segment):
                self._shared.tier.indexes.forget(one)

    def _end(self, closed_run: str) -> LogEnd:
        sealed = bool(self._parts) and self._parts[-1].sealed
        return LogEnd(self.end_offset, self._last_stamp, sealed, closed_run)

    def close(self) -> None:
        with self._changing:
            if self._closed:
                return
            try:
                stored = self.durable_offset >= self.end_offset or self._shared.writer.wait(time.monotonic() + CLOSE_S)
                if stored:
                    self._shared.close_log(self._log_id, self._end(self._shared.run))
            except Overloaded:
                pass  # nothing was acked that is not stored; the next start goes on behind all that was given out
            finally:
                self._closed = True
                self._shared.forget_engine(self._log_id, self)
                self._forget(self._pieces)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFault(f"log {self._log_id} is closed")


def _parts_of(placed: Iterable[Placed]) -> list[_Part]:
    """All but the last are sealed."""
    parts = list[_Part]()
    for piece, _ in placed:
        if not parts or parts[-1].base_offset != piece.part:
            parts.append(_Part(piece.part, piece.end_offset, piece.generation, piece.first_stamp, sealed=True))
        part = parts[-1]
        part.end_offset, part.last_stamp = piece.end_offset, piece.last_stamp
        part.size += piece.size
    return parts
