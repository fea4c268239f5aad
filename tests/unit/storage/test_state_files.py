"""Small files that are whole or absent: state files, reservations and the data directory's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainstem.model.errors import ConfigError, CorruptFrame, StorageFault
from mainstem.storage.directory import FORMAT_FILE, DataDirectory
from mainstem.storage.disk import REAL_DISK
from mainstem.storage.reservation import Reservation
from mainstem.storage.state_file import read_state, write_state
from mainstem.testing.faulty_disk import FaultyDisk, PowerCut


def test_a_state_file_reads_back_and_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_state(REAL_DISK, path, "thing") is None
    write_state(REAL_DISK, path, "thing", {"a": 1})
    write_state(REAL_DISK, path, "thing", {"a": 2})
    assert read_state(REAL_DISK, path, "thing") == {"a": 2}
    path.unlink()
    assert read_state(REAL_DISK, path, "thing") == {"a": 1}
    assert (tmp_path / "state.previous").stat().st_mode & 0o077 == 0


def test_a_damaged_state_file_is_refused_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(REAL_DISK, path, "thing", {"a": 1})
    whole = path.read_bytes()
    for position in range(len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptFrame):
            read_state(REAL_DISK, path, "thing")
    path.write_bytes(whole)
    with pytest.raises(CorruptFrame):
        read_state(REAL_DISK, path, "other")


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new_state() -> None:
    path = Path("/state")
    for operations in range(20):
        for seed in range(20):
            disk = FaultyDisk(seed)
            write_state(disk, path, "thing", {"a": 1})
            disk.cut_power_after(operations)
            returned = False
            try:
                write_state(disk, path, "thing", {"a": 2})
                returned = True
            except PowerCut:
                pass
            disk.restart()
            state = read_state(disk, path, "thing")
            assert state == {"a": 2} or (state == {"a": 1} and not returned)


def test_a_reservation_is_remembered_and_never_shrinks(tmp_path: Path) -> None:
    reservation = Reservation.open(tmp_path / "log")
    assert (reservation.end_offset, reservation.epoch) == (0, 0)
    reservation.extend(1000)
    reservation.extend(2000, epoch=3)
    again = Reservation.open(tmp_path / "log")
    assert (again.end_offset, again.epoch, again.clean) == (2000, 3, False)
    with pytest.raises(AssertionError):
        again.extend(1999)


def test_a_damaged_reservation_is_refused_with_the_command_that_repairs_it(tmp_path: Path) -> None:
    Reservation.open(tmp_path).extend(1000)
    (tmp_path / "reserved").write_bytes(b"mainstem reservation 1 00000000\n{}\n")
    with pytest.raises(StorageFault) as caught:
        Reservation.open(tmp_path)
    assert "given out twice" in caught.value.message
    assert caught.value.fix == f"mainstem log repair --quarantine {tmp_path}"


# The data directory


def test_a_data_directory_is_made_for_the_owner_only_and_used_by_one(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "new" / "data")
    assert first.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        DataDirectory(first.path)
    first.release()
    DataDirectory(first.path).release()


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        DataDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").release()
    (tmp_path / "data" / FORMAT_FILE).write_text("mainstem data 3\n")
    with pytest.raises(ConfigError) as caught:
        DataDirectory(tmp_path / "data")
    assert "format 3" in caught.value.message
    assert caught.value.fix


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").release()
    (tmp_path / "data").chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        DataDirectory(tmp_path / "data")
