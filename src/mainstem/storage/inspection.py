"""Looking into logs on disk: list, dump, verify, repair. Of a stopped or, all but `repair`, a running data directory.

A log is `<data>/logs/<id>/`; its id is the directory's name, and seeds the checksums of its frames.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mainstem.codec.batch import KIND_STATE, FrameHead, verify_frame
from mainstem.model.errors import CorruptFrame, InvalidArgument, NotFound, StorageFault
from mainstem.storage.disk import REAL_DISK, read_all
from mainstem.storage.engine import Part
from mainstem.storage.engines import ENGINES, ROCKSDB
from mainstem.storage.reservation import Reservation
from mainstem.storage.segment.index import HEAD_SIZE, read_summary
from mainstem.storage.segment.marks import Checkpoint, CleanMark
from mainstem.storage.segment.repair import QUARANTINE_SUFFIX, repair_reservation, repair_segments
from mainstem.storage.segment.segment import INDEX_SUFFIX, parse_name
from mainstem.storage.segment.survey import Damage, WholeFrame, missing_files, segment_paths, survey
from mainstem.storage.segment.torn import TORN_SUFFIX
from mainstem.storage.tier.looking import remote_segments, survey_remote
from mainstem.storage.tier.remote import RemoteSegment

LOGS, SEARCH = "logs", "search"
Progress = Callable[[int], None]  # bytes looked at so far


@dataclass(frozen=True, slots=True)
class LogListing:
    log_id: int
    path: Path
    engine: str  # segment, rocksdb, object, memory; empty where nothing was written yet
    clean: bool  # closed cleanly; a running log is not
    parts: list[Part]
    reserved_end: int
    epoch: int
    aside: list[str]  # files kept for who wants to look: .torn, .quarantine
    remote_bytes: int = 0  # in an object store, whether or not they are here too
    index_bytes: int = 0  # of search indexes, of parts here and there

    @property
    def start_offset(self) -> int:
        return self.parts[0].base_offset if self.parts else 0

    @property
    def end_offset(self) -> int:
        return self.parts[-1].end_offset if self.parts else 0

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class DumpedFrame:
    path: Path
    position: int
    head: FrameHead
    data: bytes


@dataclass(slots=True)
class Verification:
    frames: int = 0
    records: int = 0
    size_bytes: int = 0
    remote_frames: int = 0  # in an object store
    remote_damage: list[Damage] = field(default_factory=list)  # there: a repair of files does not mend it
    damage: list[Damage] = field(default_factory=list)  # acknowledged data that cannot be read
    tail: list[Damage] = field(
        default_factory=list
    )  # unacknowledged: the next start cuts it, or an append is under way


@dataclass(frozen=True, slots=True)
class Repair:
    damage: list[Damage]  # each is covered by a marker now
    quarantined: list[Path]  # the files as they were
    notes: list[str]


def list_logs(data: Path) -> list[LogListing]:
    """Every log of a data directory, by id."""
    found = sorted((int(path.name), path) for path in (data / LOGS).glob("*") if path.name.isdigit())
    return [list_log(path) for _, path in found]


def list_log(directory: Path) -> LogListing:
    """What its files say at a glance; nothing is walked but the segment being written."""
    log_id, names = log_id_of(directory), REAL_DISK.listdir(directory)
    engine = engine_of(directory) if names else ""
    local = _parts(directory) if engine and ENGINES[engine].has_segments else []
    remote = remote_segments(directory)
    try:
        reservation = Reservation.open(directory)
    except StorageFault:
        reservation = Reservation(-1, -1)
    return LogListing(
        log_id=log_id,
        path=directory,
        engine=engine,
        clean=CleanMark.read(REAL_DISK, directory) is not None,
        parts=[one.part() for one in _only_remote(remote, local)] + local,
        reserved_end=reservation.end_offset,
        epoch=reservation.epoch,
        aside=sorted(name for name in names if name.endswith((TORN_SUFFIX, QUARANTINE_SUFFIX))),
        remote_bytes=sum(one.size for one in remote),
        index_bytes=sum(
            one.stat().st_size for one in (directory.parent.parent / SEARCH / directory.name).glob("*.search")
        ),
    )


def state_bytes(directory: Path) -> int:
    """Of the journal's frames in a log, as far as it is here: all of it is read."""
    log_id = log_id_of(directory)
    if engine_of(directory) == ROCKSDB:
        heads = (verify_frame(data, 0, log_id) for data in _rocksdb_frames(directory))
    else:
        heads = (one.head for one in survey(REAL_DISK, directory, log_id) if not isinstance(one, Damage))
    return sum(head.size for head in heads if head.kind == KIND_STATE)


def _only_remote(remote: list[RemoteSegment], local: list[Part]) -> list[RemoteSegment]:
    """Parts that are not here any more."""
    return [one for one in remote if not local or one.base_offset < local[0].base_offset]


def dump(directory: Path, *, start_offset: int = 0, end_offset: int | None = None) -> Iterator[DumpedFrame | Damage]:
    """The frames that hold offsets of the range, with their bytes; what is not a frame is told as damage."""
    log_id = log_id_of(directory)
    if engine_of(directory) == ROCKSDB:
        for data in _rocksdb_frames(directory):
            head = verify_frame(data, 0, log_id)
            if _wanted(head, start_offset, end_offset):
                yield DumpedFrame(directory / ROCKSDB, 0, head, data)
        return
    far = _only_remote(remote_segments(directory), _parts(directory))
    wanted_far = [one for one in far if one.end_offset > start_offset]
    if end_offset is not None:
        wanted_far = [one for one in wanted_far if one.base_offset < end_offset]
    for one in survey_remote(directory, wanted_far):
        if isinstance(one, Damage):
            yield one
        elif _wanted(one.head, start_offset, end_offset):
            yield DumpedFrame(*one)
    for found in survey(REAL_DISK, directory, log_id):
        if isinstance(found, Damage):
            wanted = found.next_offset > start_offset and (end_offset is None or found.offset < end_offset)
            if wanted and not found.room:
                yield found
        elif _wanted(found.head, start_offset, end_offset):
            yield DumpedFrame(*found, _read(found.path, found.position, found.head.size))


def verify(directory: Path, progress: Progress | None = None, *, remote: bool = True) -> Verification:
    """Compute every checksum of the log; with `remote` also of what lies in an object store."""
    result = Verification()
    if engine_of(directory) == ROCKSDB:
        _verify_rocksdb(directory, result)
        return result
    if remote:
        _verify_remote(directory, result, progress)
    damages = missing_files(REAL_DISK, directory, log_id_of(directory))
    checkpoint, _ = Checkpoint.read(REAL_DISK, directory)
    durable_end = checkpoint.end_offset if checkpoint is not None else 0
    for found in survey(REAL_DISK, directory, log_id_of(directory)):
        if isinstance(found, Damage):
            damages.append(found)
            continue
        result.frames += 1
        result.records += found.head.count
        result.size_bytes += found.head.size
        durable_end = max(durable_end, found.head.durable_offset)
        if progress is not None:
            progress(result.size_bytes)
    for damage in damages:
        damage.durable = damage.durable or damage.offset < durable_end
        if damage.durable or not damage.room:
            (result.damage if damage.durable else result.tail).append(damage)
    return result


def _verify_remote(directory: Path, result: Verification, progress: Progress | None) -> None:
    """All that is in the object store, also what is here too."""
    for found in survey_remote(directory, remote_segments(directory)):
        if isinstance(found, Damage):
            result.remote_damage.append(found)
            continue
        result.remote_frames += 1
        result.size_bytes += found.head.size
        if progress is not None:
            progress(result.size_bytes)


def repair(directory: Path, *, quarantine: bool, progress: Progress | None = None) -> Repair:
    """Give damaged records up knowingly: markers cover their offsets, the files as they were are kept aside.

    The log must not be in use: the caller holds the data directory's lock.
    """
    if not quarantine:
        raise InvalidArgument(
            "a repair gives up what is damaged",
            fix=f"mainstem log repair --quarantine {directory}, or restore a backup",
        )
    log_id = log_id_of(directory)
    if engine_of(directory) == ROCKSDB:
        return _repair_rocksdb(directory)
    found = verify(directory, progress, remote=False)
    quarantined = repair_segments(REAL_DISK, directory, log_id, found.damage) if found.damage else []
    notes = repair_reservation(REAL_DISK, directory)
    return Repair(found.damage, quarantined, notes)


def log_id_of(directory: Path) -> int:
    if not directory.is_dir():
        raise NotFound(f"{directory} is not there")
    if not directory.name.isdigit():
        raise InvalidArgument(f"{directory} is not a log's directory", fix="name one: DATA/logs/ID (mainstem log ls)")
    return int(directory.name)


def engine_of(directory: Path) -> str:
    names = REAL_DISK.listdir(directory)
    return next(name for name, kind in ENGINES.items() if kind.lies_in(directory, names))


def _wanted(head: FrameHead, start_offset: int, end_offset: int | None) -> bool:
    return head.base_offset + head.count > start_offset and (end_offset is None or head.base_offset < end_offset)


def _read(path: Path, position: int, size: int) -> bytes:
    fd = REAL_DISK.open(path, read_only=True)
    try:
        return read_all(REAL_DISK, fd, position, size)
    finally:
        REAL_DISK.close(fd)


def _parts(directory: Path) -> list[Part]:
    """From the indexes; files without one are walked."""
    paths = segment_paths(REAL_DISK, directory)
    parts = [_part(path, sealed=path != paths[-1]) for path in paths]
    return [part for part in parts if part is not None]


def _part(path: Path, *, sealed: bool) -> Part | None:
    name = parse_name(path.name)
    assert name is not None
    try:
        size = path.stat().st_size
        index = path.with_suffix(INDEX_SUFFIX)
        summary = read_summary(index.read_bytes()[:HEAD_SIZE]) if index.exists() else None
    except FileNotFoundError:  # trimmed meanwhile
        return None
    if summary is not None and summary.size_bytes == size:
        stamps = summary.first_stamp, summary.last_stamp
        return Part(path.name, name.generation, name.base_offset, summary.end_offset, *stamps, size, sealed)
    end, first, last, size = name.base_offset, 0, 0, 0  # behind its last frame a file may have room for more
    for found in survey(REAL_DISK, path.parent, log_id_of(path.parent), only=path):
        if isinstance(found, WholeFrame):
            size = found.position + found.head.size
            end, first, last = found.head.base_offset + found.head.count, first or found.head.stamp, found.head.stamp
    return Part(path.name, name.generation, name.base_offset, end, first, last, size, sealed)


def _rocksdb_frames(directory: Path) -> Iterator[bytes]:
    from mainstem.storage.rocksdb import stored_frames  # loads a large library, which few need

    return stored_frames(directory)


def _verify_rocksdb(directory: Path, result: Verification) -> None:
    log_id = log_id_of(directory)
    offset = 0
    for data in _rocksdb_frames(directory):
        try:
            head = verify_frame(data, 0, log_id)
        except CorruptFrame as error:
            path = directory / ROCKSDB
            result.damage.append(Damage(path, 0, len(data), offset, offset, error.message, durable=True))
            continue
        offset = head.base_offset + head.count
        result.frames += 1
        result.records += head.count
        result.size_bytes += head.size


def _repair_rocksdb(directory: Path) -> Repair:
    """RocksDB's own repair, on what is left when a copy is put aside."""
    from mainstem.storage.rocksdb import repair_database

    aside = directory / (ROCKSDB + QUARANTINE_SUFFIX)
    if aside.exists():
        raise StorageFault(f"{aside} is there already", fix=f"move it away: mv {aside} SOMEWHERE")
    shutil.copytree(directory / ROCKSDB, aside)
    repair_database(directory)
    notes = ["RocksDB rebuilt its tables from what it could read", *repair_reservation(REAL_DISK, directory)]
    return Repair([], [aside], notes)
