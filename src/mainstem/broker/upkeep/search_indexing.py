"""Sealed parts get their search index (log/search_index.py) in the background.

One thread of lowest priority reads each part once, newest first; compiled code does most of it without the interpreter's
lock. What it has not reached yet is searched all the same, only slower, so nobody waits for it: not a stop, not a deletion.
Indexes of parts that are gone are deleted in the next round; one that is cut off or of an older format is built again. What
leaves for the object store leaves its index here, so that a search fetches only what it must: who drops it has it
indexed first. A topic with `search_index = "off"` has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.log.log import Log
from mainstem.log.search_index import SUFFIX, build_index, index_path, is_whole
from mainstem.storage.engine import FileParts, Part, Stat
from mainstem.storage.scheduling import yield_to_others
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.tier.engine import TieredEngine

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker

logger = logging.getLogger("mainstem.search")

ROUND_S = 10.0
NICER_BY = 19
FAILED_MAX = 1_000  # parts that could not be indexed, and are not tried again before the next start
TOPICS_AT_ONCE = 500  # looked at in one turn of the loop


class SearchIndexing:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, "search-index", initializer=_lower_priority)
        self._stopping = threading.Event()
        self._failed: set[Path] = set()
        self._whole: dict[int, set[str]] = {}  # indexes of each log that were looked at by this process
        self.parts = 0  # indexed by this process
        self.read_bytes = 0  # of parts, for that
        self.written_bytes = 0  # of indexes

    async def run(self) -> None:
        """Until it is cancelled, which the thread notices between two parts."""
        try:
            while True:
                await asyncio.sleep(ROUND_S)
                try:
                    await self.round()
                except Exception:
                    logger.exception("building search indexes failed; it is tried again in %.0f s", ROUND_S)
        finally:
            self._stopping.set()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def round(self) -> None:
        """Every part that lacks its index gets it; those of parts that are gone are deleted."""
        wanted = await self._wanted_logs()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._work, wanted)

    async def _wanted_logs(self) -> list[Log]:
        broker = self._broker
        without: set[Log] = set()
        for namespace in list(broker.namespaces.values()):
            without |= {stem for stem, policy in namespace.stem_policies.items() if policy.search_index == "off"}
            for number, topic in enumerate(list(namespace.topics.values())):
                if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                    await broker.turns.turn()
                if topic.policy.search_index == "off":
                    without |= {span.log for one in topic.partitions for span in one.spans if not span.shared}
        return [log for log in broker.logs.by_id.values() if log not in without]

    # -- in the thread

    def _work(self, logs: list[Log]) -> None:
        root = self._broker.options.data / "search"
        kept: set[str] = set()
        for log in logs:
            if self._stopping.is_set():
                return
            if log.is_asleep and _is_indexed(log.engine.stat(), root / str(log.id)):
                kept.add(str(log.id))
                continue
            engine = log.engine.local if isinstance(log.engine, TieredEngine) else log.engine
            if isinstance(engine, FileParts) and not log.removed:
                kept.add(str(log.id))
                self._index_log(log, engine, engine.stat(), root / str(log.id))
        with contextlib.suppress(FileNotFoundError):
            for folder in root.iterdir():
                if folder.name not in kept and not self._stopping.is_set():
                    shutil.rmtree(folder, ignore_errors=True)
        self._whole = {log: names for log, names in self._whole.items() if str(log) in kept}

    def _index_log(self, log: Log, engine: FileParts, stat: Stat, folder: Path) -> None:
        assert stat.path is not None
        parts = [part for part in stat.parts if part.sealed and part.size_bytes]
        known = {one.name for one in folder.iterdir()} if folder.exists() else set()
        named = {part.name for part in parts} | {part.name for part in log.engine.stat().parts}
        for name in known - {f"{Path(one).stem}{SUFFIX}" for one in named}:
            (folder / name).unlink(missing_ok=True)
        seen = self._whole.get(log.id, set()) & known
        self._whole[log.id] = seen
        for part in reversed(parts):
            if self._stopping.is_set() or log.removed:
                return
            name = f"{Path(part.name).stem}{SUFFIX}"
            if name not in known or (name not in seen and not is_whole(folder / name)):
                self._index_part(log, engine, Path(stat.path) / part.name, part)
            else:
                seen.add(name)

    def index_before(self, log: Log, engine: SegmentEngine, before_offset: int) -> None:
        """Parts that are about to leave this disk, if they are not indexed yet. In a thread that may wait; the work is
        done by ours, so that publishing goes before it. A stop does not wait: what has no index is searched more slowly."""
        stat = engine.stat()
        assert stat.path is not None
        leaving = [part for part in stat.parts if part.sealed and part.size_bytes and part.end_offset <= before_offset]
        missing = [(path, part) for part in leaving if not index_path(path := Path(stat.path) / part.name).exists()]

        def work() -> None:
            for path, part in missing:
                if not self._stopping.is_set():
                    self._index_part(log, engine, path, part)

        if missing and not self._stopping.is_set():
            with contextlib.suppress(RuntimeError, CancelledError):  # it stops
                self._thread.submit(work).result()

    def _index_part(self, log: Log, engine: FileParts, path: Path, part: Part) -> None:
        if path in self._failed or not engine.hold(part):
            return
        try:
            self.written_bytes += build_index(path, part.size_bytes)
            self.parts += 1
            self.read_bytes += part.size_bytes
        except OSError as error:
            if len(self._failed) < FAILED_MAX:
                self._failed.add(path)
            logger.warning("log %d: no search index of %s: %s", log.id, path.name, error)
            index_path(path).with_suffix(".part").unlink(missing_ok=True)
        finally:
            engine.release(part)


def _lower_priority() -> None:
    yield_to_others(threading.get_native_id(), NICER_BY)


def _is_indexed(stat: Stat, folder: Path) -> bool:
    """Whether nothing is left to do for a log, as far as can be told without opening it."""
    parts = [part for part in stat.parts if part.sealed and part.size_bytes]
    return all((folder / f"{Path(part.name).stem}{SUFFIX}").exists() for part in parts)
