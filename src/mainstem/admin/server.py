"""HTTP inside the broker's own loop: uvicorn's protocol class on our listener, our application behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from mainstem.admin.app import make_application
from mainstem.admin.running import Running

KEEP_ALIVE_S = 75
REQUESTS_MAX = 1_000  # at once; beyond it 503


class HttpCounters:
    """As the other protocols' counters; HTTP publishes and reads messages too."""

    def __init__(self) -> None:
        self.messages_in = self.messages_out = 0
        self.bytes_in = self.bytes_out = 0
        self.connections = self.connections_total = 0


class CountedTransport:
    """A transport that counts what is written; all else is the transport's own."""

    def __init__(self, transport: Any, counters: HttpCounters) -> None:
        self._transport = transport
        self._counters = counters

    def write(self, data: bytes) -> None:
        self._counters.bytes_out += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpConnection(HttpToolsProtocol):
    """uvicorn's, counted."""

    counters: HttpCounters

    def connection_made(self, transport: Any) -> None:
        self.counters.connections += 1
        self.counters.connections_total += 1
        super().connection_made(CountedTransport(transport, self.counters))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.counters.connections -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_in += len(data)
        super().data_received(data)


class AdminServer:
    def __init__(self, running: Running) -> None:
        self.counters = HttpCounters()
        self.application = make_application(running)
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
            limit_concurrency=REQUESTS_MAX,
        )
        self._config.load()
        self._state = ServerState()

    @property
    def requests_total(self) -> int:
        return self._state.total_requests

    def make_connection(self) -> asyncio.Protocol:
        connection = HttpConnection(config=self._config, server_state=self._state, app_state={})
        connection.counters = self.counters
        return connection

    async def run_deadlines(self) -> None:
        """uvicorn keeps its own timers."""

    def close_all(self, reason: str) -> None:
        for connection in list(self._state.connections):
            connection.shutdown()
        for task in list(self._state.tasks):
            task.cancel()  # live tails never end by themselves
