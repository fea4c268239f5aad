"""Making a damaged log serve again: what is whole is kept, markers cover what is lost, nothing is thrown away.

before   | frames | damage | frames |                 00000000000000001000.log
after    | frames | marker | frames |                 00000000000000001000.1.log
aside    the file as it was                           00000000000000001000.log.quarantine
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mainstem.codec.batch import make_marker
from mainstem.model.errors import CorruptFrame, StorageFault
from mainstem.storage.disk import Disk, read_all, write_all
from mainstem.storage.reservation import BLOCK_MAX, KIND, NAME, Reservation, replace_damaged
from mainstem.storage.segment.marks import Checkpoint, CleanMark
from mainstem.storage.segment.segment import INDEX_SUFFIX, file_name, parse_name
from mainstem.storage.segment.survey import Damage, WholeFrame, segment_paths, survey
from mainstem.storage.state_file import PREVIOUS, TEMPORARY, read_state, remove

QUARANTINE_SUFFIX = ".quarantine"
MARKER_OFFSETS_MAX = 0xFFFF_FFFF


@dataclass(slots=True)
class _End:
    """Where the kept part of the log ends."""

    offset: int = 0
    stamp: int = 0
    segment: str | None = None
    position: int = 0


def repair_segments(disk: Disk, directory: Path, log_id: int, damages: list[Damage]) -> list[Path]:
    """Rewrite each damaged file; returns where the files as they were are kept."""
    checkpoint, _ = Checkpoint.read(disk, directory)
    by_path: dict[Path, list[Damage]] = {}
    for damage in damages:
        if damage.next_offset <= damage.offset and checkpoint is not None:
            damage.next_offset = max(checkpoint.end_offset, damage.offset + 1)  # the end itself was lost
        by_path.setdefault(damage.path, []).append(damage)
    last_stamps = _last_stamps(disk, directory, log_id)
    aside: list[Path] = []
    for path, lost in sorted(by_path.items()):
        stamp = max((stamp for other, stamp in last_stamps.items() if other < path), default=0)
        aside += _rewrite(disk, path, log_id, lost, stamp)
    CleanMark.remove(disk, directory)
    _write_checkpoint(disk, directory, log_id, checkpoint)
    return aside


def _last_stamps(disk: Disk, directory: Path, log_id: int) -> dict[Path, int]:
    frames = (found for found in survey(disk, directory, log_id) if isinstance(found, WholeFrame))
    return {frame.path: frame.head.stamp + frame.head.count - 1 for frame in frames}


def _rewrite(disk: Disk, path: Path, log_id: int, damages: list[Damage], stamp: int) -> list[Path]:
    name = parse_name(path.name)
    assert name is not None
    target = path.with_name(file_name(name.base_offset, name.generation + 1))
    temporary = target.with_name(target.name + TEMPORARY)
    remove(disk, temporary)
    there = path in segment_paths(disk, path.parent)
    pieces = _pieces(disk, path, log_id, damages, stamp) if there else _all_lost(log_id, damages, stamp)
    copy = disk.open(temporary, create=True)
    try:
        position = 0
        for piece in pieces:
            position = write_all(disk, copy, [piece], position)
        disk.fsync(copy)
    finally:
        disk.close(copy)
    aside = path.with_name(path.name + QUARANTINE_SUFFIX)
    if there:  # at every moment the log has this file, damaged or repaired
        remove(disk, aside)
        disk.link(path, aside)
    disk.rename(temporary, target)
    remove(disk, path)
    remove(disk, path.with_suffix(INDEX_SUFFIX))
    disk.fsync_dir(path.parent)
    return [aside] if there else []


def _pieces(disk: Disk, path: Path, log_id: int, damages: list[Damage], stamp: int) -> Iterator[bytes]:
    """The file with a marker in the place of each damage."""
    lost = {(damage.position, damage.offset): damage for damage in damages}
    waiting: Damage | None = None
    fd = disk.open(path, read_only=True)
    try:
        for found in survey(disk, path.parent, log_id, only=path):
            if isinstance(found, Damage):
                waiting = lost.get((found.position, found.offset))
                if waiting is None:
                    return  # the torn tail: it stays in the file put aside
                continue
            if waiting is not None:
                yield from _markers(log_id, waiting, stamp, found.head.stamp)
                waiting = None
            yield read_all(disk, fd, found.position, found.head.size)
            stamp = found.head.stamp + found.head.count - 1
        if waiting is not None:
            yield from _markers(log_id, waiting, stamp, 0)
    finally:
        disk.close(fd)


def _all_lost(log_id: int, damages: list[Damage], stamp: int) -> Iterator[bytes]:
    for damage in damages:
        yield from _markers(log_id, damage, stamp, 0)


def _markers(log_id: int, damage: Damage, stamp_before: int, stamp_after: int) -> Iterator[bytes]:
    """Stamps between those around: the lost records had as many, so there is room."""
    offset = damage.offset
    stamp = max(stamp_after - (damage.next_offset - offset), stamp_before + 1) if stamp_after else stamp_before + 1
    while offset < damage.next_offset:
        count = min(damage.next_offset - offset, MARKER_OFFSETS_MAX)
        yield make_marker(log_id, offset, count, stamp, offset)
        offset, stamp = offset + count, stamp + count


def _write_checkpoint(disk: Disk, directory: Path, log_id: int, old: Checkpoint | None) -> None:
    """Everything kept is durable; what follows it (a torn tail) is cut by the next start."""
    paths = segment_paths(disk, directory)
    end = _End()
    for found in survey(disk, directory, log_id):
        if isinstance(found, Damage):
            break
        end = _End(
            offset=found.head.base_offset + found.head.count,
            stamp=found.head.stamp,
            segment=found.path.name,
            position=found.position + found.head.size,
        )
    start = parse_name(paths[0].name) if paths else None
    end_offset = max(end.offset, old.end_offset if old is not None else 0)
    Checkpoint(
        log_id=log_id,
        start_offset=start.base_offset if start is not None else end_offset,
        end_offset=end_offset,
        next_offset=max(end_offset, old.next_offset if old is not None else 0),
        last_stamp=max(end.stamp, old.last_stamp if old is not None else 0),
        segment=end.segment,
        position=end.position,
        skips=old.skips if old is not None else None,
    ).write(disk, directory)


def repair_reservation(disk: Disk, directory: Path) -> list[str]:
    """A damaged reservation is made again, beyond every offset that can have been given out."""
    try:
        Reservation.open(directory, disk)
        return []
    except StorageFault:
        pass
    path = directory / NAME
    try:
        before = read_state(disk, path.with_name(path.name + PREVIOUS), KIND) or {}
    except CorruptFrame:
        before = {}
    checkpoint, _ = Checkpoint.read(disk, directory)
    end = max(before.get("end_offset", 0), checkpoint.next_offset if checkpoint is not None else 0)
    disk.rename(path, path.with_name(path.name + QUARANTINE_SUFFIX))
    replace_damaged(directory, end + 2 * BLOCK_MAX, before.get("epoch", 0) + 1, disk)
    return [f"the reservation was damaged; the log goes on at offset {end + 2 * BLOCK_MAX}"]
