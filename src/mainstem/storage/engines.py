"""Every engine there is. A new one is a module beside this one and an entry in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import ConfigError, InvalidArgument
from mainstem.storage.disk import REAL_DISK, Disk
from mainstem.storage.engine import Engine
from mainstem.storage.memory import BYTES_MAX, MemoryEngine
from mainstem.storage.segment.engine import SEGMENT_BYTES, SegmentEngine
from mainstem.storage.segment.index_cache import INDEX_BYTES_MAX, IndexCache
from mainstem.storage.segment.open_files import FILES_MAX, OpenFiles
from mainstem.storage.segment.recovery import Progress
from mainstem.storage.segment.segment import parse_name

if TYPE_CHECKING:
    from mainstem.storage.object.shared import ObjectLogs

ROCKSDB = "rocksdb"  # its directory in a log's
OBJECT = "object"  # a small file in a log's directory: whose registry knows it


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
    objects: ObjectLogs | None = None  # object: what its logs share, if there is a store
    progress: Progress | None = None  # told while an unclean log is walked


_DEFAULTS = EngineOptions()


def open_engine(
    name: str, directory: Path, log_id: int, *, options: EngineOptions | Mapping[str, Any] = _DEFAULTS
) -> Engine:
    """The log's frames, recovered and ready. A log is one directory, which also holds its reservation."""
    if isinstance(options, Mapping):
        options = EngineOptions(**options)
    kind = ENGINES.get(name)
    if kind is None:
        raise InvalidArgument(f"no engine is called {name!r}; there are {', '.join(ENGINES)}")
    return kind.open(directory, log_id, options)


def _open_segment(directory: Path, log_id: int, options: EngineOptions) -> Engine:
    shared = options.shared or SharedFiles()
    return SegmentEngine(
        directory,
        log_id,
        files=shared.files,
        indexes=shared.indexes,
        segment_bytes=options.segment_bytes,
        progress=options.progress,
    )


def _open_memory(directory: Path, log_id: int, options: EngineOptions) -> Engine:
    return MemoryEngine(log_id, bytes_max=options.bytes_max)


def _open_rocksdb(directory: Path, log_id: int, options: EngineOptions) -> Engine:
    from mainstem.storage.rocksdb import RocksDbEngine  # loads a large library, which few need

    return RocksDbEngine(directory, log_id, part_bytes=options.segment_bytes)


def _open_object(directory: Path, log_id: int, options: EngineOptions) -> Engine:
    if options.objects is None:
        raise ConfigError(
            f"log {log_id} lies in an object store (engine object), and no store is set",
            fix='name it: [tier] store = "s3://BUCKET/PREFIX"',
        )
    return options.objects.open(directory, log_id, options.segment_bytes)


def _has_segments(directory: Path, names: list[str]) -> bool:
    return ROCKSDB not in names and any(parse_name(one) or one.startswith(("checkpoint", "clean")) for one in names)


def _has_rocksdb(directory: Path, names: list[str]) -> bool:
    return ROCKSDB in names and (directory / ROCKSDB).is_dir()


def _has_objects(directory: Path, names: list[str]) -> bool:
    return OBJECT in names


def _has_nothing(directory: Path, names: list[str]) -> bool:
    return True  # a log in memory leaves only its reservation


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One engine, and what the rest of the house must know of it without opening it."""

    open: Callable[[Path, int, EngineOptions], Engine]
    on_disk: bool  # whether what it holds is there after a restart, and the log's small files with it
    has_segments: bool  # whether its frames lie in segment files, which can be listed, copied and repaired
    colour: str  # in the console
    lies_in: Callable[[Path, list[str]], bool]  # whether a log's directory, with these names, is one of its
    one_machine: bool = False  # its files are no `Disk`'s: a cluster cannot keep them


# The table of engines. Adding one is a module beside this one and an entry here. A directory is the first's it fits.
ENGINES: dict[str, EngineKind] = {
    "segment": EngineKind(_open_segment, on_disk=True, has_segments=True, colour="stem", lies_in=_has_segments),
    "rocksdb": EngineKind(
        _open_rocksdb, on_disk=True, has_segments=False, colour="amqp", lies_in=_has_rocksdb, one_machine=True
    ),
    "object": EngineKind(_open_object, on_disk=True, has_segments=False, colour="kafka", lies_in=_has_objects),
    "memory": EngineKind(_open_memory, on_disk=False, has_segments=False, colour="mqtt", lies_in=_has_nothing),
}
