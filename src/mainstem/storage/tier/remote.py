"""A stretch of an object of the store, read as if it were a segment file: by the same code, over the cache of chunks."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mainstem.model.errors import CorruptFrame
from mainstem.storage.engine import Engine, NotLocal, Slice
from mainstem.storage.segment.index import INTERVAL_BYTES, SparseIndex
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.reading import read_frames
from mainstem.storage.segment.segment import Segment, file_name
from mainstem.storage.tier.objects import Object, Stored

if TYPE_CHECKING:
    from mainstem.storage.tier.cache import ChunkCache


JOINED_BYTES = 64 << 10  # read beyond a chunk's end, with what is left of it


class RemoteSegment(Segment):
    """Frames of one log in an object: `size` bytes at `position`, their index at `index_position`. Its path is where a file
    of it would lie: a name, by which its index is kept."""

    __slots__ = ("index_position", "index_size", "object", "position")

    def __init__(
        self, path: Path, base_offset: int, generation: int, found: Stored, position: int, index: tuple[int, int]
    ) -> None:
        super().__init__(path, base_offset, generation)
        self.sealed, self.object = True, found
        self.position = position
        self.index_position, self.index_size = index

    @property
    def chunks_first(self) -> tuple[int, int]:
        """That who begins to read it needs: its index, and where its frames begin."""
        size = self.object.footer.chunk_bytes
        return self.index_position // size, self.position // size


def part_segment(directory: Path, found: Object) -> RemoteSegment:
    """A whole object that is one part."""
    footer = found.footer
    path = directory / file_name(footer.base_offset, footer.generation)
    index = footer.size, footer.index_size
    made = RemoteSegment(path, footer.base_offset, footer.generation, found, 0, index)
    made.end_offset, made.size = footer.end_offset, footer.size
    made.first_stamp, made.last_stamp = footer.first_stamp, footer.last_stamp
    return made


class Away(Exception):
    """Bytes are not here, and may not be waited for."""


class ObjectReader:
    """One read of remote segments: what `reading.py` asks of open files, their disk and the indexes."""

    def __init__(self, cache: ChunkCache, indexes: IndexCache, *, wait: bool) -> None:
        self._cache, self._indexes, self._wait = cache, indexes, wait
        self._segment: RemoteSegment | None = None
        self._after: RemoteSegment | None = None

    def of(self, segment: RemoteSegment, after: RemoteSegment | None) -> ObjectReader:
        self._segment, self._after = segment, after
        return self

    def frames(
        self,
        segment: RemoteSegment,
        after: RemoteSegment | None,
        log_id: int,
        offset: int,
        bytes_max: int,
        end_offset: int | None,
    ) -> Slice | None:
        """See `read_frames`. It ends where a chunk does, or soon after: what lies in one chunk is read where it lies, what
        lies in two must be copied."""
        here = self.of(segment, after)
        chunk_bytes = segment.object.footer.chunk_bytes
        begin = segment.position + self.get(segment, log_id).before_offset(offset)
        left = chunk_bytes - begin % chunk_bytes
        room = left - INTERVAL_BYTES if left > 2 * JOINED_BYTES else left + JOINED_BYTES
        return read_frames(here, here, segment, log_id, offset, min(bytes_max, room), end_offset)

    @property
    def disk(self) -> ObjectReader:
        return self

    @contextlib.contextmanager
    def use(self, path: Path) -> Iterator[int]:
        yield 0

    def ask_page_cache(self, fd: int, position: int) -> None:
        """It is not the page cache that is asked."""

    def pread(self, fd: int, size: int, position: int) -> bytes:
        segment = self._segment
        assert segment is not None
        found = self._cache.read(
            segment.object,
            segment.position + position,
            min(size, segment.size - position),
            wait=self._wait,
            until=segment.position + segment.size,
            after=self._after,
        )
        if found is None:
            raise Away
        return cast("bytes", found)  # or a view of them: all of what was asked for, and nobody changes it

    def get(self, segment: Segment, log_id: int) -> SparseIndex:
        """The index lies behind the frames, in the same object."""
        index = self._indexes.find(segment)
        if index is not None:
            return index
        assert isinstance(segment, RemoteSegment)
        place = segment.index_position, segment.index_size
        data = self._cache.read(segment.object, *place, wait=self._wait, until=sum(place))
        if data is None:
            raise Away
        found = SparseIndex.decode(bytes(data))
        if found is None:
            raise CorruptFrame(
                f"{segment.object.key}: its index does not validate", fix=f"mainstem log verify {log_id}"
            )
        self._indexes.keep(segment, found[0])
        return found[0]


def that_holds(segments: Sequence[object], start: int, end: int) -> RemoteSegment | None:
    """Of segments in order of their offsets, the one in which all frames of [start, end) lie."""
    inside = [one for one in segments if isinstance(one, Segment) and one.base_offset < end and one.end_offset > start]
    found = inside[0] if len(inside) == 1 else None
    return found if isinstance(found, RemoteSegment) and found.size else None


class RemoteReads(ABC):
    """Reads of an engine some of whose frames lie in the store: with and without waiting for them."""

    is_local = False

    @abstractmethod
    def _read(self, offset: int, bytes_max: int, end_offset: int | None, *, wait: bool) -> Slice | None:
        """Away where it would have to wait, and must not."""

    @abstractmethod
    def remote_at(self, start: int, end: int) -> RemoteSegment | None:
        """The stretch of one object in which all frames of [start, end) lie, if they do and none of it is local."""

    @abstractmethod
    def remote_end(self, offset: int) -> int | None:
        """Where the stretch of an object ends that a read from an offset on meets first; None where that is here."""

    @abstractmethod
    def _find_stamp(self, stamp: int, *, wait: bool) -> int: ...

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        return self._read(offset, bytes_max, end_offset, wait=True)

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        try:
            return self._read(offset, bytes_max, end_offset, wait=False)
        except Away:
            raise NotLocal(cast("Engine", self), offset, bytes_max, end_offset) from None

    def find_stamp(self, stamp: int) -> int:
        try:
            return self._find_stamp(stamp, wait=False)
        except Away:
            raise _FindAway(self, stamp) from None

    def find_stamp_waiting(self, stamp: int) -> int:
        return self._find_stamp(stamp, wait=True)


class _FindAway(NotLocal):
    """A search by stamp met frames that are not here. Its offset is where their part begins."""

    def __init__(self, engine: RemoteReads, stamp: int) -> None:
        parts = cast("Engine", engine).stat().parts
        at = bisect_right(parts, stamp, key=attrgetter("first_stamp"))
        super().__init__(cast("Engine", engine), parts[max(at - 1, 0)].base_offset if parts else 0, 1)
        self._searched, self._stamp = engine, stamp

    def bring(self) -> None:
        self._searched.find_stamp_waiting(self._stamp)
