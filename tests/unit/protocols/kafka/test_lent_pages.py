"""Memory that is sent without a copy: what the peer reads is what was there when it was sent, whatever comes afterwards."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterator

import pytest

from mainstem.protocols.kafka.answer_buffers import Memory
from mainstem.protocols.kafka.lent_pages import rest_of, send_lent

SIZE = 300_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection on this machine; what one has sent lies in the other's queue."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.setblocking(False)
            yield ours, theirs


def memory_of(data: bytes, *, asked_again: bool = True) -> Memory:
    memory = Memory(-1, -len(data) % mmap.PAGESIZE + len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(data)] = data
    memory.asked_again = asked_again
    return memory


def receive(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += sock.recv(size - len(found))
    return found


def test_what_was_lent_arrives_as_it_was_though_the_memory_is_used_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    data = bytes(range(256)) * (SIZE // 256)
    memory = memory_of(data)
    taken = send_lent(ours.fileno(), [bytearray(b"head"), memoryview(memory)[100:], b"tail"])
    assert memory.lent
    assert taken > len(data) // 2
    memory.clear()
    assert not memory.lent
    memory[:] = b"\xee" * len(memory)  # nobody has read yet
    sent = b"head" + data[100:] + bytes(len(memory) - len(data)) + b"tail"
    assert receive(theirs, taken) == sent[:taken]


def test_what_the_socket_does_not_take_is_the_callers_and_no_other_clients(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    memory = memory_of(b"a" * SIZE)
    parts = [memoryview(memory)[:SIZE]]
    total = 0
    while (taken := send_lent(ours.fileno(), parts)) == SIZE:
        total += taken
    total += taken
    assert taken < SIZE
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as other:
        peer, _ = server.accept()
        with peer:
            assert send_lent(other.fileno(), [memoryview(memory_of(b"b" * 100_000))[:100_000]]) == 100_000
            assert receive(peer, 100_000) == b"b" * 100_000
    assert receive(theirs, total) == b"a" * total


def test_what_is_asked_for_once_is_copied(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    memory = memory_of(b"x" * 1000, asked_again=False)
    assert send_lent(ours.fileno(), [memoryview(memory)[:1000], b"y"]) == 1001
    assert not memory.lent
    assert receive(theirs, 1001) == b"x" * 1000 + b"y"


def test_a_connection_that_is_gone_takes_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    ours.shutdown(socket.SHUT_WR)
    assert send_lent(ours.fileno(), [memoryview(memory_of(b"x" * SIZE))]) == 0
    assert send_lent(ours.fileno(), [b"head", memoryview(memory_of(b"x" * SIZE))]) == 0


@pytest.mark.parametrize("taken", range(7))
def test_the_rest_begins_where_the_socket_stopped(taken: int) -> None:
    assert b"".join(rest_of([b"ab", bytearray(b"cde"), memoryview(b"f")], taken)) == b"abcdef"[taken:]
