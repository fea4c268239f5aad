"""A data directory as it was at one stamp, copied while the broker runs or when it is stopped.

    <backup>/backup             written last: the stamp, and every file with its size. Without it nothing is restored
    <backup>/logs/<id>/…        sealed segments as hard links (or copies, on another file system), the segment being
                                written as a copy of its frames up to the stamp, a checkpoint that names them
    <backup>/metadata.sqlite    by SQLite's own online backup, after the logs: it may know more than they, never less
    <backup>/tier.sqlite        which parts lie in an object store: they are named, not copied
    <backup>/catalog.sqlite     of Iceberg tables, if it is here
    <backup>/state/, stamps, staging/

A restored log goes on as after an unclean stop: beyond every offset that was reserved at the backup, in a new epoch.
Derived files (topic indexes) are left out; they are made again. Damage is copied as it is, and named: nothing is cut off
silently. Of a running broker's logs those that are removed meanwhile are left out, and of those made since the stamp only
the reservation is copied: the metadata, which comes last, knows both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.model.errors import ConfigError, CorruptFrame, StorageFault
from mainstem.storage.directory import LOCK_FILE, check_format, write_format
from mainstem.storage.disk import REAL_DISK, read_all
from mainstem.storage.engine import CopiedEngine, Engine
from mainstem.storage.engines import ENGINES, ROCKSDB
from mainstem.storage.inspection import LOGS, engine_of, log_id_of
from mainstem.storage.segment.index import HEAD_SIZE, read_summary
from mainstem.storage.segment.marks import CHECKPOINT_NAME, CLEAN_NAME, Checkpoint
from mainstem.storage.segment.repair import QUARANTINE_SUFFIX
from mainstem.storage.segment.segment import INDEX_SUFFIX, parse_name
from mainstem.storage.segment.survey import Damage, segment_paths, survey
from mainstem.storage.segment.torn import TORN_SUFFIX
from mainstem.storage.state_file import TEMPORARY, read_state, remove, write_state
from mainstem.storage.steady import write_steadily
from mainstem.storage.tier.iceberg.tables import CATALOG

MANIFEST = "backup"
METADATA, TIER = "metadata.sqlite", "tier.sqlite"
STATE, SNAPSHOT_1, STAMPS, STAGING = "state", "state.snapshot", "stamps", "staging"
ATTEMPTS_MAX = 10  # of one log, when retention takes files away meanwhile
REMOVAL_S_MAX = 5.0  # from the moment a log is closed until its directory is gone
COPY_BYTES = 256 << 10  # read at once; a copy is written as large files are (`steady.py`)
STAMP_MAX = (1 << 63) - 1
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class BackupReport:
    stamp: int
    logs: int
    files: int
    size_bytes: int
    damage: list[str]  # what was damaged already, and is so in the backup


def backup(
    data: Path,
    target: Path,
    *,
    stamp: int = STAMP_MAX,
    ends: Mapping[int, int] | None = None,
    engines: Mapping[int, Engine] | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy `data` to the new directory `target`: every frame whose stamp is at most `stamp`.

    A running broker gives the stamp it had between two ticks, `ends` (of each log its stable offset by then: nothing
    beyond is copied) and its open `engines`. Without a stamp, of a stopped directory everything is copied. `progress` is
    told bytes of logs done, and of all logs as they were at the start.
    """
    check_format(data)
    make_empty(target)
    if (data / STATE).is_dir():  # first: the logs then know everything that came after it
        shutil.copytree(data / STATE, target / STATE, copy_function=_copy_if_there)
    _copy_if_there(data / SNAPSHOT_1, target / SNAPSHOT_1)  # of format 1
    copied: list[_Copied] = []
    told = _Told(progress, sum(map(_size_of, (data / LOGS).glob("*/*"))))
    for source in sorted((data / LOGS).glob("*")):
        if source.name.isdigit():
            log_id = int(source.name)
            end = None if ends is None else ends.get(log_id, 0)
            engine = None if engines is None else engines.get(log_id)
            if (one := _copy_log(source, target / LOGS / source.name, stamp, end, engine, told)) is not None:
                copied.append(one)
    for name in (METADATA, TIER, CATALOG):
        copy_database(data / name, target / name)
    for name in (STAMPS, STAMPS + ".previous"):
        _copy_if_there(data / name, target / name)
    if (data / STAGING).is_dir():
        shutil.copytree(data / STAGING, target / STAGING, copy_function=_copy_if_there)
    sync_tree(target)
    files = {str(path.relative_to(target)): path.stat().st_size for path in sorted(target.rglob("*")) if path.is_file()}
    taken = max((one.stamp for one in copied), default=0) if stamp == STAMP_MAX else stamp
    damage = [str(damage) for one in copied for damage in one.damage]
    write_state(REAL_DISK, target / MANIFEST, "backup", {"stamp": taken, "files": files, "damage": damage})
    return BackupReport(taken, len(copied), len(files), sum(files.values()), damage)


def restore(source: Path, target: Path, progress: Progress | None = None) -> BackupReport:
    """Make a data directory of a backup. `target` must be empty or not there yet."""
    manifest = _read_manifest(source)
    told = _Told(progress, sum(manifest["files"].values()))
    make_empty(target)
    write_format(target)
    for name, size in manifest["files"].items():
        path = source / name
        if not path.is_file() or path.stat().st_size != size:
            raise StorageFault(f"{path}: the backup is damaged, {size} bytes were written", fix="use another backup")
        REAL_DISK.make_dir((target / name).parent)
        _copy_file(path, target / name)
        told.add(size)
    sync_tree(target)
    logs = {name.split("/")[1] for name in manifest["files"] if name.startswith(f"{LOGS}/")}
    sizes = manifest["files"].values()
    return BackupReport(manifest["stamp"], len(logs), len(sizes), sum(sizes), manifest.get("damage", []))


def _read_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest = read_state(REAL_DISK, source / MANIFEST, "backup")
    except CorruptFrame as error:
        raise StorageFault(error.message, fix="use another backup") from error
    if manifest is None:
        raise ConfigError(f"{source} is not a complete Mainstem backup", fix="make one: mainstem backup DIR")
    return manifest


def make_empty(target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty", fix="give a new directory")
    REAL_DISK.make_dir(target)
    target.chmod(0o700)


# Logs


class _Told:
    """How far it is, for whoever wants to know."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # trimmed meanwhile
        return 0


class _Copied(NamedTuple):
    """Of a log: the stamp of its last frame, and what of it is damaged."""

    stamp: int
    damage: list[Damage]


class _Taken(NamedTuple):
    """The last segment that was copied, as far as it was."""

    name: str | None
    size: int
    end_offset: int
    stamp: int


def _copy_log(
    source: Path, target: Path, stamp: int, end: int | None, engine: Engine | None, told: _Told
) -> _Copied | None:
    """None if it was removed meanwhile."""
    try:
        return _copy_files(source, target, stamp, end, engine, told)
    except (FileNotFoundError, StorageFault):
        if end is None or not _is_removed(source):
            raise
        shutil.rmtree(target, ignore_errors=True)
        return None


def _is_removed(source: Path) -> bool:
    """Its topic was deleted or moved on: it is closed first, then metadata forgets it, then the directory goes."""
    deadline = time.monotonic() + REMOVAL_S_MAX
    while source.is_dir() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not source.is_dir()


def _copy_files(source: Path, target: Path, stamp: int, end: int | None, engine: Engine | None, told: _Told) -> _Copied:
    REAL_DISK.make_dir(target)
    for path in source.iterdir():  # the reservation, and what the log above keeps here
        if path.is_file() and not _is_engines(path.name):
            _copy_if_there(path, target / path.name)
    kind = engine_of(source)
    if kind == ROCKSDB and (end is None or engine is not None):  # else it is newer than the stamp
        _copy_rocksdb(source, target, engine)
    if not ENGINES[kind].has_segments:
        return _Copied(0, [])
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _copy_segments(source, target, stamp, end, told)
        except FileNotFoundError:  # trimmed or rewritten meanwhile: begin again
            if attempt == ATTEMPTS_MAX - 1:
                raise
        for path in target.glob("*.log"):
            remove(REAL_DISK, path)
            remove(REAL_DISK, path.with_suffix(INDEX_SUFFIX))
    raise AssertionError("unreachable")


def _is_engines(name: str) -> bool:
    """Files that are copied with their segments, made again, or left behind."""
    suffixes = (INDEX_SUFFIX, TORN_SUFFIX, QUARANTINE_SUFFIX, TEMPORARY)
    return parse_name(name) is not None or name.endswith(suffixes) or name.startswith((CHECKPOINT_NAME, CLEAN_NAME))


def _copy_segments(source: Path, target: Path, stamp: int, end: int | None, told: _Told) -> _Copied:
    log_id, damage = log_id_of(source), list[Damage]()
    paths = segment_paths(REAL_DISK, source)
    checkpoint, _ = Checkpoint.read(REAL_DISK, source)
    if checkpoint is not None:
        paths = _untrimmed(paths, checkpoint.start_offset)
    start = min((_base_of(path) for path in paths), default=checkpoint.end_offset if checkpoint else 0)
    last: _Taken | None = None
    whole = True
    for path in paths:
        if end is not None and _base_of(path) >= end:
            break
        taken = None if path == paths[-1] else _link_sealed(path, target, stamp, end)
        taken = taken or _copy_prefix(path, target, log_id, stamp, end, damage, last=path == paths[-1])
        told.add(_size_of(path))
        if taken is not None:
            last = taken
        elif path.stat().st_size:
            break
        else:
            whole = False  # one that a rewrite left empty has others behind it
    last = last or _Taken(None, 0, start, 0)
    Checkpoint(
        log_id=log_id,
        start_offset=start,
        end_offset=last.end_offset,
        next_offset=last.end_offset,
        last_stamp=last.stamp,
        segment=last.name,
        position=last.size,
        skips=_skips(checkpoint) if whole else None,
    ).write(REAL_DISK, target)
    return _Copied(last.stamp, damage)


def _skips(checkpoint: Checkpoint | None) -> list[int] | None:
    return None if checkpoint is None or checkpoint.skips is None else [*checkpoint.skips, checkpoint.next_offset]


def _untrimmed(paths: list[Path], start: int) -> list[Path]:
    """Without those that the log has dropped, and that are there only for a reader who holds them."""
    ends = [*(_base_of(path) for path in paths[1:]), STAMP_MAX]
    return [path for path, end in zip(paths, ends, strict=True) if _base_of(path) >= start or end > start]


def _link_sealed(path: Path, target: Path, stamp: int, end: int | None) -> _Taken | None:
    """The whole file, if its index says that all of it is wanted."""
    index = path.with_suffix(INDEX_SUFFIX)
    summary = read_summary(index.read_bytes()[:HEAD_SIZE]) if index.exists() else None
    if summary is None or summary.last_stamp > stamp or (end is not None and summary.end_offset > end):
        return None
    if path.stat().st_size != summary.size_bytes:
        return None
    for file in (path, index):
        try:
            os.link(file, target / file.name)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            _copy_file(file, target / file.name)
    return _Taken(path.name, summary.size_bytes, summary.end_offset, summary.last_stamp)


def _copy_prefix(
    path: Path, target: Path, log_id: int, stamp: int, end: int | None, damage: list[Damage], *, last: bool
) -> _Taken | None:
    """The file up to its last frame that is wanted, with whatever is damaged before that; None if it holds none."""
    taken, waiting = _Taken(path.name, 0, 0, 0), list[Damage]()
    for found in survey(REAL_DISK, path.parent, log_id, only=path):
        if isinstance(found, Damage):
            waiting.append(found)
            continue
        head = found.head
        if head.stamp > stamp or (end is not None and head.base_offset + head.count > end):
            break
        taken = _Taken(path.name, found.position + head.size, head.base_offset + head.count, head.stamp)
        damage += waiting
        waiting.clear()
    else:
        if waiting and _was_durable(waiting[-1], end, last=last):
            lost_to = min(STAMP_MAX if last else waiting[-1].next_offset, STAMP_MAX if end is None else end)
            taken = _Taken(path.name, waiting[-1].end, lost_to, taken.stamp)
            damage += waiting
    if not taken.size:
        return None
    _copy_file(path, target / path.name, taken.size)
    return taken


def _was_durable(damage: Damage, end: int | None, *, last: bool) -> bool:
    """Whether bad bytes at the end of a file were acknowledged: behind them others are, or the log says so. Otherwise
    an append is under way there, or a crash left them."""
    return not last or (end is not None and damage.offset < end)


def _copy_file(source: str | Path, target: str | Path, size: int | None = None) -> str:
    """Or its first `size` bytes. The copy is for its owner alone."""
    fd = REAL_DISK.open(Path(source), read_only=True)
    try:
        copy = REAL_DISK.open(Path(target), create=True)
        try:
            write_steadily(copy, _pieces(fd, REAL_DISK.size(fd) if size is None else size))
        finally:
            REAL_DISK.close(copy)
    finally:
        REAL_DISK.close(fd)
    return str(target)


def _pieces(fd: int, size: int) -> Iterator[bytes]:
    for at in range(0, size, COPY_BYTES):
        yield read_all(REAL_DISK, fd, at, min(COPY_BYTES, size - at))


def _copy_rocksdb(source: Path, target: Path, engine: Engine | None) -> None:
    if isinstance(engine, CopiedEngine):
        engine.copy_to(target)
    elif _in_use(source.parents[1]):
        raise ConfigError(
            f"{source} is a RocksDB log in use", fix="back it up through the broker: mainstem backup DIR --url URL"
        )
    else:
        shutil.copytree(source / ROCKSDB, target / ROCKSDB, copy_function=_copy_file)


def _in_use(data: Path) -> bool:
    try:
        with (data / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


# The rest


def copy_database(source: Path, target: Path) -> None:
    if not source.exists():
        return
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)
    target.chmod(0o600)


def _copy_if_there(source: str | Path, target: str | Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        _copy_file(source, target)
    return str(target)


def sync_tree(root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        if path.is_dir():
            REAL_DISK.fsync_dir(path)
        else:
            fd = REAL_DISK.open(path, read_only=True)
            try:
                REAL_DISK.fsync(fd)
            finally:
                REAL_DISK.close(fd)


def _base_of(path: Path) -> int:
    name = parse_name(path.name)
    assert name is not None
    return name.base_offset
