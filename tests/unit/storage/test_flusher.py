"""Syncs by threads without the interpreter: what shares one, what is told, and that a failure stays one."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.model.errors import StorageFault
from mainstem.storage.disk import RealDisk
from mainstem.storage.engines import EngineOptions, SharedFiles, open_engine
from mainstem.storage.flusher import Flusher, FlushHandle
from mainstem.storage.segment.engine import SegmentEngine
from mainstem.storage.segment.marks import Checkpoint
from mainstem.testing.frames import Writer, read_everything

LOG_ID = 3
WAIT_S = 10.0


@pytest.fixture
def flusher() -> Iterator[Flusher]:
    made = Flusher(2)
    yield made
    made.close()


def told(flusher: Flusher) -> list[FlushHandle]:
    ready, _, _ = select.select([flusher.fileno()], [], [], WAIT_S)
    assert ready, "nothing was told"
    return flusher.finished()


def open_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_a_sync_is_told_once_with_its_number(flusher: Flusher, tmp_path: Path) -> None:
    fd, handle = open_file(tmp_path / "a"), flusher.handle("me")
    os.write(fd, b"x")
    assert handle.request(fd) == 1
    assert told(flusher) == [handle]
    assert handle.owner == "me"
    assert handle.outcome() == (1, 0)
    syncs, sync_ns = handle.take_times()
    assert syncs == 1
    assert sync_ns > 0
    assert handle.take_times() == (0, 0)
    assert flusher.finished() == []
    os.close(fd)


def test_requests_during_a_sync_are_all_completed(flusher: Flusher, tmp_path: Path) -> None:
    fd, handle = open_file(tmp_path / "a"), flusher.handle(None)
    for number in range(1, 501):
        os.write(fd, b"x" * 100)
        assert handle.request(fd) == number
    assert handle.wait() == 0
    assert handle.outcome() == (500, 0)
    assert handle.take_times()[0] <= 500
    os.close(fd)


def test_another_file_waits_until_the_line_is_free(flusher: Flusher, tmp_path: Path) -> None:
    fds, handle = [open_file(tmp_path / name) for name in "ab"], flusher.handle(None)
    for _ in range(200):
        first = handle.request(fds[0])
        second = handle.request(fds[1])
        assert first
        handle.wait()
        assert handle.outcome() == (max(first, second), 0)
        assert handle.request(fds[1])
        handle.wait()
    for fd in fds:
        os.close(fd)


def test_a_line_that_failed_is_never_synced_again(flusher: Flusher, tmp_path: Path) -> None:
    good, handle = open_file(tmp_path / "a"), flusher.handle(None)
    reading, writing = os.pipe()  # cannot be synced
    assert handle.request(writing) == 1
    assert handle.wait() == errno.EINVAL
    assert handle in told(flusher)
    assert handle.outcome()[1] == errno.EINVAL
    assert handle.request(good) == 0
    assert handle.outcome()[1] == errno.EINVAL
    other = flusher.handle(None)
    assert other.request(good) == 1
    assert other.wait() == 0
    for fd in (good, reading, writing):
        os.close(fd)


def test_closing_finishes_what_was_requested_and_takes_no_more(tmp_path: Path) -> None:
    flusher = Flusher(2)
    fds = [open_file(tmp_path / str(n)) for n in range(20)]
    handles = [flusher.handle(n) for n in range(20)]
    for handle, fd in zip(handles, fds, strict=True):
        os.write(fd, b"x" * 10_000)
        assert handle.request(fd) == 1
    flusher.close()
    assert {handle.owner for handle in flusher.finished()} == set(range(20))
    assert all(handle.outcome() == (1, 0) for handle in handles)
    assert handles[0].request(fds[0]) == 0
    flusher.close()
    for fd in fds:
        os.close(fd)


def test_a_line_nobody_keeps_is_told_all_the_same(flusher: Flusher, tmp_path: Path) -> None:
    fd = open_file(tmp_path / "a")
    assert flusher.handle("forgotten").request(fd) == 1
    assert [handle.owner for handle in told(flusher)] == ["forgotten"]
    os.close(fd)


# -- an engine that uses one -------------------------------------------------------------------------------------------


def grown(path: Path) -> tuple[SegmentEngine, Writer]:
    """A log whose next sync has nothing to do but to sync its one file."""
    engine = open_engine("segment", path, LOG_ID, options=EngineOptions())
    assert isinstance(engine, SegmentEngine)
    writer = Writer(engine, LOG_ID)
    writer.append([b"first"])
    engine.sync()
    return engine, writer


def test_a_file_that_grew_is_synced_by_the_line(flusher: Flusher, tmp_path: Path) -> None:
    engine, writer = grown(tmp_path / "log")
    handle = flusher.handle(engine)
    assert engine.begin_sync(handle) == 0, "nothing is new"
    writer.append([b"second"])
    assert engine.begin_sync(handle) == 1
    writer.append([b"third"])
    assert engine.begin_sync(handle) == 2
    handle.wait()
    assert engine.durable_offset == 1, "nobody was told yet"
    assert engine.end_sync(handle) == 2
    assert engine.durable_offset == 3
    engine.close()
    again = open_engine("segment", tmp_path / "log", LOG_ID, options=EngineOptions())
    assert [value for _, value in read_everything(again, LOG_ID)] == [b"first", b"second", b"third"]
    again.close()


def test_new_files_and_sealed_ones_are_synced_by_the_line_too(flusher: Flusher, tmp_path: Path) -> None:
    engine = open_engine("segment", tmp_path / "log", LOG_ID, options=EngineOptions())
    assert isinstance(engine, SegmentEngine)
    handle, writer = flusher.handle(engine), Writer(engine, LOG_ID)
    assert engine.begin_sync(handle) == 0, "an empty log"
    writer.append([b"a"])
    assert engine.begin_sync(handle) == 1, "a new file, and its name"
    engine.roll()
    writer.append([b"b"])
    assert engine.begin_sync(handle) == 2, "a sealed one and a new one, while the first is under way"
    handle.wait()
    assert engine.end_sync(handle) == 2
    assert engine.durable_offset == 2
    assert all(segment.named and segment.synced == segment.size for segment in engine.segments)
    for _ in range(9):
        writer.append([b"c"])
        engine.roll()
    assert engine.begin_sync(handle) == 0, "more files than a request takes"
    engine.sync_data()
    assert engine.durable_offset == 11
    engine.close()
    assert engine.begin_sync(handle) == 0, "closed"


def test_a_request_of_several_files_stops_at_the_first_that_fails(flusher: Flusher, tmp_path: Path) -> None:
    first, handle = open_file(tmp_path / "a"), flusher.handle(None)
    reading, writing = os.pipe()  # cannot be synced
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert handle.request(first, ~directory) == 1
    assert handle.wait() == 0
    assert handle.request(first, writing, ~directory) == 2
    assert handle.wait() == errno.EINVAL
    assert handle.request(*range(9)) == 0, "more than a request takes"
    for fd in (first, reading, writing, directory):
        os.close(fd)


class WaitingDisk(RealDisk):
    """Renaming, which ends a checkpoint, waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.allowed = threading.Event(), threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        self.began.set()
        assert self.allowed.wait(WAIT_S)
        super().rename(source, target)


def test_syncs_and_appends_go_on_while_a_thread_writes_a_checkpoint(flusher: Flusher, tmp_path: Path) -> None:
    disk, now_ns = WaitingDisk(), 0
    files = SharedFiles(disk)
    engine = SegmentEngine(tmp_path, LOG_ID, files=files.files, indexes=files.indexes, monotonic_ns=lambda: now_ns)
    handle, writer = flusher.handle(engine), Writer(engine, LOG_ID)
    writer.append([b"first"])
    assert engine.begin_sync(handle)
    handle.wait()
    engine.end_sync(handle)
    now_ns = 2_000_000_000
    assert engine.upkeep_is_due
    size = engine.segments[0].size
    thread = threading.Thread(target=engine.keep_up)
    thread.start()
    assert disk.began.wait(WAIT_S)
    for number in range(100):
        writer.append([b"%d" % number])
        engine.roll()
        assert engine.begin_sync(handle) == number + 2
        handle.wait()
        engine.end_sync(handle)
    assert engine.durable_offset == 101
    disk.allowed.set()
    thread.join()
    checkpoint, _ = Checkpoint.read(disk, tmp_path)
    assert checkpoint is not None
    assert (checkpoint.end_offset, checkpoint.position) == (1, size), "of when it began"
    engine.close()


def test_every_other_sync_waits_for_the_line(flusher: Flusher, tmp_path: Path) -> None:
    engine, writer = grown(tmp_path / "log")
    handle = flusher.handle(engine)
    for n in range(50):
        writer.append([b"%d" % n])
        assert engine.begin_sync(handle)
        engine.sync()
        assert handle.outcome()[0] == n + 1
        engine.end_sync(handle)
    assert engine.durable_offset == 51
    engine.close()


def test_while_another_thread_syncs_the_line_is_not_asked(flusher: Flusher, tmp_path: Path) -> None:
    engine, writer = grown(tmp_path / "log")
    handle, held, go = flusher.handle(engine), threading.Event(), threading.Event()

    def hold() -> None:
        with engine._syncs.lock:
            held.set()
            assert go.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_S)
    writer.append([b"x"])
    assert engine.begin_sync(handle) == 0
    go.set()
    thread.join()
    assert engine.begin_sync(handle) == 1
    engine.close()


@pytest.mark.parametrize("told_by", ["end_sync", "sync", "close"])
def test_a_failed_sync_of_the_line_breaks_the_log(flusher: Flusher, tmp_path: Path, told_by: str) -> None:
    engine, writer = grown(tmp_path / "log")
    handle = flusher.handle(engine)
    reading, writing = os.pipe()
    writer.append([b"x"])
    with engine._files.use(engine._segments[-1].path) as fd:
        kept = os.dup(fd)
        os.dup2(writing, fd)  # a pipe cannot be synced
        assert engine.begin_sync(handle) == 1
        handle.wait()
        os.dup2(kept, fd)  # the disk would do again: nobody may find out
    with pytest.raises(StorageFault, match="cannot sync"):
        engine.end_sync(handle) if told_by == "end_sync" else engine.sync() if told_by == "sync" else engine.close()
    assert engine.durable_offset == 1
    if told_by != "close":
        with pytest.raises(StorageFault, match="cannot sync"):
            engine.sync()
        with pytest.raises(StorageFault, match="cannot sync"):
            writer.append([b"y"])
    assert engine.begin_sync(handle) == 0
    for descriptor in (kept, reading, writing):
        os.close(descriptor)


def test_a_trim_beside_a_line_keeps_the_rest(flusher: Flusher, tmp_path: Path) -> None:
    engine, writer = grown(tmp_path / "log")
    handle = flusher.handle(engine)
    writer.append([b"second"])
    assert engine.begin_sync(handle) == 1
    engine.roll()
    writer.append([b"third"])
    assert engine.trim(2) == 2
    assert engine.end_sync(handle) == 1
    assert engine.durable_offset == 3
    assert read_everything(engine, LOG_ID) == [(2, b"third")]
    engine.close()


def test_a_segment_after_a_full_one_has_all_its_blocks_at_once(tmp_path: Path) -> None:
    options = EngineOptions(segment_bytes=1 << 20)
    engine = open_engine("segment", tmp_path / "log", LOG_ID, options=options)
    writer = Writer(engine, LOG_ID)
    for _ in range(3):
        writer.append([b"x" * 400_000])
    newest = tmp_path / "log" / engine.stat().parts[-1].name
    assert newest.stat().st_size < 500_000
    blocks = newest.stat().st_blocks * 512
    if blocks < 1 << 20:
        pytest.skip("this file system reserves no blocks")
    engine.close()
    assert newest.stat().st_blocks * 512 < 500_000, "given back at the close"
