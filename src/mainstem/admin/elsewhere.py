"""Requests about a namespace that another cell of the cluster holds: sent on to its owner, and its answer sent back.

A connection by HTTP asks about many namespaces, so each request is looked at by itself: the namespace in its path, in
`?namespace=`, or its user's. Users, roles and the list of namespaces are the first cell's. The other side is told whom this
one let in, and answers as it would anyone; bodies of either direction pass in pieces, as fast as the slower side takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

import httptools
from starlette.types import Receive, Scope, Send

from mainstem.admin.problems import problem_of
from mainstem.broker.namespaces.placement import FIRST_CELL, Placement
from mainstem.broker.rights.access import Principal
from mainstem.model.errors import Overloaded

OWNER_S = 10.0  # for the other cell to have an owner
KEPT_BYTES = 256 * 1024  # of an answer that the client has not read
OF_THE_CLUSTER = ("/v1/users", "/v1/roles", "/v1/rules", "/api/users", "/api/permissions", "/api/topic-permissions")
NAMESPACES, VHOSTS = "/v1/namespaces", "/api/vhosts"
BY_VHOST = frozenset(
    ("queues", "exchanges", "bindings", "consumers", "policies", "parameters", "permissions", "vhosts", "definitions")
)
HERE, METRICS = ("/livez", "/readyz", "/healthz", "/static/"), "/metrics"
BETWEEN_TWO = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"expect", b"te"))


class Forwarding(Protocol):
    """`running.forward`."""

    placement: Placement

    async def open(
        self, listener: str, peer: tuple[str, int], tls: bool, cell: int, principal: Principal, namespace: str
    ) -> Any: ...


def cell_elsewhere(placement: Placement, scope: Scope, principal: Principal | None) -> int | None:
    """The cell that this request is for, if it is not ours."""
    if not placement.places and placement.cell == FIRST_CELL:
        return None
    path = scope["path"]
    asked = _namespace_in(scope)
    if path.startswith(METRICS):
        return placement.elsewhere(asked) if asked else None
    if path.startswith(HERE) or principal is None:
        return None
    if path in (NAMESPACES, VHOSTS) or path.startswith(OF_THE_CLUSTER):
        return FIRST_CELL if placement.cell != FIRST_CELL else None
    return placement.elsewhere(asked or principal.namespace)


def _namespace_in(scope: Scope) -> str:
    path: str = scope["path"]
    if path.startswith(f"{NAMESPACES}/"):
        return path.removeprefix(f"{NAMESPACES}/")
    raw: list[str] = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1").split("/")
    if len(raw) > 3 and raw[1] == "api" and raw[2] in BY_VHOST:
        return unquote(raw[3])
    query: str = scope["query_string"].decode("latin-1")
    return parse_qs(query).get("namespace", [""])[0]


async def send_on(
    forward: Forwarding, cell: int, principal: Principal | None, scope: Scope, receive: Receive, send: Send
) -> None:
    peer, tls = scope.get("client") or ("", 0), scope["scheme"] == "https"
    try:
        async with asyncio.timeout(OWNER_S):
            asking = principal or Principal("anonymous")
            stream = await forward.open("http", peer, tls, cell, asking, _namespace_in(scope))
    except (TimeoutError, OSError):
        error = Overloaded(
            "the cell of this namespace has no owner for now", fix="mainstem cluster status, and try again"
        )
        await problem_of(error)(scope, receive, send)
        return
    answer = _Answer(stream, has_body=scope["method"] != "HEAD")
    stream.set_protocol(answer)
    try:
        await _say(stream, answer, scope, receive)
        leaving = asyncio.get_running_loop().create_task(_until_left(receive, answer))
        try:
            await _answer(answer, scope, receive, send)
        finally:
            leaving.cancel()
    finally:
        stream.abort()


async def _say(stream: Any, answer: _Answer, scope: Scope, receive: Receive) -> None:
    target = scope.get("raw_path", scope["path"].encode())
    target += b"?" + scope["query_string"] if scope["query_string"] else b""
    headers = [(name, value) for name, value in scope["headers"] if name not in BETWEEN_TWO]
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    headers += [(b"connection", b"close"), *([(b"transfer-encoding", b"chunked")] if chunked else [])]
    head = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    stream.write(b"%s %s HTTP/1.1\r\n%s\r\n" % (scope["method"].encode(), target, head))
    more = True
    while more and not answer.over:
        message = await receive()
        if message["type"] == "http.disconnect":
            answer.over = True
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if body:
            stream.write(b"%x\r\n%s\r\n" % (len(body), body) if chunked else body)
            await answer.room()
    if chunked:
        stream.write(b"0\r\n\r\n")


async def _until_left(receive: Receive, answer: _Answer) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.end()


async def _answer(answer: _Answer, scope: Scope, receive: Receive, send: Send) -> None:
    if not await answer.head():
        with contextlib.suppress(RuntimeError):  # the client is gone, too
            error = Overloaded("the owner of this namespace ended before it answered", fix="try again")
            await problem_of(error)(scope, receive, send)
        return
    headers = [(name.lower(), value) for name, value in answer.headers if name.lower() not in BETWEEN_TWO]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    while (piece := await answer.piece()) is not None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not answer.whole:
        raise ConnectionError(
            "the owner of this namespace ended while it answered"
        )  # the client must not take it for all
    await send({"type": "http.response.body", "body": b""})


class _Answer(asyncio.Protocol):
    """What the other side says, parsed as it comes."""

    def __init__(self, stream: Any, *, has_body: bool) -> None:
        self._stream, self._has_body = stream, has_body
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._kept = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self.status, self.headers = 0, list[tuple[bytes, bytes]]()
        self._headed = self.whole = self.over = False

    # -- the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status, self._headed = self._parser.get_status_code(), True
        if not self._has_body:
            self.whole = self.over = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._kept += len(body)
        if self._kept > KEPT_BYTES:
            self._stream.pause_reading()

    def on_message_complete(self) -> None:
        self.whole = self.over = True

    # -- the stream

    def data_received(self, data: bytes) -> None:
        try:
            if not self.over:
                self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.over = True
        self._news.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        self.over = True
        self._room.set()
        self._news.set()

    # -- whoever sends it on

    async def room(self) -> None:
        await self._room.wait()

    async def head(self) -> bool:
        while not self._headed and not self.over:
            self._news.clear()
            await self._news.wait()
        return self._headed

    async def piece(self) -> bytes | None:
        while not self._pieces and not self.over:
            self._news.clear()
            await self._news.wait()
        if not self._pieces:
            return None
        piece = b"".join(self._pieces)
        self._pieces.clear()
        self._kept = 0
        self._stream.resume_reading()
        return piece
