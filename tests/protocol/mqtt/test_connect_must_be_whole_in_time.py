import contextlib
import itertools
import select
import time

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet


def test_however_slowly_its_bytes_come() -> None:
    with Broker("limits.login_ms=1s") as broker, Raw(broker.mqtt_port) as client:
        packet = connect_packet("c" * 1000)
        deadline = time.monotonic() + 30
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for n in itertools.count():
                assert time.monotonic() < deadline, "still open"
                client.send(packet[n : n + 1])
                if select.select([client.socket], [], [], 0.2)[0]:
                    assert client.socket.recv(10) == b""
                    break
