"""A client of each protocol that only asks whether the broker still answers, and how soon.

What counts is the broker's time: while its loop or the one who asks waited for a core, the machine ran something else.
The kernel knows how long that was (`schedstat`). Without it a busy machine looks like a broker that hangs.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from mainstem.testing.broker import Endpoints
from mainstem.testing.process import BrokerProcess

ANSWER_S_MAX = 2.0  # a bound on liveness, whatever others do
QUEUED_S = 0.3  # without a core: part of the second that a login has where this asks
SILENCE_S_MAX = 60.0  # and of the answer itself, cores or no cores

_MQTT_CONNECT = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06canary"
_KAFKA_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def ask_all(broker: Endpoints) -> float:
    """Each port answers within the bound, or this fails; returns the slowest answer's seconds."""
    return max(_asked(ask, broker) for ask in (ask_mqtt, ask_kafka, ask_amqp, ask_nats, ask_http))


def _asked(ask: Callable[[Endpoints], float], broker: Endpoints) -> float:
    """Once more where the machine was so busy that the login's deadline came before the broker could read it."""
    clock = _Clock(broker)
    try:
        return ask(broker)
    except ConnectionError:
        if clock.queued_s < QUEUED_S:
            raise
        return _asked(ask, broker)


def ask_mqtt(broker: Endpoints) -> float:
    """CONNECT and PINGREQ; once users exist a refusal is an answer too."""
    began = _Clock(broker)
    with _dial(broker.mqtt_port) as client:
        client.sendall(_MQTT_CONNECT)
        connack = _read(client, 4)
        assert connack[:1] == b"\x20", connack
        if connack[3] == 0:
            client.sendall(b"\xc0\x00")
            assert _read(client, 2) == b"\xd0\x00"
    return began.within("MQTT")


def ask_kafka(broker: Endpoints) -> float:
    began = _Clock(broker)
    with _dial(broker.kafka_port) as client:
        client.sendall(_KAFKA_API_VERSIONS)
        size = int.from_bytes(_read(client, 4), "big")
        assert _read(client, size)[:4] == struct.pack(">i", 7)
    return began.within("Kafka")


def ask_amqp(broker: Endpoints) -> float:
    began = _Clock(broker)
    with _dial(broker.amqp_port) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert _read(client, 11)[7:] == b"\x00\x0a\x00\x0a"  # connection.start
    return began.within("AMQP")


def ask_nats(broker: Endpoints) -> float:
    """CONNECT and PING; once users exist a refusal is an answer too."""
    began = _Clock(broker)
    with _dial(broker.nats_port) as client:
        client.sendall(b"CONNECT {}\r\nPING\r\n")
        heard = b""
        while b"PONG" not in heard and b"-ERR" not in heard:
            piece = client.recv(4096)
            if not piece:
                raise ConnectionResetError(f"closed after {heard!r}")
            heard += piece
    return began.within("NATS")


def ask_http(broker: Endpoints, path: str = "/livez") -> float:
    began = _Clock(broker)
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=SILENCE_S_MAX)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
        assert status == 200, f"{path} answered {status}"
    finally:
        connection.close()
    return began.within("HTTP")


def _dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S_MAX)


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            raise ConnectionResetError(f"closed after {data!r}")
        data += piece
    return data


class _Clock:
    """Time in which both sides could run."""

    def __init__(self, broker: Endpoints) -> None:
        self._threads = [(os.getpid(), threading.get_native_id())]
        if isinstance(broker, BrokerProcess):
            self._threads.append((broker.pid, broker.pid))  # its loop is its first thread
        self._began_s, self._queued_before_s = time.monotonic(), self._queued()

    def within(self, name: str) -> float:
        took_s = time.monotonic() - self._began_s - self.queued_s
        assert took_s < ANSWER_S_MAX, f"{name} answered after {took_s:.1f} s"
        return took_s

    @property
    def queued_s(self) -> float:
        return self._queued() - self._queued_before_s

    def _queued(self) -> float:
        return sum(_queued_s(process, thread) for process, thread in self._threads)


def _queued_s(process: int, thread: int) -> float:
    """How long a thread has waited for a core so far."""
    try:
        with open(f"/proc/{process}/task/{thread}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:  # a kernel that does not say
        return 0.0
