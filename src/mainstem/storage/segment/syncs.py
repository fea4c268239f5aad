"""How far a log's files survive a power cut, and how they come that far: by a flusher's threads, or in the caller's.

Two locks: `lock` is held while the caller syncs, so that nobody syncs a file beside him: each could take the other's failure
for his own, or for none. The engine's is taken after it, and never held while a disk is waited for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mainstem.storage.flusher import FlushHandle
from mainstem.storage.health import Health
from mainstem.storage.segment.marks import CheckpointPace
from mainstem.storage.segment.open_files import OpenFile, OpenFiles
from mainstem.storage.segment.sealed import Sealed
from mainstem.storage.segment.segment import Segment


class Reached(NamedTuple):
    """A place in a log before which everything was written, or survives."""

    base_offset: int  # of the file that was written last; -1: there was none
    size: int  # of it
    end_offset: int
    last_stamp: int


class Asked(NamedTuple):
    """What a flusher has under way."""

    number: int
    files: list[tuple[Segment, OpenFile, int]]  # and up to where
    directory_fd: int  # -1: no name is new
    reached: Reached


class Syncs:
    """`here` tells, under the engine's lock, the segment that was written last and what is written by now."""

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        health: Health,
        sealed: Sealed,
        pace: CheckpointPace,
        engine_lock: contextlib.AbstractContextManager[object],
        here: Callable[[], tuple[Segment | None, Reached]],
        reached: Reached,
    ) -> None:
        self._directory, self._files, self._disk, self._health = directory, files, files.disk, health
        self._sealed, self._pace, self._here = sealed, pace, here
        self._engine_lock = engine_lock
        self.lock = threading.RLock()
        self.names_changed = False  # the directory needs an fsync
        self.reached = reached
        self._handle: FlushHandle | None = None
        self._asked: deque[Asked] = deque()

    # By a flusher

    def begin(self, handle: FlushHandle, take: Callable[[Segment], OpenFile]) -> int:
        """The request's number; 0 where `run` has to be called. Never waits."""
        if not self._disk.flushable or not self.lock.acquire(blocking=False):
            return 0
        try:
            with self._engine_lock, contextlib.suppress(OSError):  # `run` will meet it again, and say so
                if self._health.fault is None and not self._health.closed:
                    return self._ask(handle, take)
            return 0
        finally:
            self.lock.release()

    def _ask(self, handle: FlushHandle, take: Callable[[Segment], OpenFile]) -> int:
        active, reached = self._here()
        grown = self._grown(active)
        files: list[tuple[Segment, OpenFile, int]] = []
        directory_fd, number = -1, 0
        try:
            for segment in grown:
                files.append((segment, take(segment), segment.size))
            if files:
                places = [file.fd if segment.named else ~file.fd for segment, file, _ in files]
                if self.names_changed:
                    directory_fd = self._disk.open_dir(self._directory)
                    places.append(~directory_fd)
                number = handle.request(*places)
        finally:
            if not number:
                self._give_back(files, directory_fd)
        if number:
            self._handle = handle
            self._asked.append(Asked(number, files, directory_fd, reached))
            self.names_changed = self.names_changed and directory_fd < 0
        return number

    def end(self, handle: FlushHandle) -> int:
        completed, error = handle.outcome()
        if error:
            self._health.fail_by_code(error)
        while self._asked and self._asked[0].number <= completed:
            _, files, directory_fd, reached = self._asked.popleft()
            with self._engine_lock:
                for segment, file, size in files:
                    self._note(segment, size)
                    segment.named = segment.named or directory_fd >= 0
                    file.dirty = segment.size > size
                self._note_all(reached)
            self._give_back(files, directory_fd)
        return completed

    def _give_back(self, files: list[tuple[Segment, OpenFile, int]], directory_fd: int) -> None:
        for _, file, _ in files:
            self._files.give_back(file)
        if directory_fd >= 0:
            self._disk.close(directory_fd)

    # By the caller

    def run(self, sync_file: Callable[[Segment], None]) -> Reached:
        """What was written before the call survives a power cut after it."""
        with self.lock:
            if self._asked and self._handle is not None and (error := self._handle.wait()):
                self._health.fail_by_code(error)
            with self._engine_lock:
                self._health.check()
                active, reached = self._here()
                targets = [(segment, segment.size) for segment in self._grown(active)]
                names_changed, self.names_changed = self.names_changed, False
            try:
                for segment, size in targets:
                    sync_file(segment)
                    with self._engine_lock:
                        self._note(segment, size)
                        segment.named = True
                        self._files.mark_dirty(segment.path, segment.size > size)
                if names_changed:
                    self._disk.fsync_dir(self._directory)
            except OSError as error:
                self._health.fail(f"{self._directory}: cannot sync", error)
            with self._engine_lock:
                self._note_all(reached)
            return self.reached

    # Both

    def _grown(self, active: Segment | None) -> list[Segment]:
        known = (*self._sealed.unsynced, active) if self._sealed.unsynced else (active,)
        return [segment for segment in known if segment is not None and segment.synced < segment.size]

    def _note(self, segment: Segment, size: int) -> None:
        if size > segment.synced:
            self._pace.synced_bytes += size - segment.synced
            segment.synced = size

    def _note_all(self, reached: Reached) -> None:
        if self._sealed.unsynced:
            self._sealed.note_synced()
        if reached.end_offset >= self.reached.end_offset:
            self.reached = reached
