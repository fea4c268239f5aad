"""Logs that nobody has needed since a clean stop: known by a line of one file, and opened when somebody needs them.

    <data>/logs/closed    {"logs": {"7": {...}}}   written by a clean stop: what is known of each log that it closed
    <data>/logs/opened    b"\\n7\\n\\n12\\n"           those of them that were opened since, synced before they are opened;
                          a number that a crash cut off ends at the next one's first line break

So ten thousand idle namespaces cost a start one file, and no descriptor, sync or index afterwards. A crash leaves those that
sleep as they were. The directory of a log changes its time with each reservation, part and repair: one that differs from
what the clean stop saw (another version ran, a backup was copied in) is opened as if nothing were known.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from mainstem.log.durability import Durability
from mainstem.log.log import GATHERS, Log
from mainstem.model.errors import CorruptFrame, DiskFull, StorageFault
from mainstem.storage.ballast import FIX
from mainstem.storage.disk import Disk, is_full, read_all, write_all
from mainstem.storage.engine import Part, Stat
from mainstem.storage.state_file import read_state, remove, write_state

logger = logging.getLogger("mainstem.log")

CLOSED, OPENED = "closed", "opened"
PARTS_MAX = 50  # a log with more is opened at the start: its line would be long
LOGS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Asleep:
    """What a clean stop knew of a log."""

    directory_time: int
    start_offset: int  # where streams begin
    end_offset: int
    epoch: int
    last_stamp: int
    topics: int  # of a shared log, and which of the remembered ones are among them
    remembered: tuple[str, ...]
    stored: tuple[int, int, int, int]  # start, end, last stamp and bytes in the engine
    path: str | None
    parts: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, log: Log, stat: Stat, remembered: Iterable[bytes]) -> Asleep | None:
        """Of a log that is about to be closed, which changes its directory again; None: open it at the next start."""
        if len(stat.parts) > PARTS_MAX or not log.on_disk or log.removed:
            return None
        topics = log.index.topics if log.index is not None else None
        known = tuple(name.decode() for name in remembered if topics is not None and topics.find(name))
        return cls(
            0,
            log.start_offset,
            log.next_offset,
            log.epoch,
            log.last_stamp,
            len(topics) if topics is not None else 0,
            known,
            (stat.start_offset, stat.end_offset, stat.last_stamp, stat.size_bytes),
            stat.path,
            tuple(astuple(part) for part in stat.parts),
        )

    @classmethod
    def parse(cls, value: list[Any]) -> Asleep:
        time, start, end, epoch, last_stamp, topics, remembered, (first, last, stamp, size), path, parts = value
        stored = first, last, stamp, size
        return cls(
            time, start, end, epoch, last_stamp, topics, tuple(remembered), stored, path, tuple(map(tuple, parts))
        )

    def stat(self) -> Stat:
        start, end, last_stamp, size = self.stored
        return Stat(start, end, last_stamp, size, tuple(Part(*part) for part in self.parts), self.path, clean=True)


class ClosedLogs:
    """The two files. `open` before a sleeping log is opened; `keep` at the end of a clean stop."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory, self._disk = directory, disk
        self._opening = threading.Lock()
        self.asleep: dict[int, Asleep] = {}

    def load(self) -> None:
        try:
            value = read_state(self._disk, self._directory / CLOSED, CLOSED)
        except CorruptFrame as error:  # it only saves work
            logger.warning("every log is opened now: %s", error)
            return
        opened = set(self._read_opened().split())
        logs = value["logs"] if value is not None else {}
        self.asleep = {int(log_id): Asleep.parse(one) for log_id, one in logs.items() if log_id.encode() not in opened}

    def take(self, log_id: int) -> Asleep | None:
        """What is known of the log if nothing has touched it since."""
        known = self.asleep.get(log_id)
        if known is None or known.directory_time == self.time_of(log_id):
            return known
        del self.asleep[log_id]
        return None

    def time_of(self, log_id: int) -> int:
        return self._disk.directory_time(self._directory / str(log_id))

    def open(self, log_id: int) -> None:
        """Durable once this returns: what is known of the log no longer counts."""
        try:
            with self._opening:
                self._note_opened(log_id)
                self.asleep.pop(log_id, None)
        except OSError as error:
            if is_full(error):
                raise DiskFull(
                    f"{self._directory / OPENED}: no space to open log {log_id}: {error}", fix=FIX
                ) from error
            raise

    def _note_opened(self, log_id: int) -> None:
        path, disk = self._directory / OPENED, self._disk
        try:
            fd, made = disk.open(path), False
        except FileNotFoundError:
            fd, made = disk.open(path, create=True), True
        try:
            write_all(disk, fd, [b"\n%d\n" % log_id], disk.size(fd))
            disk.fsync(fd)
        finally:
            disk.close(fd)
        if made:
            disk.fsync_dir(self._directory)

    def keep(self, closed: dict[int, Asleep]) -> None:
        """All logs are closed: these, and those that slept all the while."""
        logs = {str(log_id): list(astuple(one)) for log_id, one in (self.asleep | closed).items()}
        if len(logs) > LOGS_MAX:
            logs = {}
        write_state(self._disk, self._directory / CLOSED, CLOSED, {"logs": logs})
        remove(self._disk, self._directory / (CLOSED + ".previous"))
        remove(self._disk, self._directory / OPENED)
        self._disk.fsync_dir(self._directory)

    def _read_opened(self) -> bytes:
        """Made durable before it is relied on: a kill leaves lines that are read here and that a power cut takes back."""
        try:
            fd = self._disk.open(self._directory / OPENED)
        except FileNotFoundError:
            return b""
        try:
            told = read_all(self._disk, fd, 0, self._disk.size(fd))
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_dir(self._directory)
        return told


class _SleepingEngine:
    """Says what is stored; anything else opens the log."""

    def __init__(self, log: SleepingLog, stat: Stat) -> None:
        self._log, self._stat = log, stat

    def stat(self) -> Stat:
        return self._stat if self._log.is_asleep else self._log.engine.stat()

    def __getattr__(self, name: str) -> Any:
        self._log.wake()
        return getattr(self._log.engine, name)


class SleepingLog(Log):
    """A log that is not open. It becomes an ordinary one, as the same object, as soon as anything is asked that a clean stop
    did not note: `__getattr__` is called for what is not there."""

    is_asleep = True

    def __init__(
        self, log_id: int, known: Asleep, durability: Durability, initialise: Callable[[Log], None], *, shared: bool
    ) -> None:
        """`initialise` opens everything and calls `Log.__init__`."""
        self.id, self.durability, self.on_disk = log_id, durability, True
        self.start_offset, self.epoch, self.last_stamp = known.start_offset, known.epoch, known.last_stamp
        self.next_offset = self.written = self.stable = known.end_offset
        self.low_mark, self.removed, self.held = 0, False, False
        self.refusal, self.hidden = None, None
        self.unsynced_bytes = 0
        self.gathers = [None] * GATHERS
        if not shared:
            self.index = None
        self.engine: Any = _SleepingEngine(self, known.stat())
        self._known, self._initialise = known, initialise
        self._waking = threading.RLock()
        self._is_waking = False

    @property
    def is_shared(self) -> bool:
        return "index" not in self.__dict__

    @property
    def topic_count(self) -> int:
        return self._known.topics

    def remembers(self, topic: bytes) -> bool:
        return topic.decode() in self._known.remembered

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._is_waking:
            raise AttributeError(name)
        self.wake()
        return getattr(self, name)

    def wake(self) -> None:
        with self._waking:
            if not self.is_asleep:
                return
            kept = dict(self.__dict__)
            self._is_waking = True
            try:
                self._initialise(self)
            except BaseException:  # it sleeps on: a full disk may have room the next time
                self.__dict__.clear()
                self.__dict__.update(kept)
                raise
            self._go_on(kept)

    def _go_on(self, kept: dict[str, Any]) -> None:
        """As what it was known as: others may have set some of it meanwhile."""
        if (self.next_offset, self.epoch) != (kept["next_offset"], kept["epoch"]):
            raise StorageFault(
                f"log {self.id} ends at offset {self.next_offset} in epoch {self.epoch}; a clean stop noted "
                f"{kept['next_offset']} in epoch {kept['epoch']}: its files were changed",
                fix="delete the file logs/closed in the data directory and start again",
            )
        for name in ("start_offset", "low_mark", "refusal", "hidden", "last_stamp", "durability"):
            setattr(self, name, kept[name])
        self.gathers = kept["gathers"]  # routes have it
        del self._known, self._initialise
        self.__class__ = Log  # type: ignore[assignment]  # the point of it
