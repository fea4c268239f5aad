"""A broker inside the test's own process: all protocols on free ports, in memory unless asked otherwise."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mainstem.server.app import App
from mainstem.server.config import load_config
from mainstem.server.listeners import LISTENERS

START_S_MAX = 30.0
_FREE_PORTS = tuple(f"listeners.{name}_port=0" for name in LISTENERS)


class Endpoints:
    """Where a test broker listens, in the form each client library wants it."""

    host = "127.0.0.1"
    ports: dict[str, int]

    @property
    def mqtt_port(self) -> int:
        return self.ports["mqtt"]

    @property
    def ws_port(self) -> int:
        return self.ports["ws"]

    @property
    def kafka_port(self) -> int:
        return self.ports["kafka"]

    @property
    def amqp_port(self) -> int:
        return self.ports["amqp"]

    @property
    def http_port(self) -> int:
        return self.ports["http"]

    @property
    def bootstrap_servers(self) -> str:
        """For Kafka clients."""
        return f"{self.host}:{self.kafka_port}"

    @property
    def amqp_url(self) -> str:
        """For pika, aio-pika and Celery."""
        return f"amqp://guest:guest@{self.host}:{self.amqp_port}/%2F"

    @property
    def nats_port(self) -> int:
        return self.ports["nats"]

    @property
    def nats_url(self) -> str:
        """For nats-py and other NATS clients."""
        return f"nats://{self.host}:{self.nats_port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"


class Broker(Endpoints):
    """`async with Broker()` runs on the test's loop, `with Broker()` on a thread of its own.

    `settings` are `section.key=value`, as with `mainstem serve --set`; `data` keeps the data in a directory of yours.
    """

    def __init__(self, *settings: str, engine: str = "memory", data: Path | str | None = None) -> None:
        self._settings: Sequence[str] = settings
        self._engine = engine
        self._data = data
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # of the thread, where it has one
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.ports = {}
        self.app: App | None = None

    # -- on the test's loop

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    # -- on a thread

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, args=(started,), name="mainstem", daemon=True)
        self._thread.start()
        if not started.wait(START_S_MAX):
            raise TimeoutError(f"the broker did not start within {START_S_MAX:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        assert self.loop is not None
        assert self._stopping is not None
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_S_MAX)
        if self._failure is not None:
            raise self._failure

    def _run_thread(self, started: threading.Event) -> None:
        async def live() -> None:
            self.loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            await self._start()
            started.set()
            await self._stopping.wait()
            await self._stop()

        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(live())
        except BaseException as failure:
            self._failure = failure
        finally:
            started.set()

    # -- both

    async def _start(self) -> None:
        if self._data is None:
            self._directory = tempfile.TemporaryDirectory(prefix="mainstem-test-", ignore_cleanup_errors=True)
        data = self._data or Path(self._directory.name if self._directory else "") / "data"
        flags = (*_FREE_PORTS, f"data.directory={data}", f"topics.engine={self._engine}", *self._settings)
        self.app = App(load_config(flags=flags))
        await self.app.start()
        self.ports = self.app.ports

    async def _stop(self) -> None:
        if self.app is not None:
            await self.app.stop()
        if self._directory is not None:
            self._directory.cleanup()


def _loop_factory() -> Any:
    from mainstem.server.lifecycle import loop_factory

    return loop_factory()
