"""Answers that carry frames to tasks on other machines: packed by a thread, sent in pieces, only so many at once.

Executors that cannot reach the log's files read megabytes at a time. The loop copies no more than PIECE_BYTES of that in
one turn, and asks for the next piece when the peer has taken what came before. Compressing (zstd, where the request says
that it is accepted) runs in a thread without the interpreter's lock. What is in memory meanwhile is bounded: a namespace has
ANSWERS_MAX answers at once, further requests wait for one of them to end, and a peer that takes nothing for STALLED_S is
disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import zstandard
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 256 * 1024
ANSWERS_MAX = 16  # of one namespace; each holds at most what one request may ask for (16 MiB)
STALLED_S = 60.0
ZSTD_LEVEL = 1  # the fastest: the network must not wait for it
PACKED_BYTES_MIN = 4 * 1024  # below that the answer's head is most of it
NEXT_OFFSET = "mainstem-next-offset"

Read = Callable[[], Awaitable[tuple[bytes, int]]]


class FrameAnswers:
    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}  # of the namespaces that are answered at present

    async def answer(self, namespace: str, accepted: str, read: Read) -> Response:
        """Reads once there is room, which the answer keeps until it has been sent."""
        room = self._rooms.setdefault(namespace, _Room())
        room.users += 1
        try:
            await room.places.acquire()
        except BaseException:
            self._leave(namespace, room)
            raise
        try:
            data, after = await read()
            headers = {NEXT_OFFSET: str(after)}
            if len(data) >= PACKED_BYTES_MIN and any(one.strip() == "zstd" for one in accepted.split(",")):
                packed = await asyncio.to_thread(_packed, data)
                if len(packed) < len(data):
                    data, headers["content-encoding"] = packed, "zstd"
        except BaseException:
            self._end(namespace, room)
            raise
        return _InPieces(data, headers, lambda: self._end(namespace, room))

    def _end(self, namespace: str, room: _Room) -> None:
        room.places.release()
        self._leave(namespace, room)

    def _leave(self, namespace: str, room: _Room) -> None:
        room.users -= 1
        if not room.users:
            self._rooms.pop(namespace, None)


class _Room:
    __slots__ = ("places", "users")

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(ANSWERS_MAX)
        self.users = 0  # who have a place or wait for one


class _InPieces(Response):
    media_type = "application/octet-stream"

    def __init__(self, data: bytes, headers: dict[str, str], ended: Callable[[], None]) -> None:
        super().__init__(data, headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            data = memoryview(self.body)
            for at in range(0, max(len(data), 1), PIECE_BYTES):
                piece, more = bytes(data[at : at + PIECE_BYTES]), at + PIECE_BYTES < len(data)
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": piece, "more_body": more}), STALLED_S
                )
        except TimeoutError:
            pass  # an answer that is not complete ends with its connection
        finally:
            self._ended()


def _packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
