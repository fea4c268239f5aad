"""The load generator sees what a broker does wrong."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from mainstem.server.clients.client import Address
from mainstem.server.load import mqtt
from mainstem.server.load.measure import Timing

pytest.importorskip("mainstem.server.load._mqtt")

DROPPED, REPEATED, LATE = 3, 5, 7
DUP = 0x08


def packets(one: socket.socket) -> Iterator[bytes]:
    """Whole packets shorter than 128 bytes."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := one.recv(65_536):
            data += piece
            while len(data) >= 2 and len(data) >= 2 + data[1]:
                yield data[: 2 + data[1]]
                data = data[2 + data[1] :]


def careless_broker(listener: socket.socket) -> None:
    """Loses one message, repeats another, and lets one overtake: a publisher, then a subscriber, and no more."""
    publisher, _ = listener.accept()
    sent = packets(publisher)
    next(sent)
    publisher.sendall(b"\x20\x02\0\0")
    subscriber, _ = listener.accept()
    asked = packets(subscriber)
    next(asked)
    subscriber.sendall(b"\x20\x02\0\0")
    next(asked)
    subscriber.sendall(b"\x90\x03\0\1\0")
    late = b""
    with contextlib.suppress(OSError), publisher, subscriber:
        for number, packet in enumerate(sent):
            if number == LATE:
                late = packet
            elif number != DROPPED:
                subscriber.sendall(packet)
            if number == REPEATED:
                subscriber.sendall(bytes([packet[0] | DUP]) + packet[1:])
            if number == LATE + 1:
                subscriber.sendall(late)


def test_lost_repeated_and_overtaken_messages_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=careless_broker, args=(listener,), daemon=True).start()
        address = Address("mqtt", "127.0.0.1", listener.getsockname()[1])
        shape = mqtt.Workload("careless", rate=200, send_bytes=0, size=32)
        done = mqtt.run(shape, address, Timing(0.5, 0, drain_seconds=0.5))
    assert (done.lost, done.duplicated, done.reordered) == (1, 1, 1)
