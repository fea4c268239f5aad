"""A clean stop acks what it stored, by each protocol that acks: who publishes all the while knows afterwards what is there.

MQTT's is `tests/protocol/mqtt/test_stop_answers.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pika
import pika.spec as spec
import pytest

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import ProduceRequest
from mainstem.testing import BrokerProcess
from tests.crossing.raw_amqp import HEADER, METHOD, RawAmqp
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.protocol.nats.raw import Raw

ROUNDS, AT_ONCE, ENOUGH = 2, 20, 500  # bytes of answers, after which the broker is asked to stop
WAIT_S = 30
BODY = b"x" * 40


class Publisher(Protocol):
    """One connection that publishes without waiting for answers."""

    socket: socket.socket

    @abstractmethod
    def burst(self) -> bytes:
        """So many publishes more."""

    @abstractmethod
    def acked(self, answers: bytes) -> int:
        """How many of its publishes the broker said to have."""


class AmqpPublisher(Publisher):
    def __init__(self, broker: BrokerProcess) -> None:
        self._client = RawAmqp(broker)
        self._client.ask(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
        self._client.ask(spec.Confirm.Select(), spec.Confirm.SelectOk)
        self.socket = self._client.socket

    def burst(self) -> bytes:
        publish = spec.Basic.Publish(exchange="", routing_key="q")
        frames = (
            (METHOD, struct.pack(">I", publish.INDEX) + b"".join(publish.encode())),
            (HEADER, struct.pack(">HHQHB", 60, 0, len(BODY), 0x1000, 2)),
            (3, BODY),
        )
        return AT_ONCE * b"".join(struct.pack(">BHI", kind, 1, len(data)) + data + b"\xce" for kind, data in frames)

    def acked(self, answers: bytes) -> int:
        at, known = 0, 0
        found = set[int]()
        while at + 7 <= len(answers):
            kind, _, size = struct.unpack_from(">BHI", answers, at)
            payload, at = answers[at + 7 : at + 7 + size], at + size + 8
            if kind == METHOD and int.from_bytes(payload[:4], "big") == spec.Basic.Ack.INDEX and at <= len(answers):
                tag, multiple = struct.unpack_from(">QB", payload, 4)
                found.update(range(known + 1, tag + 1) if multiple else (tag,))
                known = tag if multiple else known
        return len(found)


class KafkaPublisher(Publisher):
    VERSION = 8

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = RawClient(broker)
        assert self._client.produce("t", batch_of([BODY]), version=self.VERSION).error_code == 0  # creates it
        self.socket = self._client.socket

    def burst(self) -> bytes:
        part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([BODY]))
        data = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
        parts = wire.encode_request("ProduceRequest", self.VERSION, request, correlation=7, client_id="raw")
        return AT_ONCE * b"".join(parts)

    def acked(self, answers: bytes) -> int:
        at, count = 0, 1  # the one that created it
        while at + 4 <= len(answers):
            size = int.from_bytes(answers[at : at + 4], "big")
            data, at = answers[at + 8 : at + 4 + size], at + 4 + size
            if at <= len(answers):
                answer = wire.decode("ProduceResponse", self.VERSION, data)
                count += answer.responses[0].partition_responses[0].error_code == 0
        return count


class NatsPublisher(Publisher):
    def __init__(self, broker: BrokerProcess) -> None:
        self._client = Raw(broker.nats_port)
        self._client.send(b"SUB answers 1\r\nSUB made 2\r\n")
        config = json.dumps({"name": "s", "subjects": ["s.>"]}).encode()
        self._client.send(b"PUB $JS.API.STREAM.CREATE.s made %d\r\n%b\r\n" % (len(config), config))
        while not self._client.line().startswith(b"MSG made"):
            pass
        assert b'"error"' not in self._client.line()
        self.socket = self._client.socket

    def burst(self) -> bytes:
        return AT_ONCE * (b"PUB s.1 answers %d\r\n%b\r\n" % (len(BODY), BODY))

    def acked(self, answers: bytes) -> int:
        return len(set(re.findall(rb'"stream":\s*"s",\s*"seq":\s*(\d+)', answers)))


def stored(protocol: str, broker: BrokerProcess) -> int:
    if protocol == "amqp":
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.amqp_url))) as connection:
            return int(connection.channel().queue_declare("q", passive=True).method.message_count)
    if protocol == "kafka":
        with RawClient(broker) as client:
            return int(client.fetch("t", 0).responses[0].partitions[0].high_watermark)
    with Raw(broker.nats_port) as client:
        client.send(b"SUB info 1\r\nPUB $JS.API.STREAM.INFO.s info 0\r\n\r\n")
        while not client.line().startswith(b"MSG info"):
            pass
        return int(json.loads(client.line())["state"]["messages"])


PUBLISHERS = {"amqp": AmqpPublisher, "kafka": KafkaPublisher, "nats": NatsPublisher}


@contextlib.contextmanager
def publishing(publisher: Publisher) -> Iterator[None]:
    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                publisher.socket.sendall(burst)

    burst, sender = publisher.burst(), threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        publisher.socket.close()
        sender.join()


def answers_until_closed(publisher: Publisher, stop: int) -> bytes:
    """The broker is asked to stop once some answers came."""
    data, asked = bytearray(), False
    publisher.socket.settimeout(WAIT_S)
    with contextlib.suppress(ConnectionResetError):
        while piece := publisher.socket.recv(1 << 16):
            data += piece
            if len(data) > ENOUGH and not asked:
                asked = True
                os.kill(stop, signal.SIGTERM)
    return bytes(data)


@pytest.mark.parametrize("protocol", PUBLISHERS)
def test_what_a_clean_stop_stored_is_acked(tmp_path: Path, protocol: str) -> None:
    for number in range(ROUNDS):
        with BrokerProcess(tmp_path / f"data{number}") as broker:
            publisher = PUBLISHERS[protocol](broker)
            with publishing(publisher):
                answers = answers_until_closed(publisher, broker.pid)
            deadline = time.monotonic() + WAIT_S
            while broker.running and time.monotonic() < deadline:
                time.sleep(0.05)
            broker.start()
            assert stored(protocol, broker) == publisher.acked(answers) > 1
