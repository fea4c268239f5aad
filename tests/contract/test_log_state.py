"""What a log must never forget: each kind of state, held to the same promises; then a fact that has one owner."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from mainstem.model.errors import CorruptFrame, DiskFull, StorageFault
from mainstem.storage.disk import RealDisk
from mainstem.storage.log_state import RESERVED, STAMPS, START, Fact, FileState, LogState
from mainstem.storage.reservation import Reservation


class LogStateContract:
    def open(self, place: Path) -> LogState:
        raise NotImplementedError

    @pytest.mark.parametrize("name", [RESERVED, START, STAMPS])
    def test_what_was_put_is_got_by_whoever_opens_it_next(self, tmp_path: Path, name: str) -> None:
        state = self.open(tmp_path)
        assert state.get(name) is None
        state.put(name, {"a": 1, "b": True})
        state.put(name, {"a": 1 << 60, "b": False})
        assert state.get(name) == self.open(tmp_path).get(name) == {"a": 1 << 60, "b": False}

    def test_facts_do_not_touch_each_other(self, tmp_path: Path) -> None:
        state = self.open(tmp_path)
        state.put(START, {"offset": 5})
        state.put(STAMPS, {"end": 6})
        assert (state.get(START), state.get(STAMPS), state.get(RESERVED)) == ({"offset": 5}, {"end": 6}, None)

    def test_it_is_set_only_from_what_is_expected(self, tmp_path: Path) -> None:
        state = self.open(tmp_path)
        assert not state.compare_and_set(START, {"offset": 1}, {"offset": 2})
        assert state.get(START) is None
        assert state.compare_and_set(START, None, {"offset": 1})
        assert not state.compare_and_set(START, None, {"offset": 3})
        assert not state.compare_and_set(START, {"offset": 2}, {"offset": 3})
        assert state.compare_and_set(START, {"offset": 1}, {"offset": 3})
        assert state.get(START) == {"offset": 3}

    def test_of_many_that_set_it_from_the_same_value_one_wins(self, tmp_path: Path) -> None:
        state = self.open(tmp_path)
        state.put(START, {"offset": 0})
        won: list[int] = []

        def try_it(number: int) -> None:
            if state.compare_and_set(START, {"offset": 0}, {"offset": number}):
                won.append(number)

        threads = [threading.Thread(target=try_it, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [state.get(START)] == [{"offset": number} for number in won]

    def test_a_fact_that_someone_else_changed_is_refused(self, tmp_path: Path) -> None:
        mine, theirs = Fact(self.open(tmp_path), STAMPS), Fact(self.open(tmp_path), STAMPS)
        mine.set({"end": 10})
        with pytest.raises(StorageFault, match="changed by someone else"):
            theirs.set({"end": 5})
        mine.set({"end": 20})
        assert self.open(tmp_path).get(STAMPS) == {"end": 20}

    def test_offsets_are_not_reserved_by_two_owners(self, tmp_path: Path) -> None:
        first, second = Reservation.of(self.open(tmp_path)), Reservation.of(self.open(tmp_path))
        second.extend(100)
        with pytest.raises(StorageFault, match="changed by someone else"):
            first.extend(50)
        assert Reservation.of(self.open(tmp_path)).end_offset == 100


class TestFileState(LogStateContract):
    def open(self, place: Path) -> LogState:
        return FileState(place)

    def test_a_damaged_file_is_never_read_as_absent(self, tmp_path: Path) -> None:
        FileState(tmp_path).put(STAMPS, {"end": 5})
        path = tmp_path / STAMPS
        path.write_bytes(path.read_bytes().replace(b"5", b"6"))
        with pytest.raises(CorruptFrame):
            FileState(tmp_path).get(STAMPS)
        with pytest.raises(CorruptFrame):
            FileState(tmp_path).compare_and_set(STAMPS, None, {"end": 1})

    def test_a_full_disk_leaves_what_was_there_and_the_owner_goes_on_when_there_is_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fact = Fact(FileState(tmp_path), STAMPS)
        fact.set({"end": 5})
        with monkeypatch.context() as full:
            full.setattr(RealDisk, "fsync", _no_space)
            with pytest.raises(DiskFull):
                fact.set({"end": 6})
        assert (fact.value, FileState(tmp_path).get(STAMPS)) == ({"end": 5}, {"end": 5})
        fact.set({"end": 7})
        assert FileState(tmp_path).get(STAMPS) == {"end": 7}

    def test_a_write_that_failed_after_it_was_made_is_known_as_our_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fact = Fact(FileState(tmp_path), STAMPS)
        fact.set({"end": 5})
        with monkeypatch.context() as full:
            full.setattr(RealDisk, "fsync_dir", _no_space)
            with pytest.raises(DiskFull):
                fact.set({"end": 6})
        assert FileState(tmp_path).get(STAMPS) == {"end": 6}
        fact.set({"end": 7})
        assert FileState(tmp_path).get(STAMPS) == {"end": 7}


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
