"""Room ahead of the writer: what is prepared, and that nothing but frames is left, served or taken for damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.model.errors import DamagedLog
from mainstem.storage.disk import RealDisk
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.inspection import list_log, verify
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.room import ZEROS_BYTES_MAX
from mainstem.testing.frames import Writer, read_everything

LOG_ID = 2
SEGMENT_BYTES = 1 << 20
ZEROS_BYTES = SEGMENT_BYTES // 16


class RecordingDisk(RealDisk):
    """Notes where zeros were written, and how much."""

    def __init__(self) -> None:
        super().__init__()
        self.zeros: list[tuple[int, int]] = []
        self.free: int | None = None

    def pwritev(self, fd, buffers, position):  # type: ignore[no-untyped-def]
        data = b"".join(buffers)
        if not data.strip(b"\0"):
            self.zeros.append((position, len(data)))
        return super().pwritev(fd, buffers, position)

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free


def open_log(directory: Path, disk: RealDisk | None = None) -> tuple[SegmentEngine, Writer]:
    shared = SharedFiles(disk) if disk is not None else None
    engine = open_engine(
        "segment", directory, LOG_ID, options=EngineOptions(segment_bytes=SEGMENT_BYTES, shared=shared)
    )
    assert isinstance(engine, SegmentEngine)
    return engine, Writer(engine, LOG_ID)


def fill(writer: Writer, frames: int, size: int = 1000) -> None:
    for _ in range(frames):
        writer.append([b"x" * size])


def active_file(engine: SegmentEngine) -> tuple[Path, int]:
    segment = engine.segments[-1]
    return segment.path, segment.size


def leave(engine: SegmentEngine) -> None:
    """As a process that dies: everything written stays, nothing more is."""
    engine.sync()


def test_zeros_lie_ahead_of_small_writes_once_a_log_has_some_size(tmp_path: Path) -> None:
    disk = RecordingDisk()
    engine, writer = open_log(tmp_path, disk)
    fill(writer, 10)
    assert disk.zeros == [], "most logs stay small"
    fill(writer, 100)
    path, size = active_file(engine)
    begin, first = disk.zeros[0]
    assert ZEROS_BYTES <= begin < ZEROS_BYTES + 2000
    assert begin + first == 2 * ZEROS_BYTES == path.stat().st_size > size
    assert len(disk.zeros) == 1, "once for many writes"
    fill(writer, 1, size=300_000)
    fill(writer, 1)
    assert len(disk.zeros) == 1, "a large write has no use for them, nor what may be followed by another"
    fill(writer, 100)
    assert len(disk.zeros) > 1
    assert len(read_everything(engine, LOG_ID)) == 212
    engine.close()


def test_a_file_ends_with_its_last_frame_once_it_is_sealed_or_closed(tmp_path: Path) -> None:
    engine, writer = open_log(tmp_path)
    fill(writer, 100)
    path, size = active_file(engine)
    assert path.stat().st_size > size
    engine.roll()
    engine.sync()
    assert path.stat().st_size == size
    fill(writer, 100)
    path, size = active_file(engine)
    engine.close()
    assert path.stat().st_size == size


def test_a_disk_with_little_room_is_not_filled_with_zeros(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.free = 50 * ZEROS_BYTES
    _, writer = open_log(tmp_path, disk)
    fill(writer, 200)
    assert disk.zeros == []


def test_a_running_log_with_room_ahead_is_listed_and_verified_as_whole(tmp_path: Path) -> None:
    directory = tmp_path / "2"
    engine, writer = open_log(directory)
    fill(writer, 100)
    engine.sync()
    path, size = active_file(engine)
    assert path.stat().st_size > size
    result = verify(directory)
    assert (result.frames, result.damage, result.tail) == (100, [], [])
    assert list_log(directory).parts[-1].size_bytes == size


def test_zeros_where_durable_frames_were_are_damage(tmp_path: Path) -> None:
    directory = tmp_path / "2"
    engine, writer = open_log(directory)
    fill(writer, 100)
    engine.close()
    path, size = active_file(engine)
    with path.open("r+b") as file:
        file.truncate(size - 5000)
        file.truncate(size)
    assert [damage.offset for damage in verify(directory).damage] == [95]


def test_room_that_a_killed_process_left_is_cut_off_and_nothing_put_aside(tmp_path: Path) -> None:
    engine, writer = open_log(tmp_path)
    fill(writer, 100)
    leave(engine)
    path, size = active_file(engine)
    assert path.stat().st_size > size
    again, writer = open_log(tmp_path)
    assert path.stat().st_size == size
    assert not list(tmp_path.glob("*.torn"))
    fill(writer, 5)
    assert len(read_everything(again, LOG_ID)) == 105


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("stop", ["closed", "killed"])
def test_room_that_a_power_cut_brings_back_is_no_damage(tmp_path: Path, stop: str, index: str) -> None:
    """The end of a file moves back without a sync when it is sealed: a power cut may undo that."""
    engine, writer = open_log(tmp_path)
    fill(writer, 100)
    engine.roll()
    fill(writer, 100)
    engine.sync()
    sealed = engine.segments[0].path
    before = read_everything(engine, LOG_ID)
    if stop == "closed":
        engine.close()
    else:
        leave(engine)
    if index == "lost":
        sealed.with_suffix(".index").unlink()
    with sealed.open("ab") as file:
        file.write(bytes(1234))
    again, writer = open_log(tmp_path)
    assert read_everything(again, LOG_ID) == before
    assert sealed.stat().st_size == again.segments[0].size


@pytest.mark.parametrize("tail", [b"\1", bytes(ZEROS_BYTES_MAX + 1)], ids=["not zeros", "more than there can be"])
def test_anything_else_behind_a_file_that_was_closed_is_damage(tmp_path: Path, tail: bytes) -> None:
    engine, writer = open_log(tmp_path)
    fill(writer, 100)
    engine.close()
    with engine.segments[0].path.open("ab") as file:
        file.write(tail)
    with pytest.raises(DamagedLog, match="since the log was closed"):
        open_log(tmp_path)
