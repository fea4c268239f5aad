"""A data directory as it was at one stamp, copied while the broker runs or when it is stopped.

    <backup>/backup             written last: the stamp, and every file with its size. Without it nothing is restored
    <backup>/logs/<id>/…        sealed segments as hard links (or copies, on another file system), the segment being
                                written as a copy of its frames up to the stamp, a checkpoint that names them
    <backup>/metadata.sqlite    by SQLite's own online backup, after the logs: it may know more than they, never less
    <backup>/state.snapshot, stamps, staging/

A restored log goes on as after an unclean stop: beyond every offset that was reserved at the backup, in a new epoch.
Derived files (topic indexes) are left out; they are made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mainstem.model.errors import ConfigError, CorruptFrame, StorageFault
from mainstem.storage.directory import LOCK_FILE, check_format, write_format
from mainstem.storage.disk import REAL_DISK, read_all, write_all
from mainstem.storage.engine import Engine
from mainstem.storage.inspection import LOGS, ROCKSDB, engine_of, log_id_of
from mainstem.storage.segment.index import HEAD_SIZE, read_summary
from mainstem.storage.segment.marks import CHECKPOINT_NAME, CLEAN_NAME, Checkpoint
from mainstem.storage.segment.repair import QUARANTINE_SUFFIX
from mainstem.storage.segment.scan import scan_frames
from mainstem.storage.segment.segment import INDEX_SUFFIX, parse_name
from mainstem.storage.segment.survey import segment_paths
from mainstem.storage.segment.torn import TORN_SUFFIX
from mainstem.storage.state_file import TEMPORARY, read_state, remove, write_state

MANIFEST = "backup"
METADATA = "metadata.sqlite"
SNAPSHOT, STAMPS, STAGING = "state.snapshot", "stamps", "staging"
ATTEMPTS_MAX = 10  # of one log, when retention takes files away meanwhile
COPY_BYTES = 4 << 20
STAMP_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BackupReport:
    stamp: int
    logs: int
    files: int
    size_bytes: int


def backup(
    data: Path,
    target: Path,
    *,
    stamp: int = STAMP_MAX,
    ends: Mapping[int, int] | None = None,
    engines: Mapping[int, Engine] | None = None,
) -> BackupReport:
    """Copy `data` to the new directory `target`: every frame whose stamp is at most `stamp`.

    A running broker gives the stamp it had between two ticks, `ends` (of each log its stable offset by then: nothing
    beyond is copied) and its open `engines`. Without a stamp, of a stopped directory everything is copied.
    """
    check_format(data)
    _make_empty(target)
    _copy_if_there(data / SNAPSHOT, target / SNAPSHOT)  # first: the logs then know everything that came after it
    last_stamp, logs = 0, 0
    for source in sorted((data / LOGS).glob("*")):
        if source.name.isdigit():
            log_id = int(source.name)
            end = None if ends is None else ends.get(log_id, 0)
            engine = None if engines is None else engines.get(log_id)
            last_stamp = max(last_stamp, _copy_log(source, target / LOGS / source.name, stamp, end, engine))
            logs += 1
    _copy_metadata(data / METADATA, target / METADATA)
    for name in (STAMPS, STAMPS + ".previous"):
        _copy_if_there(data / name, target / name)
    if (data / STAGING).is_dir():
        shutil.copytree(data / STAGING, target / STAGING, copy_function=_copy_if_there)
    _sync_tree(target)
    files = {str(path.relative_to(target)): path.stat().st_size for path in sorted(target.rglob("*")) if path.is_file()}
    taken = last_stamp if stamp == STAMP_MAX else stamp
    write_state(REAL_DISK, target / MANIFEST, "backup", {"stamp": taken, "files": files})
    return BackupReport(taken, logs, len(files), sum(files.values()))


def restore(source: Path, target: Path) -> BackupReport:
    """Make a data directory of a backup. `target` must be empty or not there yet."""
    manifest = _read_manifest(source)
    _make_empty(target)
    write_format(target)
    for name, size in manifest["files"].items():
        path = source / name
        if not path.is_file() or path.stat().st_size != size:
            raise StorageFault(f"{path}: the backup is damaged, {size} bytes were written", fix="use another backup")
        REAL_DISK.make_dir((target / name).parent)
        shutil.copyfile(path, target / name)
        (target / name).chmod(0o600)
    _sync_tree(target)
    logs = {name.split("/")[1] for name in manifest["files"] if name.startswith(f"{LOGS}/")}
    return BackupReport(manifest["stamp"], len(logs), len(manifest["files"]), sum(manifest["files"].values()))


def _read_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest = read_state(REAL_DISK, source / MANIFEST, "backup")
    except CorruptFrame as error:
        raise StorageFault(error.message, fix="use another backup") from error
    if manifest is None:
        raise ConfigError(f"{source} is not a complete Mainstem backup", fix="make one: mainstem backup DIR")
    return manifest


def _make_empty(target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty", fix="give a new directory")
    REAL_DISK.make_dir(target)
    target.chmod(0o700)


# Logs


class _Taken(NamedTuple):
    """The last segment that was copied, as far as it was."""

    name: str | None
    size: int
    end_offset: int
    stamp: int


def _copy_log(source: Path, target: Path, stamp: int, end: int | None, engine: Engine | None) -> int:
    """Returns the stamp of the last frame copied."""
    REAL_DISK.make_dir(target)
    for path in source.iterdir():  # the reservation, and what the log above keeps here
        if path.is_file() and not _is_engines(path.name):
            _copy_if_there(path, target / path.name)
    kind = engine_of(source)
    if kind == ROCKSDB:
        _copy_rocksdb(source, target, engine)
        return 0
    if kind != "segment":
        return 0
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _copy_segments(source, target, stamp, end)
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


def _copy_segments(source: Path, target: Path, stamp: int, end: int | None) -> int:
    log_id = log_id_of(source)
    checkpoint, _ = Checkpoint.read(REAL_DISK, source)
    paths = segment_paths(REAL_DISK, source)
    start = min((_base_of(path) for path in paths), default=checkpoint.end_offset if checkpoint else 0)
    last: _Taken | None = None
    for path in paths:
        if end is not None and _base_of(path) >= end:
            break
        taken = None if path == paths[-1] else _link_sealed(path, target, stamp, end)
        taken = taken or _copy_prefix(path, target, log_id, stamp, end)
        if taken is not None:
            last = taken
        elif path.stat().st_size:  # one that a rewrite left empty has others behind it
            break
    last = last or _Taken(None, 0, start, 0)
    Checkpoint(
        log_id=log_id,
        start_offset=start,
        end_offset=last.end_offset,
        next_offset=last.end_offset,
        last_stamp=last.stamp,
        segment=last.name,
        position=last.size,
    ).write(REAL_DISK, target)
    return last.stamp


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
            shutil.copyfile(file, target / file.name)
    return _Taken(path.name, summary.size_bytes, summary.end_offset, summary.last_stamp)


def _copy_prefix(path: Path, target: Path, log_id: int, stamp: int, end: int | None) -> _Taken | None:
    """The frames of a file up to the stamp; None if it holds none."""
    size, end_offset, last_stamp = 0, 0, 0
    fd = REAL_DISK.open(path, read_only=True)
    try:
        with contextlib.suppress(CorruptFrame):  # an append is under way
            for position, head in scan_frames(REAL_DISK, fd, str(path), log_id, 0, REAL_DISK.size(fd)):
                if head.stamp > stamp or (end is not None and head.base_offset + head.count > end):
                    break
                size, end_offset, last_stamp = position + head.size, head.base_offset + head.count, head.stamp
        if not size:
            return None
        copy = REAL_DISK.open(target / path.name, create=True)
        try:
            for at in range(0, size, COPY_BYTES):
                write_all(REAL_DISK, copy, [read_all(REAL_DISK, fd, at, min(COPY_BYTES, size - at))], at)
        finally:
            REAL_DISK.close(copy)
    finally:
        REAL_DISK.close(fd)
    return _Taken(path.name, size, end_offset, last_stamp)


def _copy_rocksdb(source: Path, target: Path, engine: Engine | None) -> None:
    copy_to = getattr(engine, "copy_to", None)
    if copy_to is not None:
        copy_to(target)
    elif _in_use(source.parents[1]):
        raise ConfigError(
            f"{source} is a RocksDB log in use", fix="back it up through the broker: mainstem backup DIR --url URL"
        )
    else:
        shutil.copytree(source / ROCKSDB, target / ROCKSDB)


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


def _copy_metadata(source: Path, target: Path) -> None:
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
        shutil.copyfile(source, target)
        Path(target).chmod(0o600)
    return str(target)


def _sync_tree(root: Path) -> None:
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
