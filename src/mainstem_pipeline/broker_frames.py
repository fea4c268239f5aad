"""Frames of a log read through the broker, one piece ahead of whoever decodes them.

The first piece comes by the task's own connection. If there are more, they come by a second one while the task decodes. From
a broker on another machine pieces come compressed (zstd), unless the option `compress` says otherwise; the bytes that are
decoded are the same.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.options import Connection

PIECE_BYTES = 4 << 20

Piece = tuple[bytes, int]  # frames, and the offset to go on at


class BrokerFrames:
    """Of the offsets before `end` in one log; `view`: what the reader sees them through."""

    def __init__(self, client: BrokerClient, connection: Connection, log: int, end: int, view: str | None) -> None:
        self._client, self._connection = client, connection
        self._packed = client.is_far if connection.compress is None else connection.compress
        self._log, self._end, self._view = log, end, view
        self._ahead: tuple[BrokerClient, ThreadPoolExecutor] | None = None
        self._coming: tuple[int, Future[Piece]] | None = None  # from which offset on

    def read(self, start: int) -> Piece:
        """From this offset on; the broker's errors are raised as they are."""
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == start:
            data, after = coming[1].result()
        else:
            data, after = self._fetch(self._client, start)
        if start < after < self._end:
            self._ahead = self._ahead or (self._connection.client(), ThreadPoolExecutor(1))
            second, thread = self._ahead
            self._coming = after, thread.submit(self._fetch, second, after)
        return data, after

    def _fetch(self, client: BrokerClient, start: int) -> Piece:
        data, headers = client.get_bytes(
            "/v1/scan/frames",
            packed=self._packed,
            log=self._log,
            start=start,
            end=self._end,
            bytes_max=PIECE_BYTES,
            view=self._view,
        )
        return data, int(headers["mainstem-next-offset"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ahead is not None:
            second, thread = self._ahead
            thread.shutdown(cancel_futures=True)
            second.close()
