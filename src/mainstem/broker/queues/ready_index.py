"""Where the unread records of one priority lie, so that the few of a high priority are found without looking at the rest.

The positions are kept in a file beside the logs, not in memory: 8 bytes for each ready record. In memory are those that
were not yet written and a stretch read ahead. The file is derived: it is written before the journal counts the records
in it, a start believes it only if it holds exactly as many as the cursor counts, and otherwise it is built again.

    <data>/queues/<queue id, hex>-<priority>.ready:   i64 position …   big-endian, ascending
"""

from __future__ import annotations

import logging
import os
import sys
from array import array
from errno import ENOSPC
from itertools import islice
from operator import lt
from pathlib import Path

logger = logging.getLogger("mainstem.broker")

SIZE = 8
UNWRITTEN_MAX = 1_024  # positions in memory before they are written
AHEAD = 512  # positions read at a time
SETTLED_KEPT_MAX = 1 << 16  # settled positions at the file's front before it is written anew


class ReadyIndex:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._written = 0  # positions in the file
        self._settled = 0  # of which the first so many are no longer unread
        self._unwritten = array("q")
        self._last = -1
        self._at = 0  # the next to be taken: its number, counted from the file's first
        self._ahead = array("q")  # what was read of the file, from number `_ahead_from` on
        self._ahead_from = 0

    # -- what there is

    def add(self, position: int) -> None:
        """A record entered, behind all others of its priority."""
        self._unwritten.append(position)
        self._last = position
        if len(self._unwritten) >= UNWRITTEN_MAX:
            self.write()

    def take(self, count: int) -> list[int]:
        """The next positions; they stay here until they are settled, and `rewind` goes back to them."""
        taken: list[int] = []
        while len(taken) < count and self._at < self._written + len(self._unwritten):
            stretch = self._stretch(self._at)[: count - len(taken)]
            taken += stretch
            self._at += len(stretch)
        return taken

    def peek(self, count: int, position: int) -> list[int]:
        """The first `count` positions from `position` on."""
        before = self._at
        self.rewind(position)
        positions = self.take(count)
        self._at = before
        return positions

    def rewind(self, position: int) -> None:
        """Begin again at the first that is not below `position`."""
        low, high = self._settled, self._written + len(self._unwritten)
        while low < high:
            middle = (low + high) // 2
            if self._stretch(middle)[0] < position:
                low = middle + 1
            else:
                high = middle
        self._at = low

    def settle(self, position: int) -> None:
        """Nothing below `position` is unread any more. Called often: it does little until it is worth it."""
        if position > self._last:
            self.clear()
        elif self._written and self._at - self._settled >= SETTLED_KEPT_MAX:
            self._forget_before(position)

    def clear(self) -> None:
        """Nothing is unread."""
        self._unwritten, self._ahead = array("q"), array("q")
        self._at = self._settled = self._ahead_from = 0
        if self._written:
            os.ftruncate(self._opened(), 0)
            self._written = 0

    def _forget_before(self, position: int) -> None:
        at = self._at
        self.rewind(position)
        self._settled, self._at = self._at, max(at, self._at)
        if self._settled > max(SETTLED_KEPT_MAX, self._written // 2):
            self._write_anew()

    def _stretch(self, number: int) -> array[int]:
        """Some positions from a number on, at least one."""
        if number >= self._written:
            return self._unwritten[number - self._written :]
        inside = number - self._ahead_from
        if not 0 <= inside < len(self._ahead):
            self._ahead = self._read(number, min(AHEAD, self._written - number))
            self._ahead_from, inside = number, 0
        return self._ahead[inside:]

    # -- the file

    def write(self) -> None:
        """Before the journal counts them."""
        if not self._unwritten:
            return
        data = _big_endian(self._unwritten)
        try:
            if os.pwrite(self._opened(), data, self._written * SIZE) < len(data):
                raise OSError(ENOSPC, "no space left")
        except OSError as error:  # they stay in memory; it is tried again with the next
            logger.warning("%s: cannot be written: %s", self._path, error)
            return
        self._written += len(self._unwritten)
        self._unwritten = array("q")

    def load(self, next_position: int, head: int, unread: int) -> bool:
        """After a start: take over the file if it holds exactly the unread positions. False: it must be built again."""
        self._unwritten, self._ahead = array("q"), array("q")
        self._at = self._settled = self._ahead_from = self._written = 0
        self._last = -1
        if not self._path.exists():
            return unread == 0
        self._written = os.fstat(self._opened()).st_size // SIZE
        positions = self._read(0, self._written)
        if not all(map(lt, positions, islice(positions, 1, None))):
            return False
        while positions and positions[-1] >= head:  # written, but the count of them was not: they are counted again
            positions.pop()
        self._written = len(positions)
        self._last = positions[-1] if positions else -1
        os.ftruncate(self._opened(), self._written * SIZE)
        self.rewind(next_position)
        self._settled = self._at
        return self._written - self._settled == unread

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def _opened(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def _read(self, number: int, count: int) -> array[int]:
        positions = array("q", os.pread(self._opened(), count * SIZE, number * SIZE))
        if sys.byteorder == "little":
            positions.byteswap()
        return positions

    def _write_anew(self) -> None:
        """Without the settled ones, which are more than half of it."""
        self.write()
        if self._settled > self._written:  # it could not be written
            return
        left = self._read(self._settled, self._written - self._settled)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(_big_endian(left))
        self.close()
        temporary.replace(self._path)
        self._written, self._at = len(left), self._at - self._settled
        self._settled = 0
        self._ahead, self._ahead_from = array("q"), 0


def _big_endian(positions: array[int]) -> bytes:
    out = array("q", positions)
    if sys.byteorder == "little":
        out.byteswap()
    return out.tobytes()
