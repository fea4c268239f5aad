"""Large files lose their name at once and their space in pieces, unless somebody still has them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mainstem.storage import reclaiming
from mainstem.storage.disk import REAL_DISK
from mainstem.storage.reclaiming import GENTLE_BYTES_MIN, PIECE_BYTES, RECLAIMER, remove_tree

DEADLINE_S = 30.0
SIZE = GENTLE_BYTES_MIN + 5


@pytest.fixture(autouse=True)
def with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaiming, "ROOM_BYTES_MIN", 0)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(b"x" * SIZE)
    return path


def pieces_after(before: int) -> int:
    """How many were cut off once nothing waits."""
    deadline = time.monotonic() + DEADLINE_S
    while not RECLAIMER.idle:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return RECLAIMER.pieces - before


def test_a_large_file_is_gone_at_once_and_its_space_in_pieces(large: Path) -> None:
    before = RECLAIMER.pieces
    REAL_DISK.unlink(large)
    assert not large.exists()
    assert pieces_after(before) == SIZE // PIECE_BYTES


def test_a_file_that_is_replaced_by_another_is_given_back_in_pieces(large: Path, tmp_path: Path) -> None:
    before, new = RECLAIMER.pieces, tmp_path / "new"
    new.write_bytes(b"new")
    REAL_DISK.rename(new, large)
    assert large.read_bytes() == b"new"
    assert pieces_after(before) == SIZE // PIECE_BYTES


def test_who_still_reads_a_deleted_file_reads_all_of_it(large: Path) -> None:
    before = RECLAIMER.pieces
    with large.open("rb") as reader:
        REAL_DISK.unlink(large)
        assert pieces_after(before) == 0
        assert reader.read() == b"x" * SIZE


def test_another_name_of_a_deleted_file_keeps_all_of_it(large: Path, tmp_path: Path) -> None:
    before = RECLAIMER.pieces
    os.link(large, tmp_path / "backup")
    REAL_DISK.unlink(large)
    assert pieces_after(before) == 0
    assert (tmp_path / "backup").read_bytes() == b"x" * SIZE


def test_small_files_and_a_disk_with_little_room_are_freed_at_once(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, small = RECLAIMER.pieces, tmp_path / "small"
    small.write_bytes(b"x")
    REAL_DISK.unlink(small)
    monkeypatch.setattr(reclaiming, "ROOM_BYTES_MIN", 1 << 62)
    REAL_DISK.unlink(large)
    assert not small.exists()
    assert not large.exists()
    assert pieces_after(before) == 0


def test_what_cannot_be_deleted_says_so_and_is_not_touched(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    before = RECLAIMER.pieces
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            REAL_DISK.unlink(large)
    with pytest.raises(FileNotFoundError):
        REAL_DISK.unlink(large.with_name("nothing"))
    assert pieces_after(before) == 0
    assert large.read_bytes() == b"x" * SIZE


def test_a_directory_goes_with_all_that_is_in_it(large: Path, tmp_path: Path) -> None:
    before, folder = RECLAIMER.pieces, tmp_path / "log" / "inner"
    folder.mkdir(parents=True)
    large.rename(folder / "large")
    (tmp_path / "log" / "small").write_bytes(b"x")
    remove_tree(tmp_path / "log")
    assert not (tmp_path / "log").exists()
    assert pieces_after(before) == SIZE // PIECE_BYTES
    remove_tree(tmp_path / "log")  # no error if it is not there
