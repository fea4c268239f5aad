"""What cannot be parsed ends its connection, in every state of a session, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from mainstem.testing import BrokerProcess
from tests.security.canary import ask_all

HEADER = b"AMQP\x00\x00\x09\x01"
START_OK, TUNE_OK, OPEN, CLOSE = 0x000A000B, 0x000A001F, 0x000A0028, 0x000A0032
CHANNEL_OPEN = 0x0014000A


def frame(number: int, arguments: bytes, end: bytes = b"\xce", channel: int = 0) -> bytes:
    payload = struct.pack(">I", number) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + end


BAD_TABLE = frame(START_OK, b"\x00\x00\x00\x03\x01\x61\x00" + b"\x05PLAIN" + b"\0\0\0\x0c\0guest\0guest" + b"\x05en_US")
GOOD_START_OK = frame(START_OK, b"\0\0\0\0" + b"\x05PLAIN" + b"\0\0\0\x0c\0guest\0guest" + b"\x05en_US")
GOOD_TUNE_OK = frame(TUNE_OK, struct.pack(">HIH", 100, 131_072, 0))
GOOD_OPEN = frame(OPEN, b"\x01/\x00\x00")
BAD_END = frame(TUNE_OK, struct.pack(">HIH", 0, 0, 0), end=b"\x00")
TOO_LARGE = struct.pack(">BHI", 1, 0, 1 << 31)
UNKNOWN_METHOD = frame(0x000A00FF, b"")
TO_RUNNING = GOOD_START_OK + GOOD_TUNE_OK + GOOD_OPEN
CLOSING = UNKNOWN_METHOD  # the broker says connection.close and waits for close-ok


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(BAD_TABLE + BAD_END, id="a malformed table at login, then a frame without its end"),
        pytest.param(BAD_TABLE + TOO_LARGE, id="a malformed table at login, then a frame too large"),
        pytest.param(BAD_END + BAD_END, id="two frames without their end"),
        pytest.param(GOOD_START_OK + CLOSING + BAD_END, id="while tuning, closing"),
        pytest.param(TO_RUNNING + CLOSING + BAD_END, id="running, then closing"),
        pytest.param(
            TO_RUNNING + CLOSING + TOO_LARGE + b"x" * 100_000, id="running, closing, too large, and on and on"
        ),
        pytest.param(TO_RUNNING + frame(CHANNEL_OPEN, b"\0", channel=1) + BAD_END, id="a channel is open"),
        pytest.param(TO_RUNNING + frame(CLOSE, struct.pack(">HBHH", 200, 0, 0, 0)) + BAD_END, id="it said goodbye"),
    ],
)
def test_amqp_out_of_step_ends_its_connection_alone(attacked: BrokerProcess, sent: bytes) -> None:
    for pieces in ([HEADER + sent], [HEADER, *(sent[at : at + 7] for at in range(0, min(len(sent), 700), 7))]):
        with socket.create_connection((attacked.host, attacked.amqp_port), timeout=20) as client:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    client.sendall(piece)
            ask_all(attacked)
            until_closed(client)


@pytest.mark.parametrize("step", [b"", HEADER, HEADER + GOOD_START_OK], ids=["nothing said", "greeted", "logged in"])
def test_an_amqp_login_that_drips_is_cut_off(attacked: BrokerProcess, step: bytes) -> None:
    """`limits.login_ms` is how long a login may take, however often a byte comes."""
    drip = HEADER + GOOD_START_OK + GOOD_TUNE_OK + b"\x08\0\0\0\0\0\0\xce" * 1000
    assert drip.startswith(step)
    with socket.create_connection((attacked.host, attacked.amqp_port), timeout=20) as client:
        client.sendall(step)
        deadline = time.monotonic() + 20
        client.settimeout(0.3)
        with contextlib.suppress(ConnectionError):
            for at in range(len(step), len(drip)):
                assert time.monotonic() < deadline, "still open"
                client.sendall(drip[at : at + 1])
                with contextlib.suppress(TimeoutError):
                    if client.recv(65_536) == b"":
                        return


@pytest.mark.parametrize(
    "sent",
    [
        b"\x10\xff\xff\xff\xff\x7f",  # a remaining length of five bytes
        b"\x10\x05\x00\x04MQT",
        b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06abcdef" + b"\xf0\x00" + b"\x00" * 50,
        b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06abcdef" + b"\x10\xff\xff\xff\xff\x7f" * 20,
        b"\x10\x12\x00\x04MQTT\x04\x02\x00\x3c\x00\x06abcdef" + b"\xe0\x00" + b"\x30\xff\xff\xff\xff\x7f",
    ],
    ids=["length", "cut", "kind", "again", "after goodbye"],
)
def test_mqtt_out_of_step_ends_its_connection_alone(attacked: BrokerProcess, sent: bytes) -> None:
    with socket.create_connection((attacked.host, attacked.mqtt_port), timeout=20) as client:
        client.sendall(sent)
        ask_all(attacked)
        until_closed(client)


@pytest.mark.parametrize("sent", [struct.pack(">i", -1), struct.pack(">i", 0), b"\x00\x00\x00\x06\x7f\xff\0\0\0\0"])
def test_kafka_out_of_step_ends_its_connection_alone(attacked: BrokerProcess, sent: bytes) -> None:
    with socket.create_connection((attacked.host, attacked.kafka_port), timeout=20) as client:
        client.sendall(sent * 3)
        ask_all(attacked)
        until_closed(client)


def until_closed(client: socket.socket) -> None:
    """The broker ends it within the socket's timeout, whatever it says before."""
    with contextlib.suppress(ConnectionError):
        while client.recv(65_536):
            pass
