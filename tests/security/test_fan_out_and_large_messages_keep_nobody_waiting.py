"""What goes to thousands, is very large, or names hundreds of new topics is done in turns with everybody else's.

Each of them gets all that it is owed, and a canary on every port is answered meanwhile. How long a turn took is what
`bench noise` shows; here a bound on liveness is asserted, and that the loop was not kept by one callback for LONG_S.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from bench.noise_load import mqtt, publish, subscribe
from mainstem.testing import BrokerProcess
from tests.security.canary import ask_all

LONG_S = 1.0  # a bound on liveness
STALLED = 200
LARGE_BYTES = 48 << 20
TOPICS = 200
TINY_FRAMES = 60_000
MASK = b"\1\2\3\4"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Messages may be large, and each topic has a log of its own."""
    data = tmp_path_factory.mktemp("wide") / "data"
    with BrokerProcess(data, "topics.message_bytes_max=64MiB", "topics.layout=dedicated") as broker:
        yield broker


@contextlib.contextmanager
def asked_all_the_while(broker: BrokerProcess) -> Iterator[None]:
    """Every port answers until the block ends, and at least once."""
    ended, failed = threading.Event(), list[BaseException]()

    def ask() -> None:
        try:
            while True:
                ask_all(broker)
                if ended.wait(0.05):
                    return
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)
    assert not failed, failed
    assert longest_stall_s(broker) < LONG_S


def longest_stall_s(broker: BrokerProcess) -> float:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as answer:
        found = re.findall(
            r'^mainstem_loop_stall_max_seconds\{cause="(\w[\w.]*)"\} (\S+)', answer.read().decode(), re.M
        )
    return max((float(seconds) for cause, seconds in found if cause != "elsewhere"), default=0.0)


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    heard = bytearray()
    while not heard.endswith(wanted):
        piece = client.recv(1 << 20)
        assert piece, "it was disconnected"
        heard += piece
    return bytes(heard)


def test_hundreds_that_do_not_read_delay_nobody_and_get_what_they_are_owed(wide: BrokerProcess) -> None:
    stalled = [mqtt(wide.mqtt_port, f"stalled-{number}") for number in range(STALLED)]
    for one in stalled:
        subscribe(one, "noise/all", qos=1)
    publisher = mqtt(wide.mqtt_port, "publisher")
    count, payload = 600, bytes(4000)
    with asked_all_the_while(wide):
        for number in range(count):
            publisher.sendall(publish("noise/all", struct.pack(">H", number) + payload, qos=1, number=number + 1))
        acked = 0
        while acked < 4 * count:
            acked += len(publisher.recv(65_536))
        for one in stalled[:: STALLED // 4]:  # those who read after all have each message once, in order
            assert received(one, count) == list(range(count))
    for one in (*stalled, publisher):
        one.close()


def received(client: socket.socket, count: int) -> list[int]:
    """Numbers of QoS 1 publishes, acknowledged as they come."""
    found, data = list[int](), b""
    while len(found) < count:
        piece = client.recv(1 << 18)
        assert piece, f"it was disconnected after {len(found)}"
        data += piece
        while len(data) >= 5:
            size, at, shift = 0, 1, 0
            while True:
                size |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 128:
                    break
            if len(data) < at + size:
                break
            topic = struct.unpack_from(">H", data, at)[0]
            packet_id = data[at + 2 + topic : at + 4 + topic]
            found.append(struct.unpack_from(">H", data, at + 4 + topic)[0])
            client.sendall(b"\x40\x02" + packet_id)
            data = data[at + size :]
    return found


def nats(broker: BrokerProcess, *lines: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.nats_port), timeout=60)
    client.sendall(b'CONNECT {"verbose":false}\r\n' + b"".join(lines) + b"PING\r\n")
    read_until(client, b"PONG\r\n")
    return client


def test_a_very_large_nats_message_reaches_each_of_its_readers_whole(wide: BrokerProcess) -> None:
    payload = bytes(range(256)) * (LARGE_BYTES // 256)
    readers = [nats(wide, b"SUB large 1\r\n") for _ in range(3)]
    sender = nats(wide)
    with asked_all_the_while(wide):
        sender.sendall(b"PUB large %d\r\n" % LARGE_BYTES + payload + b"\r\nPUB large 3\r\nend\r\nPING\r\n")
        read_until(sender, b"PONG\r\n")
        for one in readers:
            heard = read_until(one, b"MSG large 1 3\r\nend\r\n")
            assert heard == b"MSG large 1 %d\r\n" % LARGE_BYTES + payload + b"\r\nMSG large 1 3\r\nend\r\n"
    for one in (*readers, sender):
        one.close()


def test_a_client_that_names_hundreds_of_new_topics_has_them_and_delays_nobody(wide: BrokerProcess) -> None:
    client = mqtt(wide.mqtt_port, "namer")
    with asked_all_the_while(wide):
        client.sendall(b"".join(publish(f"own/{n}", b"%d" % n, qos=1, number=n + 1) for n in range(TOPICS)))
        acked = b""
        while len(acked) < 4 * TOPICS:
            acked += client.recv(65_536)
    assert [number for (number,) in struct.iter_unpack(">2xH", acked)] == list(range(1, TOPICS + 1))
    client.close()


def test_tens_of_thousands_of_tiny_websocket_frames_are_answered_in_turns(wide: BrokerProcess) -> None:
    client = socket.create_connection(("127.0.0.1", wide.ports["ws"]), timeout=60)
    client.sendall(
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    read_until(client, b"\r\n\r\n")

    def frame(payload: bytes) -> bytes:
        masked = bytes(one ^ MASK[at % 4] for at, one in enumerate(payload))
        return bytes((0x82, 0x80 | len(payload))) + MASK + masked

    client.sendall(frame(b"\x10\x10\0\4MQTT\4\2\0\0\0\4tiny"))
    read_until(client, b"\x20\x02\0\0")
    heard = [0]

    def listen() -> None:
        with contextlib.suppress(OSError):
            while heard[0] < 2 * TINY_FRAMES:
                heard[0] += client.recv(1 << 16).count(b"\xd0\0") * 2

    listener = threading.Thread(target=listen)
    listener.start()
    with asked_all_the_while(wide):
        client.sendall(frame(b"\xc0\0") * TINY_FRAMES)
        listener.join(120)
    client.close()
    assert heard[0] >= 2 * TINY_FRAMES, "a ping was not answered"
