"""Chunks of objects that were read lately, in files of the local disk: what makes a far log readable at once.

    <data>/cache/<object id>.<chunk number>      at most `bytes_max` together; the one used longest ago goes first
    in memory                                    the chunks that came last, at most MEMORY_BYTES_MAX, read without a copy

It begins empty at each start, and what nothing names any more leaves it. A chunk is downloaded by one request, however many
readers wait for it, and is checked against its checksum before anyone sees it. Nobody waits for its file: that is written
after those who wait have it, and at the latest before it leaves the memory. Who reads chunks one after the other finds the
next ones here: they are asked for ahead. Threads that download are the cache's own: readers of the head of a log never wait
for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mainstem.codec.batch import crc32c
from mainstem.model.errors import ConfigError, CorruptFrame
from mainstem.storage.disk import REAL_DISK
from mainstem.storage.engine import Buffer
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.tier.iceberg.tables import is_rows
from mainstem.storage.tier.objects import Footer, Stored, checksums
from mainstem.storage.tier.remote import RemoteSegment
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreAway
from mainstem.storage.tier.workers import LATER, SOON, Workers

logger = logging.getLogger("mainstem.tier")

DIRECTORY = "cache"
DOWNLOADS = 8  # at once
AHEAD = 3  # chunks
FILES_MAX = 256
MEMORY_BYTES_MAX = 48 << 20
TRIES = 4  # of one download; who asked tries again later
PAUSE_S = 0.2  # before the second try, twice as long before each one after
DAMAGE_KEPT_S = 30.0  # a damaged object is looked at again after that long
BYTES_MIN = 64 << 20
NOTED_MAX = 10_000  # damaged pieces of objects that are remembered
WHOLE = -1  # in place of a chunk's number: what lies behind the body

Key = tuple[str, int]
T = TypeVar("T")


@dataclass(slots=True)
class Meters:
    hits: int = 0
    misses: int = 0
    ahead: int = 0  # chunks that were asked for before anyone needed them


class ChunkCache:
    """Any thread may call; only `bring` and `read` with `wait` wait."""

    def __init__(self, store: ObjectStore, data: Path, bytes_max: int) -> None:
        self._store = store
        self._directory = data / DIRECTORY
        self.bytes_max = max(bytes_max, BYTES_MIN)
        self.bytes = 0
        self.meters = Meters()
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Key, int] = OrderedDict()  # chunks that are here
        self._memory: OrderedDict[Key, Buffer] = OrderedDict()  # of these: the ones that came last
        self._memory_bytes = 0
        self._written: set[Key] = set()  # of these: those with a file
        self._coming: dict[Key, Future[None]] = {}
        self._ahead: set[Key] = set()  # of these: nobody waits for them
        self._rebuilding: dict[str, threading.Lock] = {}  # by object: files of tables
        self._damaged: dict[Key, tuple[CorruptFrame, float]] = {}
        self._noted: dict[Key, None] = {}  # damaged or missing when they were last asked for
        self._files = OpenFiles(REAL_DISK, FILES_MAX)
        self._workers = Workers("tier-get", DOWNLOADS)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(
        self, one: Stored, position: int, size: int, *, wait: bool, until: int, after: RemoteSegment | None = None
    ) -> Buffer | None:
        """Bytes of an object's body; None where some are not here and it may not `wait`. Who reads on does so to `until`,
        then in `after`."""
        pieces: list[Buffer] = []
        end = min(position + size, one.footer.body_size)
        while position < end:
            number = position // one.footer.chunk_bytes
            start = number * one.footer.chunk_bytes
            chunk_end = min(end, start + one.footer.chunk_bytes)
            piece = self._piece(one, number, position - start, chunk_end - position)
            if piece is None:
                if not wait:
                    return None
                self.bring(one, number)
                continue
            self._look_ahead(one, number, until, after)
            pieces.append(piece)
            position = chunk_end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def bring(self, one: Stored, number: int) -> None:
        """Wait until the chunk is here. CorruptFrame if it is damaged or missing, StoreAway if it cannot be had now."""
        self.meters.misses += 1
        try:
            self._ask(one, number, SOON).result()
        except CancelledError:
            raise StoreAway("the broker is stopping") from None

    def fetch(self, one: Stored, position: int, size: int) -> Future[bytes]:
        """Bytes that are read once: not kept here, and not checked against the checksum of their chunk."""
        return self._workers.submit(lambda: self._again(one, WHOLE, lambda: self._store.get(one.key, position, size)))

    @property
    def damaged_objects(self) -> int:
        """Objects of which something was damaged or missing when it was last asked for."""
        with self._lock:
            return len({object_id for object_id, _ in self._noted})

    def put(self, one: Stored, body: memoryview) -> None:
        """An object that was just made: who reads at the end of a log finds it here."""
        for number in range(len(one.footer.crcs)):
            start = number * one.footer.chunk_bytes
            self._keep((one.id, number), bytes(body[start : start + one.footer.chunk_size(number)]))

    def forget(self, object_ids: Collection[str]) -> None:
        """Objects that nothing names any more: what they hold may have been erased."""
        if not object_ids:
            return
        with self._lock:
            gone = [key for key in self._sizes if key[0] in object_ids]
        for key in gone:
            self._drop(key)

    def close(self) -> None:
        self._workers.close()
        with self._lock:
            waiting = list(self._coming.values())
        for future in waiting:
            future.cancel()
        self._files.close_all()

    # -- what is here

    def _piece(self, one: Stored, number: int, at: int, size: int) -> Buffer | None:
        key = one.id, number
        with self._lock:
            if key not in self._sizes:
                self._check_damaged(key)
                return None
            self._sizes.move_to_end(key)
            self.meters.hits += 1
            in_memory = self._memory.get(key)
        if in_memory is not None:
            return memoryview(in_memory)[at : at + size]
        try:
            with self._files.use(self._path(key)) as fd:
                found = os.pread(fd, size, at)
        except OSError:  # it had to go meanwhile, or someone emptied the directory
            found = b""
        if len(found) != size:
            self._drop(key)
            return None
        return found

    def _check_damaged(self, key: Key) -> None:
        damaged = self._damaged.get(key)
        if damaged is not None and time.monotonic() < damaged[1]:
            raise damaged[0]

    def _path(self, key: Key) -> Path:
        return self._directory / f"{key[0]}.{key[1]}"

    def _keep(self, key: Key, data: Buffer) -> None:
        """In memory; its file follows."""
        with self._lock:
            self._damaged.pop(key, None)
            if key in self._sizes:
                return
            self._sizes[key] = len(data)
            self.bytes += len(data)
            self._memory[key] = data
            self._memory_bytes += len(data)
            leaving = list(self._memory) if self._memory_bytes > MEMORY_BYTES_MAX else []
        for oldest in leaving:
            if self._memory_bytes <= MEMORY_BYTES_MAX or oldest == key:
                break
            self._write(oldest)
            self._leave_memory(oldest)
        self._make_room(key)
        self._workers.submit(lambda: self._write(key), LATER)

    def _write(self, key: Key) -> None:
        """Its file, if it has none yet. A disk that takes none costs a download later, nothing else."""
        with self._lock:
            data = self._memory.get(key)
            if data is None or key in self._written:
                return
            self._written.add(key)  # nobody else writes it; whoever reads finds it in memory
        try:
            self._path(key).write_bytes(data)
        except OSError as error:
            logger.warning("%s: cannot be cached on the disk: %s", self._path(key), error)
            with self._lock:
                self._written.discard(key)
        with self._lock:
            gone = key not in self._sizes
        if gone:  # it had to go meanwhile
            self._remove(key)

    def _leave_memory(self, key: Key) -> None:
        with self._lock:
            self._memory_bytes -= len(self._memory.pop(key, b""))
            if key not in self._written:
                self._forget(key)

    def _make_room(self, newest: Key) -> None:
        gone = list[Key]()
        with self._lock:
            while self.bytes > self.bytes_max:
                oldest = next(iter(self._sizes))
                if oldest == newest:
                    break
                gone.append(oldest)
                self._forget(oldest)
        for one in gone:
            self._remove(one)

    def _forget(self, key: Key) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        self._memory_bytes -= len(self._memory.pop(key, b""))
        self._written.discard(key)

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._forget(key)
        self._remove(key)

    def _remove(self, key: Key) -> None:
        self._files.forget(self._path(key))
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    # -- what comes

    def _look_ahead(self, one: Stored, number: int, until: int, after: RemoteSegment | None) -> None:
        """Whoever has read the chunk before reads on, most likely; so does who begins at the beginning."""
        if number and (one.id, number - 1) not in self._sizes:
            return
        last = (until - 1) // one.footer.chunk_bytes
        wanted = [(one, n) for n in range(number + 1, min(number + AHEAD, last) + 1)]
        if after is not None and number + AHEAD > last:
            wanted += [(after.object, n) for n in after.chunks_first]
        for item, n in wanted:
            key = item.id, n
            if n < len(item.footer.crcs) and key not in self._sizes and key not in self._coming:
                self.meters.ahead += 1
                self._ask(item, n, LATER)

    def _ask(self, one: Stored, number: int, priority: int) -> Future[None]:
        key = one.id, number
        with self._lock:
            coming = self._coming.get(key)
            # One that was only asked for ahead, and waits behind others, is asked for anew: someone needs it now.
            if coming is not None and (priority == LATER or key not in self._ahead or not coming.cancel()):
                return coming
            self._ahead.discard(key)
            if priority == LATER:
                self._ahead.add(key)

            def download() -> None:
                try:
                    with self._lock:
                        here = key in self._sizes
                    if not here and is_rows(one.key):
                        self._keep_rebuilt(one, key)
                    elif not here:
                        self._keep(key, self._download(one, number))
                except CorruptFrame as error:
                    with self._lock:
                        self._damaged[key] = error, time.monotonic() + DAMAGE_KEPT_S
                    logger.error("%s", error)
                    raise
                finally:
                    with self._lock:
                        self._coming.pop(key, None)
                        self._ahead.discard(key)

            future = self._coming[key] = self._workers.submit(download, priority)
            return future

    def _keep_rebuilt(self, one: Stored, key: Key) -> None:
        """A file of a table: all of its part is built again at once, however many of its chunks are asked for."""
        from mainstem.storage.tier.iceberg.parquet import body_from  # loads a large library, which few need

        def rebuilt() -> memoryview:
            assert isinstance(one.footer, Footer)
            data = self._store.get_all(one.key)
            try:
                body = memoryview(body_from(data, one.footer))
            except CorruptFrame as error:
                raise CorruptFrame(f"{self._store.url}/{one.key}: {error.message}") from error
            if checksums(body, one.footer.chunk_bytes) != one.footer.crcs:
                raise CorruptFrame(f"{self._store.url}/{one.key}: what its rows give back is not what was stored")
            return body

        with self._lock:
            alone = self._rebuilding.setdefault(one.id, threading.Lock())
        with alone:
            with self._lock:
                here = key in self._sizes
            if not here:
                self.put(one, self._again(one, key[1], rebuilt))
        with self._lock:
            self._rebuilding.pop(one.id, None)

    def _download(self, one: Stored, number: int) -> Buffer:
        footer, start = one.footer, number * one.footer.chunk_bytes

        def get() -> Buffer:
            data = self._store.get_view(one.key, start, footer.chunk_size(number))
            if crc32c(data) != footer.crcs[number]:
                raise CorruptFrame(f"{self._store.url}/{one.key}: the bytes at {start} do not match their checksum")
            return data

        return self._again(one, number, get)

    def _again(self, one: Stored, number: int, get: Callable[[], T]) -> T:
        pause = PAUSE_S
        for left in range(TRIES - 1, -1, -1):
            try:
                found = get()
            except (StoreAway, ConfigError, CorruptFrame) as error:
                if not left or isinstance(error, ObjectMissing) or self._workers.closed:
                    if isinstance(error, CorruptFrame):
                        self._note((one.id, number))
                    raise self._told(error, one) from error
                time.sleep(pause)
                pause *= 2
            else:
                if self._noted:
                    self._unnote(one.id, number)
                return found
        raise AssertionError("unreachable")

    def _note(self, key: Key) -> None:
        with self._lock:
            if len(self._noted) < NOTED_MAX:
                self._noted[key] = None

    def _unnote(self, object_id: str, number: int) -> None:
        """It is there again: an object that was missing as a whole is, too."""
        with self._lock:
            self._noted.pop((object_id, number), None)
            self._noted.pop((object_id, WHOLE), None)

    @staticmethod
    def _told(error: StoreAway | ConfigError | CorruptFrame, one: Stored) -> Exception:
        if isinstance(error, CorruptFrame):
            fix = f"mainstem log verify {one.footer.log_id}" if one.footer.log_id >= 0 else "mainstem log verify"
            return type(error)(f"{error.message}; it holds {one.footer.holds}", fix=fix)
        return StoreAway(error.message, fix=error.fix)
