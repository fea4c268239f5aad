"""Listening on real sockets: by the compiled reactor, or without it by the loop's own transports. The rules are the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mainstem.protocols import reactor
from mainstem.protocols.connection import HOLD_QUEUE, Connection, Server
from mainstem.protocols.reactor import Listener, let_go, listen

LIMIT = 256 * 1024
SECONDS_MAX = 10.0


class Ticker:
    behind = loop_read = False
    ahead_bytes = 1 << 20

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.dirty: list[Any] = []
        self.turns = 0

    def mark_dirty(self, connection: Any) -> None:
        self.dirty.append(connection)
        self.loop.call_soon(self.end_turn)

    on_turn = None

    def note_turn(self) -> None: ...

    def request(self) -> None: ...

    def begin_turn(self) -> bool:
        self.turns += 1
        return True

    def end_turn(self) -> None:
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()


class Echo(Connection):
    """Sends back what it hears, except for the words it obeys."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.heard = b""
        self.told: list[str] = []
        server.made.append(self)

    def on_data(self, data: bytes) -> None:
        self.heard += data
        if data == b"break":
            raise ValueError("this connection is broken")
        if data == b"end the first":
            self.server.made[0].abort()  # type: ignore[attr-defined]
        self.send(data)

    def on_blocked(self) -> None:
        self.told.append("blocked")

    def on_room(self) -> None:
        self.told.append("room")

    def on_lost(self) -> None:
        self.told.append("lost")


class EchoServer(Server):
    reads_in_place = True

    def __init__(self, ticker: Ticker) -> None:
        super().__init__(ticker, connections_max=500)
        self.out_bytes_max = LIMIT
        self.made: list[Echo] = []

    def make_connection(self) -> Echo:
        return Echo(self)


class Serving:
    def __init__(self, server: EchoServer, listener: Listener, port: int) -> None:
        self.server, self.listener, self.port = server, listener, port
        self.clients: list[socket.socket] = []

    async def connect(self) -> tuple[socket.socket, Echo]:
        """A client, and the connection it has on the other side."""
        count = len(self.server.made)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.setblocking(False)
        self.clients.append(client)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        await until(lambda: len(self.server.made) > count)
        echo = self.server.made[count]
        await until(lambda: echo.transport is not None or echo.closing)
        return client, echo


@pytest.fixture(params=["epoll", "the loop's transports"])
async def serving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    monkeypatch.setattr(reactor, "HAS_EPOLL", request.param == "epoll")
    loop = asyncio.get_running_loop()
    bound = socket.create_server(("127.0.0.1", 0))
    server = EchoServer(Ticker(loop))
    listener = await listen(server, bound, backlog=500, now_ns=time.time_ns)
    one = Serving(server, listener, bound.getsockname()[1])
    yield one
    for client in one.clients:
        client.close()
    listener.close()
    let_go([listener])


async def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.001)


async def receive(client: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer if the other side ends before."""
    loop, found = asyncio.get_running_loop(), bytearray()
    while len(found) < size:
        data = await asyncio.wait_for(loop.sock_recv(client, min(65536, size - len(found))), SECONDS_MAX)
        if not data:
            break
        found += data
    return bytes(found)


async def say(client: socket.socket, data: bytes) -> None:
    await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(client, data), SECONDS_MAX)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def test_each_of_many_sockets_gets_its_own_bytes(serving: Serving) -> None:
    clients = [(await serving.connect())[0] for _ in range(200)]
    for round_ in range(3):
        for n, client in enumerate(clients):
            await say(client, b"%d of %d;" % (round_, n))
        for n, client in enumerate(clients):
            said = b"%d of %d;" % (round_, n)
            assert await receive(client, len(said)) == said
    counters = serving.server.counters
    assert counters.connections == 200
    assert counters.bytes_in == counters.bytes_out == sum(len(one.heard) for one in serving.server.made)


async def test_what_the_socket_does_not_take_leaves_in_order_and_its_protocol_is_told(serving: Serving) -> None:
    client, echo = await serving.connect()
    pieces = [b"%06d" % n * 2000 for n in range(1000)]  # 12 MB
    for piece in pieces:
        echo.send(piece)
        echo.flush()
    assert echo.told == ["blocked"]
    assert echo.unsent_bytes() > LIMIT
    assert await receive(client, 12_000_000) == b"".join(pieces)
    await until(lambda: echo.told == ["blocked", "room"])
    assert echo.unsent_bytes() == 0
    await say(client, b"on it goes")
    assert await receive(client, 10) == b"on it goes"


async def test_a_limit_that_is_lowered_holds_for_what_waits_already(serving: Serving) -> None:
    client, echo = await serving.connect()
    sent = 0
    while not LIMIT // 2 < echo.unsent_bytes() <= LIMIT:  # once the kernel takes no more
        echo.send(b"x" * (LIMIT // 4))
        echo.flush()
        sent += LIMIT // 4
    assert echo.told == []
    assert serving.server.unsent.bytes == echo.unsent_bytes()
    echo.limit_output(LIMIT // 4)
    assert echo.told == ["blocked"]
    assert len(await receive(client, sent)) == sent
    await until(lambda: echo.told == ["blocked", "room"])
    serving.server.unsent.review()
    assert serving.server.unsent.bytes == 0


async def test_closing_sends_what_waits(serving: Serving) -> None:
    client, echo = await serving.connect()
    echo.send(b"x" * 8_000_000)
    echo.close()
    echo.send(b"too late")
    assert echo.told[-1:] != ["lost"]
    assert await receive(client, 9_000_000) == b"x" * 8_000_000
    await until(lambda: echo.told[-1] == "lost")
    assert serving.server.counters.connections == 0


async def test_aborting_sends_nothing_more(serving: Serving) -> None:
    client, echo = await serving.connect()
    echo.send(b"x" * 8_000_000)
    echo.flush()
    echo.abort()
    assert "lost" not in echo.told  # not in the middle of the caller's own work
    await until(lambda: echo.told[-1] == "lost")
    assert len(await receive(client, 9_000_000)) < 8_000_000
    assert echo.told.count("lost") == 1


async def test_a_peer_that_resets_is_lost_alone(serving: Serving) -> None:
    first, lost = await serving.connect()
    second, _ = await serving.connect()
    await say(first, b"hello")
    assert await receive(first, 5) == b"hello"
    reset(first)
    await until(lambda: lost.told == ["lost"])
    await say(second, b"still here")
    assert await receive(second, 10) == b"still here"
    assert serving.server.counters.connections == 1


async def test_a_reset_while_output_waits_is_told_once(serving: Serving) -> None:
    client, echo = await serving.connect()
    echo.send(b"x" * 8_000_000)
    echo.flush()
    reset(client)
    await until(lambda: "lost" in echo.told)
    assert echo.told.count("lost") == 1
    echo.send(b"nobody hears this")
    echo.flush()


async def test_a_reset_of_a_held_connection_is_found_when_reading_goes_on(serving: Serving) -> None:
    """And meanwhile the loop is not woken for it again and again."""
    client, echo = await serving.connect()
    other, _ = await serving.connect()
    echo.hold(HOLD_QUEUE)
    await say(client, b"unread")
    reset(client)
    await say(other, b"ping")
    assert await receive(other, 4) == b"ping"
    turns = serving.server.ticker.turns  # type: ignore[attr-defined]
    for _ in range(200):
        await asyncio.sleep(0)
    assert serving.server.ticker.turns - turns < 20  # type: ignore[attr-defined]
    assert echo.told == []
    echo.release(HOLD_QUEUE)
    await until(lambda: echo.told == ["lost"])


async def test_a_held_connection_is_not_read(serving: Serving) -> None:
    client, echo = await serving.connect()
    other, _ = await serving.connect()
    echo.hold(HOLD_QUEUE)
    await say(client, b"later")
    await say(other, b"now")
    assert await receive(other, 3) == b"now"
    assert echo.heard == b""
    echo.release(HOLD_QUEUE)
    assert await receive(client, 5) == b"later"


async def test_a_peer_that_has_nothing_more_to_say_still_gets_its_answers(serving: Serving) -> None:
    client, echo = await serving.connect()
    said = b"y" * 3_000_000
    task = asyncio.create_task(say(client, said))
    answer = asyncio.create_task(receive(client, 4_000_000))
    await task
    client.shutdown(socket.SHUT_WR)
    assert await answer == said
    await until(lambda: echo.told[-1] == "lost")


async def test_last_words_are_not_lost_to_input_that_nobody_wants(serving: Serving) -> None:
    client, echo = await serving.connect()
    echo.send(b"goodbye")
    echo.close("it is over", linger=True)
    await say(client, b"z" * 100_000)
    assert await receive(client, 100) == b"goodbye"
    assert echo.heard == b""
    client.close()
    await until(lambda: echo.told == ["lost"])


async def test_a_connection_may_end_another_of_the_same_turn(serving: Serving) -> None:
    first, one = await serving.connect()
    others = [await serving.connect() for _ in range(20)]
    for client, _ in others:
        client.send(b"end the first")
    first.send(b"hello")
    await until(lambda: one.told == ["lost"])
    for client, _ in others:
        assert await receive(client, 13) == b"end the first"


async def test_a_connection_that_fails_fails_alone(serving: Serving) -> None:
    client, echo = await serving.connect()
    other, _ = await serving.connect()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await say(client, b"break")
    await until(lambda: echo.told == ["lost"])
    await say(other, b"fine")
    assert await receive(other, 4) == b"fine"


async def test_beyond_the_limit_of_connections_peers_are_closed_at_once(serving: Serving) -> None:
    serving.server.connections_max = 1
    await serving.connect()
    client, _ = await serving.connect()
    with contextlib.suppress(ConnectionResetError):  # whether its end is told by one is the kernel's choice
        assert await receive(client, 1) == b""
    await until(lambda: serving.server.counters.refused_total == 1)
    assert serving.server.counters.connections == 1


async def test_who_says_little_comes_before_those_who_connect_and_leave(serving: Serving) -> None:
    turns, served = serving.server.turns, list[float]()
    turns.quick.append(lambda: served.append(time.monotonic()))
    turns.company_until_ns = time.monotonic_ns() + 60_000_000_000
    client, echo = await serving.connect()
    if reactor.HAS_EPOLL:  # else the loop takes them in
        assert served
        served.clear()
    client.close()
    await until(lambda: "lost" in echo.told)
    assert bool(served) == reactor.HAS_EPOLL


async def test_a_closed_listener_takes_no_one_new_and_keeps_who_is_there(serving: Serving) -> None:
    client, _ = await serving.connect()
    serving.listener.close()
    with pytest.raises(ConnectionRefusedError):
        await serving.connect()
    await say(client, b"still here")
    assert await receive(client, 10) == b"still here"


async def test_the_peers_address_is_known_after_it_is_gone(serving: Serving) -> None:
    client, echo = await serving.connect()
    address, transport = client.getsockname(), echo.transport
    assert transport.get_extra_info("peername") == address
    assert transport.get_extra_info("sockname") == ("127.0.0.1", serving.port)
    reset(client)
    await until(lambda: echo.told == ["lost"])
    assert transport.get_extra_info("peername") == address


async def test_while_others_speak_a_flood_is_read_in_turns_that_cost_a_millisecond(serving: Serving) -> None:
    """A byte of this flood costs 50 ns."""
    flood, loud = await serving.connect()
    quiet, _ = await serving.connect()
    sizes: list[int] = []

    def take(data: bytes) -> None:
        sizes.append(len(data))
        until_s = time.thread_time() + len(data) * 50e-9
        while time.thread_time() < until_s:
            pass

    loud.on_data = take  # type: ignore[method-assign]
    sending = asyncio.create_task(_send_for_ever(flood))
    await until(lambda: len(sizes) > 20)
    for _ in range(20):
        await say(quiet, b"!")
        assert await receive(quiet, 1) == b"!"
    sizes.clear()
    for _ in range(20):
        await say(quiet, b"!")
        assert await receive(quiet, 1) == b"!"
    sending.cancel()
    assert not reactor.HAS_EPOLL or sorted(sizes)[len(sizes) // 2] <= 64 * 1024


async def test_whoever_acks_a_flood_is_no_reason_to_read_it_in_short_turns(serving: Serving) -> None:
    flood, loud = await serving.connect()
    acks, acking = await serving.connect()
    sizes: list[int] = []

    def take(data: bytes) -> None:
        sizes.append(len(data))
        until_s = time.thread_time() + len(data) * 50e-9
        while time.thread_time() < until_s:
            pass

    async def ack() -> None:
        await say(acks, b"!")
        assert len(await receive(acks, 32 * 1024)) == 32 * 1024

    loud.on_data = take  # type: ignore[method-assign]
    acking.on_data = lambda data: acking.send(bytes(32 * 1024))  # type: ignore[method-assign]
    await ack()  # before it nothing was sent to it
    said_s = time.monotonic()
    sending = asyncio.create_task(_send_for_ever(flood))
    await until(lambda: len(sizes) > 20 and time.monotonic() > said_s + 0.3)
    sizes.clear()
    for _ in range(20):
        await ack()
    sending.cancel()
    assert not reactor.HAS_EPOLL or max(sizes) > 64 * 1024


async def test_nor_is_a_flood_that_comes_in_small_pieces(serving: Serving) -> None:
    flood, loud = await serving.connect()
    sizes: list[int] = []

    def take(data: bytes) -> None:
        sizes.append(len(data))
        until_s = time.thread_time() + len(data) * 50e-9
        while time.thread_time() < until_s:
            pass

    async def drip() -> None:
        client, echo = await serving.connect()
        echo.on_data = echo.send  # type: ignore[method-assign]
        while True:
            await say(client, bytes(4000))
            await receive(client, 4000)

    loud.on_data = take  # type: ignore[method-assign]
    said_s = time.monotonic()
    sending = asyncio.create_task(_send_for_ever(flood)), asyncio.create_task(drip())
    await until(lambda: len(sizes) > 20 and time.monotonic() > said_s + 0.5)
    for task in sending:
        task.cancel()
    assert not reactor.HAS_EPOLL or max(sizes[len(sizes) // 2 :]) > 64 * 1024


async def _send_for_ever(client: socket.socket) -> None:
    while True:
        await asyncio.get_running_loop().sock_sendall(client, bytes(1 << 20))
