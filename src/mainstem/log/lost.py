"""Logs that the metadata does not know: moved aside at the start, brought back when the metadata knows them again.

<data>/lost/<id>/            a log as it lay in <data>/logs
<data>/lost/<id>/lost        {"since_ms": when it was moved}

A crash while a topic is made leaves a log without records: it is deleted after a while. A log with records is never the
work of a crash (nothing is written to it before the metadata is committed). The metadata was lost, or an older copy of it
was put in its place: such a log stays until its metadata is back or someone removes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from mainstem.storage.disk import Disk
from mainstem.storage.reclaiming import remove_tree
from mainstem.storage.reservation import NAME as RESERVED
from mainstem.storage.state_file import read_state, write_state

logger = logging.getLogger("mainstem.log")

LOST = "lost"
STATE = frozenset((RESERVED, "start", "times", "topics", "clean", LOST))  # beside an engine's own files


class LostLogs:
    def __init__(self, logs: Path, disk: Disk) -> None:
        self._logs = logs
        self.directory = logs.with_name(LOST)
        self._disk = disk

    def bring_back(self, known: Iterable[int]) -> None:
        """Before logs are opened: the metadata knows these."""
        for log_id in known:
            place, lost = self._logs / str(log_id), self.directory / str(log_id)
            if lost.is_dir() and not place.exists():
                lost.rename(place)
                (place / LOST).unlink(missing_ok=True)
                logger.warning("log %d is known again and was brought back from %s", log_id, lost)

    def take(self, known: set[int], now_ms: int) -> None:
        for path in list(self._logs.glob("*")):
            if path.name.isdigit() and int(path.name) not in known:
                self._take(path, now_ms)

    def _take(self, path: Path, now_ms: int) -> None:
        place = self.directory / path.name
        if place.exists():  # both are kept: which of them is right only its owner can say
            logger.error("%s belongs to no topic, and so does %s; it stays where it is", path, place)
            return
        self._disk.make_dir(self.directory)
        write_state(self._disk, path / LOST, LOST, {"since_ms": now_ms})
        path.rename(place)
        logger.warning("%s belongs to no topic; it was moved to %s", path, place)

    def expire(self, now_ms: int, kept_ms: int) -> None:
        """Delete what has no records and was moved so long ago; name what has some. Files are unlinked in a thread."""
        for path in sorted(self.directory.glob("*")) if self.directory.is_dir() else ():
            if not path.name.isdigit():
                continue
            if holds_records(path):
                logger.warning(
                    "%s holds records that no topic names: the metadata is older than they are, or was lost. "
                    "Restore it (mainstem restore), or remove the directory",
                    path,
                )
                continue
            state = read_state(self._disk, path / LOST, LOST)
            if state is not None and now_ms - int(state["since_ms"]) >= kept_ms:
                name = f"erase {path.name}"
                threading.Thread(target=remove_tree, args=(path,), name=name, daemon=True).start()

    def highest_id(self) -> int:
        """No new log may get the number of one that may come back."""
        ids = (int(path.name) for path in self.directory.glob("*") if path.name.isdigit())
        return max(ids, default=0) if self.directory.is_dir() else 0


def holds_records(path: Path) -> bool:
    """Whether it ever gave out an offset, and has more than small state: a memory log has no more."""
    names = {file.name.removesuffix(".previous") for file in path.iterdir()}
    return RESERVED in names and not names <= STATE
