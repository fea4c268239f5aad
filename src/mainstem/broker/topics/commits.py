"""A change of what exists commits first; then it is applied to the broker's memory, on the loop.

    plan (synchronous) → store.transact → committed: apply, on the loop | refused: undo, and who waits gets the answer

Two kinds of change cannot wait with everything, as something is published meanwhile. A topic that a publish creates: its
new log gathers what arrives and writes nothing before the commit (`Log.hold_writes`), and nobody else finds the topic
before. A seam, where records that exist end and go on in a new log: publishers move at once, the new log writes nothing
before the commit, and a refusal takes the seam back. See docs/adr/0026.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Generic, TypeVar

from mainstem.metadata.store import Written

logger = logging.getLogger("mainstem.broker")

T = TypeVar("T")


def nothing() -> None:
    """For a change that is applied, or undone, by doing nothing."""


class Commit(Generic[T]):
    """`value` is what will exist; `await` it (or, where nothing else runs, `now()`) to know that it does."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        written: Written,
        value: T,
        *,
        prepare: Callable[[], None] = nothing,
        apply: Callable[[], None] = nothing,
        undo: Callable[[Exception], None] | None = None,
    ) -> None:
        """`prepare` is what `apply` would wait for the disk with: done before in the store's thread, unless somebody awaits
        the commit and is there first."""
        self.value = value
        self._loop = loop
        self._written = written
        self._prepare = prepare
        self._apply = apply
        self._undo = undo
        self.on_finished: Callable[[], None] = nothing
        self._finished = False
        written.add_done_callback(self._post)

    def __await__(self) -> Generator[object, None, T]:
        try:
            yield from asyncio.wrap_future(self._written).__await__()
        finally:
            if self._written.done():
                self._finish()
        return self.value

    def now(self) -> T:
        """Wait where we stand: while the broker opens, and in tests. Protocols await."""
        try:
            self._written.result()
        finally:
            self._finish()
        return self.value

    def _post(self, written: Future[None]) -> None:
        """In the store's thread."""
        if self._prepare is not nothing and written.exception() is None:
            try:
                self._prepare()
            except Exception as error:  # the disk is full: whoever needs it meets that, too, and is told
                logger.debug("what a commit needs could not be prepared: %s", error)
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # the loop is closed: nobody serves any more
            logger.debug("metadata was committed after the loop")

    def _finish(self) -> None:
        """Once, on the loop: by whoever waited, or by the store's news."""
        if self._finished:
            return
        self._finished = True
        self.on_finished()
        error = self._written.exception()
        if error is None:
            self._apply()
        elif self._undo is not None and isinstance(error, Exception):
            self._undo(error)
