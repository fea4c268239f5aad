"""limits.connections_max: whoever is one too many is refused, and whoever left makes room at once."""

from __future__ import annotations

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet, unique

MOST = 10
ROUNDS = 30


def test_who_comes_after_others_left_is_let_in_and_one_too_many_is_not() -> None:
    with Broker(f"limits.connections_max={MOST}") as broker:
        for _ in range(ROUNDS):
            clients = [Raw.connected(broker.mqtt_port) for _ in range(MOST)]
            with Raw(broker.mqtt_port) as late:
                late.send(connect_packet(unique("late")))
                assert late.closed() == b""
            for client in clients:
                client.socket.close()
