"""Messages that are announced and not sent cost nothing; what is sent and not finished is bounded, and comes back."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pika.spec as spec
import psutil
import pytest

from mainstem.server.lifecycle import TRIM_BYTES
from mainstem.testing import BrokerProcess
from tests.crossing.raw_amqp import BODY, HEADER, RawAmqp
from tests.security.canary import ask_all, ask_http

MIB = 1 << 20
LIMIT = 64 * MIB
# Freed memory up to TRIM_BYTES stays with the process, so that the next large request finds its pages.
SLACK = 48 * MIB  # of a process that has work to do: arenas, caches, first uses


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("bounded") / "data"
    with BrokerProcess(directory, f"limits.input_bytes_total_max={LIMIT}", engine="memory") as broker:
        ask_all(broker)
        yield broker


def resident(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def comes_back(broker: BrokerProcess, before: int) -> None:
    deadline = time.monotonic() + 20
    while (grown := resident(broker) - before) > SLACK + TRIM_BYTES:
        assert time.monotonic() < deadline, f"{grown >> 20} MiB are not given back"
        time.sleep(0.1)


def send(client: socket.socket, data: bytes) -> None:
    """As much as the broker takes before it closes."""
    with contextlib.suppress(OSError):
        client.sendall(data)


def dial(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))


def test_kafka_requests_of_100_mib_that_never_come(bounded: BrokerProcess) -> None:
    before = resident(bounded)
    for _ in range(3):
        with ExitStack() as stack:
            for client in [dial(stack, bounded.kafka_port) for _ in range(24)]:
                send(client, struct.pack(">i", 100 * MIB) + b"\0" * 70_000)
            ask_all(bounded)
            assert resident(bounded) - before < SLACK
    comes_back(bounded, before)


def test_kafka_requests_that_are_sent_but_for_their_end(bounded: BrokerProcess) -> None:
    before = resident(bounded)
    with ExitStack() as stack:
        for client in [dial(stack, bounded.kafka_port) for _ in range(12)]:
            send(client, struct.pack(">i", 16 * MIB) + b"\0" * (15 * MIB))
        ask_all(bounded)
        assert resident(bounded) - before < LIMIT + 16 * MIB + SLACK  # one of them grows while another is given up
    comes_back(bounded, before)


def test_amqp_contents_on_many_channels_that_never_end(bounded: BrokerProcess) -> None:
    before = resident(bounded)
    with contextlib.suppress(OSError, AssertionError), RawAmqp(bounded) as client:
        for channel in range(2, 52):
            client.send(spec.Channel.Open(), channel)
            client.send(spec.Basic.Publish(routing_key="x"), channel)
            client._frame(HEADER, struct.pack(">HHQ", 60, 0, 15 * MIB) + b"\0\0", channel)
        for _ in range(100):
            for channel in range(2, 52):
                client._frame(BODY, b"\0" * 130_000, channel)
                assert resident(bounded) - before < LIMIT + SLACK
        pytest.fail("650 MB of contents that are not whole were kept")
    ask_all(bounded)
    assert "limits.input_bytes_total_max" in bounded.log()
    comes_back(bounded, before)


def test_an_amqp_content_that_is_only_announced_costs_nothing(bounded: BrokerProcess) -> None:
    before = resident(bounded)
    with RawAmqp(bounded) as client:
        for channel in range(2, 202):
            client.send(spec.Channel.Open(), channel)
            client.send(spec.Basic.Publish(routing_key="x"), channel)
            client._frame(HEADER, struct.pack(">HHQ", 60, 0, 15 * MIB) + b"\0\0", channel)
            client._frame(BODY, b"\0" * 1_000, channel)
        ask_all(bounded)
        assert resident(bounded) - before < SLACK


def test_mqtt_publishes_that_never_end(bounded: BrokerProcess) -> None:
    before = resident(bounded)
    with ExitStack() as stack:
        for number in range(30):
            client = dial(stack, bounded.mqtt_port)
            send(client, b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04" + f"m{number:03}".encode())
            assert client.recv(4)[:1] == b"\x20"
            send(client, b"\x30\xff\xff\xff\x03" + b"\x00\x01x" + b"\0" * (6 * MIB))  # of 8 MiB
        ask_all(bounded)
        assert resident(bounded) - before < LIMIT + 16 * MIB + SLACK
    comes_back(bounded, before)


def test_before_the_login_a_peer_is_worth_kilobytes(bounded: BrokerProcess) -> None:
    """Whatever each of 300 says first, in all protocols."""
    before = resident(bounded)
    first_words = {
        bounded.mqtt_port: b"\x10\xff\xff\x07" + b"\0" * 60_000,
        bounded.amqp_port: b"AMQP\0\0\x09\x01" + b"\x01\0\0\0\0\x0f\xf0" + b"\0" * 4_000,
        bounded.ws_port: b"GET /mqtt HTTP/1.1\r\n" + b"X: " + b"y" * 60_000,
        bounded.http_port: b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 60_000,
    }
    with ExitStack() as stack:
        for port, words in first_words.items():
            for client in [dial(stack, port) for _ in range(300)]:
                send(client, words)
        ask_http(bounded)
        assert resident(bounded) - before < 4 * 300 * 128 * 1024 // 2 + SLACK
    comes_back(bounded, before)
