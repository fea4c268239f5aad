"""The relay port: who does not know the secret gets nowhere; who does is a client of the owner, byte for byte."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

import pytest

from mainstem.cluster.membership import BrokerFacts
from mainstem.cluster.relay import MAGIC, NONCE_BYTES, Relay, RelayDoor

SECRET = b"s" * 32


class Echo(asyncio.Protocol):
    peers: ClassVar[list[Any]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peers.append(transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class EchoServer:
    def make_connection(self) -> asyncio.Protocol:
        return Echo()


async def open_door(served: dict[str, Any]) -> tuple[asyncio.Server, int]:
    door = await asyncio.get_running_loop().create_server(lambda: RelayDoor(SECRET, served.get), "127.0.0.1", 0)
    return door, door.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "said", [b"\x00\x02{}" + b"x" * 32, b"\xff\xff", b"\x00\x02{}" + b"x" * 40, b"GET / HTTP/1.1\r\n\r\n"]
)
def test_who_does_not_know_the_secret_is_cut_off(said: bytes) -> None:
    async def attack() -> None:
        door, port = await open_door({"mqtt": EchoServer()})
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert len(await reader.readexactly(len(MAGIC) + NONCE_BYTES)) == 40
        writer.write(said)
        assert await asyncio.wait_for(_rest(reader), 10) == b""
        writer.close()
        door.close()

    asyncio.run(attack())


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_a_client_talks_to_the_owner_through_a_relay_also_if_the_owner_comes_later() -> None:
    async def talk() -> None:
        served: dict[str, Any] = {}
        door, port = await open_door(served)
        owner = BrokerFacts("a", 1, "127.0.0.1", port, {}, "1", False, True, 0.0)
        relay = Relay(SECRET, lambda: owner)
        make = relay.connection_for("mqtt")
        front = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])
        sent = os.urandom(4 << 20)
        writer.write(sent)
        await asyncio.sleep(0.3)  # refused meanwhile: nobody serves
        served["mqtt"] = EchoServer()
        assert await asyncio.wait_for(reader.readexactly(len(sent)), 30) == sent
        assert Echo.peers[-1] == writer.get_extra_info("sockname"), "the owner knows the client, not the relay"
        writer.close()
        relay.close_all()
        front.close()
        door.close()
        await asyncio.sleep(0)

    asyncio.run(talk())
