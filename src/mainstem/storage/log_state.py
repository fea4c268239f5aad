"""The small facts that a log must never forget, behind three verbs: get, put, compare-and-set.

    reserved = {"end_offset", "epoch", "clean", "gaps"}  offsets given out at most, and the leader epoch     (reservation.py)
    start    = {"offset"}                         where streams begin                                 (log/logs.py)
    stamps   = {"end", "clean"}                   stamps given out at most, of the whole broker       (log/stamps.py)

Today each is a small file that is whole or absent (`state_file.py`), and the lock of the data directory keeps others away.
Where a log has one fenced owner among several brokers the same verbs are a row of a database each: that is why a `Fact`
is changed only from what its owner knows it to be. Whoever finds it changed by someone else owns it no more, and stops.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mainstem.model.errors import DiskFull, StorageFault
from mainstem.storage.disk import REAL_DISK, Disk, is_full
from mainstem.storage.state_file import read_state, write_state

Value = Mapping[str, Any]

RESERVED, START, STAMPS = "reserved", "start", "stamps"
KINDS = {RESERVED: "reservation"}  # what a file says of itself, where that is not its name


class LogState(Protocol):
    """Of one log, or of the broker. `put` and `compare_and_set` are durable once they return; any thread may call."""

    def get(self, name: str) -> dict[str, Any] | None:
        """None: it was never put. CorruptFrame where it was damaged: it is never read as absent."""

    def put(self, name: str, value: Value) -> None:
        """DiskFull leaves what was there; any other failure is a StorageFault."""

    def compare_and_set(self, name: str, expected: Value | None, value: Value) -> bool:
        """Put `value` only if `expected` (None: nothing) is what is there; False otherwise, and nothing has changed."""


class FileState:
    def __init__(self, directory: Path, disk: Disk = REAL_DISK) -> None:
        self._directory = directory
        self._disk = disk
        self._lock = threading.Lock()

    def get(self, name: str) -> dict[str, Any] | None:
        return read_state(self._disk, self._directory / name, KINDS.get(name, name))

    def put(self, name: str, value: Value) -> None:
        with self._lock:
            self._put(name, value)

    def compare_and_set(self, name: str, expected: Value | None, value: Value) -> bool:
        with self._lock:
            if self.get(name) != expected:
                return False
            self._put(name, value)
            return True

    def _put(self, name: str, value: Value) -> None:
        path = self._directory / name
        try:
            write_state(self._disk, path, KINDS.get(name, name), value)
        except OSError as error:
            if is_full(error):  # what was there still holds
                raise DiskFull(f"{path}: no space to write it: {error}") from error
            raise StorageFault(f"{path}: cannot be written: {error}") from error


class Fact:
    """One fact of ours: `value` is what is durable. Not for two threads at once."""

    def __init__(self, state: LogState, name: str) -> None:
        """Raises CorruptFrame where it is damaged."""
        self._state = state
        self._name = name
        self._attempted: Value | None = None  # by a write that failed: it may be there all the same
        self.value: Value | None = state.get(name)

    def set(self, value: Value) -> None:
        """Durable once this returns. StorageFault where someone else changed it: then it is not ours any more."""
        attempted, self._attempted = self._attempted, value
        if not self._state.compare_and_set(self._name, self.value, value) and not (
            attempted is not None and self._state.compare_and_set(self._name, attempted, value)
        ):
            self._attempted = None
            raise StorageFault(
                f"{self._name} was changed by someone else: it is {self._state.get(self._name)}, not {self.value}",
                fix="make sure that no other process uses this data, then start again",
            )
        self.value, self._attempted = value, None
