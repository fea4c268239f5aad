"""A port is ours from the start on, and lets nobody in before the broker can serve."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mainstem.model.errors import ConfigError
from mainstem.server.listeners import take_ports
from mainstem.server.settings import Listeners


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
