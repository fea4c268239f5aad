"""Where what exists is committed slowly, those who change it wait for the commit, and nobody else does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.noise_load import mqtt, publish
from mainstem.metadata.rounds import RoundStore
from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from mainstem.testing import Broker

HELD_S_MAX = 3  # a test that fails does not hang
TOPICS = 300


@contextmanager
def nothing_is_committed(broker: Broker) -> Iterator[None]:
    """Until the block ends the store's thread waits before each transaction, as for a disk that does not answer."""
    assert broker.app is not None
    store: Any = broker.app.broker.store
    assert isinstance(store, RoundStore)
    released = threading.Event()

    def slowly(name: str) -> None:
        commit = getattr(store, name)

        def held(*args: Any) -> Any:
            released.wait(HELD_S_MAX)
            return commit(*args)

        setattr(store, name, held)

    slowly("_commit_round")
    slowly("_reserve_ids")
    try:
        yield
    finally:
        released.set()


def answers_a_ping(client: socket.socket) -> bool:
    client.sendall(b"\xc0\0")
    return client.recv(2) == b"\xd0\0"


def says_nothing(client: socket.socket) -> bool:
    return not select.select([client], [], [], 0)[0]


def test_a_shared_subscription_is_answered_once_its_queue_is_committed_and_others_are_served_meanwhile() -> None:
    with Broker(engine="segment") as broker:
        member, second = mqtt(broker.mqtt_port, "member"), mqtt(broker.mqtt_port, "second")
        other = mqtt(broker.mqtt_port, "other")
        asked = encode_packet(8, 2, b"\0\1", encode_text(b"$share/group/jobs"), b"\1")
        with nothing_is_committed(broker):
            member.sendall(asked)
            second.sendall(asked)
            assert answers_a_ping(other)
            other.sendall(publish("else", b"one", qos=1))
            assert other.recv(4) == b"\x40\x02\0\1"
            assert answers_a_ping(member), "pings are answered while its SUBACK waits"
            assert says_nothing(second)
        assert second.recv(5) == member.recv(5) == b"\x90\x03\0\1\1"


def test_topics_that_publishes_create_keep_nobody_else_waiting() -> None:
    with Broker("topics.layout=dedicated", engine="segment") as broker:
        client, other = mqtt(broker.mqtt_port, "namer"), mqtt(broker.mqtt_port, "other")
        with nothing_is_committed(broker):
            for number in range(TOPICS):
                client.sendall(publish(f"own/{number}", b"x", qos=1, number=number + 1))
            assert answers_a_ping(other)
            client.sendall(b"\xc0\0")
            assert client.recv(2) == b"\xd0\0", "all it published was read, and nothing acked"
        acked = b""
        while len(acked) < 4 * TOPICS:
            acked += client.recv(65_536)
        assert acked == b"".join(b"\x40\x02" + (number + 1).to_bytes(2, "big") for number in range(TOPICS))
