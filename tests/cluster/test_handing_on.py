"""A client whose login tells that its namespace is another cell's: handed on, with all it said and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mainstem.broker.namespaces.placement import Placement
from mainstem.broker.rights.access import Principal
from mainstem.cluster.certificate import relay_contexts
from mainstem.cluster.membership import BrokerFacts, CellFacts, View
from mainstem.cluster.relay import MOVES_MAX, Relay, RelayDoor
from mainstem.protocols.porter import Porter, let_in_elsewhere, stays

LISTENING, CONNECTING = relay_contexts(b"s" * 32)
PLACES = {"one": 1, "two": 2}


class Forwarding:
    def __init__(self, relay: Relay, placement: Placement) -> None:
        self._relay, self.placement = relay, placement

    def __call__(self, *given: Any) -> None:
        self._relay.forward(*given)


class Server:
    """A protocol: a greeting, a line that names the namespace, then each byte comes back behind the cell's number."""

    def __init__(self, cell: int, relay: Relay) -> None:
        placement = Placement((), cell)
        placement.places = PLACES
        self.cell, self.forward = cell, Forwarding(relay, placement)
        self.logins: list[tuple[str, bool]] = []  # by whom, and whether another cell had let it in

    def make_connection(self) -> Porter:
        return Porter(Session(self), "mqtt", self.forward)


class Session:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any = None
        self._line: bytes | None = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"hello\n")

    def use_transport(self, transport: Any) -> None:
        self.transport = transport

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self, reason: str) -> None:
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._line is not None:
            self._line += data
            if b"\n" not in self._line:
                return
            line, _, data = self._line.partition(b"\n")
            self._line = None
            known = let_in_elsewhere(self)  # type: ignore[arg-type]
            self.server.logins.append((line.decode(), known is not None))
            if not stays(self, known or Principal("u", line.decode())):  # type: ignore[arg-type]
                return
        if data:
            self.transport.write(b"".join(b"%d%c" % (self.server.cell, one) for one in data))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        """Few bytes are written."""

    def resume_writing(self) -> None:
        """As above."""


@asynccontextmanager
async def two_cells() -> AsyncIterator[tuple[Relay, list[Server]]]:
    loop = asyncio.get_running_loop()
    cells: dict[int, CellFacts] = {}
    owner = BrokerFacts("a", 1, "127.0.0.1", 1, {}, "1", False, True, 0.0)
    relay = Relay(CONNECTING, lambda: View({"a": owner}, cells))
    servers, doors = [Server(cell, relay) for cell in (1, 2)], []
    for server in servers:

        def find(listener: str, cell: int, own: Server = server) -> Server | None:
            return own if cell == own.cell else None

        door = await loop.create_server(lambda find=find: RelayDoor(find), "127.0.0.1", 0, ssl=LISTENING)  # type: ignore[misc]
        port = door.sockets[0].getsockname()[1]
        cells[server.cell] = CellFacts(server.cell, f"c{server.cell}", "a", None, 1, 5.0, "", 0, 0, relay_port=port)
        doors.append(door)
    yield relay, servers
    relay.close_all()
    for door in doors:
        door.close()


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


SAID = b"two\nabcdef"
ANSWER = b"hello\n2a2b2c2d2e2f"


@pytest.mark.parametrize("by_relay", [True, False], ids=["by a relay", "at the process of the other cell"])
def test_a_client_is_handed_on_wherever_what_it_says_is_cut(by_relay: bool) -> None:
    async def talk() -> None:
        async with two_cells() as (relay, servers):
            make = relay.connection_for("mqtt") if by_relay else servers[0].make_connection
            front = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
            for cut in range(len(SAID) + 1):
                relay._lately.clear()
                reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])
                for part in (SAID[:cut], SAID[cut:]):
                    writer.write(part)
                    await asyncio.sleep(0.005)
                assert await reader.readexactly(len(ANSWER)) == ANSWER, cut
                writer.close()
            assert set(servers[0].logins) == {("two", False)}
            assert set(servers[1].logins) == {("two", True)}, "it does not log in twice"
            front.close()

    run(talk())


def test_what_follows_the_login_at_once_is_neither_lost_nor_turned_round() -> None:
    async def talk() -> None:
        async with two_cells() as (relay, _):
            front = await asyncio.get_running_loop().create_server(relay.connection_for("mqtt"), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])
            sent = bytes(range(32, 127)) * 8_000
            writer.write(b"two\n" + sent)
            writer.write_eof()
            told = await reader.readexactly(6 + 2 * len(sent))
            assert (told[:6], told[7::2]) == (b"hello\n", sent)
            assert set(told[6::2]) == {ord("2")}
            front.close()

    run(talk())


def test_a_client_of_this_cell_stays_and_one_that_is_sent_round_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        async with two_cells() as (relay, servers):
            front = await asyncio.get_running_loop().create_server(relay.connection_for("mqtt"), "127.0.0.1", 0)
            at = front.sockets[0].getsockname()[:2]
            reader, writer = await asyncio.open_connection(*at)
            writer.write(b"one\nab")
            assert await reader.readexactly(10) == b"hello\n1a1b"
            assert servers[1].logins == []
            writer.close()
            servers[1].forward.placement.places = {"two": 1}  # the two cells disagree, as they may for a moment
            reader, writer = await asyncio.open_connection(*at)
            writer.write(b"two\nab")
            assert await reader.read() == b"hello\n"
            assert len(servers[1].logins) <= MOVES_MAX
            front.close()

    run(talk())
