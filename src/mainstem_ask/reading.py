"""Slices of a scan plan read by a few threads: the decoder works without the GIL, and files are read beside it.

Memory is bounded: each thread holds one chunk of frames and one batch of rows, and QUEUED_MAX batches wait to be taken. Who
stops taking (a LIMIT that is reached) stops the threads at their next batch.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.codec.columns import TopicRow
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.slices import ScanTask, SliceReader

if TYPE_CHECKING:
    import pyarrow as pa

QUEUED_MAX = 4
THREADS_MAX = 4
WAIT_S = 0.1  # between looks at whether anybody still takes

Permit = Callable[[bytes], bool]  # whether the caller may read this topic
Told = Callable[[int], None]  # so many bytes more are read
Finish = Callable[["pa.RecordBatch"], list["pa.RecordBatch"]]  # what is made of rows, in the thread that decoded them
Piece = tuple[ScanTask, Mapping[str, Any]]
Opened = Callable[[ScanTask, Mapping[str, Any], "pa.Schema", BrokerClient], SliceReader]


class PermittedReader(SliceReader):
    """Without the rows of topics that the caller may not read."""

    def __init__(
        self, task: ScanTask, piece: Mapping[str, Any], schema: pa.Schema, client: BrokerClient, permit: Permit | None
    ) -> None:
        super().__init__(task, piece, schema, client)
        if permit is not None:
            self._topics = _Permitted(self._topics, permit)  # type: ignore[assignment]


class _Permitted:
    def __init__(self, topics: Callable[[bytes | int], TopicRow | None], permit: Permit) -> None:
        self._topics, self._permit = topics, permit

    def __call__(self, topic: bytes | int) -> TopicRow | None:
        found = self._topics(topic)
        return found if found is not None and self._permit(found[1]) else None


def pieces_of(tasks: Sequence[ScanTask]) -> list[Piece]:
    return [(task, piece) for task in tasks for piece in task.slices]


def read_pieces(
    pieces: Sequence[Piece],
    schema: pa.Schema,
    finish: Finish,
    *,
    opened: Opened,
    told: Told | None = None,
) -> Iterator[pa.RecordBatch]:
    """What `finish` makes of the rows of the pieces, each read by what `opened` makes for it, in no particular order."""
    threads = min(len(pieces), os.cpu_count() or 1, THREADS_MAX)
    if threads > 1:
        yield from _Readers(pieces, schema, finish, opened, told).batches(threads)
    else:
        yield from _read(pieces, schema, finish, opened, told)


def _read(
    pieces: Iterable[Piece], schema: pa.Schema, finish: Finish, opened: Opened, told: Told | None
) -> Iterator[pa.RecordBatch]:
    client: BrokerClient | None = None
    try:
        for task, piece in pieces:
            client = client or task.connection.client()
            for rows in opened(task, piece, schema, client).batches():
                yield from finish(rows)
            if told is not None:
                told(int(piece["bytes"]))
    finally:
        if client is not None:
            client.close()


class _Readers:
    def __init__(
        self,
        pieces: Sequence[Piece],
        schema: pa.Schema,
        finish: Finish,
        opened: Opened,
        told: Told | None,
    ) -> None:
        self._pieces, self._schema, self._finish = iter(pieces), schema, finish
        self._opened, self._told = opened, told
        self._taking = threading.Lock()
        self._stopped = threading.Event()
        self._ready: queue.Queue[pa.RecordBatch | Exception | None] = queue.Queue(QUEUED_MAX)

    def batches(self, threads: int) -> Iterator[pa.RecordBatch]:
        running = [threading.Thread(target=self._run, name=f"ask {n}", daemon=True) for n in range(threads)]
        for one in running:
            one.start()
        left = threads
        try:
            while left:
                found = self._ready.get()
                if found is None:
                    left -= 1
                elif isinstance(found, Exception):
                    raise found
                else:
                    yield found
        finally:
            self._stopped.set()

    def _run(self) -> None:
        try:
            rows = _read(self._each(), self._schema, self._finish, self._opened, self._told)
            with contextlib.closing(rows) as batches:  # type: ignore[type-var]
                for batch in batches:
                    if not self._put(batch):
                        return
        except Exception as error:
            self._put(error)
        self._put(None)

    def _each(self) -> Iterator[Piece]:
        while not self._stopped.is_set():
            with self._taking:
                piece = next(self._pieces, None)
            if piece is None:
                return
            yield piece

    def _put(self, found: pa.RecordBatch | Exception | None) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(found, timeout=WAIT_S)
                return True
        return False
