"""A client of each protocol that only asks whether the broker still answers, and how soon."""

from __future__ import annotations

import http.client
import socket
import struct
import time

from mainstem.testing.broker import Endpoints

ANSWER_S_MAX = 2.0  # a bound on liveness, whatever others do

_MQTT_CONNECT = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06canary"
_KAFKA_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def ask_all(broker: Endpoints) -> float:
    """Each port answers within the bound, or this fails; returns the slowest answer's seconds."""
    return max(ask_mqtt(broker), ask_kafka(broker), ask_amqp(broker), ask_nats(broker), ask_http(broker))


def ask_mqtt(broker: Endpoints) -> float:
    """CONNECT and PINGREQ; once users exist a refusal is an answer too."""
    began = time.monotonic()
    with _dial(broker.mqtt_port) as client:
        client.sendall(_MQTT_CONNECT)
        connack = _read(client, 4)
        assert connack[:1] == b"\x20", connack
        if connack[3] == 0:
            client.sendall(b"\xc0\x00")
            assert _read(client, 2) == b"\xd0\x00"
    return _within(began, "MQTT")


def ask_kafka(broker: Endpoints) -> float:
    began = time.monotonic()
    with _dial(broker.kafka_port) as client:
        client.sendall(_KAFKA_API_VERSIONS)
        size = int.from_bytes(_read(client, 4), "big")
        assert _read(client, size)[:4] == struct.pack(">i", 7)
    return _within(began, "Kafka")


def ask_amqp(broker: Endpoints) -> float:
    began = time.monotonic()
    with _dial(broker.amqp_port) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert _read(client, 11)[7:] == b"\x00\x0a\x00\x0a"  # connection.start
    return _within(began, "AMQP")


def ask_nats(broker: Endpoints) -> float:
    """CONNECT and PING; once users exist a refusal is an answer too."""
    began = time.monotonic()
    with _dial(broker.nats_port) as client:
        client.sendall(b"CONNECT {}\r\nPING\r\n")
        heard = b""
        while b"PONG" not in heard and b"-ERR" not in heard:
            piece = client.recv(4096)
            assert piece, f"closed after {heard!r}"
            heard += piece
    return _within(began, "NATS")


def ask_http(broker: Endpoints, path: str = "/livez") -> float:
    began = time.monotonic()
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
        assert status == 200, f"{path} answered {status}"
    finally:
        connection.close()
    return _within(began, "HTTP")


def _dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def _within(began: float, name: str) -> float:
    took = time.monotonic() - began
    assert took < ANSWER_S_MAX, f"{name} answered after {took:.1f} s"
    return took
