"""Every engine there is. A new one is a module beside this one and a line in `open_engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainstem.model.errors import InvalidArgument
from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.engine import Engine
from mainstem.storage.memory import BYTES_MAX, MemoryEngine
from mainstem.storage.segment.engine import SEGMENT_BYTES, SegmentEngine
from mainstem.storage.segment.index_cache import INDEX_BYTES_MAX, IndexCache
from mainstem.storage.segment.open_files import FILES_MAX, OpenFiles
from mainstem.storage.segment.recovery import Progress

ENGINE_NAMES = ("segment", "memory", "rocksdb")


class SharedFiles:
    """What the logs of one process share: its open files and loaded indexes, each with one limit for all of them."""

    def __init__(
        self, disk: Disk = REAL_DISK, files_max: int = FILES_MAX, index_bytes_max: int = INDEX_BYTES_MAX
    ) -> None:
        self.files = OpenFiles(disk, files_max)
        self.indexes = IndexCache(self.files, index_bytes_max)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """One set for all engines; each takes what concerns it."""

    segment_bytes: int = SEGMENT_BYTES  # segment, rocksdb: a part is sealed at this size
    bytes_max: int = BYTES_MAX  # memory: all of the log
    shared: SharedFiles | None = None  # segment: the server makes one; without it each log has its own
    progress: Progress | None = None  # told while an unclean log is walked


_DEFAULTS = EngineOptions()


def open_engine(
    name: str, directory: Path, log_id: int, *, options: EngineOptions | Mapping[str, Any] = _DEFAULTS
) -> Engine:
    """The log's frames, recovered and ready. A log is one directory, which also holds its reservation."""
    if isinstance(options, Mapping):
        options = EngineOptions(**options)
    if name == "segment":
        shared = options.shared or SharedFiles()
        return SegmentEngine(
            directory,
            log_id,
            files=shared.files,
            indexes=shared.indexes,
            segment_bytes=options.segment_bytes,
            progress=options.progress,
        )
    if name == "memory":
        return MemoryEngine(log_id, bytes_max=options.bytes_max)
    if name == "rocksdb":
        from mainstem.storage.rocksdb import RocksDbEngine  # loads a large library, which few need

        return RocksDbEngine(directory, log_id, part_bytes=options.segment_bytes)
    raise InvalidArgument(f"no engine is called {name!r}; there are {', '.join(ENGINE_NAMES)}")
