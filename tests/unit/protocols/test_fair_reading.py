"""Who is read when several wait: connections by bytes, namespaces by their shares, however much any of them has.

What each client says lies in its socket before the first is read, so that who is served when does not depend on timing.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from mainstem.broker.delivery.turns import Turns
from mainstem.protocols.connection import HOLD_QUEUE, Connection, Server
from mainstem.protocols.reactor import HAS_EPOLL, let_go, listen
from tests.unit.protocols.test_reactor import Ticker, until

TURN = 16 * 1024
BACKLOG = 10 * TURN  # fits into a socket that nobody reads

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the loop's own transports serve where there is no epoll")


class Heard(Connection):
    """Tells its server how many bytes it was given at once."""

    def __init__(self, server: Reading) -> None:
        super().__init__(server)
        self.name = ""
        self.reading = server

    def on_data(self, data: bytes) -> None:
        if not self.name:  # the first word is its name, and the namespace it belongs to
            self.name, tenant = data.decode().split("@")
            self.reading.named[self.name] = self
            self.metering.set_tenant(tenant)
        else:
            self.reading.order.append((self.name, len(data)))
            time.sleep(self.reading.work_s)


class Reading(Server):
    reads_in_place = True
    turn_bytes = TURN
    alone_bytes = 0

    def __init__(self, shares: dict[str, int]) -> None:
        super().__init__(Ticker(asyncio.get_running_loop()), connections_max=500)
        self.turns = Turns(lambda tenant: shares.get(tenant, 0))
        self.order: list[tuple[str, int]] = []
        self.work_s = 0.0  # that each read costs
        self.named: dict[str, Heard] = {}
        self.clients: list[socket.socket] = []
        self.port = 0

    def make_connection(self) -> Heard:
        return Heard(self)

    async def gather(self, backlogs: dict[str, int]) -> None:
        """A client `name@namespace` each, so many bytes of which lie in its socket; nobody is read yet."""
        loop = asyncio.get_running_loop()
        for one, size in backlogs.items():
            client = socket.socket()
            client.setblocking(False)
            self.clients.append(client)
            await loop.sock_connect(client, ("127.0.0.1", self.port))
            await loop.sock_sendall(client, one.encode())
            name = one.partition("@")[0]
            await until(lambda name=name: name in self.named)  # type: ignore[misc]
            self.named[name].hold(HOLD_QUEUE)
            await asyncio.wait_for(loop.sock_sendall(client, bytes(size)), 10)

    async def read(self, total: int) -> None:
        for connection in self.named.values():
            connection.release(HOLD_QUEUE)
        await until(lambda: sum(size for _, size in self.order) >= total)

    def served(self, at_least: int) -> Counter[str]:
        """Bytes of each when so many of all had been read."""
        found: Counter[str] = Counter()
        for name, size in self.order:
            if found.total() >= at_least:
                break
            found[name] += size
        return found


@pytest.fixture
async def reading(request: pytest.FixtureRequest) -> AsyncIterator[Reading]:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * BACKLOG)
    server = Reading(getattr(request, "param", {}))
    listener = await listen(server, bound, backlog=500, now_ns=time.time_ns)
    server.port = bound.getsockname()[1]
    yield server
    for client in server.clients:
        client.close()
    listener.close()
    let_go([listener])


async def test_one_that_floods_takes_no_more_than_its_slice_while_another_waits(reading: Reading) -> None:
    await reading.gather({"flood@one": BACKLOG, "quiet@one": 10})
    await reading.read(BACKLOG + 10)
    before = reading.order.index(("quiet", 10))
    assert sum(size for _, size in reading.order[:before]) <= TURN // 2
    assert max(size for _, size in reading.order) <= TURN


async def test_backlogs_are_read_round_robin_by_bytes(reading: Reading) -> None:
    names = ["first", "second", "third", "fourth"]
    await reading.gather({f"{name}@one": BACKLOG for name in names})
    await reading.read(4 * BACKLOG)
    for turn in range(1, 10):
        served = reading.served(turn * TURN)
        for name in names:  # a turn that took the machine long ended early: then one is half a turn ahead
            assert served[name] == pytest.approx(turn * TURN // 4, abs=TURN // 2)


async def test_whoever_is_alone_gets_the_whole_turn(reading: Reading) -> None:
    await reading.gather({"flood@one": BACKLOG})
    await reading.read(BACKLOG)
    assert [size for _, size in reading.order] == [TURN] * (BACKLOG // TURN)


async def say_long_ago(reading: Reading) -> None:
    """Of all that are connected `early` was the last that was read, and since then nobody."""
    reading.named["early"].release(HOLD_QUEUE)
    await until(lambda: len(reading.order) > 0)
    read_s = time.monotonic()
    await until(lambda: time.monotonic() > read_s + 0.3)
    reading.order.clear()


async def test_while_one_namespace_is_alone_each_of_its_connections_gets_a_whole_turn(reading: Reading) -> None:
    reading.alone_bytes = 3 * BACKLOG
    await reading.gather({"early@one": 10, **{f"{number}@one": BACKLOG for number in range(3)}})
    await say_long_ago(reading)
    await reading.read(3 * BACKLOG)
    assert [size for _, size in reading.order] == [BACKLOG] * 3


async def test_one_namespace_is_not_alone_while_another_is_read(reading: Reading) -> None:
    reading.alone_bytes = 20 * BACKLOG
    many = {f"{number}@noisy": BACKLOG // 4 for number in range(20)}
    await reading.gather({**many, "alone@other": BACKLOG, "early@other": 10})
    await say_long_ago(reading)
    await reading.read(6 * BACKLOG)
    assert reading.served(16 * TURN)["alone"] >= 4 * TURN


async def test_a_turn_that_takes_long_ends_early_and_goes_on_with_those_it_left(reading: Reading) -> None:
    reading.work_s = 0.0005
    await reading.gather({f"{number}@one": 4 * 1024 for number in range(60)})
    ticker, ends, begin = cast(Ticker, reading.ticker), list[int](), 0
    ended = ticker.end_turn
    ticker.end_turn = lambda: (ends.append(len(reading.order)), ended())  # type: ignore[method-assign, assignment]
    await reading.read(60 * 4 * 1024)
    for end in ends:
        assert end - begin < 60, "a turn served everybody, however long it took"
        begin = end
    found: Counter[str] = Counter()
    for name, _ in reading.order:
        found[name] += 1
        assert found[name] <= 3 or len(found) == 60, "one was served again and again before another for the first time"


async def test_hundreds_that_leave_at_once_let_those_who_stay_be_read_first(reading: Reading) -> None:
    reading.work_s = 0.0005  # what the end of each costs, too
    await reading.gather({**{f"{number}@one": 10 for number in range(300)}, "stays@one": 10})
    for client in reading.clients[:-1]:
        client.close()
    await reading.read(301 * 10)
    assert reading.order.index(("stays", 10)) < 30
    await until(lambda: len(reading.connections) == 1)


async def test_who_says_little_comes_before_the_next_long_turn_of_a_flood(reading: Reading) -> None:
    loop = asyncio.get_running_loop()
    await reading.gather({"flood@one": BACKLOG, "quiet@two": 10})
    await reading.read(BACKLOG + 10)  # now it is known who floods, and who has little to say
    for _ in range(3):
        reading.order.clear()
        for name, client in zip(reading.named, reading.clients, strict=True):
            reading.named[name].hold(HOLD_QUEUE)
            await asyncio.wait_for(loop.sock_sendall(client, bytes(BACKLOG if name == "flood" else 10)), 10)
        await reading.read(BACKLOG + 10)  # the flood is let go first, and the kernel tells of it first
        assert reading.order[0] == ("quiet", 10)


async def test_many_connections_of_one_namespace_leave_another_its_share(reading: Reading) -> None:
    many = {f"{number}@noisy": BACKLOG // 4 for number in range(20)}
    await reading.gather({**many, "alone@other": BACKLOG})
    await reading.read(6 * BACKLOG)
    served = reading.served(16 * TURN)
    assert served["alone"] == pytest.approx(8 * TURN, abs=2 * TURN)


@pytest.mark.parametrize("reading", [{"gold": 3, "plain": 1}], indirect=True)
async def test_shares_of_namespaces_weigh(reading: Reading) -> None:
    await reading.gather({"rich@gold": BACKLOG, "poor@plain": BACKLOG})
    await reading.read(2 * BACKLOG)
    served = reading.served(BACKLOG)
    assert served["rich"] == pytest.approx(BACKLOG * 3 / 4, abs=TURN)


@pytest.mark.parametrize("reading", [{"gold": 3, "plain": 1}], indirect=True)
async def test_a_larger_share_that_does_not_wait_slows_nobody(reading: Reading) -> None:
    await reading.gather({"rich@gold": 10, "poor@plain": BACKLOG})
    await reading.read(BACKLOG + 10)
    poor = [size for name, size in reading.order if name == "poor"]
    assert len(poor) <= BACKLOG // TURN + 2


async def test_a_namespace_that_nobody_is_connected_to_costs_no_file_descriptor(reading: Reading) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    await reading.gather({f"{number}@space-{number}": 10 for number in range(5)})
    assert open_files() == before + 3 * 5  # its epoll beside both ends of each socket
    for client in reading.clients:
        client.close()
    await reading.read(50)
    await until(lambda: open_files() == before)
    await reading.gather({"back@space-1": 10})
    await reading.read(60)
    assert reading.order[-1] == ("back", 10)
