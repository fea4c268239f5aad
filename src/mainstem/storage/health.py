"""Whether a log's files may still be written: not after it was closed, and never again after a write or sync failed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from mainstem.model.errors import DiskFull, StorageFault
from mainstem.storage.disk import is_full


class Health:
    __slots__ = ("_directory", "closed", "fault")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fault: StorageFault | None = None
        self.closed = False

    def check(self) -> None:
        """Raises where nothing more may be written."""
        if self.fault is not None:
            raise self.fault
        if self.closed:
            raise StorageFault(f"{self._directory}: the log is closed")

    def refuse(self, what: str, error: OSError) -> NoReturn:
        """A full disk refuses this write only; any other failure is the last."""
        if is_full(error):
            raise DiskFull(f"{what}: {error.strerror}") from error
        self.fail(what, error)

    def fail(self, what: str, error: Exception) -> NoReturn:
        """After a failed write or sync the kernel may have dropped our pages: nothing more is promised. No retry."""
        self.fault = StorageFault(f"{what}: {error}; what was not acknowledged may be lost")
        raise self.fault from error

    def fail_by_code(self, code: int) -> NoReturn:
        """A sync failed where only its errno is known."""
        self.fail(f"{self._directory}: cannot sync", OSError(code, os.strerror(code)))
