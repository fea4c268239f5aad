"""The limit of a message is 16 MiB and may be raised to 512 MiB; of what is announced no more is kept than has arrived."""

from __future__ import annotations

import struct
from pathlib import Path

import pika
import psutil

from mainstem.testing import Broker, BrokerProcess
from tests.protocol.amqp.conftest import parameters
from tests.protocol.amqp.test_connections import Raw

MIB = 1 << 20
CLIENTS = 8


def test_a_message_within_a_raised_limit_comes_whole() -> None:
    body = bytes(range(256)) * (40 * MIB // 256)
    with Broker("topics.message_bytes_max=64MiB") as broker:
        connection = pika.BlockingConnection(parameters(broker))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("large", durable=True)
        channel.basic_publish("", "large", body, pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("large", auto_ack=True)[2] == body
        connection.close()


def test_what_is_announced_costs_nothing_before_it_arrives(tmp_path: Path) -> None:
    header = struct.pack(">HHQH", 60, 0, 500 * MIB, 0)
    with BrokerProcess(tmp_path / "data", "topics.message_bytes_max=512MiB") as broker:
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        clients = [Raw(broker).open().channel() for _ in range(CLIENTS)]  # type: ignore[arg-type]
        for client in clients:
            client.send(1, "basic.publish", exchange="", routing_key="announced")
            client.frame(2, 1, header)
            client.frame(3, 1, bytes(4_000))
        late = Raw(broker).open().channel()  # type: ignore[arg-type]
        late.send(1, "queue.declare", queue="announced")
        late.expect("queue.declare-ok")  # the broker has read what came before
        assert process.memory_info().rss - before < 64 * MIB
        for client in (*clients, late):
            client.socket.close()
