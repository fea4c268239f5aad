"""What the segment engine does with its files: names, marks, leases, limits, indexes, how much a start reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.model.errors import InvalidArgument, StorageFault
from mainstem.storage.disk import RealDisk
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.open_files import OpenFiles
from mainstem.storage.segment.segment import file_name, parse_name
from mainstem.testing.frames import Writer, read_everything

LOG_ID = 2


class CountingDisk(RealDisk):
    """Counts what is read, synced and reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self.synced = 0
        self.allocated: list[tuple[int, int]] = []

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        self.read_bytes += len(data)
        return data

    def fdatasync(self, fd: int) -> None:
        self.synced += 1
        super().fdatasync(fd)

    def allocate(self, fd: int, position: int, size: int) -> bool:
        self.allocated.append((position, size))
        return super().allocate(fd, position, size)


def open_log(directory: Path, shared: SharedFiles | None = None, segment_bytes: int = 4096) -> SegmentEngine:
    options = EngineOptions(segment_bytes=segment_bytes, shared=shared)
    engine = open_engine("segment", directory, LOG_ID, options=options)
    assert isinstance(engine, SegmentEngine)
    return engine


def fill(engine: SegmentEngine, frames: int, size: int = 1000) -> Writer:
    writer = Writer(engine, LOG_ID)
    for _ in range(frames):
        writer.append([b"x" * size])
    return writer


def test_a_segment_is_named_by_its_first_offset_and_generation() -> None:
    assert file_name(1234) == "00000000000000001234.log"
    assert file_name(1234, 2) == "00000000000000001234.2.log"
    for name in (file_name(7), file_name(7, 13)):
        parsed = parse_name(name)
        assert parsed is not None
        assert file_name(*parsed) == name
    for stranger in ("7.log", "00000000000000000007.index", "00000000000000000007.0.log", "x00000000000000000007.log"):
        assert parse_name(stranger) is None


def test_files_hold_exactly_their_frames(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    writer = fill(engine, 20)
    engine.close()
    for part in engine.stat().parts:
        assert (tmp_path / part.name).stat().st_size == part.size_bytes
        assert (tmp_path / part.name).stat().st_mode & 0o077 == 0
    assert {path.suffix for path in tmp_path.glob("0*")} == {".log", ".index"}
    assert writer.next_offset == 20


def test_stored_bytes_are_read_into_memory_that_is_there(tmp_path: Path) -> None:
    engine = open_log(tmp_path, segment_bytes=1 << 20)
    fill(engine, 100)
    (path,) = tmp_path.glob("*.log")
    stored = path.read_bytes()[: engine.stat().size_bytes]
    buffer = bytearray(20_000)
    for offset in (0, 1, 50, 99):
        size = engine.read_into(offset, memoryview(buffer))
        wanted = engine.read(offset, 1)
        assert wanted is not None
        begin = stored.index(buffer[:size])
        at = stored.index(wanted.data)
        assert begin <= at <= begin + 4096
        assert size == min(len(buffer), len(stored) - begin)
    assert engine.read_into(100, memoryview(buffer)) == 0
    engine.close()
    path.unlink()
    engine._files.close_all()
    assert engine.read_into(0, memoryview(buffer)) == 0


def test_a_clean_log_is_opened_without_reading_a_segment(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 200)
    engine.close()
    disk = CountingDisk()
    engine = open_log(tmp_path, SharedFiles(disk))
    assert engine.stat().clean
    assert disk.read_bytes < 20_000, "only the marks were read"


def test_a_clean_log_that_is_only_read_stays_clean_whatever_happens(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 10)
    engine.close()
    for _ in range(3):
        assert len(read_everything(open_log(tmp_path), LOG_ID)) == 10  # never closed
    assert open_log(tmp_path).stat().clean
    fill(open_log(tmp_path), 1)
    assert not open_log(tmp_path).stat().clean


def test_after_an_unclean_stop_only_what_follows_the_checkpoint_is_read(tmp_path: Path) -> None:
    now_ns = 0
    files = SharedFiles()
    engine = SegmentEngine(
        tmp_path,
        LOG_ID,
        files=files.files,
        indexes=files.indexes,
        segment_bytes=64 << 10,
        monotonic_ns=lambda: now_ns,
    )
    writer = fill(engine, 3000)
    now_ns = 10**10
    engine.sync()
    for _ in range(50):
        writer.append([b"y" * 1000])
    disk = CountingDisk()
    told: list[tuple[int, int]] = []
    shared = SharedFiles(disk)
    again = SegmentEngine(
        tmp_path, LOG_ID, files=shared.files, indexes=shared.indexes, progress=lambda *at: told.append(at)
    )
    assert again.stat().end_offset == 3050
    assert disk.read_bytes < 300_000, "3 MB lie before the checkpoint"


def test_a_long_walk_tells_how_far_it_is(tmp_path: Path) -> None:
    fill(open_log(tmp_path, segment_bytes=64 << 20), 20, size=2 << 20)
    told: list[tuple[int, int]] = []
    shared = SharedFiles()
    SegmentEngine(tmp_path, LOG_ID, files=shared.files, indexes=shared.indexes, progress=lambda *at: told.append(at))
    assert told
    assert all(0 < done <= total for done, total in told)
    assert told == sorted(told)


def test_a_lost_or_damaged_index_is_made_again(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 30)
    everything = read_everything(engine, LOG_ID)
    engine.close()
    indexes = sorted(tmp_path.glob("*.index"))
    indexes[0].unlink()
    indexes[1].write_bytes(b"rubbish")
    indexes[2].write_bytes(indexes[3].read_bytes())
    engine = open_log(tmp_path)
    assert read_everything(engine, LOG_ID) == everything
    assert engine.find_stamp(1_004) == 4


def test_another_log_in_the_directory_is_refused(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 3)
    engine.close()
    with pytest.raises(StorageFault, match="holds log 2, not log 9"):
        open_engine("segment", tmp_path, 9)


def test_a_held_part_stays_on_disk_until_it_is_released(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    writer = fill(engine, 20)
    first, second = engine.stat().parts[:2]
    assert engine.hold(first)
    assert engine.hold(first)
    assert engine.hold(second)
    engine.replace(second, [])
    engine.trim(first.end_offset)
    assert (tmp_path / first.name).exists()
    assert (tmp_path / second.name).exists()
    assert read_everything(engine, LOG_ID)[0][0] == second.end_offset
    engine.release(first)
    assert (tmp_path / first.name).exists()
    engine.release(first)
    engine.release(second)
    assert not (tmp_path / first.name).exists()
    assert not (tmp_path / second.name).exists()
    assert not engine.hold(first), "it is gone"
    assert writer.next_offset == 20


def test_a_trimmed_part_that_was_still_held_does_not_come_back(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 20)
    first = engine.stat().parts[0]
    engine.hold(first)
    start = engine.trim(first.end_offset)
    assert (tmp_path / first.name).exists()
    again = open_log(tmp_path)  # as after a crash
    assert again.stat().start_offset == start
    assert not (tmp_path / first.name).exists()


def test_replacing_what_is_not_a_sealed_part_is_refused(tmp_path: Path) -> None:
    engine = open_log(tmp_path)
    fill(engine, 10)
    with pytest.raises(InvalidArgument):
        engine.replace(engine.stat().parts[-1], [])
    part = engine.stat().parts[0]
    engine.trim(part.end_offset)
    with pytest.raises(InvalidArgument):
        engine.replace(part, [])


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    shared = SharedFiles(files_max=3)
    engines = [open_log(tmp_path / str(number), shared) for number in range(5)]
    for engine in engines:
        fill(engine, 20)
        engine.sync()
        assert len(read_everything(engine, LOG_ID)) == 20
        assert len(shared.files) <= 3
    for engine in engines:
        engine.close()
    assert len(shared.files) == 0


def test_a_file_in_use_is_closed_only_when_it_is_given_back(tmp_path: Path) -> None:
    closed: list[int] = []

    class Disk(RealDisk):
        def close(self, fd: int) -> None:
            closed.append(fd)
            super().close(fd)

    files = OpenFiles(Disk(), files_max=1)
    with files.use(tmp_path / "a", create=True) as a:
        with files.use(tmp_path / "b", create=True):
            assert closed == []
        files.forget(tmp_path / "a")
        assert closed == []
    assert a in closed


def test_preallocated_blocks_are_given_back_when_a_segment_is_sealed(tmp_path: Path) -> None:
    engine = open_log(tmp_path, segment_bytes=1 << 20)
    writer = fill(engine, 1)
    engine.sync()
    path = tmp_path / engine.stat().parts[0].name
    assert path.stat().st_size < 2000, "the size tells only what was written"
    engine.roll()
    writer.append([b"y"])
    engine.sync()
    assert path.stat().st_blocks * 512 <= 8192


def test_large_writes_have_blocks_reserved_ahead_of_them_up_to_a_segments_size(tmp_path: Path) -> None:
    disk = CountingDisk()
    fill(open_log(tmp_path / "small", SharedFiles(disk), segment_bytes=3 << 20), 5)
    assert disk.allocated == [], "that is left to the next sync"
    engine = open_log(tmp_path / "large", SharedFiles(disk), segment_bytes=3 << 20)
    fill(engine, 9, size=300_000)
    assert disk.allocated == [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 1 << 20)]
    assert len(read_everything(engine, LOG_ID)) == 9


def test_nothing_new_costs_no_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    engine = open_log(tmp_path, SharedFiles(disk))
    writer = fill(engine, 1)
    engine.sync()
    writer.append([b"b"])
    engine.sync()
    before = disk.synced
    engine.sync()
    engine.sync()
    assert disk.synced == before == 1, "the first sync of a new file is an fsync"


@pytest.mark.parametrize("size", [0, 100, (2 << 30) + 1])
def test_a_segment_size_that_cannot_be_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidArgument):
        open_log(tmp_path, segment_bytes=size)


def test_an_unknown_engine_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="segment, rocksdb, object, memory"):
        open_engine("floppy", tmp_path, 1)
