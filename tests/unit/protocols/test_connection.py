"""The connection under all protocols, with a transport that only remembers."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.connection import CLOSE_SECONDS_MAX, HOLD_LOG, HOLD_OUTPUT, Connection, Server


class Ticker:
    on_turn = None

    def __init__(self) -> None:
        self.dirty: list[Any] = []

    def mark_dirty(self, connection: Any) -> None:
        self.dirty.append(connection)

    def request(self) -> None: ...

    def tick(self) -> None:
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()


class Transport:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def write(self, data: bytes) -> None:
        self.calls.append(("write", data))

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append((name, None))


class Peer(Connection):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.heard: list[str] = []

    def on_data(self, data: bytes) -> None:
        self.heard.append(data.decode())

    def on_lost(self) -> None:
        self.heard.append("lost")

    def on_silence(self) -> None:
        self.heard.append("silent")


def connected(ticker: Ticker | None = None, **options: int) -> tuple[Server, Peer, Transport]:
    server = Server(ticker or Ticker(), **options)
    peer, transport = Peer(server), Transport()
    peer.connection_made(transport)
    return server, peer, transport


def test_all_that_is_sent_in_a_turn_is_one_write() -> None:
    ticker = Ticker()
    _, peer, transport = connected(ticker)
    peer.send(b"a")
    peer.send(b"b")
    assert transport.calls == []
    ticker.tick()
    ticker.tick()
    assert transport.calls == [("write", b"ab")]


def test_reading_goes_on_when_no_reason_to_hold_it_is_left() -> None:
    _, peer, transport = connected()
    peer.hold(HOLD_OUTPUT)
    peer.hold(HOLD_LOG)
    peer.release(HOLD_OUTPUT)
    assert [name for name, _ in transport.calls] == ["pause_reading"]
    peer.release(HOLD_LOG)
    assert [name for name, _ in transport.calls] == ["pause_reading", "resume_reading"]


def test_silence_is_noticed_once_it_lasted_long_enough() -> None:
    server, peer, _ = connected()
    server.deadlines.watch(peer, 3)
    server.deadlines.advance(2)
    peer.data_received(b"x")
    server.deadlines.advance(5)
    assert peer.heard == ["x"]
    server.deadlines.advance(6)
    assert peer.heard == ["x", "silent"]
    server.deadlines.advance(60)
    assert peer.heard == ["x", "silent"]


def test_who_is_held_is_not_silent() -> None:
    server, peer, _ = connected()
    server.deadlines.watch(peer, 3)
    peer.hold(HOLD_LOG)
    server.deadlines.advance(100)
    assert peer.heard == []


def test_who_does_not_close_after_our_goodbye_is_cut_off() -> None:
    server, peer, transport = connected()
    peer.close("done")
    peer.data_received(b"unheard")
    server.deadlines.advance(CLOSE_SECONDS_MAX + 1)
    assert [name for name, _ in transport.calls] == ["close", "abort"]
    assert peer.heard == []


def test_more_connections_than_allowed_are_turned_away() -> None:
    server, _, _ = connected(connections_max=1)
    other, transport = Peer(server), Transport()
    other.connection_made(transport)
    other.connection_lost(None)
    assert [name for name, _ in transport.calls] == ["abort"]
    assert (server.counters.connections, server.counters.refused_total) == (1, 1)
    assert other.heard == []
