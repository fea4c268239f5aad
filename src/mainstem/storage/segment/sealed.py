"""Sealed segments that are not finished: their last bytes are to be synced, their index is to be saved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.segment.segment import Segment

UNFINISHED_MAX = 4  # more only if nobody ever syncs


class Sealed:
    """Under the engine's lock, but for `finish`, which a sync calls and which takes it."""

    __slots__ = ("_check_gone", "_files", "_indexes", "_lock", "_log_id", "unfinished", "unsynced")

    def __init__(
        self,
        found: tuple[Segment, ...],
        log_id: int,
        files: OpenFiles,
        indexes: IndexCache,
        lock: AbstractContextManager[bool],
        check_gone: Callable[[Segment, FileNotFoundError], None],
    ) -> None:
        self._log_id, self._files, self._indexes = log_id, files, indexes
        self._lock, self._check_gone = lock, check_gone
        self.unsynced: list[Segment] = []
        self.unfinished = [segment for segment in found if segment.sealed and segment.index is not None]

    def add(self, segment: Segment) -> None:
        segment.sealed = True
        self.unsynced.append(segment)
        self.unfinished.append(segment)
        while len(self.unfinished) > UNFINISHED_MAX:
            self.finish_one(self.unfinished.pop(0))

    def remove(self, segment: Segment) -> None:
        self.unsynced = [other for other in self.unsynced if other is not segment]
        self.unfinished = [other for other in self.unfinished if other is not segment]

    def note_synced(self) -> None:
        """After a sync; one that was sealed meanwhile may have grown since its size was taken."""
        self.unsynced = [segment for segment in self.unsynced if segment.synced < segment.size]

    def can_finish(self) -> bool:
        return any(segment.synced >= segment.size for segment in self.unfinished)

    def finish(self) -> None:
        """Those whose bytes survive a power cut."""
        with self._lock:
            taken = [segment for segment in self.unfinished if segment.synced >= segment.size]
            self.unfinished = [segment for segment in self.unfinished if segment.synced < segment.size]
        for segment in taken:
            self.finish_one(segment)

    def finish_one(self, segment: Segment) -> None:
        try:
            with self._files.use(segment.path) as fd:
                self._files.disk.truncate(fd, segment.size)  # gives back what was prepared beyond the end
            self._indexes.save(segment, self._log_id)
        except FileNotFoundError as error:
            self._check_gone(segment, error)
