"""What the tiered logs of one broker share: the store, the registry, the cache; uploading one part; deleting what went.

The order of an upload, so that a crash anywhere loses nothing and forgets no object:

    1 registry: pending      durable before the first byte leaves
    2 PUT                    under a key that was never used
    3 look at it             its footer is read back from where it must lie
    4 registry: live + part  durable: from now on readers may use it, and the local file may go

and of a removal: registry: doomed; after the grace time, once the manifest in the bucket does not name it either, DELETE;
then the registry forgets it. Nothing is ever listed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import mmap
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mainstem.codec.batch import crc32c, frame_heads
from mainstem.model.errors import ConfigError, CorruptFrame, MainstemError, StorageFault
from mainstem.storage.engine import Buffer, Part
from mainstem.storage.log_state import FileState
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.index import SparseIndex, Summary
from mainstem.storage.segment.index_cache import IndexCache
from mainstem.storage.tier.cache import ChunkCache
from mainstem.storage.tier.engine import TieredEngine
from mainstem.storage.tier.iceberg.tables import Tables, TableTarget, is_rows, key_of
from mainstem.storage.tier.objects import Object, Stored, make_footer, new_object
from mainstem.storage.tier.patience import START_S, Patience
from mainstem.storage.tier.registry import FILE, Registry, StatementJournal
from mainstem.storage.tier.store import ObjectMissing, ObjectStore, StoreAway, StoreSettings
from mainstem.storage.tier.topics import encode_topics, keep_here

logger = logging.getLogger("mainstem.tier")

OWNER, CHECK, CHECKED = "owner", "check", b"mainstem\n"
LOOKS = 3  # at either, before what it says is believed to be wrong
TIERED = "tiered"  # a small file of a log that has dropped parts: whose registry knows them
REWRITE_TRIES = 3
TABLE_TRIES = 3
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0  # between tries of an upload
DELETES_MAX = 1_000  # in one round
TAIL_BYTES = 1 << 20  # room for topics and footer of an object, at least; a larger tail costs a copy
MONTH_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class TierSettings:
    store: StoreSettings
    cache_bytes: int = 1 << 30
    grace_ms: int = 3_600_000
    manifest_ms: int = 300_000
    bundle_bytes: int = 8 << 20  # engine object: what travels in one object
    bundle_ms: int = 250  # and how long it waits for more
    unstored_bytes_max: int = 256 << 20  # engine object: in memory, on its way
    backlog_bytes_max: int = -1  # sealed and not uploaded; beyond it publishers are refused. -1: the disk decides
    catalog: str = ""  # of Iceberg tables; empty: a file in the data directory
    prices: tuple[float, float, float] = (0.023, 0.005, 0.0004)  # a GB and month, a thousand PUTs, a thousand GETs


class Tier:
    """Any thread may call; what reaches the store waits."""

    def __init__(
        self,
        data: Path,
        settings: TierSettings,
        indexes: IndexCache,
        now_ms: Callable[[], int] | None = None,
        *,
        journal: StatementJournal | None = None,
    ) -> None:
        """`journal` keeps the registry elsewhere, too."""
        self.settings = settings
        self.registry = Registry(data, journal=journal)
        self.store = ObjectStore(settings.store)
        self.cache = ChunkCache(self.store, data, settings.cache_bytes)
        self.indexes = indexes
        self.now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self.tables = Tables(data, self.registry, settings.store, settings.catalog)
        self._left: set[str] = set()  # doomed files that are in no table any more
        self._noted: set[Path] = set()
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self.closing = threading.Event()
        self.fault: MainstemError | None = None  # why the last upload did not succeed
        self.lost: ConfigError | None = None  # why the store is not ours any more
        self.uploads = self.upload_failures = 0
        self._logs = self.registry.logs()
        self.totals: dict[str, tuple[int, int]] = {}  # objects and bytes by state, as they were lately
        self._totals_of = -1
        self.registry.doom_pending(self.now_ms())

    # -- the store is ours

    def claim(self, *, known_ours: bool = False) -> None:
        """At a start: the store is there, it lets us write, read and delete, and no other broker uses its prefix.

        A store that is used for the first time is waited for (`START_S`).
        A store that does not answer is no reason to stay away, once it was ours: uploads wait, the rest is served.
        `known_ours`: where the registry says so the store is not asked, as clients wait for a cell's next owner.
        """
        known, url = self.registry.fact("store"), self.store.url
        if known and known != url and self.registry.logs():
            raise ConfigError(
                f"tier.store is {url}, and this broker's objects lie in {known}", fix=f'[tier] store = "{known}"'
            )
        patience = Patience(self.settings.store, 0.0 if known == url else START_S, self.closing)
        try:
            if not known_ours or known != url:
                self._claim(patience)
        except StoreAway as error:
            if known != url:
                raise ConfigError(
                    f"{error.message}; a store that is used for the first time must answer", fix=error.fix
                ) from error
            logger.error("uploads wait: %s", error)
            return
        self.registry.set_fact("store", url)
        self.registry.set_fact("settings", json.dumps(asdict(self.settings.store)))

    def _claim(self, patience: Patience) -> None:
        again, check = patience.try_again, f"{CHECK}/{self.registry.id}"
        again(lambda: self.store.put(check, CHECKED))
        for left in range(LOOKS - 1, -1, -1):  # an answer may be damaged
            try:
                found = again(lambda: self.store.get(check, 0, len(CHECKED)))
            except ObjectMissing:
                raise
            except CorruptFrame:
                found = b""
            if found == CHECKED:
                break
            if not left:
                raise ConfigError(
                    f"{self.store.url}/{check}: what was written is not what is read", fix="mainstem doctor"
                )
        again(lambda: self.store.delete(check))
        again(self.check_ours)

    def check_ours(self) -> None:
        """Before anything is replaced or deleted there that another broker may need: a restored copy, or one that was
        started with the same prefix. ConfigError if it is not ours any more: then nothing is uploaded either."""
        try:
            for left in range(LOOKS - 1, -1, -1):  # an answer may be damaged
                try:
                    self._check_owner(self._owner())
                    break
                except ConfigError:
                    if not left:
                        raise
        except ConfigError as error:
            if self.lost is None and self.registry.fact("store"):
                logger.error("the object store is used by another broker, nothing more is uploaded: %s", error)
            self.lost = error
            raise
        self.lost = None

    def _owner(self) -> dict[str, str]:
        try:
            found = self.store.get_all(OWNER)
        except ObjectMissing:  # two brokers may see that at the same moment: the second to create it is refused
            self.store.create(OWNER, owner_document(self.registry))
            found = self.store.get_all(OWNER)
        try:
            return dict(json.loads(found))
        except ValueError as error:
            raise ConfigError(
                f"{self.store.url}/{OWNER} does not say whose the prefix is: {error}",
                fix=f"mainstem restore {self.store.url} DIRECTORY writes it again",
            ) from error

    def _check_owner(self, owner: dict[str, str]) -> None:
        if owner.get("id") == self.registry.id and owner.get("incarnation") != self.registry.fact("incarnation"):
            raise ConfigError(
                f"{self.store.url} was restored elsewhere (mainstem restore): this data directory is its past",
                fix=f"start the restored one; or take it over again: mainstem restore {self.store.url} DIRECTORY",
            )
        if owner.get("id") != self.registry.id:
            raise ConfigError(
                f"{self.store.url} belongs to another broker ({owner.get('id')})",
                fix=f"a prefix of its own for each broker: tier.store = {self.store.url}-2; "
                f"to go on with that broker's data: mainstem restore {self.store.url} DIRECTORY",
            )

    # -- logs

    def attach(self, local: SegmentEngine, log_id: int, directory: Path) -> TieredEngine:
        return TieredEngine(local, self, log_id, directory)

    def holds(self, log_id: int) -> bool:
        """Whether something of it is in the store."""
        return log_id in self._logs

    def check_known(self, directory: Path, disk_state: FileState) -> None:
        """A log that dropped parts must not be served by a registry that does not know them: they would seem lost."""
        noted = disk_state.get(TIERED)
        if noted is not None and noted["id"] != self.registry.id:
            raise StorageFault(
                f"{directory}: parts of this log are in an object store, and {self.registry.path} does not know them",
                fix=f"put the {FILE} of broker {noted['id']} back, or mainstem restore {self.store.url} DIRECTORY",
            )

    def note_drop(self, directory: Path) -> None:
        """Before the first local part goes."""
        if directory not in self._noted:
            FileState(directory).put(TIERED, {"id": self.registry.id})
            self._noted.add(directory)

    def forget_log(self, log_id: int) -> None:
        """Its topic was deleted."""
        gone = {one.id for one in self.registry.parts_of(log_id)}
        self.registry.doom_log(log_id, self.now_ms())
        self.cache.forget(gone)

    # -- objects

    def upload(self, engine: TieredEngine, log_id: int, part: Part, directory: Path) -> bool:
        """Returns once it is stored, however long the store takes. False if the part went or was rewritten meanwhile;
        StoreAway if the broker stops. In a thread of ours."""
        if not engine.hold(part):
            return False
        try:
            index = engine.index_of(part)
            room = room_for(part.size_bytes + len(index))
            with (directory / part.name).open("rb", buffering=0) as file:
                read = _read_into(file, room[: part.size_bytes])
            if read != part.size_bytes:
                raise CorruptFrame(f"{directory / part.name}: {read} bytes instead of {part.size_bytes}")
        finally:
            engine.release(part)
        target = engine.table_target
        made = None if target is None else self._store_rows(log_id, part, room[: part.size_bytes], target)
        return engine.register(made or self._store(engine, log_id, part, room, index))

    def upload_rewritten(self, engine: TieredEngine, log_id: int, old: Part, frames: Sequence[Buffer]) -> Object:
        """A part that is only in the store, cut down to these frames. The caller commits it."""
        index, at = SparseIndex(old.base_offset), 0
        body = memoryview(bytearray().join(frames))
        for head in frame_heads(body, log_id):
            assert old.base_offset <= head.base_offset < old.end_offset
            index.add(at, head.base_offset, head.stamp)
            at += head.size
        summary = Summary(log_id, old.base_offset, old.end_offset, old.first_stamp, old.last_stamp, len(body))
        part = Part(
            old.name,
            old.generation + 1,
            old.base_offset,
            old.end_offset,
            old.first_stamp,
            old.last_stamp,
            len(body),
            True,
        )
        target, encoded = engine.table_target, index.encode(summary)
        made = None if target is None else self._store_rows(log_id, part, body, target)
        if made is None:
            room = room_for(len(body) + len(encoded))
            room[: len(body)] = body
            made = self._store(engine, log_id, part, room, encoded, REWRITE_TRIES)
        return made

    def _store_rows(self, log_id: int, part: Part, body: memoryview, target: TableTarget) -> Object | None:
        """The part as a file of an Iceberg table; None where it must rest as the segment it is."""
        if not body:
            return None
        from mainstem.storage.tier.iceberg.parquet import NotForTables, index_of, to_parquet

        self._leave_tables()
        try:
            data = bytearray(to_parquet(body, log_id, target, self.tables.columns(target.table)))
        except NotForTables as reason:
            logger.warning(
                "log %d: %s rests as a segment, not in table %s: %s", log_id, part.name, target.table, reason
            )
            return None
        footer = make_footer(log_id, part, body, 0)
        index = index_of(body, footer)
        object_id = uuid.uuid4().hex
        footer = make_footer(log_id, part, memoryview(b"".join((body, index))), len(index))
        made = Object(object_id, key_of(target.table, object_id), footer)
        self.registry.begin(made, len(data), self.now_ms())

        def put() -> None:
            self.store.put(made.key, data)
            if self.store.get_all(made.key) != data:
                raise StoreAway(f"{self.store.url}/{made.key}: what was stored is not what was sent")

        try:
            self.keep_trying(put)
            self.keep_trying(lambda: self.tables.add(target.table, made.key), TABLE_TRIES)
        except BaseException:
            if not self.closing.is_set():
                self.doom([made])
            raise
        self.uploads += 1
        return made

    def _leave_tables(self) -> None:
        """Files that hold no part any more leave their tables, before new ones come: no row is there twice."""
        gone: dict[str, list[str]] = {}
        for one in self.registry.doomed(self.now_ms() + 1, DELETES_MAX):
            if is_rows(one.key) and one.key not in self._left:
                gone.setdefault(one.key.split("/")[1], []).append(one.key)
        for table, keys in gone.items():
            self.tables.remove(table, keys)
            self._left.update(keys)

    def _store(
        self, engine: TieredEngine, log_id: int, part: Part, room: memoryview, index: bytes, tries: int = 0
    ) -> Object:
        """Steps 1 to 3 of the frames at the beginning of `room`; without `tries` until it is done."""
        topic_of = engine.topic_of
        topics = b"" if topic_of is None else self._topics(log_id, part, room[: part.size_bytes], topic_of)
        end = part.size_bytes + len(index)
        room[part.size_bytes : end] = index
        footer = make_footer(log_id, part, room[:end], len(index), len(topics))
        tail = topics + footer.encode()
        if end + len(tail) > len(room):
            room = memoryview(b"".join((room[:end], tail)))
        else:
            room[end : end + len(tail)] = tail
        made = new_object(part, footer)
        self.store_object(made, room[: end + len(tail)], tries)
        if topics:
            keep_here(engine.directory, made, topics)
        return made

    @staticmethod
    def _topics(log_id: int, part: Part, frames: memoryview, topic_of: dict[int, bytes]) -> bytes:
        """Of records that cannot be read there are none: whoever needs them meets the same damage in the frames."""
        try:
            return encode_topics(frames, log_id, part.base_offset, topic_of)
        except MainstemError as error:
            logger.warning("log %d: %s is stored without the topics of its records: %s", log_id, part.name, error)
            return b""

    def store_object(self, made: Stored, body: bytearray | memoryview, tries: int = 0) -> None:
        """Steps 1 to 3 of an object of any format: `body` is all of it, with its footer."""
        self.registry.begin(made, len(body), self.now_ms())
        tail = bytes(body[made.footer.body_size :])

        def put() -> None:
            self.store.put(made.key, body)
            self._look_at(made, tail)

        try:
            self.keep_trying(put, tries)
        except BaseException:
            if not self.closing.is_set():  # else the next start does
                self.registry.doom([made.id], self.now_ms())
            raise
        self.uploads += 1

    def keep_trying(self, call: Callable[[], None], tries: int = 0) -> None:
        """A request that does no harm when it is repeated: an answer may be lost. Without `tries` until it is done."""
        pause_s = PAUSE_S
        for number in itertools.count(1):
            try:
                call()
            except (StoreAway, ConfigError, CorruptFrame) as error:
                self.upload_failures += 1
                self.tell_fault(error)
                if number == tries or self.closing.wait(pause_s):
                    raise StoreAway(error.message, fix=error.fix) from error
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                self.tell_fault(None)
                return

    def tell_fault(self, error: MainstemError | None) -> None:
        """Say it once, and once when it is over."""
        with self._lock:
            before, self.fault = self.fault, error
        if error is not None and before is None:
            logger.error("the object store takes nothing, uploads wait and are tried again: %s", error)
        elif error is None and before is not None:
            logger.warning("the object store takes uploads again")

    def _look_at(self, made: Stored, tail: bytes) -> None:
        """It is there, as long as it must be, and ends as it must. The store checked the sum of what we sent (s3); of a
        directory, which checks nothing, all of it is read again."""
        size = made.footer.body_size
        if self.store.get(made.key, size, len(tail)) != tail:
            raise StoreAway(f"{self.store.url}/{made.key}: what was stored does not end as what was sent")
        if self.store.url.startswith("file://"):
            for number, checksum in enumerate(made.footer.crcs):
                start = number * made.footer.chunk_bytes
                if crc32c(self.store.get(made.key, start, made.footer.chunk_size(number))) != checksum:
                    raise StoreAway(f"{self.store.url}/{made.key}: what was stored is not what was sent")

    def commit(self, made: Object) -> None:
        self.registry.commit(made, self.now_ms())

    def doom(self, objects: Sequence[Stored]) -> None:
        ids = {one.id for one in objects}
        self.registry.doom(sorted(ids), self.now_ms())
        self.cache.forget(ids)

    def count(self) -> None:
        """Look at the registry, if it has changed, for who must not wait for it."""
        if self._totals_of != self.registry.version:
            self._totals_of = self.registry.version
            self.totals = self.registry.totals()

    def cost_month(self) -> float:
        """What a month costs at the store's list price: what is stored now, and requests as often as since the start."""
        stored, puts, gets = self.settings.prices
        objects = self.totals.values()
        months = max(time.monotonic() - self._began_s, 60.0) / MONTH_S
        requests = self.store.meters.requests
        rate = (requests["PUT"] * puts + requests["GET"] * gets) / 1000 / months
        return sum(size for _, size in objects) / 1e9 * stored + rate

    def sweep(self, before_ms: int | None = None) -> int:
        """Delete what was doomed longer ago than the grace time, and before `before_ms`; returns how many objects went.
        Waits for the store."""
        gone, limit = 0, self.now_ms() - self.settings.grace_ms
        doomed = self.registry.doomed(limit if before_ms is None else min(limit, before_ms), DELETES_MAX)
        if doomed:
            self.check_ours()  # a restored copy may name them
        if any(is_rows(one.key) for one in doomed):
            self._leave_tables()
        self.cache.forget({one.id for one in doomed})  # a reader may have brought some back
        for one in doomed:
            self.store.delete(one.key)
            self._left.discard(one.key)
            self.registry.forget(one.id)
            gone += 1
        return gone

    def stop(self) -> None:
        """What is being uploaded stays undone, and the next start begins it again; who waits for a download is told."""
        self.closing.set()
        self.cache.close()

    def close(self) -> None:
        self.stop()
        self.registry.close()


def room_for(size: int) -> memoryview:
    """Memory for so many bytes and a footer. A bytearray would be filled with zeros first, and nobody else runs meanwhile:
    55 ms for 64 MiB. These pages come as they are written to, large ones where the machine has them."""
    room = mmap.mmap(-1, size + max(TAIL_BYTES, size >> 2), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def owner_document(registry: Registry) -> bytes:
    return json.dumps({"id": registry.id, "incarnation": registry.fact("incarnation")}).encode()


def _read_into(file: io.RawIOBase, body: memoryview) -> int:
    """As much as there is."""
    done = 0
    while done < len(body) and (read := file.readinto(body[done:])):
        done += read
    return done
