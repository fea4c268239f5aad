"""Syncs of descriptors by threads that never wait for the interpreter, so that a disk is not idle while it is busy.

A log has one `FlushHandle`. `request(fd, ...)` asks for a sync of everything written to these descriptors before; the
requests that come while one runs share the next, which begins at once, before anyone was told. Of `~fd` it syncs what
`fdatasync` may leave out, too: names in a directory, a new file's metadata. `Flusher.finished()` names the handles with
news, on the loop, whenever the descriptor `fileno()` is readable; `handle.outcome()` tells the last request that is done.

A handle that failed stays so: its error is kept, and nothing is synced for it again. The kernel tells a lost page once,
so a second try would succeed and mean nothing. For the same reason nobody else may sync a file while a handle does:
they `wait` first, and look at what it returns.
"""

from __future__ import annotations

from mainstem.storage._flusher import Flusher, FlushHandle

__all__ = ["FlushHandle", "Flusher"]
