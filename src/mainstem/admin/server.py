"""HTTP inside the broker's own loop: uvicorn's protocol class on our listener, our application behind it.

What a peer may take before anything of it is kept or run:

    request line  REQUEST_LINE_BYTES_MAX, else 414
    head          HEAD_BYTES_MAX and HEADERS_MAX, else 431; whole within HEAD_S_MAX, else 408
    body          BODY_STEP_BYTES within each BODY_STEP_S, else 408; of all, with other unfinished messages (`unfinished`)
    connections   CONNECTIONS_MAX; a new one takes the place of the one that has been idle longest
    requests      REQUESTS_MAX at once, else 503

RESERVE more connections are taken for `/livez`, `/readyz` and `/metrics`, which are answered whatever else goes on: who
watches the broker must not take a crowd for its end.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from mainstem.admin.app import make_application
from mainstem.admin.guard import LET_IN
from mainstem.admin.running import Running
from mainstem.broker.namespaces.placement import AGAIN

KEEP_ALIVE_S = 75
CONNECTIONS_MAX = 1_000
RESERVE = 100
REQUESTS_MAX = 500
REQUEST_LINE_BYTES_MAX = 4 * 1024  # so no number in it has more digits than Python reads
HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 200
HEAD_S_MAX = 15  # from the first byte on, and from connecting to the first byte
BODY_STEP_S, BODY_STEP_BYTES = 15, 16 * 1024
WATCHERS = frozenset({b"/livez", b"/readyz", b"/metrics"})


class HttpCounters:
    """As the other protocols' counters; HTTP publishes and reads messages too."""

    def __init__(self) -> None:
        self.messages_in = self.messages_out = 0
        self.bytes_in = self.bytes_out = 0
        self.connections = self.connections_total = 0
        self.refused_total = 0


class CountedTransport:
    """A transport that counts what is written; all else is the transport's own."""

    def __init__(self, transport: Any, counters: HttpCounters) -> None:
        self._transport = transport
        self._counters = counters

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # the client is gone, and its connection's end not yet told; uvloop would raise
        self._counters.bytes_out += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Refusal(Exception):
    """Why a request is not read on."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class HttpConnection(HttpToolsProtocol):
    """uvicorn's, counted and limited."""

    door: AdminServer
    # As `unfinished` knows a connection.
    unfinished = 0
    closing = False

    def connection_made(self, transport: Any) -> None:
        door = self.door
        door.counters.connections += 1
        door.counters.connections_total += 1
        self._head_bytes = 0  # of the request that is being read; 0: between two
        self._body_bytes = self._body_seen = 0
        self._reading = self._in_body = False  # a request began and is not whole; its head is
        self._due_s = door.second + HEAD_S_MAX
        self._refusal: Refusal | None = None
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "certificate": certificate}
        again = transport.get_extra_info(AGAIN)
        if again is not None:
            self.app_state = {**self.app_state, LET_IN: again.take()}
        super().connection_made(CountedTransport(transport, door.counters))  # type: ignore[arg-type]
        self.watches_only = not door.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.door.counters.connections -= 1
        self.door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self.door.counters.bytes_in += len(data)
        self.door.idle.pop(self, None)
        if not self._reading:
            self._reading, self._due_s = True, self.door.second + HEAD_S_MAX
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._reading and not self._in_body and self._head_bytes > HEAD_BYTES_MAX and not self.closing:
            self.refuse(Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "a request's head is too large"))

    # -- what the parser tells

    def on_message_begin(self) -> None:
        self._reading, self._in_body, self._body_bytes, self._body_seen = True, False, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > REQUEST_LINE_BYTES_MAX:
            raise self._refused(HTTPStatus.REQUEST_URI_TOO_LONG, f"more than {REQUEST_LINE_BYTES_MAX} bytes of address")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > HEADERS_MAX or sum(len(n) + len(v) for n, v in self.headers) > HEAD_BYTES_MAX:
            raise self._refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many or too large headers")

    def on_headers_complete(self) -> None:
        watches = self.url.partition(b"?")[0] in WATCHERS
        if not watches and (self.watches_only or len(self.tasks) >= REQUESTS_MAX):
            self.door.counters.refused_total += 1
            raise self._refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections or requests; try again")
        self._in_body, self._head_bytes = True, 0
        self._due_s = self.door.second + BODY_STEP_S
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes - self._body_seen >= BODY_STEP_BYTES:
            self._body_seen, self._due_s = self._body_bytes, self.door.second + BODY_STEP_S
        self.door.unfinished.note(self, self._body_bytes)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._body_bytes = 0
        self.door.unfinished.note(self, 0)
        if not self._reading and not self.closing:
            self.door.idle[self] = None

    # -- limits

    def is_late(self) -> bool:
        """It began a request, or only connected, and does not go on."""
        waits = self.cycle is None or self._reading
        return waits and not self.flow.read_paused and self.door.second > self._due_s

    def _refused(self, status: HTTPStatus, why: str) -> Refusal:
        self._refusal = Refusal(status, why)
        return self._refusal

    def send_400_response(self, msg: str) -> None:
        """What uvicorn says when the parser stops, for whatever reason."""
        self.refuse(self._refusal or Refusal(HTTPStatus.BAD_REQUEST, msg))

    def refuse(self, refusal: Refusal) -> None:
        """A last word, and the end."""
        self.closing = True
        if self.transport.is_closing():
            return
        words = f"{refusal}\n".encode()
        head = (
            f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(words)}\r\nconnection: close\r\n\r\n"
        )
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(head.encode() + words)
        self.transport.close()

    def cut_off(self, reason: str) -> None:
        self.refuse(Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason))


class AdminServer:
    def __init__(self, running: Running) -> None:
        self.counters = HttpCounters()
        self.unfinished = running.unfinished
        self.application = make_application(running)
        self.second = 0  # coarse monotonic time
        self.idle: dict[HttpConnection, None] = {}  # between two requests, the one that has been so longest first
        self._live = running.live
        self._config = uvicorn.Config(
            self.application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()

    @property
    def requests_total(self) -> int:
        return self._state.total_requests

    def make_connection(self) -> asyncio.Protocol:
        connection = HttpConnection(config=self._config, server_state=self._state, app_state={})
        connection.door = self
        return connection

    def admit(self, connection: HttpConnection) -> bool:
        """Whether it may ask for everything; else only whether the broker lives. It may be closed at once."""
        self.idle[connection] = None
        count = len(self._state.connections)
        if count <= CONNECTIONS_MAX:
            return True
        oldest = next(iter(self.idle))
        if oldest is not connection:
            self.idle.pop(oldest)
            oldest.closing = True
            oldest.transport.close()
            return True
        if count > CONNECTIONS_MAX + RESERVE:
            self.counters.refused_total += 1
            connection.closing = True
            connection.transport.abort()
        return False

    def leave(self, connection: HttpConnection) -> None:
        self.idle.pop(connection, None)
        self.unfinished.forget(connection)

    async def run_deadlines(self) -> None:
        """Who is late with a request is told so; uvicorn closes what is idle."""
        loop = asyncio.get_running_loop()
        started = loop.time() - self.second
        while True:
            await asyncio.sleep(1)
            self.second = int(loop.time() - started)
            self._live.look()
            for connection in list(self._state.connections):
                if isinstance(connection, HttpConnection) and connection.is_late() and not connection.closing:
                    connection.refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time"))

    def close_all(self, reason: str) -> None:
        for connection in list(self._state.connections):
            connection.shutdown()
        for task in list(self._state.tasks):
            task.cancel()  # live tails never end by themselves
