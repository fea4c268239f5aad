"""The logs of a data directory: making, opening and removing them.

<data>/logs/<id>/            the engine's files
<data>/logs/<id>/reserved    offsets given out at most
<data>/logs/<id>/start       where streams begin, if that is beyond the first part: what lies before is only held
<data>/logs/<id>/times       the newest time in each sealed part (derived)
<data>/logs/<id>/topics/     a shared log's topic index (derived: rebuilt when it is missing or damaged)
<data>/logs/<id>.removed     of a deleted topic; its files are being unlinked
<data>/logs/closed, opened   what is known of logs that are not open (`sleeping.py`)
<data>/lost/<id>/            what no topic names (`lost.py`)
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.log.damaged import pass_over
from mainstem.log.durability import SYNC, Durability, parse_durability
from mainstem.log.log import UNSYNCED_BYTES_MAX, Log
from mainstem.log.lost import LostLogs
from mainstem.log.meters import Meters
from mainstem.log.overflow import MakeRoom, refuse
from mainstem.log.sleeping import Asleep, ClosedLogs, SleepingLog
from mainstem.log.stamps import Stamps
from mainstem.log.topic_index import TopicIndex
from mainstem.model.errors import ConfigError, CorruptFrame, DiskFull, InvalidArgument, Overloaded, StorageFault
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.ballast import FIX
from mainstem.storage.disk import REAL_DISK, Disk, is_full
from mainstem.storage.engine import Engine
from mainstem.storage.engines import ENGINES, EngineOptions, SharedFiles, open_engine
from mainstem.storage.log_state import START, FileState
from mainstem.storage.object.shared import ObjectLogs
from mainstem.storage.reclaiming import remove_tree
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.open_files import FILES_MAX
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.tier import TIERED, Tier
from mainstem.storage.tier.topics import KeptTopics, clipped
from mainstem.storage.topic_columns import TopicColumn, frame_columns

logger = logging.getLogger("mainstem.log")

REBUILD_BYTES = 8 << 20
PROGRESS_S = 2.0
TIMES, REMOVED = "times", ".removed"


@dataclass(slots=True)
class LogLimits:
    """Of all logs of a broker."""

    open_files_max: int = FILES_MAX
    dedicated_logs_max: int = 10_000
    topics_max: int = 10_000_000  # that one shared log knows
    unsynced_bytes_max: int = UNSYNCED_BYTES_MAX  # of one log


class Logs:
    def __init__(
        self,
        directory: Path,
        stamps: Stamps,
        on_dirty: Callable[[Log], None],
        limits: LogLimits | None = None,
        disk: Disk = REAL_DISK,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._stamps = stamps
        self._on_dirty = on_dirty
        self.make_room: MakeRoom = refuse  # in logs that let their oldest records go; the broker sets it
        self.limits = limits or LogLimits()
        self.files = SharedFiles(disk, files_max=self.limits.open_files_max)
        self.lost = LostLogs(directory, disk)
        self.meters = Meters()
        self.tier: Tier | None = None  # where old parts may lie; set before logs are opened
        self.objects: ObjectLogs | None = None  # with a tier: what the logs of the engine `object` share
        self.replicated = False  # the disk's promise is kept by other machines; set before logs are opened
        self.closed = ClosedLogs(directory, disk)
        self.remembered: tuple[bytes, ...] = ()  # topics of which a log that sleeps still knows whether it has them
        self.on_index_lost: Callable[[], None] = lambda: None  # a stretch of a topic index is damaged, in any thread
        self.by_id: dict[int, Log] = {}

    def path_of(self, log_id: int) -> Path:
        return self._directory / str(log_id)

    def open(
        self,
        log_id: int,
        *,
        engine: str,
        shared: bool,
        policy: dict[str, Any],
        first_offset: int = 0,
        topic_of: dict[int, bytes] | None = None,
    ) -> Log:
        """Recover and open one log, or make it where there is none. One that a clean stop closed sleeps on.

        `topic_of`: names of topics by their ids, for one that is opened when all are known.
        """
        if not shared and len(self.by_id) >= self.limits.dedicated_logs_max:
            raise Overloaded(
                f"{len(self.by_id)} logs are open already",
                fix="let topics share a log: mainstem topic alter TOPIC --layout shared; or raise limits.dedicated_logs_max",
            )
        if self.replicated and ENGINES[engine].one_machine:
            raise InvalidArgument(
                f"engine {engine} keeps its data on one machine, and this broker is one of a cluster",
                fix="use the segment engine",
            )
        initialise = partial(self._initialise, engine, shared, policy, first_offset)
        known = self.closed.take(log_id)
        if known is not None:
            wake = partial(self._wake, initialise, topic_of or {})
            log: Log = SleepingLog(log_id, known, parse_durability(policy["durability"]), wake, shared=shared)
        else:
            log = Log.__new__(Log)
            log.id = log_id
            initialise(log)
        log.engine_name = engine
        self.by_id[log_id] = log
        return log

    def load_closed(self) -> None:
        """Before any is opened."""
        if self._may_sleep():
            self.closed.load()

    def _may_sleep(self) -> bool:
        """Not where others write files of a log, too."""
        return self.tier is None and not self.replicated

    def _wake(self, initialise: Callable[[Log], None], topic_of: dict[int, bytes], log: Log) -> None:
        self.closed.open(log.id)
        initialise(log)
        if log.index is not None:
            rebuild_index(log, log.index, topic_of)

    def _initialise(self, engine: str, shared: bool, policy: dict[str, Any], first_offset: int, log: Log) -> None:
        log_id = log.id
        try:
            self._open(log, engine, shared, policy, first_offset)
        except OSError as error:
            path = self.path_of(log_id)
            if is_full(error):
                raise DiskFull(f"{path}: no space to open a log: {error}", fix=FIX) from error
            raise StorageFault(f"{path}: cannot open the log: {error}") from error

    def _open(self, log: Log, engine: str, shared: bool, policy: dict[str, Any], first_offset: int) -> None:
        log_id = log.id
        path = self.path_of(log_id)
        options = EngineOptions(
            policy["segment_bytes"], shared=self.files, objects=self.objects, progress=_Progress(log_id)
        )
        on_disk = ENGINES[engine].on_disk
        store = open_engine(engine, path, log_id, options=options)
        state = FileState(path, self._disk)
        store = self._with_tier(store, log_id, state, policy)
        start = state.get(START) if on_disk else None
        names = TopicTrie(self.limits.topics_max)
        index = TopicIndex.open(path / "topics" if on_disk else None, names) if shared else None
        if index is not None:
            index.on_lost = lambda: self.on_index_lost()
        Log.__init__(
            log,
            log_id,
            store,
            self._stamps,
            Reservation.open(path, self._disk),
            durability=self.durability_of(policy["durability"]) if on_disk else parse_durability(policy["durability"]),
            index=index,
            first_offset=max(first_offset, int(start["offset"])) if start else first_offset,
            on_dirty=self._on_dirty,
            keep_start=lambda offset: state.put(START, {"offset": offset}),
            times_path=path / TIMES if on_disk else None,
            disk=self._disk,
            meters=self.meters,
        )
        log.on_disk = on_disk
        if policy.get("overflow") == "ring" and not on_disk:
            log.make_room = self.make_room
        log.unsynced_bytes_max = self.limits.unsynced_bytes_max

    def _with_tier(self, store: Engine, log_id: int, state: FileState, policy: dict[str, Any]) -> Engine:
        """The engine, or one that stands in front of it and finds the parts that lie in the object store."""
        if not isinstance(store, SegmentEngine):
            return store
        path = self.path_of(log_id)
        if self.tier is None:
            if state.get(TIERED) is not None:
                raise ConfigError(
                    f"{path}: parts of this log lie in an object store, and no store is set",
                    fix='name it: [tier] store = "s3://BUCKET/PREFIX" (tier.sqlite in the data directory says which)',
                )
            return store
        self.tier.check_known(path, state)
        wanted = policy.get("tier", "none") != "none" or self.tier.holds(log_id)
        return self.tier.attach(store, log_id, path) if wanted else store

    def durability_of(self, text: str) -> Durability:
        """What a policy says; where the disk is a cell's an ack always waits, as nothing else survives its machine."""
        return SYNC if self.replicated else parse_durability(text)

    def limit_unsynced(self, bytes_max: int) -> None:
        self.limits.unsynced_bytes_max = bytes_max
        for log in self.by_id.values():
            log.unsynced_bytes_max = bytes_max

    def remove(self, log_id: int) -> None:
        """Nobody finds the log any more. `unlink` follows, in a thread, once its engine is closed."""
        log = self.by_id.pop(log_id, None)
        if log is not None:
            log.removed = True

    def unlink(self, log_id: int) -> None:
        """Remove the files of a log that is not open; gigabytes take a while. Its id is never used again."""
        path = self.path_of(log_id)
        gone = path.with_name(path.name + REMOVED)
        with contextlib.suppress(FileNotFoundError):
            path.rename(gone)
        self._forget_objects(log_id)
        remove_tree(gone)

    def _forget_objects(self, log_id: int) -> None:
        if self.tier is not None:
            self.tier.forget_log(log_id)
        if self.objects is not None:
            self.objects.forget_log(log_id)

    def sweep(self, known: set[int], *, now_ms: int, lost_kept_ms: int) -> None:
        """Unlink what a crash kept of removed logs, and move aside what nobody knows."""
        for path in self._directory.glob("*" + REMOVED):
            if path.name.removesuffix(REMOVED).isdigit():
                self._forget_objects(int(path.name.removesuffix(REMOVED)))
            threading.Thread(target=remove_tree, args=(path,), name=f"erase {path.name}", daemon=True).start()
        self.lost.take(known, now_ms)
        self.lost.expire(now_ms, lost_kept_ms)

    def close(self) -> None:
        """What keeps one log from being marked clean keeps no other."""
        closed, sleeps = dict[int, Asleep](), self._may_sleep()
        for log in self.by_id.values():
            if log.is_asleep:
                continue
            try:
                known = Asleep.of(log, log.engine.stat(), self.remembered) if sleeps and not log.held else None
                log.close()
                if known is not None and known.end_offset == log.next_offset:
                    closed[log.id] = replace(known, directory_time=self.closed.time_of(log.id))
            except Overloaded as error:  # a full disk, or an object store that does not answer
                logger.error("log %d is not closed cleanly, the next start recovers it: %s", log.id, error)
        try:
            self.closed.keep(closed)
        except OSError as error:
            logger.warning("the next start opens every log: %s", error)
        self.by_id.clear()


class UnknownStretch(NamedTuple):
    """Offsets of which neither an object nor the local disk says what they hold."""

    base_offset: int
    end_offset: int


class _Progress:
    """Says now and then how far a recovery is."""

    def __init__(self, log_id: int) -> None:
        self._log_id = log_id
        self._told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            logger.info("log %d: recovering, %d of %d MiB looked through", self._log_id, done >> 20, total >> 20)


def rebuild_index(log: Log, index: TopicIndex, topic_of: dict[int, bytes] | None = None) -> int:
    """Index what the log holds and the index does not cover (everything, when its files were lost)."""
    added, stored = 0, log.engine.stat().start_offset  # not where streams begin: below lies what queues hold
    for start, end in [*index.missing, (max(index.covered_end, stored), log.written)]:
        added += add_columns(index, topic_columns(log, start, end, topic_of or {}))
    if added:
        logger.info("log %d: indexed the topics of %d records again", log.id, added)
    return added


def add_columns(index: TopicIndex, columns: Iterable[TopicColumn | UnknownStretch]) -> int:
    """A damaged chunk answers again from the first column on: add all of its columns in one turn of the loop."""
    added = 0
    for column in columns:
        if isinstance(column, UnknownStretch):
            index.add_unknown(*column)
            continue
        numbers = [0, *map(index.topics.number, column.names[1:])]
        index.add(column.base_offset, array("I", map(numbers.__getitem__, column.numbers)))
        added += len(column.numbers)
    return added


def topic_columns(log: Log, start: int, end: int, topic_of: dict[int, bytes]) -> Iterator[TopicColumn | UnknownStretch]:
    """What the log's records say of their topics. Reads only the log, so that any thread may do it: of parts that lie in an
    object store what is kept beside them, else the frames."""
    kept = log.engine.kept_topics(start, end) if isinstance(log.engine, TieredEngine) else None
    offset = start
    while offset < end:
        found = _kept_at(log, kept, offset) if kept is not None else None
        if found is not None:
            yield from clipped(found[0], offset, end)
            offset = found[1]
            continue
        try:
            piece = log.read_in_thread(offset, REBUILD_BYTES, end)
        except CorruptFrame as error:
            after = min(end, pass_over(log, offset, error, "and nobody knows which topics they hold"))
            yield UnknownStretch(offset, after)
            offset = after
            continue
        if piece is None:
            break
        yield from frame_columns(piece.data, log.id, offset, topic_of)  # a frame may begin before; what is known stays
        offset = piece.end_offset
    if kept is not None and kept.parts:
        logger.info("log %d: %d objects said which topics they hold", log.id, kept.parts)


def _kept_at(log: Log, kept: KeptTopics, offset: int) -> tuple[list[TopicColumn], int] | None:
    try:
        return kept.at(offset)
    except CorruptFrame as error:
        logger.warning("log %d: the topics of offsets from %d on are read from their frames: %s", log.id, offset, error)
        return None
