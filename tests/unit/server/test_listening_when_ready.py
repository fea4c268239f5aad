"""A port is ours from the start on, of 127.0.0.1 and ::1, and lets nobody in before the broker can serve."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mainstem.model.errors import ConfigError
from mainstem.server.listeners import take_ports, take_twins
from mainstem.server.settings import Listeners
from mainstem.testing import Broker


def test_a_taken_port_refuses_clients_and_other_binders_until_it_listens() -> None:
    made: Any = Listeners
    listeners = made(mqtt_port=0, ws_port=None, kafka_port=None, amqp_port=None, nats_port=None, http_port=None)
    taken = take_ports(listeners, move=False, tls=False)
    (one,) = taken.sockets.values()
    port = one.getsockname()[1]
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        listeners.mqtt_port = port
        with pytest.raises(ConfigError):
            take_ports(listeners, move=False, tls=False)
    finally:
        taken.close()


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_broker_of_this_machine_listens_on_both_of_its_addresses() -> None:
    with Broker() as broker:
        for port in (broker.mqtt_port, broker.kafka_port, broker.amqp_port, broker.nats_port):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
            if has_ipv6_loopback():
                with socket.create_connection(("::1", port), timeout=5):
                    pass


def test_a_port_that_another_program_has_on_the_second_address_stops_nobody() -> None:
    made: Any = Listeners
    with socket.socket(socket.AF_INET6) as other:
        port = 0
        if has_ipv6_loopback():
            other.bind(("::1", 0))
            other.listen()
            port = other.getsockname()[1]
        listeners = made(mqtt_port=port, ws_port=None, kafka_port=None, amqp_port=None, nats_port=None, http_port=None)
        taken = take_ports(listeners, move=False, tls=False)
        try:
            take_twins(taken, listeners)
            assert list(taken.sockets) == ["mqtt"]
            assert not port or not taken.twins
        finally:
            taken.close()
