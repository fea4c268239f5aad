"""A clean stop acks what it stored: a client that publishes all the while knows afterwards which messages are there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from mainstem.broker.broker import Broker, BrokerOptions
from mainstem.codec.batch import decode_frames
from mainstem.testing import BrokerProcess
from tests.protocol.mqtt.raw import connect_packet, publish_packet

ROUNDS, AT_ONCE = 3, 50


async def stored(data: Path) -> int:
    """How many records of the topic there are."""
    broker = Broker(BrokerOptions(data))
    await broker.open()
    broker.recover_journal()
    log, count, offset = broker.journal.stem, 0, 0
    while (piece := log.read_in_thread(offset, 1 << 20)) is not None:
        records = decode_frames(piece.data, log.id, inflated_bytes_max=1 << 20, topic_of=broker.namespace("/").topic_of)
        count += sum(record.topic == b"t" for record in records)
        offset = piece.end_offset
    await broker.close()
    return count


def publish_until_closed(port: int) -> tuple[socket.socket, threading.Thread]:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(connect_packet("writer", clean=True, keep_alive=0))
    assert client.recv(4)[0] == 0x20
    burst = b"".join(publish_packet("t", b"x" * 40, qos=1, packet_id=n + 1) for n in range(AT_ONCE))

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(burst)

    sender = threading.Thread(target=send)
    sender.start()
    return client, sender


def acks_until_closed(client: socket.socket, stop: int) -> int:
    """PUBACKs, all of them four bytes; the broker is asked to stop once some came."""
    size, asked = 0, False
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            size += len(data)
            if size > 4_000 and not asked:
                asked = True
                os.kill(stop, signal.SIGTERM)
    return size // 4


@pytest.mark.parametrize("_", range(ROUNDS))
def test_what_a_clean_stop_stored_is_acked(tmp_path: Path, _: int) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client, sender = publish_until_closed(broker.mqtt_port)
        acked = acks_until_closed(client, broker.pid)
        client.close()
        sender.join()
        deadline = time.monotonic() + 30
        while broker.running and time.monotonic() < deadline:
            time.sleep(0.05)
    assert asyncio.run(stored(tmp_path / "data")) == acked > 0
