"""The default engine: append-only files on a local disk, one fdatasync for everything written since the last.

Threads: `append`, `roll`, `trim`, `replace` change things under `_lock`, which is never held while a disk is waited for;
readers take no lock: they see an immutable tuple of segments. Syncs are asked of a `FlushHandle` (`begin_sync`) or done by a
committer's thread (`sync_data`): `syncs.py`. Checkpoints, indexes of sealed segments, blocks ahead are upkeep (`keep_up`): a
thread does it, and no acknowledgement waits for it. `_upkeep_lock` is over it, and over what needs a checkpoint; it is
taken before all others. A directory without writes stays as it was: the clean marker goes, durably, just before the first
change.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

from mainstem.codec.batch import frame_heads
from mainstem.model.errors import DiskFull, InvalidArgument, StorageFault
from mainstem.storage.disk import is_full, write_all
from mainstem.storage.engine import Buffer, FrameRef, Part, Slice, Stat
from mainstem.storage.flusher import FlushHandle
from mainstem.storage.health import Health
from mainstem.storage.segment.index import OFFSET_SPAN_MAX, SparseIndex
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.large_reads import read_now
from mainstem.storage.segment.leases import Leases
from mainstem.storage.segment.marks import Checkpoint, CheckpointPace, CleanMark
from mainstem.storage.segment.open_files import OpenFile, OpenFiles
from mainstem.storage.segment.prepared import finish, prepare, write_synced
from mainstem.storage.segment.reading import ANY_SIZE, find_frame, read_frames, read_into
from mainstem.storage.segment.recovery import Progress, recover, skips_of
from mainstem.storage.segment.room import ALLOCATION_BYTES_MAX, Room
from mainstem.storage.segment.sealed import Sealed
from mainstem.storage.segment.segment import INDEX_SUFFIX, Segment, file_name
from mainstem.storage.segment.syncs import Reached, Syncs
from mainstem.storage.segment.torn import forget_torn
from mainstem.storage.state_file import TEMPORARY, remove

SEGMENT_BYTES = 64 << 20
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 2 << 30  # positions in an index are 32 bits
_BASE_OFFSET = attrgetter("base_offset")
_FIRST_STAMP = attrgetter("first_stamp")


class SegmentEngine:
    """See `mainstem.storage.engine.Engine`; besides its verbs: `hold` and `release` of parts that are read by path."""

    is_local = True

    def __init__(
        self,
        directory: Path,
        log_id: int,
        *,
        files: OpenFiles,
        indexes: IndexCache,
        segment_bytes: int = SEGMENT_BYTES,
        progress: Progress | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise InvalidArgument(f"segment_bytes is {segment_bytes}, must be {SEGMENT_BYTES_MIN}..{SEGMENT_BYTES_MAX}")
        self._directory, self._log_id, self._segment_bytes = directory, log_id, segment_bytes
        self._files, self._indexes, self._disk = files, indexes, files.disk
        self._room = Room(self._disk, directory, segment_bytes)
        self._upkeep_lock, self._lock = threading.RLock(), threading.RLock()
        self._leases = Leases()
        self._health = Health(directory)
        self._last_file: tuple[Segment, OpenFile] | None = None  # that was written to
        self._disk.make_dir(directory)
        found = recover(self._disk, directory, log_id, progress)
        self._segments: tuple[Segment, ...] = found.segments
        self._skips = skips_of(found.segments)  # where a segment begins behind offsets that were left out
        self._end_offset, self._last_stamp, self._clean = found.end_offset, found.last_stamp, found.clean
        self._touched = not found.clean  # without a clean mark there is none to remove
        self._sealed = Sealed(found.segments, log_id, files, indexes, self._lock, self._check_gone)
        self._checkpoints = CheckpointPace(found.checkpoint, monotonic_ns)
        self._syncs = Syncs(
            directory, files, self._health, self._sealed, self._checkpoints, self._lock, self._here, self._here()[1]
        )
        self._skipped_to = 0  # until what is written there is durable a checkpoint of any cause must say so

    # Writing

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        first, last = frames[0], frames[-1]
        assert first.base_offset >= self._end_offset, "offsets never go back"
        if first.base_offset > self._end_offset:
            self._skip_to(first.base_offset)
        size = first.size if first is last else sum(frame.size for frame in frames)
        with self._lock:
            self._health.check()
            segment = self._writable(first.base_offset, last.base_offset + last.count, size)
            try:
                file = self._take_file(segment)
                try:
                    self._room.prepare(segment, file.fd, size)
                    write_all(self._disk, file.fd, data, segment.size)
                finally:
                    self._files.give_back(file)
            except OSError as error:
                self._undo(segment)
                self._health.refuse(f"{segment.path}: cannot write {size} bytes at {segment.size}", error)
            file.dirty = True
            for frame in frames:
                segment.note(frame)
            self._end_offset, self._last_stamp = segment.end_offset, segment.last_stamp

    def prepare(self, data: Sequence[Buffer]) -> Path:
        try:
            return prepare(self._disk, self._directory, data)
        except OSError as error:
            self._health.refuse(f"{self._directory}: cannot write a frame of {sum(map(len, data))} bytes", error)

    def adopt(self, prepared: Path, front: Sequence[Buffer], frame: FrameRef) -> None:
        if frame.base_offset > self._end_offset:
            self._skip_to(frame.base_offset)
        with self._lock:
            self._health.check()
            self._touch()
            self._seal_active()
            if self._segments and not self._segments[-1].sealed:  # it is empty
                self._segments, empty = self._segments[:-1], self._segments[-1]
                self._remove(empty)
            segment = Segment(self._directory / file_name(frame.base_offset), frame.base_offset)
            segment.index = SparseIndex(frame.base_offset)
            try:
                finish(self._disk, prepared, front, segment.path)
            except OSError as error:
                self._health.refuse(f"{segment.path}: cannot adopt a frame of {frame.size} bytes", error)
            segment.note(frame)
            self._segments = (*self._segments, segment)
            self._syncs.names_changed = True
            self._end_offset, self._last_stamp = segment.end_offset, segment.last_stamp

    @property
    def durable_offset(self) -> int:
        return self._syncs.reached.end_offset

    def sync(self) -> None:
        with self._upkeep_lock:
            self._sync()

    def sync_data(self) -> None:
        self._syncs.run(self._sync_file)

    def begin_sync(self, handle: FlushHandle) -> int:
        return self._syncs.begin(handle, self._take_file)

    def end_sync(self, handle: FlushHandle) -> int:
        return self._syncs.end(handle)

    @property
    def upkeep_is_due(self) -> bool:
        active = self._segments[-1] if self._segments else None
        return (
            (active is not None and not active.sealed and self._room.is_due(active))
            or self._checkpoints.is_due(self._syncs.reached.end_offset)
            or self._sealed.can_finish()
        )

    def keep_up(self) -> None:
        with self._upkeep_lock:
            if self._health.fault is None and not self._health.closed:
                self._do_upkeep(self._syncs.reached)

    def roll(self) -> None:
        with self._lock:
            self._health.check()
            self._seal_active()

    def trim(self, before_offset: int) -> int:
        """Takes a sync and a checkpoint, so that what is gone stays gone: not for the event loop."""
        with self._upkeep_lock:
            self._health.check()
            dropped: list[Segment] = []
            for segment in self._segments:
                if not segment.sealed or segment.end_offset > before_offset:
                    break
                dropped.append(segment)
            if dropped:
                self._touch()
                self._announce_start(dropped)
                with self._lock:
                    self._segments = self._segments[len(dropped) :]
                    for segment in dropped:
                        self._remove(segment)
            return self.start_offset

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        """Writes and syncs a whole file: not for the event loop."""
        with self._upkeep_lock:
            self._health.check()
            old = self._find(part)
            if old is None or not old.sealed:
                raise InvalidArgument(f"{part.name}: not a sealed part of this log (any more)")
            self._touch()
            # Only what is known durable may get holes.
            self._sync(checkpoint=not self._checkpoints.covers(old.end_offset))
            new = self._rewrite(old, frames)
            with self._lock:
                self._segments = tuple(new if segment is old else segment for segment in self._segments)
                self._remove(old)

    # Reading

    def read(
        self, offset: int, bytes_max: int, end_offset: int | None = None, frame_max: int = ANY_SIZE
    ) -> Slice | None:
        files, indexes = self._files, self._indexes
        while True:
            segments = self._segments
            first = max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)
            for segment in segments[first:]:
                if end_offset is not None and segment.base_offset >= end_offset:
                    return None
                if offset >= segment.end_offset:
                    continue
                try:
                    found = read_frames(files, indexes, segment, self._log_id, offset, bytes_max, end_offset, frame_max)
                except FileNotFoundError as error:
                    self._check_gone(segment, error)
                    break  # trimmed or replaced meanwhile: look again
                except OSError as error:
                    raise StorageFault(f"{segment.path}: cannot read: {error}") from error
                if found is not None:
                    return found
            else:
                return None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """As they are now. Another tuple as soon as one is added, removed or rewritten."""
        return self._segments

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Stored bytes as they are, from the frame that holds `offset`, or one at most INTERVAL_BYTES before it: as many as
        the segment has and the buffer takes, so the last frame may be cut off. 0 where `read` has to look further."""
        return read_into(self._files, self._indexes, self._segments, self._log_id, offset, buffer)

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        return read_now(self, offset, bytes_max, end_offset)

    def find_stamp(self, stamp: int) -> int:
        files, indexes = self._files, self._indexes
        while True:
            segments = [segment for segment in self._segments if segment.size]
            candidates = segments[: bisect_right(segments, stamp, key=_FIRST_STAMP)]
            for segment in reversed(candidates):  # mostly the first one; a rewritten one may hold no frame that early
                try:
                    found = find_frame(files, indexes, segment, self._log_id, stamp)
                except FileNotFoundError as error:
                    self._check_gone(segment, error)
                    break  # trimmed or replaced meanwhile: look again
                except OSError as error:
                    raise StorageFault(f"{segment.path}: cannot read: {error}") from error
                if found is not None:
                    return found
            else:
                return self.start_offset

    @property
    def start_offset(self) -> int:
        segments = self._segments
        return segments[0].base_offset if segments else self._end_offset

    def stat(self) -> Stat:
        with self._lock:
            parts = tuple(segment.part() for segment in self._segments)
            return Stat(
                start_offset=self.start_offset,
                end_offset=self._end_offset,
                last_stamp=self._last_stamp,
                size_bytes=sum(part.size_bytes for part in parts),
                parts=parts,
                path=str(self._directory),
                clean=self._clean,
            )

    def hold(self, part: Part) -> bool:
        """Keep the part's file on disk until `release`; False if it is gone already. A restart ends all holds."""
        with self._lock:
            path = self._directory / part.name
            if self._find(part) is None and path not in self._leases.doomed:
                return False
            self._leases.hold(path)
            return True

    def release(self, part: Part) -> None:
        with self._lock:
            if self._leases.release(self._directory / part.name):
                self._unlink(self._directory / part.name)

    def cuts(self, part: Part, step_bytes: int) -> list[tuple[int, int]]:
        """Where readers that share the part's file may begin: (byte position, base offset); empty if it is gone."""
        segment = self._find(part)
        return self._indexes.get(segment, self._log_id).cuts(step_bytes) if segment is not None else []

    def close(self) -> None:
        with self._upkeep_lock, self._syncs.lock:
            if self._health.closed:
                return
            try:
                if self._health.fault is None and self._touched:
                    self._mark_clean()
            finally:
                self._health.closed = True
                for segment in self._segments:
                    self._files.forget(segment.path)
                    self._indexes.forget(segment)

    # Inside: the files

    def _touch(self) -> None:
        """Before the first change: from now on a crash is an unclean stop, and must be known as one."""
        if not self._touched:
            try:
                CleanMark.remove(self._disk, self._directory)
            except OSError as error:
                self._health.refuse(f"{self._directory}: cannot begin to write", error)
            self._touched = True

    def _writable(self, base_offset: int, end_offset: int, size: int) -> Segment:
        """The segment that takes `size` bytes more: the active one or a new one."""
        self._touch()
        active = self._segments[-1] if self._segments else None
        if active is not None and not active.sealed:
            fits = active.size + size <= self._segment_bytes and end_offset - active.base_offset <= OFFSET_SPAN_MAX
            if fits or not active.size:
                if active.index is None:
                    active.index = self._indexes.get(active, self._log_id)
                return active
            self._seal_active()
        segment = Segment(self._directory / file_name(base_offset), base_offset)
        segment.index = SparseIndex(base_offset)
        last = self._segments[-1] if self._segments else None
        try:
            with self._files.use(segment.path, create=True) as fd:
                if last is not None and last.size >= self._segment_bytes * 3 // 4:  # this one will be filled, too
                    self._room.reserve(segment, fd, min(self._segment_bytes, ALLOCATION_BYTES_MAX))
                self._segments = (*self._segments, segment)
        except OSError as error:
            self._health.refuse(f"{segment.path}: cannot create", error)
        self._syncs.names_changed = True
        return segment

    def _take_file(self, segment: Segment) -> OpenFile:
        """Almost always the one that the last write used."""
        last = self._last_file
        if last is not None and last[0] is segment and self._files.take_again(last[1]):
            return last[1]
        file = self._files.take(segment.path)
        self._last_file = segment, file
        return file

    def _seal_active(self) -> None:
        active = self._segments[-1] if self._segments else None
        if active is None or active.sealed or not active.size:
            return
        self._touch()
        self._sealed.add(active)

    def _rewrite(self, old: Segment, frames: Sequence[Buffer]) -> Segment:
        generation = old.generation + 1
        new = Segment(self._directory / file_name(old.base_offset, generation), old.base_offset, generation)
        new.index = SparseIndex(old.base_offset)
        for buffer in frames:
            for head in frame_heads(buffer, self._log_id):
                assert old.base_offset <= head.base_offset < old.end_offset
                new.note(FrameRef(head.base_offset, head.count, head.stamp, head.size))
        new.end_offset, new.first_stamp, new.last_stamp = old.end_offset, old.first_stamp, old.last_stamp
        new.synced, new.sealed, new.named = new.size, True, True
        temporary = new.path.with_name(new.path.name + TEMPORARY)
        try:
            write_synced(self._disk, temporary, frames)
            self._indexes.save(new, self._log_id)
            self._disk.rename(temporary, new.path)
            self._disk.fsync_dir(self._directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                remove(self._disk, temporary)
            self._health.refuse(f"{new.path}: cannot rewrite", error)
        return new

    def _undo(self, segment: Segment) -> None:
        """A failed append leaves nothing behind that a later recovery could take for a record."""
        with contextlib.suppress(OSError):
            if segment.size:
                with self._files.use(segment.path) as fd:
                    self._disk.truncate(fd, segment.size)
                segment.allocated = segment.zeroed = 0
            else:
                self._segments = self._segments[:-1]
                self._remove(segment)

    def _find(self, part: Part) -> Segment | None:
        return next((segment for segment in self._segments if segment.path.name == part.name), None)

    def _remove(self, segment: Segment) -> None:
        self._files.forget(segment.path)
        self._indexes.forget(segment)
        self._sealed.remove(segment)
        if not self._leases.keeps(segment.path):
            self._unlink(segment.path)

    def _unlink(self, path: Path) -> None:
        self._syncs.names_changed = True
        with contextlib.suppress(OSError):  # what stays is removed by the next start
            remove(self._disk, path)
            remove(self._disk, path.with_suffix(INDEX_SUFFIX))

    # Inside: syncing and upkeep

    def _here(self) -> tuple[Segment | None, Reached]:
        """The segment that was written last, and what is written. Under `_lock`."""
        last = self._segments[-1] if self._segments else None
        base_offset, size = (last.base_offset, last.size) if last is not None else (-1, 0)
        return last, Reached(base_offset, size, self._end_offset, self._last_stamp)

    def _sync(self, *, start_offset: int | None = None, checkpoint: bool = False) -> None:
        """With the upkeep that is due. Under `_upkeep_lock`."""
        self._do_upkeep(self._syncs.run(self._sync_file), start_offset, checkpoint=checkpoint)

    def _do_upkeep(self, reached: Reached, start_offset: int | None = None, *, checkpoint: bool = False) -> None:
        """Under `_upkeep_lock`; everything before `reached` survives a power cut."""
        active = self._segments[-1] if self._segments else None
        try:
            if checkpoint or self._checkpoints.is_due(reached.end_offset):
                with self._lock:
                    mark = self._checkpoint(reached, start_offset)
                mark.write(self._disk, self._directory)
                self._checkpoints.note(mark)
            self._sealed.finish()
            if active is not None and not active.sealed and self._room.is_due(active):
                with self._files.use(active.path) as fd:  # here, so that the next writes and syncs are cheap
                    self._room.reserve(active, fd)
        except OSError as error:
            if checkpoint or not is_full(error):  # a full disk can do without: the next start walks a little more
                self._health.refuse(f"{self._directory}: cannot write a checkpoint", error)

    def _checkpoint(self, reached: Reached, start_offset: int | None) -> Checkpoint:
        start_offset = self.start_offset if start_offset is None else start_offset
        at = bisect_right(self._segments, reached.base_offset, key=_BASE_OFFSET) - 1
        last = self._segments[at] if at >= 0 else None
        if last is not None and last.base_offset < start_offset:
            last = None  # about to be trimmed
        position = 0 if last is None else last.size  # also of one that was rewritten since
        if last is not None and last.end_offset > reached.end_offset:  # it goes on behind what is durable
            position = reached.size
        return Checkpoint(
            log_id=self._log_id,
            start_offset=start_offset,
            end_offset=reached.end_offset,
            next_offset=max(self._skipped_to, reached.end_offset),
            last_stamp=reached.last_stamp,
            segment=last.path.name if last is not None else None,
            position=position,
            skips=[offset for offset in self._skips if offset >= start_offset],
        )

    def _sync_file(self, segment: Segment) -> None:
        try:
            with self._files.use(segment.path) as fd:
                if segment.named:
                    self._disk.fdatasync(fd)
                else:
                    self._disk.fsync(fd)
        except FileNotFoundError as error:
            self._check_gone(segment, error)

    def _check_gone(self, segment: Segment, error: FileNotFoundError) -> None:
        if segment in self._segments:
            raise StorageFault(f"{segment.path}: another process removed the file") from error

    def _skip_to(self, offset: int) -> None:
        """Offsets are left out: a new segment begins there, and a recovery must know that nothing is missing."""
        with self._upkeep_lock:
            with self._lock:
                self._health.check()
                self._touch()
                self._seal_active()
                self._skipped_to = offset
                self._skips.append(offset)
            self._sync(start_offset=None if self._segments else offset, checkpoint=True)

    def _announce_start(self, dropped: list[Segment]) -> None:
        """A checkpoint says where the log begins before files go: what is missing later was not lost."""
        kept = self._segments[len(dropped) :]
        start_offset = kept[0].base_offset if kept else self._end_offset
        try:
            self._sync(start_offset=start_offset, checkpoint=True)
        except DiskFull:  # a trim must work just then: give up what can be made again, or was never acknowledged
            for segment in dropped:
                remove(self._disk, segment.index_path)
            forget_torn(self._disk, self._directory)
            self._sync(start_offset=start_offset, checkpoint=True)

    def _mark_clean(self) -> None:
        self._sync(checkpoint=not self._checkpoints.ends_at(self._end_offset))
        try:
            for path in self._leases.doomed:
                self._unlink(path)
            if self._segments and not self._segments[-1].sealed:
                self._sealed.finish_one(self._segments[-1])
            parts = [segment.part() for segment in self._segments]
            CleanMark(self._log_id, self._end_offset, self._last_stamp, parts).write(self._disk, self._directory)
        except OSError as error:
            self._health.refuse(f"{self._directory}: cannot close cleanly", error)
