"""HTTP inside the broker's own loop: uvicorn's protocol class on our listener, our application behind it."""

from __future__ import annotations

import asyncio

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
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})

    async def run_deadlines(self) -> None:
        """uvicorn keeps its own timers."""

    def close_all(self, reason: str) -> None:
        for connection in list(self._state.connections):
            connection.shutdown()
        for task in list(self._state.tasks):
            task.cancel()  # live tails never end by themselves
