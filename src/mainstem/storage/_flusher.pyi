from typing import Any

class FlushHandle:
    flusher: Flusher
    owner: Any
    def __init__(self, flusher: Flusher, owner: Any) -> None: ...
    def outcome(self) -> tuple[int, int]:
        """The last request that is done, and the handle's error, 0 if it has none."""
    def request(self, *places: int) -> int:
        """Sync what was written to these descriptors so far, one after the other; `~fd` asks for an fsync, which directories
        need, where `fd` asks for an fdatasync. The request's number; 0 if it is not taken: the handle failed, more than
        eight descriptors would wait, or the flusher is closed."""
    def wait(self) -> int:
        """Until all that was requested is done. The handle's error, 0 if it has none."""
    def take_times(self) -> tuple[int, int]:
        """How many syncs there were since it was last asked, and their nanoseconds together."""

class Flusher:
    def __init__(self, threads: int) -> None: ...
    def fileno(self) -> int:
        """Becomes readable when `finished` has something to tell."""
    has_news: bool
    def handle(self, owner: Any) -> FlushHandle: ...
    def finished(self) -> list[FlushHandle]:
        """The handles on which anything was done or failed since it was last asked."""
    def close(self) -> None:
        """Finish what was requested and end the threads; `finished` tells of it. What is requested later is not taken."""
