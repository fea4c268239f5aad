"""Large files are written and read in pieces, which are on the disk soon after they are written."""

from __future__ import annotations

import errno
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.codec.large_memory import PAGED_BYTES_MIN
from mainstem.storage.disk import REAL_DISK, read_stretch
from mainstem.storage.segment.prepared import prepare
from mainstem.storage.steady import STEADY_BYTES_MIN, read_steadily, write_steadily

PIECE_BYTES = 256 << 10
SYSTEM_CALL_BYTES_MAX = PIECE_BYTES
SYNCED_BYTES_MAX = (4 << 20) + PIECE_BYTES
CALLS = "pwrite64,pread64,pwritev,preadv,sync_file_range,fdatasync,fsync"


@pytest.mark.parametrize("sizes", [[0], [1], [200, PIECE_BYTES, 3], [200, 5 * PIECE_BYTES + 17, 40], [PIECE_BYTES] * 3])
def test_a_file_holds_all_pieces_in_order(tmp_path: Path, sizes: list[int]) -> None:
    made = random.Random(1)
    buffers = [made.randbytes(size) for size in sizes]
    fd = REAL_DISK.open(tmp_path / "file", create=True)
    write_steadily(fd, [buffers[0], *map(memoryview, buffers[1:])])
    whole = b"".join(buffers)
    assert (tmp_path / "file").read_bytes() == whole
    assert read_steadily(fd, len(whole), 0) == whole
    assert read_steadily(fd, len(whole) + 10, len(whole) // 2) == whole[len(whole) // 2 :]
    REAL_DISK.close(fd)


def test_a_large_read_ends_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (STEADY_BYTES_MIN + 5))
    fd = REAL_DISK.open(tmp_path / "file")
    assert REAL_DISK.pread(fd, 3 * STEADY_BYTES_MIN, 7) == b"x" * (STEADY_BYTES_MIN - 2)
    REAL_DISK.close(fd)


def test_a_stretch_is_read_up_to_the_end_of_its_file(tmp_path: Path) -> None:
    whole = random.Random(2).randbytes(PAGED_BYTES_MIN + 100)
    (tmp_path / "file").write_bytes(whole)
    fd = REAL_DISK.open(tmp_path / "file")
    for begin, size in ((0, len(whole)), (7, len(whole) + PAGED_BYTES_MIN), (50, 1000)):
        assert bytes(read_stretch(REAL_DISK, fd, begin, size)) == whole[begin : begin + size]
    REAL_DISK.close(fd)


def test_what_the_disk_refuses_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * PIECE_BYTES, hard))
    try:
        with pytest.raises(OSError) as refused:
            prepare(REAL_DISK, tmp_path, [bytes(10 * PIECE_BYTES)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_that_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = REAL_DISK.open(tmp_path / "file", read_only=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_steadily(fd, [b"y"])
    REAL_DISK.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_steadily(fd, 10, 0)


def test_no_system_call_copies_more_than_a_piece_and_each_is_sent_to_the_disk(tmp_path: Path) -> None:
    """One call that copies tens of megabytes keeps a core from everybody else, and fills the disk's queue; and tens of
    megabytes in the disk's own cache are what anybody's next sync waits for."""
    program = (
        "from pathlib import Path; from mainstem.storage.disk import REAL_DISK as disk;"
        "from mainstem.storage.segment.prepared import prepare;"
        f"path = prepare(disk, Path({str(tmp_path)!r}), [b'head', bytes(40 * {PIECE_BYTES})]);"
        f"assert len(disk.pread(disk.open(path), 40 * {PIECE_BYTES}, 4)) == 40 * {PIECE_BYTES}"
    )
    traced = tmp_path / "calls"
    command = ["strace", "-f", "-o", str(traced), "-e", f"trace={CALLS}", sys.executable, "-c", program]
    try:
        subprocess.run(command, check=True, timeout=60, capture_output=True)
    except (FileNotFoundError, PermissionError):
        pytest.skip("strace is not installed")
    except subprocess.CalledProcessError as error:
        if b"ptrace" in error.stderr:
            pytest.skip("strace may not trace here")
        raise
    lines = traced.read_text().splitlines()
    moved = [int(line.rpartition("= ")[2]) for line in lines if "pwrite" in line or "pread" in line]
    assert max(moved) <= SYSTEM_CALL_BYTES_MAX
    waited = [line for line in lines if "sync_file_range" in line and "WAIT_AFTER" in line]
    assert len(waited) >= 38
    unsynced = [0]
    for line in lines:
        if "fdatasync" in line or "fsync" in line:
            unsynced.append(0)
        elif "pwrite" in line:
            unsynced[-1] += int(line.rpartition("= ")[2])
    assert max(unsynced) <= SYNCED_BYTES_MAX
    assert unsynced[-1] == 0
