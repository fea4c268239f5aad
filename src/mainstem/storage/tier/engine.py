"""A log whose old parts lie in an object store: it stands in front of the engine that holds the rest.

    remote parts, each an object           … | 3000 | 4000 | 5000 |
    local parts, files as ever                             | 5000 | 6000 | 7000 being written
                                                           ^ local start: from here on the disk answers

A sealed part is uploaded first and dropped locally later, so the two may overlap; a reader takes the local one. Parts of
both are the same bytes under the same names. What lies before the local start is read through the cache of chunks.
Writing, syncing and reading at the head are the local engine's, untouched.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.model.errors import InvalidArgument
from mainstem.storage.engine import Buffer, Part, Slice, Stat
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.reading import find_frame
from mainstem.storage.segment.segment import Segment, file_name
from mainstem.storage.tier.iceberg.tables import TableTarget
from mainstem.storage.tier.objects import Object
from mainstem.storage.tier.remote import ObjectReader, RemoteReads, RemoteSegment, part_segment, that_holds
from mainstem.storage.tier.topics import KeptTopics

if TYPE_CHECKING:
    from mainstem.storage.tier.tier import Tier

_BASE_OFFSET = attrgetter("base_offset")
_FIRST_STAMP = attrgetter("first_stamp")


class TieredEngine(RemoteReads):
    """See `mainstem.storage.engine.Engine`. Its own: `uploadable`, `register`, `drop_local`."""

    def __init__(self, local: SegmentEngine, tier: Tier, log_id: int, directory: Path) -> None:
        self.local, self._tier, self._log_id, self._directory = local, tier, log_id, directory
        self._lock = threading.RLock()  # over every change of `_remote`
        self.table_target: TableTarget | None = None  # its parts go to an Iceberg table: whose records they are
        self.topic_of: dict[int, bytes] | None = None  # of a shared log: its objects carry the topics of their records
        self._remote = tuple(part_segment(directory, one) for one in self._still_true(tier.registry.parts_of(log_id)))
        self.append, self.sync, self.roll = local.append, local.sync, local.roll
        self.begin_sync, self.end_sync = local.begin_sync, local.end_sync
        self.sync_data, self.keep_up = local.sync_data, local.keep_up
        self.prepare, self.adopt = local.prepare, local.adopt
        self.hold, self.release, self.cuts, self.read_into = local.hold, local.release, local.cuts, local.read_into

    def _still_true(self, found: list[Object]) -> list[Object]:
        """A crash may have come between a rewrite of a local part and the end of its object."""
        generations = {segment.base_offset: segment.generation for segment in self.local.segments}
        old = [one for one in found if generations.get(one.footer.base_offset, -1) > one.footer.generation]
        if old:
            self._tier.doom(old)
        return [one for one in found if one not in old]

    @property
    def directory(self) -> Path:
        """Of the log."""
        return self._directory

    @property
    def durable_offset(self) -> int:
        return self.local.durable_offset

    @property
    def upkeep_is_due(self) -> bool:
        return self.local.upkeep_is_due

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.local.segments

    @property
    def start_offset(self) -> int:
        remote, start = self._remote, self.local.start_offset
        return min(remote[0].base_offset, start) if remote else start

    # Reading

    def _read(self, offset: int, bytes_max: int, end_offset: int | None, *, wait: bool) -> Slice | None:
        while True:
            local_start = self.local.start_offset
            if offset < local_start:
                found = self._read_remote(offset, bytes_max, end_offset, local_start, wait=wait)
                if found is not None:
                    return found
            found = self.local.read(offset, bytes_max, end_offset)
            if (found is not None and found.base_offset <= offset) or self.local.start_offset == local_start:
                return found
            # What it should have found was dropped meanwhile: it is remote now.

    def _read_remote(
        self, offset: int, bytes_max: int, end_offset: int | None, local_start: int, *, wait: bool
    ) -> Slice | None:
        segments = self._remote
        reader = ObjectReader(self._tier.cache, self._tier.indexes, wait=wait)
        at = max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)
        for number in range(at, len(segments)):
            segment = segments[number]
            if segment.base_offset >= local_start or (end_offset is not None and segment.base_offset >= end_offset):
                return None
            if offset >= segment.end_offset or not segment.size:
                continue
            after = segments[number + 1] if number + 1 < len(segments) else None
            after = after if after is not None and after.base_offset < local_start else None
            found = reader.frames(segment, after, self._log_id, offset, bytes_max, end_offset)
            if found is not None:
                return found
        return None

    def _find_stamp(self, stamp: int, *, wait: bool) -> int:
        first = next((segment for segment in self.local.segments if segment.size), None)
        if first is not None and first.first_stamp <= stamp:
            return self.local.find_stamp(stamp)
        local_start = self.local.start_offset
        remote = [one for one in self._remote if one.size and one.base_offset < local_start]
        reader = ObjectReader(self._tier.cache, self._tier.indexes, wait=wait)
        for segment in reversed(remote[: bisect_right(remote, stamp, key=_FIRST_STAMP)]):
            here = reader.of(segment, None)
            found = find_frame(here, here, segment, self._log_id, stamp)
            if found is not None:
                return found
        return self.start_offset

    def remote_at(self, start: int, end: int) -> RemoteSegment | None:
        remote = self._remote
        first = max(bisect_right(remote, start, key=_BASE_OFFSET) - 1, 0)
        last = bisect_right(remote, end - 1, key=_BASE_OFFSET)
        return that_holds(remote[first:last], start, end) if end <= self.local.start_offset else None

    def remote_end(self, offset: int) -> int | None:
        start = self.local.start_offset
        far = (one for one in self._remote if one.size and one.end_offset > offset and one.base_offset < start)
        found = next(far, None) if offset < start else None
        return found.end_offset if found is not None else None

    def stat(self) -> Stat:
        stat, remote = self.local.stat(), self._remote
        far = tuple(one.part() for one in remote if one.base_offset < stat.start_offset)
        if not far:
            return stat
        return replace(
            stat,
            start_offset=far[0].base_offset,
            last_stamp=max(stat.last_stamp, far[-1].last_stamp),
            size_bytes=stat.size_bytes + sum(part.size_bytes for part in far),
            parts=(*far, *stat.parts),
        )

    def kept_topics(self, start: int, end: int) -> KeptTopics:
        """What objects say of the topics of their records, as far as none of these is local."""
        end = min(end, self.local.start_offset)
        there = [one.object for one in self._remote if one.end_offset > start and one.base_offset < end]
        return KeptTopics(self._tier.cache, [one for one in there if isinstance(one, Object)], self._directory)

    @property
    def remote_bytes(self) -> int:
        """In the store, whether or not they are here too."""
        return sum(segment.size for segment in self._remote)

    @property
    def remote_parts(self) -> tuple[RemoteSegment, ...]:
        return self._remote

    # Changing

    def trim(self, before_offset: int) -> int:
        with self._lock:
            gone = [one for one in self._remote if one.end_offset <= before_offset]
            if gone:
                self._tier.doom([one.object for one in gone])
                self._remote = tuple(one for one in self._remote if one.end_offset > before_offset)
                for segment in gone:
                    self._tier.indexes.forget(segment)
        self.local.trim(before_offset)
        return self.start_offset

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        """A part that is here is rewritten here, and uploaded again later; one that is not is rewritten in the store."""
        if any(segment.path.name == part.name for segment in self.local.segments):
            self.local.replace(part, frames)
            self._forget(part.base_offset)
            return
        old = self._at(part.base_offset)
        if old is None or old.path.name != part.name:
            raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
        made = self._tier.upload_rewritten(self, self._log_id, old.part(), frames)
        with self._lock:
            if self._at(part.base_offset) is not old:
                self._tier.doom([made])
                raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
            self._tier.commit(made)
            self._put(part_segment(self._directory, made))

    def _forget(self, base_offset: int) -> None:
        with self._lock:
            old = self._at(base_offset)
            if old is not None:
                self._tier.doom([old.object])
                self._remote = tuple(one for one in self._remote if one is not old)

    def _at(self, base_offset: int) -> RemoteSegment | None:
        at = bisect_left(self._remote, base_offset, key=_BASE_OFFSET)
        found = self._remote[at] if at < len(self._remote) else None
        return found if found is not None and found.base_offset == base_offset else None

    def _put(self, segment: RemoteSegment) -> None:
        others = [one for one in self._remote if one.base_offset != segment.base_offset]
        self._remote = tuple(sorted([*others, segment], key=_BASE_OFFSET))

    def close(self) -> None:
        self.local.close()

    # Up and away

    def uploadable(self) -> list[Part]:
        """Sealed, durable parts that the store does not have, the oldest first."""
        durable, found = self.local.durable_offset, list[Part]()
        for segment in self.local.segments:
            if segment.sealed and segment.end_offset <= durable:
                there = self._at(segment.base_offset)
                if there is None or there.generation != segment.generation:
                    found.append(segment.part())
        return found

    def index_of(self, part: Part) -> bytes:
        """The index file's bytes of a local part."""
        segment = next((one for one in self.local.segments if one.path.name == part.name), None)
        if segment is None:
            raise InvalidArgument(f"{part.name}: not a part of this log (any more)")
        return self._tier.indexes.get(segment, self._log_id).encode(segment.summary(self._log_id))

    def register(self, made: Object) -> bool:
        """Readers may use it from now on; False (and it is doomed) if its part was rewritten or dropped meanwhile."""
        name = file_name(made.footer.base_offset, made.footer.generation)
        with self._lock:
            still = any(segment.path.name == name for segment in self.local.segments)
            if not still:
                self._tier.doom([made])
                return False
            self._tier.commit(made)
            self._put(part_segment(self._directory, made))
            return True

    def droppable(self, before_offset: int) -> int:
        """Up to where the oldest local parts are in the store, at most `before_offset`."""
        end = self.local.start_offset
        for segment in self.local.segments:
            there = self._at(segment.base_offset)
            stored = there is not None and (there.generation, there.size) == (segment.generation, segment.size)
            if not segment.sealed or not stored or segment.end_offset > before_offset:
                break
            end = segment.end_offset
        return end

    def drop_local(self, before_offset: int) -> int:
        """Give back the disk of the oldest parts that are in the store; returns how many bytes. In a thread."""
        with self._lock:
            end = self.droppable(before_offset)
            if end <= self.local.start_offset:
                return 0
            self._tier.note_drop(self._directory)
            before = self.local.stat().size_bytes
            self.local.trim(end)
            return before - self.local.stat().size_bytes
