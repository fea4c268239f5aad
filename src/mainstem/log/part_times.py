"""The newest time in each part of a log, by the time its records carry: what a search by time may pass over.

Records may carry any time, in any order; append stamps say nothing certain about it. So each sealed part is looked
through once (the heads of its batches only, which name their newest time), and the answer is kept:

    times = {"<part name>": newest time in ms, ...}   (derived: looked up again when it is missing or damaged)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.codec.batch import frames_since
from mainstem.model.errors import CorruptFrame
from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.state_file import read_state, write_state

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.storage.engine import Part, Slice

logger = logging.getLogger("mainstem.log")

KIND = "times"
NO_TIME, TIME_MAX = -(1 << 63), (1 << 63) - 1
READ_BYTES = 1 << 20
PARTS_MAX = 100_000


class PartTimes:
    """Any thread may ask. Without a path nothing is kept beyond the process."""

    def __init__(self, log: Log, path: Path | None = None, disk: Disk = REAL_DISK) -> None:
        self._log = log
        self._disk = disk
        self._path = path
        self._saving = threading.Lock()
        self._newest: dict[str, int] = {}
        self._unsaved = False
        if path is not None:
            try:
                self._newest = {name: int(time_ms) for name, time_ms in (read_state(disk, path, KIND) or {}).items()}
            except CorruptFrame as error:
                logger.warning("%s; the times of its log's parts are looked up again", error)

    def newest(self, part: Part) -> int | None:
        """The newest time in a sealed part; None while it is still written."""
        if not part.sealed:
            return None
        known = self._newest.get(part.name)
        if known is None:
            known = newest_in(self._log, part.base_offset, part.end_offset)
            if len(self._newest) >= PARTS_MAX:
                self._newest = {}
            self._newest[part.name] = known
            self._unsaved = True
        return known

    def learn(self) -> None:
        """Look through the parts that were sealed since, and keep what was found. In a thread, while they are cached."""
        with self._saving:
            parts = self._log.engine.stat().parts
            for part in parts:
                self.newest(part)
            if not self._unsaved:
                return
            names = {part.name for part in parts}
            self._newest = {name: time_ms for name, time_ms in self._newest.items() if name in names}
            self._unsaved = False
            if self._path is not None:
                write_state(self._disk, self._path, KIND, self._newest)

    def due(self) -> bool:
        return any(part.sealed and part.name not in self._newest for part in self._log.engine.stat().parts)


def frames_newer(log: Log, start: int, end: int, time_ms: int) -> Iterator[tuple[int | None, Slice, list[int]]]:
    """A read at a time: the newest time in [start, end), and where in what was read the frames lie that reach `time_ms`.

    What lies before `start` in its frame counts too: records cannot be told apart without decoding them.
    """
    offset = start
    while offset < end and (piece := log.read_anywhere(offset, READ_BYTES, end)) is not None:
        newest, positions = frames_since(piece.data, log.id, time_ms)
        yield newest, piece, positions
        offset = piece.end_offset


def newest_in(log: Log, start: int, end: int) -> int:
    """The newest time that a batch in [start, end) names."""
    found = (newest for newest, _, _ in frames_newer(log, start, end, TIME_MAX) if newest is not None)
    return max(found, default=NO_TIME)
