"""Frames of many logs on their way into bundles: gathered, stored several at a time, committed in order.

    add ──► the open bundle ──► closed (by size or time) ──► stored, up to UPLOADS at once ──► committed, one after the other

Nothing here knows a registry or a store: `store` puts a bundle where it must lie, however long that takes, and `commit`
makes it count. Whatever was committed was committed before everything that came after it, so an ack of one frame is an ack
of all before it. `add` never waits. What is not committed lies in memory, at most `unstored_max` bytes: beyond that `add`
refuses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mainstem.model.errors import MainstemError, Overloaded
from mainstem.storage.engine import Buffer, FrameRef
from mainstem.storage.object.pending import Pending

logger = logging.getLogger("mainstem.tier")

UPLOADS = 4
AGAIN_S = 1.0  # after a commit that failed
S = TypeVar("S")


@dataclass(slots=True)
class Gathered:
    """Frames that become one bundle."""

    began_s: float
    size: int = 0
    pieces: dict[tuple[int, int], Pending] = field(default_factory=dict)  # by log and part
    sequence: int = -1  # once it is closed

    def in_order(self) -> list[Pending]:
        return sorted(self.pieces.values(), key=lambda one: (one.log_id, one.base_offset))


class BundleWriter(Generic[S]):
    """`store(gathered)` and `commit(gathered, stored)` run in threads of ours; `commit` in order of the sequences."""

    def __init__(
        self,
        store: Callable[[Gathered], S],
        commit: Callable[[Gathered, S], None],
        *,
        bundle_bytes: int,
        bundle_s: float,
        unstored_max: int,
    ) -> None:
        self._store, self._commit = store, commit
        self.bundle_bytes, self.bundle_s, self.unstored_max = bundle_bytes, bundle_s, unstored_max
        self._changed = threading.Condition()
        self._open: Gathered | None = None
        self._closed: deque[Gathered] = deque()
        self._under_way: dict[int, Gathered] = {}
        self._next, self._committed = 0, 0  # sequences: of the next bundle; below it all are committed
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self.unstored_bytes = 0
        self.stopped: MainstemError | None = None  # why nothing is stored any more

    def add(self, log_id: int, part: int, data: Sequence[Buffer], frames: Sequence[FrameRef], size: int) -> Pending:
        """The piece that the frames are in. Never waits; Overloaded where too much waits already."""
        with self._changed:
            if self.stopped is not None:
                raise self.stopped
            if self.unstored_bytes + size > self.unstored_max:
                raise Overloaded(
                    f"{self.unstored_bytes >> 10} KiB wait for the object store, {size} bytes more are too much",
                    fix="see why it is slow: mainstem doctor; or raise tier.unstored_bytes_max",
                )
            gathered = self._open
            if gathered is None:
                gathered = self._open = Gathered(time.monotonic())
                self._wake()
            piece = gathered.pieces.get((log_id, part))
            if piece is None:
                piece = gathered.pieces[log_id, part] = Pending(log_id, part, frames[0].base_offset)
            piece.add(data, frames)
            gathered.size += size
            self.unstored_bytes += size
            if gathered.size >= self.bundle_bytes:
                self._close()
                self._wake()
            return piece

    def wait(self, until_s: float | None = None) -> bool:
        """All that was added is committed; does not wait for the bundle to fill. False at `until_s` (monotonic). Raises why
        it never will be."""
        with self._changed:
            if self._open is not None:
                self._close()
                self._changed.notify_all()
            wanted = self._next
            while self._committed < wanted:
                if self.stopped is not None:
                    raise self.stopped
                left = None if until_s is None else until_s - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def stop(self, reason: MainstemError) -> None:
        """What is not committed never is. Threads end by themselves."""
        with self._changed:
            self.stopped = self.stopped or reason
            self._changed.notify_all()

    @property
    def oldest_s(self) -> float:
        """How long the oldest frame waits that is not committed; 0 where none does."""
        with self._changed:
            waiting = [*self._under_way.values(), *self._closed, *([self._open] if self._open is not None else [])]
            return time.monotonic() - min(one.began_s for one in waiting) if waiting else 0.0

    # -- inside

    def _close(self) -> None:
        assert self._open is not None
        self._open.sequence, self._next = self._next, self._next + 1
        self._closed.append(self._open)
        self._open = None

    def _wake(self) -> None:
        """Threads are made when there is work."""
        if self._idle or len(self._threads) == UPLOADS:
            self._changed.notify_all()
            return
        thread = threading.Thread(target=self._run, name=f"bundles-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _take(self) -> Gathered | None:
        """The next bundle that is closed, or due; None when it is over."""
        with self._changed:
            while self.stopped is None:
                left: float | None = None
                if not self._closed and self._open is not None:
                    left = self._open.began_s + self.bundle_s - time.monotonic()
                    if left <= 0:
                        self._close()
                if self._closed:
                    taken = self._closed.popleft()
                    self._under_way[taken.sequence] = taken
                    if self._closed or self._open is not None:  # another must look after these meanwhile
                        self._wake()
                    return taken
                self._idle += 1
                self._changed.wait(left)
                self._idle -= 1
            return None

    def _run(self) -> None:
        while (gathered := self._take()) is not None:
            try:
                self._finish(gathered, self._store(gathered))
            except MainstemError as error:  # `store` gives up only when all is over
                self.stop(error)
            except Exception as error:
                logger.exception("a bundle could not be stored")
                self.stop(Overloaded(f"bundles are stored no more: {error}", fix="start the broker again"))

    def _finish(self, gathered: Gathered, stored: S) -> None:
        with self._changed:
            while self._committed != gathered.sequence:
                if self.stopped is not None:
                    return
                self._changed.wait()
        while not self._try_commit(gathered, stored):
            with self._changed:
                if self.stopped is not None:
                    return
                self._changed.wait(AGAIN_S)
        with self._changed:
            del self._under_way[gathered.sequence]
            self._committed += 1
            self.unstored_bytes -= gathered.size
            self._changed.notify_all()

    def _try_commit(self, gathered: Gathered, stored: S) -> bool:
        try:
            self._commit(gathered, stored)
        except MainstemError as error:  # a full disk, most likely: nothing is acked before it is written down
            logger.error("a stored bundle cannot be written down, it is tried again: %s", error)
            return False
        return True
