"""The relay port: who lacks the cluster's certificate gets nowhere; who has it is a client of the owner, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import Any, ClassVar

import pytest

from mainstem.cluster.certificate import make_certificate, relay_contexts
from mainstem.cluster.membership import BrokerFacts, CellFacts, View
from mainstem.cluster.relay import Relay, RelayDoor
from mainstem.cluster.trunk import DATA, HEAD, HEAD_REST, WINDOW_BYTES

LISTENING, CONNECTING = relay_contexts(b"s" * 32)


class Echo(asyncio.Protocol):
    made: ClassVar[list[Any]] = []
    lost: ClassVar[list[Any]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made.append(transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(self.transport)


class Goodbye(asyncio.Protocol):
    """Says something and closes at once."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"x" * 3_000_000)
        transport.close()


class Server:
    def __init__(self, kind: type[asyncio.Protocol] = Echo) -> None:
        self.make_connection = kind


class Front:
    """A relay in front of an owner that serves `served`."""

    def __init__(self, served: dict[str, Any], opening: asyncio.Event | None = None) -> None:
        """`opening`: not before that is set."""
        self._served, self._opening = served, opening

    async def __aenter__(self) -> Front:
        loop = asyncio.get_running_loop()
        self.door = await loop.create_server(self._make_door, "127.0.0.1", 0, ssl=LISTENING)
        self.relay_port = self.door.sockets[0].getsockname()[1]
        owner = BrokerFacts("a", 1, "127.0.0.1", self.relay_port, {}, "1", False, True, 0.0)
        cell = CellFacts(1, "main", "a", None, 1, 5.0, "", 0, 0)
        self.relay = Relay(CONNECTING, lambda: View({"a": owner}, {1: cell}))
        self.front = await loop.create_server(self.relay.connection_for("mqtt"), "127.0.0.1", 0)
        return self

    def _make_door(self) -> RelayDoor:
        def opening(cell: int) -> asyncio.Event | None:
            return None if self._opening is None or self._opening.is_set() else self._opening

        return RelayDoor(self._find, opening=opening)

    def _find(self, listener: str, cell: int) -> Any:
        return self._served.get(listener)

    async def __aexit__(self, *_: object) -> None:
        self.relay.close_all()
        self.front.close()
        self.door.close()
        await asyncio.sleep(0.01)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.front.sockets[0].getsockname()[:2])


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def bare() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_every_broker_makes_the_same_certificate_of_the_secret_and_another_cluster_another() -> None:
    assert make_certificate(b"s" * 32) == make_certificate(b"s" * 32)
    assert make_certificate(b"s" * 32)[0] != make_certificate(b"t" * 32)[0]


@pytest.mark.parametrize("shown", [None, bare(), relay_contexts(b"t" * 32)[1]], ids=["no TLS", "none", "another's"])
def test_who_lacks_the_certificate_is_cut_off(shown: ssl.SSLContext | None) -> None:
    async def attack() -> None:
        made = len(Echo.made)
        async with Front({"mqtt": Server()}) as front:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", front.relay_port, ssl=shown)
                told = b'{"listener":"mqtt","peer":["",0],"tls":false,"certificate":null}'
                writer.write(HEAD.pack(HEAD_REST + len(told), 1, 1) + told)
                assert await reader.read() == b""
                writer.close()
            except (ssl.SSLError, ConnectionError):
                pass
        assert len(Echo.made) == made

    run(attack())


def test_a_client_talks_to_the_owner_through_a_relay_also_if_the_owner_comes_later() -> None:
    async def talk() -> None:
        served: dict[str, Any] = {}
        async with Front(served) as front:
            reader, writer = await front.connect()
            sent = os.urandom(4 << 20)
            writer.write(sent)
            await asyncio.sleep(0.3)  # refused meanwhile: nobody serves
            served["mqtt"] = Server()
            assert await reader.readexactly(len(sent)) == sent
            assert Echo.made[-1].get_extra_info("peername") == writer.get_extra_info("sockname")
            assert Echo.made[-1].get_extra_info("peercert") is None, "the cluster's certificate is not the client's"
            writer.close()
            while Echo.made[-1] not in Echo.lost:
                await asyncio.sleep(0.01)

    run(talk())


def test_many_clients_share_one_connection_and_one_that_does_not_read_holds_up_nobody() -> None:
    async def talk() -> None:
        async with Front({"mqtt": Server()}) as front:
            _, stuck = await front.connect()
            stuck.write(os.urandom(16 << 20))  # and never reads its echo
            await asyncio.sleep(0.2)

            async def one(number: int) -> None:
                reader, writer = await front.connect()
                for size in (10, 70_000, WINDOW_BYTES + 1):
                    sent = bytes([number]) * size
                    writer.write(sent)
                    assert await reader.readexactly(size) == sent
                writer.write_eof()
                assert await reader.read() == b""
                writer.close()

            await asyncio.gather(*(one(number) for number in range(20)))
            trunk = next(iter(front.relay._trunks.values()))
            assert trunk is not None
            kept = sum(len(one._unsent) + one._held_bytes for one in trunk.streams.values())
            assert kept <= 4 * WINDOW_BYTES, "what is kept of a client that does not read is bounded"
            stuck.transport.abort()

    run(talk())


def test_what_an_owner_says_before_it_closes_arrives() -> None:
    async def talk() -> None:
        async with Front({"mqtt": Server(Goodbye)}) as front:
            reader, writer = await front.connect()
            assert await reader.read() == b"x" * 3_000_000
            writer.close()

    run(talk())


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff\x04\0\0\0\1", HEAD.pack(2, DATA, 1), b"GET / HTTP/1.1\r\n\r\n"])
def test_a_trunk_that_says_nonsense_is_broken_off(said: bytes) -> None:
    async def attack() -> None:
        async with Front({"mqtt": Server()}) as front:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", front.relay_port, ssl=CONNECTING, server_hostname=""
            )
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(attack())


def test_clients_that_come_before_the_next_owner_serves_wait_at_its_door() -> None:
    async def wait() -> None:
        opening = asyncio.Event()
        served = dict[str, Any]()
        async with Front(served, opening) as front:
            waiting = [await front.connect() for _ in range(3)]
            for _, writer in waiting:
                writer.write(b"hello")
            given_up = waiting.pop()[1]
            while len(front.relay._trunks) < 1:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # longer than a relay waits before it asks again
            given_up.close()
            await asyncio.sleep(0.1)
            served["mqtt"] = Server()
            opening.set()
            for reader, writer in waiting:
                assert await reader.readexactly(5) == b"hello"
                writer.close()
            (trunk,) = front.relay._trunks.values()
            assert trunk._last == 3, "nobody was refused and had to ask again"

    run(wait())
