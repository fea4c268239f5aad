"""The topic index of a shared log: which offsets hold the records of these topics, at a cost that follows what matches.

Topics are numbered (`topics`, a TopicTrie). Offsets are cut into chunks of 2^20: the newest is open and in memory, full
ones wait until `checkpoint` packs them and writes them to files, which are then read through the page cache:

    <path>/names             which topic a number means, which chunks there are   (topic_index_names.py)
    <path>/<chunk>.chunk     one packed chunk                                     (topic_index_format.py)

Everything here can be rebuilt from the log. After a crash `covered_end` says from where on the log must add its records
again, and `missing` which stretches before that were damaged. A search over a damaged stretch raises CorruptFrame,
because an answer that silently leaves records out would be worse; after that the stretch is in `missing`.

What lay in an object that is lost, with no copy of its topics here, cannot be added: it is `unknown`, until the next start
finds the object again. A search ends before such a stretch, and raises CorruptFrame within one. A chunk with an unknown
stretch is never saved, so that no file says that nothing was there.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

from mainstem.log._topic_chunks import ColumnChunk, PackedChunk
from mainstem.log._topic_index import IndexCore
from mainstem.log.topic_index_format import CHUNK_BITS, CHUNK_RECORDS, UNLIMITED, WAITING_MAX, Buffer
from mainstem.log.topic_index_names import NamesFile, NamesState, write_file
from mainstem.model.errors import CorruptFrame, NotFound
from mainstem.model.topic_tries import TopicTrie
from mainstem.storage.tier.topics import forget_kept

logger = logging.getLogger("mainstem.log")

FILES = "topics/*.chunk", "topics/names"  # of a log's directory; who copies them takes them in this order
JOURNAL_BYTES_MAX = 64 << 20  # of `names` after its snapshot; then a new snapshot is written


class TopicIndex(IndexCore):
    """`add`, the searches and `trim` belong to one thread at a time; `checkpoint` may run beside them in another."""

    _names: NamesFile

    def __init__(self, topics: TopicTrie) -> None:
        super().__init__(topics)
        self._path: Path | None = None
        self._saving = threading.Lock()
        self._saved: set[int] = set()  # chunks whose file is there and complete
        self._added: list[int] = []  # topics that `names` does not know yet
        self._removed: list[int] = []
        self._recovered_numbers_end = 0
        self.unknown: list[tuple[int, int]] = []  # stretches (first offset, end) in order: their objects are lost
        self.on_lost: Callable[[], None] = lambda: None  # a stretch turned out to be damaged, in any thread

    @classmethod
    def open(cls, path: Path | None, topics: TopicTrie) -> TopicIndex:
        """The index as it was saved, or an empty one; `topics` is filled with its topics. No path: memory only."""
        index = cls(topics)
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            index._path = path
            index._names = NamesFile(path / "names")
            index._recover(path, index._names.load(topics))
        return index

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Stretches (first offset, end) below `covered_end` that must be added again."""
        stretches: list[tuple[int, int]] = []
        for chunk_id in sorted(self.lost):
            start = max(chunk_id << CHUNK_BITS, self.start_offset)
            end = (chunk_id << CHUNK_BITS) + CHUNK_RECORDS
            if stretches and stretches[-1][1] == start:
                start = stretches.pop()[0]
            stretches.append((start, end))
        return stretches

    def trim(self, before_offset: int) -> list[int]:
        """Forget all offsets below; returns the topics of which nothing is left, for the caller to remove."""
        gone = super().trim(before_offset)
        self.unknown = [(max(first, before_offset), end) for first, end in self.unknown if end > before_offset]
        if self._recovered_numbers_end and not self.unknown:
            # A crash may have lost the news that a topic went: nobody has seen a record of these since.
            gone.extend(self._strays(set(gone)))
            self._recovered_numbers_end = 0
        self._removed.extend(gone)
        return gone

    def lose(self, chunk_id: int) -> None:
        """`on_lost` has the chunk built again; without its file the next start does, if nobody has before."""
        super().lose(chunk_id)
        if self._path is not None:
            logger.warning("topic index chunk %d in %s is damaged and will be built again", chunk_id, self._path)
            self._file(self._path, chunk_id).unlink(missing_ok=True)
        self.on_lost()

    def has_full(self, stable_end: int) -> bool:
        """Whether a chunk waits that `checkpoint` would save."""
        waiting = [c for c in self.waiting if c not in self._incomplete()] if self.unknown else self.waiting
        return bool(waiting) and (waiting[0] + 1) << CHUNK_BITS <= stable_end and self._path is not None

    def checkpoint(self, stable_end: int | None = None) -> int:
        """Pack and save the full chunks, only those below `stable_end` if it is given; returns how many.

        Made for a thread of its own: the work is done without the GIL. A disk that refuses costs a longer rebuild
        after the next crash, nothing else, so that is logged and tried again next time.
        """
        with self._saving:
            ready = self._unsaved(stable_end)
            return len(ready) if self._try_save(ready) else 0

    def close(self) -> None:
        """Save everything, so that opening again needs nothing of the log."""
        self.checkpoint()
        with self._saving:
            path, self._path = self._path, None
            if path is not None:
                try:
                    self._save_all(path)
                except OSError as error:
                    logger.warning("the topic index in %s was not saved: %s", path, error)
            self.chunks.clear()
            self.waiting.clear()

    # -- what nobody knows -------------------------------------------------------------------------------------------

    def add_unknown(self, start: int, end: int) -> None:
        """Nothing can be said of these offsets: they count as covered, and a search that meets them says so."""
        for chunk_id in sorted(self.lost):
            if start >> CHUNK_BITS <= chunk_id <= end - 1 >> CHUNK_BITS:
                self.add(max(start, chunk_id << CHUNK_BITS), array("I", [0]))  # the rest of it is there again
        self.unknown = sorted({*self.unknown, (start, end)})
        self.covered_end = max(self.covered_end, end)

    def known_end(self, start: int, end: int) -> int:
        """Up to where a search from `start` to `end` may go; CorruptFrame where nothing is known from `start` on."""
        for first, last in self.unknown:
            if start < last and first < end:
                if start >= first:
                    raise self._unknown(first, last)
                return first
        return end

    def known_start(self, start: int, end: int) -> int:
        """From where on a search that ends at `end` knows everything; CorruptFrame where it knows nothing before `end`."""
        for first, last in reversed(self.unknown):
            if start < last and first < end:
                if end <= last:
                    raise self._unknown(first, last)
                return last
        return start

    def unknown_end(self, offset: int) -> int | None:
        """Where the unknown stretch ends that holds an offset; None where that is known."""
        return next((last for first, last in self.unknown if first <= offset < last), None)

    def known(self, start: int, end: int) -> list[tuple[int, int]]:
        """The stretches between two offsets of which the index knows."""
        found, at = list[tuple[int, int]](), start
        for first, last in self.unknown:
            if at < last and first < end:
                found.append((at, first))
                at = last
        return [(first, last) for first, last in [*found, (at, end)] if first < last]

    def find_one(self, number: int, start: int, end: int, limit: int = UNLIMITED) -> array[int]:
        if self.unknown:
            self._check_known(start, end)
        return super().find_one(number, start, end, limit)

    def find_many(self, bitmap: Buffer, start: int, end: int, limit: int = UNLIMITED) -> tuple[array[int], int]:
        """Without a limit whoever asks wants all: CorruptFrame where a stretch of it is unknown."""
        if self.unknown and limit == UNLIMITED:
            self._check_known(start, end)
        elif self.unknown:
            end = self.known_end(start, end)
        return super().find_many(bitmap, start, end, limit)

    def count_one(self, number: int, start: int, end: int) -> int:
        if self.unknown:
            self._check_known(start, end)
        return super().count_one(number, start, end)

    def count(self, bitmap: Buffer, start: int, end: int) -> int:
        if self.unknown:
            self._check_known(start, end)
        return super().count(bitmap, start, end)

    def _check_known(self, start: int, end: int) -> None:
        for first, last in self.unknown:
            if start < last and first < end:
                raise self._unknown(first, last)

    @staticmethod
    def _unknown(first: int, last: int) -> CorruptFrame:
        return CorruptFrame(
            f"nobody knows which topics the offsets {first} to {last} hold: their object is damaged or missing",
            fix="put it back from a copy and start the broker again; mainstem log verify names it",
        )

    def _incomplete(self) -> set[int]:
        """Chunks with an unknown stretch."""
        return {c for first, last in self.unknown for c in range(first >> CHUNK_BITS, (last - 1 >> CHUNK_BITS) + 1)}

    # -- saving ------------------------------------------------------------------------------------------------------

    def _unsaved(self, stable_end: int | None) -> list[int]:
        """Full chunks without a file, or newer than theirs."""
        ready = [c for c, chunk in list(self.chunks.items()) if c != self.open_id and not self._is_saved(c, chunk)]
        incomplete = self._incomplete()
        ready = [c for c in ready if c not in incomplete]
        if stable_end is not None:
            ready = [c for c in ready if (c << CHUNK_BITS) + CHUNK_RECORDS <= stable_end]
        return sorted(ready)

    def _try_save(self, ready: list[int]) -> bool:
        path = self._path
        if path is None:
            while self.waiting:
                super().pack_first()
            return True
        try:
            if ready:
                self._save(path, ready)
        except OSError as error:
            logger.warning("the topic index in %s was not saved: %s", path, error)
            return False
        return True

    def _save(self, path: Path, ready: list[int]) -> None:
        """First the names, then the chunks that need them."""
        self._added.extend(self.take_fresh())
        removed, self._removed = self._removed, []
        behind = [c for c, chunk in list(self.chunks.items()) if c not in ready and not self._is_saved(c, chunk)]
        covered = min([*behind, *self._incomplete()], default=self.open_id) << CHUNK_BITS
        known = self._known() | set(ready)
        try:
            if not self._names.generation or self._names.end - self._names.snapshot_end > JOURNAL_BYTES_MAX:
                self._names.rewrite(self.topics, known, self.last_offsets(), self.start_offset, covered)
            else:
                self._names.append(self.topics, self._added, removed, ready, self.start_offset, covered)
        except OSError:
            self._removed = removed + self._removed
            raise
        self._added.clear()
        for chunk_id in ready:
            self._save_chunk(path, chunk_id)
        self._sweep(path)
        forget_kept(path, covered)

    def _save_chunk(self, path: Path, chunk_id: int) -> None:
        """Put the file in the place of what is in memory, unless it was trimmed meanwhile."""
        chunk = self.chunks.get(chunk_id)
        if chunk is not None:
            column = chunk.unpack() if isinstance(chunk, PackedChunk) else chunk
            file = self._file(path, chunk_id)
            write_file(file, [column.pack(self.end_of(chunk_id), self._names.generation, self._names.end)])
            self._saved.add(chunk_id)
            packed = _mapped(file)
            if self.chunks.get(chunk_id) is chunk:
                self.put_chunk(packed, checked=True)
        with contextlib.suppress(ValueError):  # trimming may have been first
            self.waiting.remove(chunk_id)

    def _save_all(self, path: Path) -> None:
        unsaved = [*self._unsaved(None), *self._incomplete()]
        covered = min(unsaved) << CHUNK_BITS if unsaved else self.covered_end
        known, newest = self._known(), self.chunks.get(self.open_id)
        if isinstance(newest, ColumnChunk) and not unsaved:
            known.add(self.open_id)
        self._names.rewrite(self.topics, known, self.last_offsets(), self.start_offset, covered)
        if self.open_id in known and isinstance(newest, ColumnChunk):
            packed = newest.pack(self.covered_end, self._names.generation, self._names.end)
            write_file(self._file(path, self.open_id), [packed])
        self._sweep(path)
        forget_kept(path, covered)

    def pack_first(self) -> None:
        """Adding has run ahead of the checkpoints: save the oldest full chunk now, which bounds memory."""
        with self._saving:
            if len(self.waiting) > WAITING_MAX:
                complete = self.waiting[0] not in self._incomplete()
                if not (self._path and complete and self._try_save(self.waiting[:1])):
                    super().pack_first()

    def _is_saved(self, chunk_id: int, chunk: ColumnChunk | PackedChunk) -> bool:
        return chunk_id in self._saved and isinstance(chunk, PackedChunk)

    def _known(self) -> set[int]:
        return {c for c in self._saved if c in self.chunks or c in self.lost}

    def _sweep(self, path: Path) -> None:
        """Remove the files of what was trimmed."""
        kept = self._known()
        for chunk_id in self._saved - kept:
            self._file(path, chunk_id).unlink(missing_ok=True)
        self._saved = kept

    @staticmethod
    def _file(path: Path, chunk_id: int) -> Path:
        return path / f"{chunk_id:010d}.chunk"

    # -- opening -----------------------------------------------------------------------------------------------------

    def _recover(self, path: Path, state: NamesState) -> None:
        self.start_offset, self.covered_end = state.start_offset, state.covered_end
        self.open_id = (self.covered_end >> CHUNK_BITS) - 1
        self.restore(state.last_offsets)
        files = {int(file.stem): file for file in path.glob("*.chunk") if file.stem.isdigit()}
        for chunk_id in sorted(state.chunks):
            base = chunk_id << CHUNK_BITS
            if base + CHUNK_RECORDS > self.start_offset and base < self.covered_end:
                self._recover_chunk(chunk_id, files.pop(chunk_id, None), learn=chunk_id in state.later_chunks)
        for file in (*files.values(), *path.glob("*.new")):  # nobody's, or of what was trimmed
            file.unlink(missing_ok=True)
        self._reopen_last()
        self._recovered_numbers_end = self.topics.numbers_end

    def _recover_chunk(self, chunk_id: int, file: Path | None, *, learn: bool) -> None:
        self._saved.add(chunk_id)
        try:
            if file is None:
                raise CorruptFrame("its file is not there")
            chunk = _mapped(file)
            self._check_head(chunk, chunk_id)
            self.put_chunk(chunk, checked=False)
            if learn:
                self.learn_last(chunk_id)
        except (CorruptFrame, OSError, ValueError) as error:
            logger.warning("topic index chunk %d will be built again: %s", chunk_id, error)
            self.lost.add(chunk_id)

    def _check_head(self, chunk: PackedChunk, chunk_id: int) -> None:
        head = chunk.head
        if head.base_offset != chunk_id << CHUNK_BITS:
            raise CorruptFrame(f"it is the chunk from offset {head.base_offset} on")
        newer = head.generation == self._names.generation and head.names_end > self._names.end
        if newer or head.generation > self._names.generation:
            raise CorruptFrame("it names topics that the index does not have")
        if head.covered_end < min((chunk_id << CHUNK_BITS) + CHUNK_RECORDS, self.covered_end):
            raise CorruptFrame(f"it ends at {head.covered_end}, before {self.covered_end}")

    def _reopen_last(self) -> None:
        """Go on with the chunk that was open; if it is damaged the log adds its records again from its beginning."""
        newest = self.covered_end >> CHUNK_BITS
        self._saved.discard(newest)
        try:
            if newest in self.chunks:
                self.reopen(newest)
        except CorruptFrame as error:
            logger.warning("topic index chunk %d will be built again: %s", newest, error)
        if newest in self.lost:
            self.lost.discard(newest)
            self.covered_end = newest << CHUNK_BITS
        self.forget_beyond(self.covered_end)

    def _strays(self, known: set[int]) -> list[int]:
        """Topics that came out of the files and have no record."""
        strays = []
        for number in self.unseen(self._recovered_numbers_end):
            if number not in known:
                with contextlib.suppress(NotFound):
                    self.topics.name(number)
                    strays.append(number)
        return strays


def _mapped(file: Path) -> PackedChunk:
    with file.open("rb") as handle:
        return PackedChunk(memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)))
