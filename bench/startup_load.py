"""Fills a data directory, then stops or is killed: `python -m bench.startup_load KIND DIRECTORY COUNT stop|kill`.

    sessions   persistent sessions with one subscription each, whose clients are away
    retained   retained messages of 20 bytes
    log        records of a kilobyte in a shared log

The broker's own code writes them, as fast as it can; what a protocol would add is the same afterwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.broker.sessions.sessions import Subscription
from mainstem.model.origin import RecordFlag
from mainstem.storage.directory import DataDirectory

AT_ONCE = 2_000  # settled together
TURN = 50  # added before the loop turns: for as long a broker that serves clients lets it wait
EXPIRY_S = 30 * 24 * 3_600
KILOBYTE = bytes(range(256)) * 4


def add_session(broker: Broker, n: int) -> None:
    sessions = broker.session_keeper.sessions
    session = sessions.begin(b"/\0device-%07d" % n, EXPIRY_S, broker.stamps.next)
    name = b"devices/%07d/commands" % n
    session.subscriptions[name] = Subscription(name, 1, start=broker.stamps.next)
    sessions.leave(session, broker.clock.now_ns())


def add_retained(broker: Broker, n: int) -> None:
    topic = b"site/%d/device/%d/state" % (n // 1_000, n % 1_000)
    broker.namespace("/").publish(topic, b"%020d" % n, flags=RecordFlag.RETAIN)


def add_record(broker: Broker, n: int) -> None:
    broker.namespace("/").publish(b"measurements/%d" % (n % 16), KILOBYTE)


KINDS = {"sessions": add_session, "retained": add_retained, "log": add_record}


async def fill(kind: str, data: Path, count: int, end: str) -> None:
    DataDirectory(data)  # as `serve` does; held until the process ends
    broker, add = Broker(BrokerOptions(data)), KINDS[kind]
    await broker.open()
    broker.recover_journal()
    broker.start()
    for n in range(count):
        add(broker, n)
        if n % AT_ONCE == AT_ONCE - 1:
            broker.ticker.drain()
            await broker.ticker.settle(list(broker.logs.by_id.values()))
        if n % TURN == TURN - 1:
            await asyncio.sleep(0)  # snapshots are taken a slice a turn: without turns the start replays all of it
    broker.ticker.drain()
    await broker.ticker.settle(list(broker.logs.by_id.values()))
    deadline = time.monotonic() + 10
    while broker.journal.unsynced() is not None and time.monotonic() < deadline:
        await asyncio.sleep(0.01)  # pointers of the last retained ones
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    await broker.close()


def main() -> None:
    kind, data, count, end = sys.argv[1:]
    asyncio.run(fill(kind, Path(data), int(count), end))


if __name__ == "__main__":
    main()
