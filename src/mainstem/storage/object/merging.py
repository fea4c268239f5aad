"""Bundles become fewer and larger, and each log's frames come to lie together: a tree of merges.

    level 0   as published: 8 MiB or 250 ms of all logs
    level 1   16 of these in one: each log's frames in one piece          and so on, 16 of a level into the next
    FINAL     32 MiB or more of one log: a part of its own, merged no more

A merge reads all pieces of its bundles in order of their logs and writes objects of at most 64 MiB, each stored and
committed by itself, so it needs no more memory than one of them, and a crash loses only the one being written. A frame is
rewritten once for each level, so about log16 of what is stored. A bundle of which less than half is used any more is
written anew; at once, one that held something that was erased, or that was merged meanwhile. PUTs are at most one a
second: with four of the writer that is five for a whole broker, whatever the number of its topics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from mainstem.model.errors import CorruptFrame, MainstemError
from mainstem.storage.object.bundle import FINAL, MERGED_CHUNK_BYTES, Bundle, Content, index_frames, make_bundle
from mainstem.storage.object.pieces import Pieces, Placed
from mainstem.storage.tier.workers import Workers

if TYPE_CHECKING:
    from mainstem.storage.object.engine import ObjectEngine
    from mainstem.storage.tier.tier import Tier

logger = logging.getLogger("mainstem.tier")

FAN = 16  # bundles of a level that are merged into the next
MERGED_BYTES = 64 << 20  # an object at most
ALONE_BYTES = 32 << 20  # of one log: an object of its own
PUT_S = 1.0  # between two PUTs of ours
SPARSE_S = 60.0  # between two looks for bundles that are mostly unused; younger ones are left to the merges
AGAIN_S = 10.0  # after a merge that failed

Group = list[Placed]  # pieces of one part that lie one behind the other in their log


class Merger:
    def __init__(self, tier: Tier, pieces: Pieces, find: Callable[[int], ObjectEngine | None]) -> None:
        self._tier, self._pieces, self._find = tier, pieces, find
        self._lock = threading.Lock()
        self._levels: defaultdict[int, list[Bundle]] = defaultdict(list)
        self._workers = Workers("bundle-merge", 1)
        self._busy = False
        self._put_at_s = 0.0
        self._sparse_at_s = time.monotonic() + SPARSE_S
        self.closing = threading.Event()
        self.merges = 0
        for bundle in pieces.bundles():
            self._levels[bundle.footer.level].append(bundle)

    def note(self, bundle: Bundle) -> None:
        """A new one was committed."""
        with self._lock:
            if bundle.footer.level != FINAL:
                self._levels[bundle.footer.level].append(bundle)
            if self._busy or (self._due() is None and time.monotonic() < self._sparse_at_s):
                return
            self._busy = True
        self._workers.submit(self._run)

    def close(self) -> None:
        """The one under way ends where it is; the next start begins it again."""
        self.closing.set()
        self._workers.close()

    def _due(self) -> int | None:
        return next((level for level, found in self._levels.items() if len(found) >= FAN and level != FINAL), None)

    def _run(self) -> None:
        while not self.closing.is_set():
            with self._lock:
                level = self._due()
                look = level is None and time.monotonic() >= self._sparse_at_s
                if level is None and not look:
                    self._busy = False
                    return
                bundles = self._levels[level][:FAN] if level is not None else self._sparse()
            level = level if level is not None else max((one.footer.level for one in bundles), default=0)
            try:
                self.merge(bundles, level)
            except CorruptFrame as error:  # the reader of its offsets is told, too
                logger.error("bundles with a damaged one among them stay as they are: %s", error)
                self._leave(bundles)
            except MainstemError as error:
                if not self._tier.closing.is_set():
                    logger.warning("bundles are not merged, it is tried again: %s", error)
                self.closing.wait(AGAIN_S)

    def _sparse(self) -> list[Bundle]:
        """Of which less than half is used: what is left of them is written anew, so that they can go."""
        self._sparse_at_s = time.monotonic() + SPARSE_S
        ids = set(self._pieces.sparse(self._tier.now_ms() - int(SPARSE_S * 1000), FAN))
        known = (one for level, found in self._levels.items() if level != FINAL for one in found)
        return [one for one in known if one.id in ids]

    def merge(self, bundles: Sequence[Bundle], level: int) -> None:
        """What they hold of logs; what is not theirs any more is left out."""
        if not bundles:
            return
        for groups in _packed(self._groups([one.id for one in bundles])):
            if self.closing.is_set():
                return
            self._write(groups, level)
        self._leave(bundles)
        self.merges += 1

    def rewrite(self, ids: Collection[str]) -> None:
        """Without what is no log's any more; returns once it is done, however much there is to do by anybody else."""
        found = [one for one in self._pieces.bundles() if one.id in ids] if ids else []
        for level in sorted({one.footer.level for one in found} - {FINAL}):
            same = [one for one in found if one.footer.level == level]
            for first in range(0, len(same), FAN):
                self.merge(same[first : first + FAN], level)

    def _leave(self, bundles: Sequence[Bundle]) -> None:
        gone = {one.id for one in bundles}
        with self._lock:
            for level in {one.footer.level for one in bundles}:
                self._levels[level] = [one for one in self._levels[level] if one.id not in gone]

    def _groups(self, ids: Sequence[str]) -> Iterator[Group]:
        """By log and part; cut where it would be too large, or where a piece of another bundle lies between."""
        placed = self._pieces.of_bundles(ids)
        for _, found in groupby(placed, key=lambda one: (one.piece.log_id, one.piece.part)):
            group = list(found)
            if self._pieces.count_between(group[0].piece, group[-1].piece) != len(group):
                yield from ([one] for one in group)
                continue
            while group:
                size, count = 0, 0
                while count < len(group) and (not count or size + group[count].piece.size <= MERGED_BYTES):
                    size += group[count].piece.size
                    count += 1
                yield group[:count]
                group = group[count:]

    def _write(self, groups: list[Group], level: int) -> None:
        erasures = self._pieces.erasures
        contents = [self._content(group) for group in groups]
        alone = len(groups) == 1 and _size(groups[0]) >= ALONE_BYTES
        level = FINAL if alone else level + 1
        bundle, body = make_bundle(contents, "", 0, level=level, chunk_bytes=MERGED_CHUNK_BYTES)
        self._pause()
        self._tier.store_object(bundle, body)
        done = self._pieces.swap(bundle, groups, self._tier.now_ms())
        for swapped, group, piece in zip(done, groups, bundle.footer.pieces, strict=True):
            engine = self._find(piece.log_id)
            if swapped and engine is not None:
                engine.merged(group, piece, Placed(piece, bundle))
        if any(done) and level != FINAL:
            with self._lock:
                self._levels[level].append(bundle)
            if not all(done) and (erasures % 2 or erasures != self._pieces.erasures):
                self.rewrite([bundle.id])  # it holds what was read here before it was erased

    def _content(self, group: Group) -> Content:
        """Read through the cache: what was published lately is there."""
        first, last = group[0].piece, group[-1].piece
        frames = [self._read(one) for one in group]
        place = first.log_id, first.part, first.generation, first.base_offset, last.end_offset
        index = index_frames(first.log_id, first.base_offset, frames)
        return Content(*place, first.first_stamp, last.last_stamp, frames, index)

    def _read(self, one: Placed) -> bytes:
        if not one.piece.size:
            return b""
        assert one.bundle is not None
        place = one.piece.position, one.piece.size
        found = self._tier.cache.read(one.bundle, *place, wait=True, until=sum(place))
        assert found is not None
        return bytes(found)

    def _pause(self) -> None:
        self.closing.wait(max(self._put_at_s - time.monotonic(), 0.0))
        self._put_at_s = time.monotonic() + PUT_S


def _size(group: Group) -> int:
    return sum(one.piece.size for one in group)


def _packed(groups: Iterator[Group]) -> Iterator[list[Group]]:
    """What goes into one object each."""
    together, size = list[Group](), 0
    for group in groups:
        more = _size(group)
        if more >= ALONE_BYTES:
            yield [group]
            continue
        if together and size + more > MERGED_BYTES:
            yield together
            together, size = [], 0
        together.append(group)
        size += more
    if together:
        yield together
