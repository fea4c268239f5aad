"""Looking over a log's files without changing them: every whole frame, and every stretch that is not one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mainstem.codec.batch import FrameHead
from mainstem.model.errors import CorruptFrame
from mainstem.storage.disk import Disk, read_all
from mainstem.storage.segment.index import HEAD_SIZE, Summary, read_summary
from mainstem.storage.segment.marks import Checkpoint, CleanMark
from mainstem.storage.segment.scan import SCAN_BYTES, Window, search_frames
from mainstem.storage.segment.segment import INDEX_SUFFIX, SegmentName, file_name, parse_name
from mainstem.storage.segment.torn import only_zeros


class WholeFrame(NamedTuple):
    path: Path
    position: int
    head: FrameHead


@dataclass(slots=True)
class Damage:
    """Bytes `position`..`end` of a file are no frame, or a file is gone: offsets from `offset` on are not there."""

    path: Path
    position: int
    end: int
    offset: int
    next_offset: int  # the first one that is there again
    reason: str
    durable: bool = False  # it was acknowledged: not the torn tail of a crash
    room: bool = False  # only zeros up to the file's end: unless it is durable, room ahead of the writer

    def __str__(self) -> str:
        lost = (
            f"offsets {self.offset}..{self.next_offset}" if self.next_offset > self.offset else f"offset {self.offset}"
        )
        return f"{self.path}: bytes {self.position}..{self.end}, {lost}: {self.reason}"


def segment_paths(disk: Disk, directory: Path) -> list[Path]:
    """The files of the log in order, of each the newest generation."""
    newest: dict[int, SegmentName] = {}
    names: dict[SegmentName, str] = {}
    for name in disk.listdir(directory):
        parsed = parse_name(name)
        if parsed is not None:
            names[parsed] = name
            newest[parsed.base_offset] = max(newest.get(parsed.base_offset, parsed), parsed)
    return [directory / names[newest[base]] for base in sorted(newest)]


def survey(disk: Disk, directory: Path, log_id: int, only: Path | None = None) -> Iterator[WholeFrame | Damage]:
    """All of the log in order, or one file of it."""
    paths = segment_paths(disk, directory)
    bases = [_name_of(path).base_offset for path in paths]
    for path, next_base in zip(paths, [*bases[1:], -1], strict=False):
        if only is not None and path != only:
            continue
        try:
            fd = disk.open(path, read_only=True)
        except FileNotFoundError:  # trimmed meanwhile
            continue
        try:
            yield from _survey_file(disk, fd, path, log_id, next_base)
        finally:
            disk.close(fd)


def _survey_file(disk: Disk, fd: int, path: Path, log_id: int, next_base: int) -> Iterator[WholeFrame | Damage]:
    name, size = _name_of(path), disk.size(fd)
    window = Window(disk, fd, str(path), log_id, size, SCAN_BYTES)
    position, expected = 0, name.base_offset
    while position < size:
        head, reason = _frame_at(window, position)
        missing = head is not None and (
            head.base_offset != expected if not name.generation else head.base_offset < expected
        )
        if head is not None and not missing:
            yield WholeFrame(path, position, head)
            position, expected = position + head.size, head.base_offset + head.count
            continue
        begin, lost_from = position, expected
        position, head = _resume(disk, fd, path, log_id, position, expected, size)
        if _is_there_now(window, begin, expected, exact=not name.generation):
            position = begin
            continue
        room = head is None and only_zeros(disk, fd, begin, size)
        if room and next_base == expected:
            return  # the next file begins where this one ends: nothing is missing
        expected = head.base_offset if head is not None else max(next_base, expected)
        yield Damage(path, begin, position, lost_from, expected, reason or "frames are missing", room=room)


def _is_there_now(window: Window, position: int, expected: int, *, exact: bool) -> bool:
    """A running broker may have written the frame since the window was read. What lies behind it was looked for before this
    second look, and is written later: so what is not there now is not on its way."""
    window.forget()
    head, _ = _frame_at(window, position)
    return head is not None and (head.base_offset == expected if exact else head.base_offset >= expected)


def _frame_at(window: Window, position: int) -> tuple[FrameHead | None, str]:
    try:
        return window.head(position, verify=True), ""
    except CorruptFrame as error:
        return None, error.message.partition(": ")[2]


def _resume(
    disk: Disk, fd: int, path: Path, log_id: int, position: int, expected: int, size: int
) -> tuple[int, FrameHead | None]:
    """The next whole frame that can follow, or the end of the file."""
    for found, head in search_frames(disk, fd, str(path), log_id, position, size):
        if head.base_offset >= expected:
            return found, head
    return size, None


def missing_files(disk: Disk, directory: Path, log_id: int) -> list[Damage]:
    """Files that the marks speak of and that are not there."""
    paths = segment_paths(disk, directory)
    present = {path.name for path in paths}
    mark = CleanMark.read(disk, directory)
    gone = [part for part in mark.parts if part.name not in present] if mark is not None else []
    damages = [
        Damage(directory / part.name, 0, 0, part.base_offset, part.end_offset, "the file is missing", durable=True)
        for part in gone
    ]
    checkpoint, _ = Checkpoint.read(disk, directory)
    if not gone and checkpoint is not None and checkpoint.start_offset < checkpoint.end_offset:
        first = min((_name_of(directory / name).base_offset for name in present), default=checkpoint.end_offset)
        if first > checkpoint.start_offset:
            path = directory / f"{checkpoint.start_offset:020d}.log"
            damages.append(Damage(path, 0, 0, checkpoint.start_offset, first, "the file is missing", durable=True))
    return damages if gone else [*damages, *_missing_between(disk, directory, log_id, paths, checkpoint)]


def _missing_between(
    disk: Disk, directory: Path, log_id: int, paths: list[Path], checkpoint: Checkpoint | None
) -> Iterator[Damage]:
    """Files that were durable at the checkpoint lie end to end, but for what it says was skipped."""
    marked = parse_name(checkpoint.segment or "") if checkpoint is not None else None
    if checkpoint is None or checkpoint.skips is None or marked is None:
        return
    for before, after in pairwise(paths):
        base = _name_of(after).base_offset
        if base <= _name_of(before).base_offset or base > marked.base_offset or base in checkpoint.skips:
            continue
        end = _end_of(disk, before, log_id)
        if end is not None and checkpoint.start_offset <= end < base:
            yield Damage(directory / file_name(end), 0, 0, end, base, "the file is missing", durable=True)


def _end_of(disk: Disk, path: Path, log_id: int) -> int | None:
    """Where a sealed file ends, as its index says or as a walk shows; None if nobody knows."""
    try:
        fd = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        if _name_of(path).generation:
            return None  # rewritten: it may have lost its last frames, and with its index where it ended
        size = disk.size(fd)
        summary = _summary_of(disk, path)
        if summary is not None and (summary.log_id, summary.size_bytes) == (log_id, size):
            return summary.end_offset
        end = _name_of(path).base_offset
        for found in _survey_file(disk, fd, path, log_id, -1):
            if isinstance(found, Damage):
                return None  # told on its own, with everything up to the next file
            end = found.head.base_offset + found.head.count
        return end
    finally:
        disk.close(fd)


def _summary_of(disk: Disk, path: Path) -> Summary | None:
    try:
        fd = disk.open(path.with_suffix(INDEX_SUFFIX), read_only=True)
    except FileNotFoundError:
        return None
    try:
        return read_summary(read_all(disk, fd, 0, HEAD_SIZE))
    finally:
        disk.close(fd)


def _name_of(path: Path) -> SegmentName:
    name = parse_name(path.name)
    assert name is not None
    return name
