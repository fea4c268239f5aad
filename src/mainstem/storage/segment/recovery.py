"""What a start has to do before a log is served. Nothing torn is ever served, nothing durable is ever dropped.

After a clean close the clean mark names every file and size: nothing is read. Otherwise everything up to the last
checkpoint is taken as it is, and what lies behind it is walked frame by frame, checksums computed:

    … sealed, durable … | checkpoint | whole frames, taken | bad frame | whatever
                                                           ^ position P, offset E

A bad frame is the torn tail of a crash if no whole frame behind it says that offset E was durable when it was
written: then the file is cut at P, and what lay behind is kept aside as `.torn`. Otherwise acked data is damaged:
DamagedLog, and the log stays as it is. A frame or file that does not begin where the one before ends is bad too,
except where the checkpoint says that offsets were skipped (`next_offset`, and `skips` for files before it), as the log
does after an unclean stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mainstem.codec.batch import FrameHead
from mainstem.model.errors import CorruptFrame, DamagedLog, DiskFull, StorageFault
from mainstem.storage.disk import Disk, is_full, read_all
from mainstem.storage.engine import FrameRef
from mainstem.storage.segment.index import HEAD_SIZE, SparseIndex, Summary, read_summary
from mainstem.storage.segment.marks import Checkpoint, CleanMark
from mainstem.storage.segment.scan import scan_frames, search_frames
from mainstem.storage.segment.segment import LOG_SUFFIX, Segment, parse_name
from mainstem.storage.segment.torn import cut_file, cut_zeros, put_aside
from mainstem.storage.state_file import TEMPORARY, remove

Progress = Callable[[int, int], None]  # bytes walked so far, bytes to walk in all
PROGRESS_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Recovered:
    segments: tuple[Segment, ...]
    end_offset: int
    last_stamp: int
    checkpoint: Checkpoint | None  # the one just written; None after a clean close
    clean: bool


def recover(disk: Disk, directory: Path, log_id: int, progress: Progress | None = None) -> Recovered:
    """The log as it may be served. Whatever was found valid survives a power cut once this returns."""
    try:
        mark = CleanMark.read(disk, directory)
        if mark is not None:
            return _trust(disk, directory, mark, log_id)
        return _Recovery(disk, directory, log_id, progress).run()
    except OSError as error:
        if is_full(error):
            raise DiskFull(
                f"{directory}: no space to open the log: {error}", fix=f"free space: df -h {directory}"
            ) from error
        raise StorageFault(f"{directory}: cannot open the log: {error}") from error


def damaged(directory: Path, what: str) -> DamagedLog:
    return DamagedLog(f"{what}; the log is not served", fix=f"mainstem log repair --quarantine {directory}")


def _trust(disk: Disk, directory: Path, mark: CleanMark, log_id: int) -> Recovered:
    """Nothing was written since the mark: each file must be there with its size."""
    _check_log_id(directory, mark.log_id, log_id)
    segments: list[Segment] = []
    for part in mark.parts:
        path = directory / part.name
        size = file_size(disk, path)
        if size != part.size_bytes and not (size > part.size_bytes and cut_zeros(disk, path, part.size_bytes)):
            state = "is missing" if size < 0 else f"has {size} bytes instead of {part.size_bytes}"
            offsets = f"offsets {part.base_offset}..{part.end_offset}"
            raise damaged(directory, f"{path} {state} since the log was closed ({offsets})")
        segment = Segment(path, part.base_offset, part.generation)
        segment.end_offset, segment.first_stamp, segment.last_stamp = part.end_offset, part.first_stamp, part.last_stamp
        segment.size = segment.synced = part.size_bytes
        segment.sealed, segment.named = part.sealed, True
        segments.append(segment)
    return Recovered(tuple(segments), mark.end_offset, mark.last_stamp, None, clean=True)


class _Recovery:
    """One unclean start."""

    def __init__(self, disk: Disk, directory: Path, log_id: int, progress: Progress | None) -> None:
        self._disk, self._directory, self._log_id = disk, directory, log_id
        self._progress = progress
        self._done = self._total = self._told = 0
        checkpoint, self._skips_anywhere = Checkpoint.read(disk, directory)
        if self._skips_anywhere:  # what the lost one knew of trims, rewrites and skips is unknown: walk everything
            checkpoint = None
        self._checkpoint = checkpoint or Checkpoint(log_id, 0, 0, 0, 0, None, 0)
        _check_log_id(directory, self._checkpoint.log_id, log_id)

    def run(self) -> Recovered:
        checkpoint = self._checkpoint
        paths = self._present()
        durable = [path for path in paths if self._precedes(path)]
        suspects = paths[len(durable) :]
        self._total = sum(file_size(self._disk, path) for path in suspects)
        segments = [self._take(path) for path in durable]
        scanned = self._scan(suspects)
        marked = [segment for segment in scanned[:1] if segment.path.name == checkpoint.segment]
        self._check_seams([*segments, *marked])
        segments += scanned
        for segment in segments:
            segment.sealed = segment is not segments[-1] or segment not in scanned or segment.generation > 0
        if paths:  # a new log has no names yet
            self._make_durable(scanned)
        last = segments[-1] if segments else None
        # An empty log ends where it starts: going back below that would be taken for trimmed by the next recovery.
        end_offset = max(last.end_offset if last else checkpoint.start_offset, checkpoint.end_offset)
        fresh = Checkpoint(
            log_id=self._log_id,
            start_offset=segments[0].base_offset if segments else end_offset,
            end_offset=end_offset,
            next_offset=checkpoint.next_offset if end_offset == checkpoint.end_offset else end_offset,
            last_stamp=max(last.last_stamp if last else 0, checkpoint.last_stamp),
            segment=last.path.name if last else None,
            position=last.size if last else 0,
            skips=skips_of(segments),
        )
        if segments or end_offset or self._skips_anywhere:  # of a new log there is nothing to tell
            fresh.write(self._disk, self._directory)
        return Recovered(tuple(segments), end_offset, fresh.last_stamp, fresh, clean=False)

    # What is there, and how far it can be trusted

    def _present(self) -> list[Path]:
        """The segment files in order; what a rewrite or a trim left behind is removed."""
        checkpoint, newest = self._checkpoint, dict[int, tuple[int, str]]()
        names = self._disk.listdir(self._directory)
        for name in names:
            parsed = parse_name(name)
            if parsed is not None:
                newest[parsed.base_offset] = max(newest.get(parsed.base_offset, (-1, "")), (parsed.generation, name))
        bases = sorted(newest)
        for base, next_base in zip(bases, [*bases[1:], checkpoint.start_offset], strict=False):
            if base < checkpoint.start_offset and next_base <= checkpoint.start_offset:
                del newest[base]
        kept = {name for _, name in newest.values()}
        for name in names:
            if name.endswith(LOG_SUFFIX + TEMPORARY) or (parse_name(name) and name not in kept):
                self._remove(self._directory / name)
        bases = sorted(newest)
        wanted = checkpoint.start_offset
        if wanted < checkpoint.end_offset and (not bases or bases[0] != wanted):
            lost = f"offsets {wanted}..{bases[0] if bases else checkpoint.end_offset}"
            raise damaged(self._directory, f"{self._directory}: the files that held {lost} are missing")
        marked = parse_name(checkpoint.segment) if checkpoint.segment else None
        if marked is not None and marked.base_offset not in newest:
            raise damaged(self._directory, f"{self._directory / str(checkpoint.segment)} is missing")
        return [self._directory / newest[base][1] for base in bases]

    def _check_seams(self, segments: list[Segment]) -> None:
        """Files that were durable at the checkpoint lie end to end, but for what it says was skipped."""
        known = self._checkpoint.skips
        if known is None:
            return
        for before, after in pairwise(segments):
            if before.generation:
                continue  # rewritten: it may have lost its last frames, and with its index where it ended
            if after.base_offset > before.end_offset and after.base_offset not in known:
                lost = f"offsets {before.end_offset}..{after.base_offset}"
                raise damaged(self._directory, f"{self._directory}: the files that held {lost} are missing")

    def _precedes(self, path: Path) -> bool:
        """Whether all of the file was durable at the checkpoint: an earlier one, or one rewritten since."""
        marked = parse_name(self._checkpoint.segment or "")
        if marked is None or path.name == self._checkpoint.segment:
            return False
        return _segment_at(path).base_offset <= marked.base_offset

    def _take(self, path: Path) -> Segment:
        """A durable segment as its index describes it, or else as a walk over its heads does."""
        segment = _segment_at(path)
        size = file_size(self._disk, path)
        summary = self._summary(segment)
        if summary is not None and size > summary.size_bytes and cut_zeros(self._disk, path, summary.size_bytes):
            size = summary.size_bytes
        if summary is not None and (summary.log_id, summary.size_bytes) == (self._log_id, size):
            segment.end_offset, segment.first_stamp = summary.end_offset, summary.first_stamp
            segment.last_stamp, segment.size = summary.last_stamp, size
        else:
            self._total += size
            segment.index = SparseIndex(segment.base_offset)
            whole = self._walk(segment, size, verify=False, dense=False)
            if not whole and not cut_zeros(self._disk, path, segment.size):
                raise self._bad(segment.path, segment.size, segment.end_offset)
        segment.synced, segment.named = segment.size, True
        return segment

    def _summary(self, segment: Segment) -> Summary | None:
        try:
            fd = self._disk.open(segment.index_path, read_only=True)
        except FileNotFoundError:
            return None
        try:
            return read_summary(read_all(self._disk, fd, 0, HEAD_SIZE))
        finally:
            self._disk.close(fd)

    # Walking what is not known to be durable

    def _scan(self, paths: list[Path]) -> list[Segment]:
        scanned: list[Segment] = []
        expected = {self._checkpoint.next_offset}  # where the next file may begin
        for number, path in enumerate(paths):
            segment = _segment_at(path)
            marked = path.name == self._checkpoint.segment
            if not (marked or segment.base_offset in expected or self._skips_anywhere):
                self._drop_torn(paths[number:], min(expected))
                break
            segment.index = SparseIndex(segment.base_offset)
            size = file_size(self._disk, path)
            whole = self._walk_suspect(segment, size, marked)
            empty = not segment.size and not segment.generation  # made, but nothing of it arrived
            if not empty:
                scanned.append(segment)
            expected = {segment.end_offset}
            if segment.end_offset == self._checkpoint.end_offset:
                expected.add(self._checkpoint.next_offset)
            if not whole:
                following = paths[number + 1 :]
                if not following or _segment_at(following[0]).base_offset not in expected:
                    self._prove_torn(segment.end_offset, [(path, segment.size), *((later, 0) for later in following)])
                cut_file(self._disk, path, segment.size)
            if empty:
                self._remove(path)
        return scanned

    def _walk_suspect(self, segment: Segment, size: int, marked: bool) -> bool:
        """False if it ends in a bad frame; that before the checkpoint's position is damage at once."""
        dense = segment.generation == 0  # a rewritten one has holes
        if marked:
            durable = self._checkpoint.position
            if not self._walk(segment, min(durable, size), verify=False, dense=dense) or segment.size < durable:
                raise self._bad(segment.path, segment.size, segment.end_offset)
            segment.end_offset = self._checkpoint.end_offset  # a rewritten one may have lost its last frames
        return self._walk(segment, size, verify=True, dense=dense)

    def _walk(self, segment: Segment, end: int, *, verify: bool, dense: bool) -> bool:
        """Take frames into the segment from its size on, up to `end`; False if one is not whole or not in place."""
        fd = self._disk.open(segment.path, read_only=True)
        try:
            frames = scan_frames(self._disk, fd, str(segment.path), self._log_id, segment.size, end, verify=verify)
            for _, head in frames:
                if head.base_offset != segment.end_offset if dense else head.base_offset < segment.end_offset:
                    return False
                segment.note(FrameRef(head.base_offset, head.count, head.stamp, head.size))
                self._tell(head.size)
        except CorruptFrame:
            return False
        finally:
            self._disk.close(fd)
        return True

    # Torn or damaged

    def _prove_torn(self, offset: int, places: list[tuple[Path, int]]) -> None:
        """Raises if some whole frame in `places` (file, first byte) knew `offset` to be durable."""
        for path, head in self._search(places):
            if head.durable_offset > offset:
                raise self._bad(*places[0], offset, f" as the frame of offset {head.base_offset} in {path.name} says")

    def _search(self, places: list[tuple[Path, int]]) -> Iterator[tuple[Path, FrameHead]]:
        for path, begin in places:
            fd = self._disk.open(path, read_only=True)
            try:
                for _, head in search_frames(self._disk, fd, str(path), self._log_id, begin, self._disk.size(fd)):
                    yield path, head
            finally:
                self._disk.close(fd)

    def _drop_torn(self, paths: list[Path], offset: int) -> None:
        self._prove_torn(offset, [(path, 0) for path in paths])
        for path in paths:
            put_aside(self._disk, path)

    def _bad(self, path: Path, position: int, offset: int, proof: str = "") -> DamagedLog:
        what = f"{path}: damaged at byte {position}, offset {offset}, which was durable{proof}"
        return damaged(self._directory, what)

    # Afterwards

    def _make_durable(self, segments: list[Segment]) -> None:
        """A crash of the process alone leaves whole frames that no sync covers yet: they are served from now on."""
        for segment in segments:
            fd = self._disk.open(segment.path)
            try:
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            segment.synced, segment.named = segment.size, True
        self._disk.fsync_dir(self._directory)

    def _remove(self, path: Path) -> None:
        remove(self._disk, path)
        remove(self._disk, path.with_suffix(".index"))

    def _tell(self, size: int) -> None:
        self._done += size
        if self._progress is not None and self._done - self._told >= PROGRESS_BYTES:
            self._told = self._done
            self._progress(self._done, self._total)


def skips_of(segments: Sequence[Segment]) -> list[int]:
    return [after.base_offset for before, after in pairwise(segments) if after.base_offset > before.end_offset]


def file_size(disk: Disk, path: Path) -> int:
    """-1 if it is not there."""
    try:
        fd = disk.open(path, read_only=True)
    except FileNotFoundError:
        return -1
    try:
        return disk.size(fd)
    finally:
        disk.close(fd)


def _segment_at(path: Path) -> Segment:
    name = parse_name(path.name)
    assert name is not None
    return Segment(path, name.base_offset, name.generation)


def _check_log_id(directory: Path, found: int, wanted: int) -> None:
    if found != wanted:
        raise StorageFault(f"{directory}: holds log {found}, not log {wanted}; was it moved or restored by hand?")
