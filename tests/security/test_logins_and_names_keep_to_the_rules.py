"""A login takes `limits.login_ms` at most on every port; names show what they are."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet
from tests.users import add_users

HIDDEN = ["a\x07b", "a\x1b[2Jb", "a\x85b", "a\u202eb", "a\u2066b"]


def test_kafka_ends_a_connection_that_does_not_log_in() -> None:
    with Broker("limits.login_ms=1s") as broker:
        add_users(broker)
        asked = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions, which needs no login, again and again
        for drips in (False, True):
            with socket.create_connection((broker.host, broker.kafka_port), timeout=0.3) as client:
                deadline = time.monotonic() + 20
                with contextlib.suppress(ConnectionError):
                    while True:
                        assert time.monotonic() < deadline, "still open"
                        if drips:
                            client.sendall(asked)
                        with contextlib.suppress(TimeoutError):
                            if not client.recv(65_536):
                                break


@pytest.mark.parametrize("name", HIDDEN)
def test_a_client_id_that_hides_something_is_refused(mainstem: Broker, name: str) -> None:
    with Raw(mainstem.mqtt_port) as client:
        client.send(connect_packet(name))
        assert client.socket.recv(100)[:1] in (b"\x20", b"")
        assert not client.socket.recv(100), "it was let in"
    with socket.create_connection((mainstem.host, mainstem.kafka_port), timeout=10) as kafka:
        told = name.encode()
        kafka.sendall(struct.pack(">ihhih", 10 + len(told), 18, 0, 7, len(told)) + told)
        with contextlib.suppress(ConnectionError):
            assert not kafka.recv(100), "it was answered"


@pytest.mark.parametrize("name", HIDDEN)
def test_a_user_name_that_hides_something_is_refused_even_where_all_logins_are_taken(
    mainstem: Broker, name: str
) -> None:
    with Raw(mainstem.mqtt_port) as client:
        client.send(connect_packet("c", username=name, password=b"x"))
        assert not (answer := client.socket.recv(4)) or answer[3] != 0
