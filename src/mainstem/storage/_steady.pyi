from collections.abc import Iterable

from mainstem.storage.engine import Buffer

def write_steadily(fd: int, buffers: Iterable[Buffer]) -> None:
    """All of them from the file's beginning on. The interpreter is free meanwhile. An `fsync` has to follow."""

def read_steadily(fd: int, size: int, position: int) -> bytes:
    """As `os.pread`; less than asked for only where the file ends."""

def read_steadily_into(fd: int, buffer: memoryview, position: int) -> int:
    """The same into memory that is there; returns how much came."""
