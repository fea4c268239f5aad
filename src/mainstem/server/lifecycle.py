"""The life of the process: start, tell, serve, reload, drain. TERM and INT drain, twice ends at once; HUP reloads."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from mainstem.model.errors import MainstemError
from mainstem.server.app import App
from mainstem.server.notify import notify
from mainstem.server.settings import SECTIONS, Config

logger = logging.getLogger("mainstem.server")

TRIM_BYTES = 64 << 20
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
SWITCH_S = 0.0005  # after so long a thread that runs Python lets the loop have the interpreter
GC_THRESHOLDS = (2_000, 10, 100)  # a collection takes 0.16 µs an object, on the loop: more at once were felt


def run(
    config: Config, *, move_ports: bool, announce: Callable[[App, float], None], reload: Callable[[], Config]
) -> int:
    """Serve until a signal; returns the exit code."""
    set_up_logging(config)
    tune_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config, move_ports, announce, reload))


def tune_process() -> None:
    """A loop that comes back from the kernel while a thread runs Python waits SWITCH_S for it; CPython's own 5 ms were the
    p99 of a quiet client beside questions and listings. It is shorter than a slice of work on the loop (1 ms), and long
    beside what a switch costs (some 10 µs)."""
    sys.setswitchinterval(SWITCH_S)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Do not give memory back to the kernel after each large request, only to have every page of it zeroed again.

    Measured with 1 MB Kafka batches: half the CPU time per MB. At most TRIM_BYTES of freed memory stay ours.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, TRIM_BYTES // 4)
    mallopt(_M_TOP_PAD, TRIM_BYTES // 16)  # and ask for it in pieces worth the call


def give_back_freed_memory() -> None:
    """After the start: what recovery read and threw away, up to TRIM_BYTES, is more than serving may ever need. And after a
    cell was handed over: what is free between things that stay is never given back by itself. A few milliseconds."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


async def _serve(
    config: Config, move_ports: bool, announce: Callable[[App, float], None], reload: Callable[[], Config]
) -> int:
    began = time.monotonic()
    app = App(config, move_ports=move_ports)
    await app.start()
    gc.freeze()  # what was imported and recovered stays: do not look at it again
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    give_back_freed_memory()
    stopping = handle_signals(lambda: app, reload)
    announce(app, time.monotonic() - began)
    notify(f"READY=1\nSTATUS=serving {', '.join(f'{name} {port}' for name, port in app.ports.items())}")
    await stopping.wait()
    notify("STOPPING=1")
    try:
        async with asyncio.timeout(config.limits.drain_ms / 1000 + 30):
            await app.stop()
    except TimeoutError:
        logger.error("the stop took too long; the next start will recover")
        return 1
    logger.info("stopped cleanly")
    return 0


def handle_signals(app: Callable[[], App | None], reload: Callable[[], Config]) -> asyncio.Event:
    """The event is set at TERM or INT; a second one does not wait any longer. HUP concerns the app there is by then."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # asked twice: the next start recovers
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(app(), reload))
    return stopping


def _reload(app: App | None, reload: Callable[[], Config]) -> None:
    if app is None:
        return
    notify("RELOADING=1")
    try:
        new = reload()
        app.reload_certificate(new.tls)
        applied, waiting = apply_live(app.config, new)
    except MainstemError as error:
        logger.error("the configuration was not reloaded, the old one stays:\n%s", error)
    else:
        app.apply_live_settings()
        set_up_logging(app.config)
        logger.info("reloaded: %s", ", ".join(applied) or "nothing changed")
        if waiting:
            logger.warning("changed, but needs a restart: %s", ", ".join(waiting))
    notify("READY=1")


def apply_live(config: Config, new: Config) -> tuple[list[str], list[str]]:
    """Take over what can change while running; returns the keys taken over, and those that need a restart."""
    applied, waiting = [], []
    for section, kind in SECTIONS.items():
        mine, theirs = getattr(config, section), getattr(new, section)
        for one in fields(kind):
            key, value = f"{section}.{one.name}", getattr(theirs, one.name)
            if getattr(mine, one.name) == value:
                continue
            if one.metadata["setting"].live:
                setattr(mine, one.name, value)
                config.sources[key] = new.sources.get(key, "default")
                applied.append(key)
            elif not key.endswith("_port"):  # moved or chosen freely: not a change of the operator's
                waiting.append(key)
    return applied, waiting


def set_up_logging(config: Config) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if config.logging.format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.logging.level.upper())
    logging.getLogger("websockets").setLevel(max(root.level, logging.WARNING))  # it tells of every connection


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s  %(message)s", "%Y-%m-%dT%H:%M:%S")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import json

        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)  # line breaks in messages are escaped: one event, one line


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Windows, or a platform without a wheel
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
