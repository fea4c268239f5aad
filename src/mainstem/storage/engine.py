"""Where a log's frames live. Every engine is these verbs and nothing more; it speaks frames, never topics or protocols.

The log above assigns offsets and stamps, is the only writer, and calls `append` from one thread. `read` and
`find_stamp` may be called from any thread, also while `append` and `sync` run. What `append` returned from is
readable at once; what `sync` returned from survives a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from mainstem.storage.flusher import FlushHandle

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)  # not frozen: setting would cost twice as much, once per write
class FrameRef:
    """What the log tells the engine of each frame it appends; the frame's bytes say the same."""

    base_offset: int
    count: int  # offsets covered, not bytes
    stamp: int
    size: int  # bytes, frame header included


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole frames, in order, as stored. `base_offset` is the first one's, `end_offset` lies past the last one's."""

    data: memoryview
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the log that is dropped or kept as a whole (a segment file, a key range)."""

    name: str  # file name or key prefix
    generation: int  # grows when the piece is rewritten with the same offsets
    base_offset: int
    end_offset: int
    first_stamp: int
    last_stamp: int  # of the last frame in it
    size_bytes: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Stat:
    start_offset: int  # first offset still stored (or the end, when empty)
    end_offset: int
    last_stamp: int  # highest stamp ever appended, 0 when none
    size_bytes: int
    parts: tuple[Part, ...]
    path: str | None  # the directory where parts lie as files, if they do
    clean: bool  # it was closed cleanly before it was opened; else (or new) the log above goes on at the reserved end


class NotLocal(Exception):
    """A read that must not wait met frames that lie on another machine. Not a fault: `bring` them, then read again."""

    threads: ThreadPoolExecutor | None = None  # that bring it; None: those for what lies elsewhere

    def __init__(self, engine: Engine, offset: int, bytes_max: int, end_offset: int | None = None) -> None:
        super().__init__(f"offset {offset} lies elsewhere")
        self.engine = engine
        self.offset = offset
        self.bytes_max = bytes_max
        self.end_offset = end_offset

    def bring(self) -> None:
        """Waits, so in a thread. The same read finds the frames here for a while."""
        self.engine.read(self.offset, self.bytes_max, self.end_offset)


class Engine(Protocol):
    """One log's frames. Opening (see `engines.open_engine`) recovers first and never serves a torn frame."""

    @property
    def is_local(self) -> bool:
        """Whether every read is answered by this machine. Where it is not, `read_now` and `find_stamp` may say NotLocal."""

    @property
    def durable_offset(self) -> int:
        """Everything below survives a power cut. The log writes it into the head of each frame it appends: recovery
        tells a torn tail from damaged data by it, so it must never say more, whatever the log's policy acks."""

    def append(self, data: Sequence[Buffer], frames: Sequence[FrameRef]) -> None:
        """Store whole frames (`b"".join(data)` is exactly `frames`), all or none; DiskFull leaves the log as it was."""

    def sync(self) -> None:
        """Everything appended before the call survives a power cut once this returns. Waits without the GIL."""

    def read(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """Whole frames from the one that holds `offset` (or the next one stored), at least one, about `bytes_max` bytes
        of them, none that begins at or beyond `end_offset`; None at the end of the log. CorruptFrame if the head of
        the first one is damaged; batches are not opened, whoever decodes them checks them."""

    def read_now(self, offset: int, bytes_max: int, end_offset: int | None = None) -> Slice | None:
        """`read` that never leaves this machine: NotLocal where it would have to. What `read` brought stays readable so
        long enough to be read again. Where the engine is local it is `read`, but for frames so large that a thread should
        read them first: who handles that says so (`log/away.py`)."""

    def find_stamp(self, stamp: int) -> int:
        """The base offset of the last frame whose stamp is <= `stamp`; the start offset if there is none. Never leaves
        this machine, either."""

    def roll(self) -> None:
        """Seal the part being written, so that retention may drop it later; the next append opens a new one."""

    def trim(self, before_offset: int) -> int:
        """Drop sealed parts that end at or before `before_offset`; returns the new start offset."""

    def replace(self, part: Part, frames: Sequence[Buffer]) -> None:
        """Swap a sealed part for a rewritten one holding a subset of its offsets (compaction, erase), atomically."""

    def stat(self) -> Stat: ...

    def close(self) -> None:
        """Sync, mark the log clean, release everything. A log closed so opens without a scan."""


@runtime_checkable
class FileParts(Protocol):
    """An engine whose sealed parts are files of frames, which others may read beside it: Spark's tasks, a Kafka fetch that
    reads straight into what is sent. `Stat.path` is their directory."""

    @property
    def segments(self) -> tuple[object, ...]:
        """What is stored, as an object that is replaced whenever a part is: who kept bytes of it knows by that."""

    def hold(self, part: Part) -> bool:
        """Keep the part's file although it is trimmed or replaced, until `release`; False if it is gone already."""

    def release(self, part: Part) -> None:
        """One `hold` less."""

    def cuts(self, part: Part, step_bytes: int) -> list[tuple[int, int]]:
        """Places where a reader of the part's file may begin, about `step_bytes` apart: (byte position, base offset
        of the frame there), ascending; empty if the part is gone."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Stored bytes as they are, from the frame that holds `offset` or one a little before it: as many as the part has
        and the buffer takes, so the last frame may be cut off. 0 where `read` has to look further."""


@runtime_checkable
class CopiedEngine(Protocol):
    """An engine that makes a consistent copy of itself for a backup, as its files cannot be copied one by one."""

    def copy_to(self, directory: Path) -> None: ...


@runtime_checkable
class FlushableEngine(Protocol):
    """An engine whose sync is that of a few descriptors: a thread can do it that never waits for the interpreter. What else
    `sync` does from time to time is upkeep, which nobody has to wait for."""

    def begin_sync(self, handle: FlushHandle) -> int:
        """Ask `handle` for what `sync_data` would do now: the request's number; 0 where it takes more, then call that.
        Never waits; on the thread that appends."""

    def end_sync(self, handle: FlushHandle) -> int:
        """On the same thread, when `handle` has news: what was asked for up to this number survives a power cut.
        StorageFault if it failed."""

    def sync_data(self) -> None:
        """`sync` without upkeep."""

    @property
    def upkeep_is_due(self) -> bool:
        """Cheap; any thread."""

    def keep_up(self) -> None:
        """Do it. In a thread, beside everything else."""


@runtime_checkable
class PreparingEngine(Protocol):
    """An engine that writes a large frame before its place in the log is known, so that nobody waits for its bytes."""

    def prepare(self, data: Sequence[Buffer]) -> Path:
        """In a thread: one frame, durable beside the log; what its place decides is filled in later."""

    def adopt(self, prepared: Path, front: Sequence[Buffer], frame: FrameRef) -> None:
        """`append` of a prepared frame whose first bytes are `front`, now that its place is known. Never long."""


@runtime_checkable
class PushedEngine(Protocol):
    """An engine that says by itself when what was appended survives a power cut: nobody needs to wait for its `sync`."""

    @property
    def durable_offset(self) -> int: ...

    end_offset: int
    on_durable: Callable[[int], None]  # up to where; called in a thread of the engine's, in order
