"""Files of a lake that are durable before anything names them.

The broker may forget a segment once the lake holds its records, so a local warehouse keeps the broker's promise: a data
file, manifest or metadata file is synced, and its name with it, before the catalog points to it. An object store does the
same by itself when it answers a PUT.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class SyncedStream(io.FileIO):
    """A new file; closing it syncs the bytes and the folder that names it."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._path = path

    def close(self) -> None:
        if not self.closed:
            try:
                os.fdatasync(self.fileno())
            finally:
                super().close()
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


class SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        made: OutputStream = io.BufferedWriter(SyncedStream(path, "wb" if overwrite else "xb"), self._buffer_size)
        return made


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but for how local files are written. Chosen by the property `py-io-impl`."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        if location.startswith(("/", "file:")):
            return SyncedFile(location, made._path, made._filesystem, made._buffer_size)
        return made
