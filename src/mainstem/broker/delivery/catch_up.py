"""Catching up: a sink that fell behind, or starts in the past, is served from the log until it stands at the head.

Reading runs in threads, a chunk at a time; offering runs on the loop, a slice at a time, in turns (`turns.py`). Each chunk
covers a stretch of stamps of every log the sink's filters touch, so that records of several logs reach it in the order of
their stamps.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainstem.broker.delivery.live import CUT, OFFERED, Dispatcher, Sink
from mainstem.broker.delivery.turns import Turns
from mainstem.broker.topics.reading import pieces_of
from mainstem.codec.batch import FRAME_HEAD_SIZE, frame_heads, read_frame_head
from mainstem.log.away import brought, pool
from mainstem.log.log import Log
from mainstem.log.rewriting import without_front
from mainstem.model.errors import MainstemError, StorageFault
from mainstem.storage.engine import NotLocal, Slice

if TYPE_CHECKING:
    from mainstem.broker.delivery.ticker import Ticker
    from mainstem.broker.namespaces.namespace import Namespace

logger = logging.getLogger("mainstem.broker")

CHUNK_BYTES = 1 << 20
SCAN_OFFSETS_MAX = 1 << 18  # that one look passes over without a match
MATCHES_MAX = 4_096
AGAIN_S = 1  # after a failed read
EMPTY = array("q")
END_OF_STAMPS = (1 << 63) - 1
ATTRIBUTES_AT, CONTROL = 22, 0x20  # in a RecordBatch; marks a transaction's end


@dataclass(slots=True)
class Piece:
    """Frames of one log to be offered; `to_stamp` is the stamp up to which the piece is complete."""

    log: Log
    data: memoryview
    offsets: array[int]  # of the records wanted; empty: all
    to_stamp: int
    topic: bytes  # of a log that holds one topic


@dataclass(slots=True)
class Wanted:
    """What to read of one log: all of it (it holds one topic), or the frames of some offsets."""

    log: Log
    topic: bytes
    start: int
    offsets: array[int]
    scanned: int  # the index was looked through up to here


@dataclass(slots=True)
class Looked:
    head_stamp: int
    wanted: list[Wanted]


class CatchUp:
    """Reads forward from a stamp over the logs of some filters.

    Between chunks it holds the position and, of each log, the frame behind the last chunk: it had to be read to know where
    the chunk ends, and is the first of the next. Whoever goes on with the same reader reads each frame once.
    """

    def __init__(self, namespace: Namespace, filters: Sequence[bytes], position: int, *, chunk_bytes: int = 0) -> None:
        self._namespace = namespace
        self._filters = filters
        self.position = position
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self._ended: dict[Log, tuple[int, int]] = {}  # the stamp and offset where the last chunk ended
        self._behind: dict[Log, Slice] = {}  # the frame there

    @property
    def held_bytes(self) -> int:
        return sum(len(piece.data) for piece in self._behind.values())

    def read(self, head_stamp: int) -> tuple[list[Piece], int]:
        """`look`, then `fetch`, both here: for the loop, when little is left."""
        return self.fetch(self.look(head_stamp))

    def look(self, head_stamp: int) -> Looked:
        """Ask the indexes what to read. They belong to the loop's thread, so this does too; it reads no file's data."""
        wanted: list[Wanted] = []
        for log, topic in self._logs().items():
            if log.last_stamp < self.position:
                continue
            stamp, start = self._ended.get(log, (-1, 0))
            exact = stamp == self.position
            if not exact:
                start = log.offset_of_stamp(self.position)
            start = max(start, log.low_mark)
            if topic is not None:
                wanted.append(Wanted(log, topic, start, EMPTY, log.written))
                continue
            offsets, scanned = self._search(log, start, exact)
            wanted.append(Wanted(log, b"", offsets[0] if offsets else scanned, offsets, scanned))
        return Looked(head_stamp, wanted)

    def _search(self, log: Log, start: int, exact: bool) -> tuple[array[int], int]:
        """The next matches of a shared log. `start` is where the position's frame begins; a large frame may have more
        matches before the position than one search returns, so then it begins at the position itself."""
        assert log.index is not None and log.bitmaps is not None and log.low_marks is not None
        bitmap = log.bitmaps.of_any(self._filters)
        offsets, scanned = log.index.find_many(bitmap, start, min(log.written, start + SCAN_OFFSETS_MAX), MATCHES_MAX)
        if not exact and scanned < log.written and (inside := self._offset_in_frame(log, start)) > start:
            end = min(log.written, inside + SCAN_OFFSETS_MAX)
            offsets, scanned = log.index.find_many(bitmap, inside, end, MATCHES_MAX)
        return log.low_marks.visible(offsets), scanned

    def _offset_in_frame(self, log: Log, start: int) -> int:
        """The offset of the position, or the end of the frame at `start` if it lies beyond."""
        piece = log.read_anywhere(start, 1)
        if piece is None:
            return start
        head = read_frame_head(piece.data, 0, log.id)
        if head.payload_size and piece.data[FRAME_HEAD_SIZE + ATTRIBUTES_AT] & CONTROL:
            return start
        return max(start, head.base_offset + min(max(0, self.position - head.stamp), head.count))

    def fetch(self, looked: Looked) -> tuple[list[Piece], int]:
        """Pieces in no order, and the stamp up to which together they are complete. Any thread may do it."""
        pieces: list[Piece] = []
        complete = looked.head_stamp
        for wanted in looked.wanted:
            try:
                piece = self._fetch(wanted)
            except StorageFault:
                if wanted.log.removed:  # its topic was deleted meanwhile
                    continue
                raise
            complete = min(complete, piece.to_stamp)
            if piece.data:
                pieces.append(piece)
        return pieces, complete

    def _logs(self) -> dict[Log, bytes | None]:
        logs: dict[Log, bytes | None] = {}
        for topic_filter in self._filters:
            logs.update(self._namespace.logs_of(topic_filter))
        return logs

    def _fetch(self, wanted: Wanted) -> Piece:
        log = wanted.log
        if not wanted.topic and not wanted.offsets:
            return Piece(log, memoryview(b""), EMPTY, self._stamp_at(log, wanted.scanned), b"")
        if not wanted.topic:
            return self._fetch_chosen(wanted)
        piece = log.read_anywhere(wanted.start, self._chunk_bytes)
        if piece is None:
            return Piece(log, memoryview(b""), EMPTY, END_OF_STAMPS, b"")
        data = without_front(log, piece.data, log.low_mark) if piece.base_offset < log.low_mark else piece.data
        return Piece(log, data, EMPTY, self._stamp_at(log, piece.end_offset), wanted.topic)

    def _fetch_chosen(self, wanted: Wanted) -> Piece:
        """The frames that hold the offsets, a chunk of them, however far they lie apart."""
        log, parts, size, taken = wanted.log, list[memoryview](), 0, 0
        behind = self._behind.pop(log, None)
        if behind is not None and behind.base_offset <= wanted.offsets[0] < behind.end_offset:
            parts.append(behind.data)
            size, taken = len(behind.data), bisect_left(wanted.offsets, behind.end_offset)
        if size < self._chunk_bytes and taken < len(wanted.offsets):
            before = taken
            for data, inside in pieces_of(log, wanted.offsets[before:], wanted.scanned, self._chunk_bytes - size):
                parts.append(data)
                size += len(data)
                taken = before + inside
                if size >= self._chunk_bytes:
                    break
        whole = taken == 0 or taken == len(wanted.offsets)
        end = wanted.scanned if whole else wanted.offsets[taken]
        joined = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return Piece(log, joined, wanted.offsets[:taken], self._stamp_at(log, end), b"")

    def _stamp_at(self, log: Log, offset: int) -> int:
        """The stamp of the record at `offset` (or of the next one there is): what lies before it has a smaller one."""
        piece = log.read_anywhere(offset, 1)
        if piece is None:
            self._ended.pop(log, None)
            return END_OF_STAMPS
        head = frame_heads(piece.data, log.id)[0]
        stamp = head.stamp + max(0, offset - head.base_offset)
        self._ended[log], self._behind[log] = (stamp, max(offset, head.base_offset)), piece
        return stamp


def threads_for(looked: Looked) -> ThreadPoolExecutor | None:
    """The pool that fetches it: what lies elsewhere keeps nobody waiting who reads what is here."""
    return None if all(wanted.log.engine.is_local for wanted in looked.wanted) else pool()


class Pump:
    """Serves the sinks that are behind: one task per sink while it has room and something to read."""

    def __init__(self, dispatcher: Dispatcher, ticker: Ticker, turns: Turns) -> None:
        self._dispatcher = dispatcher
        self._ticker = ticker
        self._turns = turns
        self._tasks: dict[Sink, asyncio.Task[None]] = {}

    def resume(self, sink: Sink, filters: Sequence[bytes]) -> None:
        """The sink has room again (or starts in the past): go on from its position until it is live."""
        running = self._tasks.get(sink)
        if sink.live or (running is not None and not running.done()):
            return
        task = asyncio.get_running_loop().create_task(self._run(sink, filters))
        self._tasks[sink] = task
        task.add_done_callback(lambda done: self._forget(sink, done))

    def _forget(self, sink: Sink, done: asyncio.Task[None]) -> None:
        if self._tasks.get(sink) is done:  # not one that was begun since
            del self._tasks[sink]
        if not done.cancelled() and done.exception() is not None:
            logger.error("catching up failed", exc_info=done.exception())

    def stop(self, sink: Sink) -> None:
        task = self._tasks.pop(sink, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, sink: Sink, filters: Sequence[bytes]) -> None:
        """Until it is live or full. Damage may be repaired meanwhile (an index is built again, a log by hand)."""
        while True:
            try:
                return await self._catch_up(sink, filters)
            except MainstemError as error:
                logger.error(
                    "catching up stands still at stamp %d, tried again in %d s: %s", sink.position, AGAIN_S, error
                )
                await asyncio.sleep(AGAIN_S)

    async def _catch_up(self, sink: Sink, filters: Sequence[bytes]) -> None:
        """Chunks are read in a thread; the last one on the loop, between two ticks, or a busy head is never reached."""
        reader = CatchUp(sink.namespace, filters, sink.position)
        loop = asyncio.get_running_loop()
        close = False
        while not sink.live:
            await self._turns.turn(sink.namespace.name)
            reader.position = sink.position
            head = self._ticker.head_stamp
            try:
                if close:
                    pieces, complete = reader.read(head)
                else:
                    looked = reader.look(head)
                    pieces, complete = await loop.run_in_executor(threads_for(looked), reader.fetch, looked)
                    await self._turns.turn(sink.namespace.name)  # what many threads read comes back at the same time
                while (ended := self._offer(sink, pieces, complete)) == CUT:
                    await self._turns.turn(sink.namespace.name)
                if ended != OFFERED:
                    return  # no room: whoever makes room resumes
            except NotLocal as missing:  # what was offered of the chunk is behind its position
                await brought(missing)
                continue
            close = complete >= head
            if sink.position >= self._ticker.head_stamp:
                sink.live = True

    def _offer(self, sink: Sink, pieces: list[Piece], complete: int) -> int:
        """Offer a slice of a chunk in stamp order, from the sink's position on; where it stopped is its position."""
        start, until_ns = sink.position, self._turns.slice_end_ns() if self._ticker.slice_ns else 0
        if len(pieces) == 1:
            ended = self._replay(sink, pieces[0], pieces[0].data, start, complete, until_ns)
            if ended != OFFERED:
                return ended
        elif pieces:
            for first, piece, data in _frames_in_order(pieces):
                if first < complete:
                    ended = self._replay(sink, piece, data, start, complete, until_ns)
                    if ended != OFFERED:
                        return ended
        sink.position = max(sink.position, complete)
        return OFFERED

    def _replay(self, sink: Sink, piece: Piece, data: memoryview, first: int, last: int, until_ns: int) -> int:
        topic_of = sink.namespace.topic_of
        return self._dispatcher.replay(
            sink, piece.log, data, piece.offsets, first, last, topic_of, piece.topic, until_ns
        )


def _frames_in_order(pieces: list[Piece]) -> list[tuple[int, Piece, memoryview]]:
    """The frames of several logs by stamp; stamps are unique, so the order is whole."""
    frames: list[tuple[int, Piece, memoryview]] = []
    for piece in pieces:
        at = 0
        for head in frame_heads(piece.data, piece.log.id):
            frames.append((head.stamp, piece, piece.data[at : at + head.size]))
            at += head.size
    frames.sort(key=lambda frame: frame[0])
    return frames
