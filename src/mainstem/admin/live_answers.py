"""Answers without an end (server-sent events). One ends with the login by which it was asked for.

A login ends by a logout, by its time, when its user is removed or has another password, namespace or admin right. Whoever
reads the answer sees it end, asks again as such clients do, and is then answered 401.

The guard wraps `receive` and `send` of such a request: the application is told that its client has left, and the guard ends
the answer properly. Rights that are taken away while the login holds are the handler's to notice (`api/messages.py`).

Logins are looked at when users change, when a session ends, and each second. There are at most as many live answers as
connections (`server.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send

from mainstem.broker.rights.access import Access

Holds = Callable[[], bool]
LEFT: Message = {"type": "http.disconnect"}
LAST: Message = {"type": "http.response.body", "body": b"", "more_body": False}


class LiveAnswers:
    def __init__(self, access: Access) -> None:
        self._open: set[_LiveAnswer] = set()
        access.listeners.append(self.look)

    def __len__(self) -> int:
        return len(self._open)

    def look(self) -> None:
        """Those whose login ended end."""
        for answer in [one for one in self._open if not one.holds()]:
            answer.ended.set()

    async def serve(
        self, application: Callable[[Receive, Send], Awaitable[None]], holds: Holds, receive: Receive, send: Send
    ) -> None:
        answer = _LiveAnswer(holds, receive, send)
        self._open.add(answer)
        try:
            await application(answer.receive, answer.send)
        except ConnectionError:
            if not answer.ended.is_set():
                raise
        finally:
            self._open.discard(answer)
        if answer.ended.is_set() and answer.unfinished:
            await send(LAST)


class _LiveAnswer:
    def __init__(self, holds: Holds, receive: Receive, send: Send) -> None:
        self.holds = holds
        self.ended = asyncio.Event()
        self.unfinished = False  # it began, and did not come to its end
        self._receive, self._send = receive, send

    async def receive(self) -> Message:
        """What the client sends; that it left, once its login ended."""
        told = asyncio.ensure_future(self._receive())
        ended = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
            return LEFT if ended.done() else told.result()
        finally:
            told.cancel()
            ended.cancel()

    async def send(self, message: Message) -> None:
        self.unfinished = message.get("more_body", message["type"] == "http.response.start")
        await self._send(message)
