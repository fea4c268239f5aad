"""What still arrives around a close: confirms of a channel that is gone, bytes of a client that is still writing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pika
import pytest

from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import Connect, parameters
from tests.protocol.amqp.test_connections import Raw


@pytest.fixture(scope="module")
def synced() -> Iterator[Broker]:
    """Confirms wait for the disk here."""
    with Broker(engine="segment") as running:
        yield running


def publish(raw: Raw, queue: str, body: bytes) -> None:
    raw.send(1, "basic.publish", exchange="", routing_key=queue)
    raw.frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + b"\x10\0\x02")  # delivery_mode 2
    raw.frame(3, 1, body)


def test_no_confirm_follows_the_close_of_its_channel(synced: Broker, name: str) -> None:
    raw = Raw(synced).open()
    raw.channel()
    raw.send(1, "queue.declare", queue=name, durable=True)
    raw.expect("queue.declare-ok")
    raw.send(1, "channel.close", reply_code=200)
    raw.expect("channel.close-ok")
    for _ in range(20):
        raw.channel()
        raw.send(1, "confirm.select")
        raw.expect("confirm.select-ok")
        for _ in range(3):
            publish(raw, name, b"before")
        raw.send(1, "channel.close", reply_code=200)
        while (got := raw.read())[0] == "basic.ack":
            pass  # confirmed before the close was read
        assert got[0] == "channel.close-ok"
        raw.channel()
        raw.send(1, "confirm.select")
        raw.expect("confirm.select-ok")
        publish(raw, name, b"after")
        assert raw.expect("basic.ack")[:8] == struct.pack(">Q", 1)
        raw.send(1, "channel.close", reply_code=200)
        raw.expect("channel.close-ok")
    raw.socket.close()
    reader = pika.BlockingConnection(parameters(synced)).channel()
    assert reader.queue_declare(name, passive=True).method.message_count == 80


def test_no_confirm_follows_an_error_that_closed_its_channel(synced: Broker, name: str) -> None:
    raw = Raw(synced).open()
    for _ in range(20):
        raw.channel()
        raw.send(1, "confirm.select")
        raw.expect("confirm.select-ok")
        publish(raw, name, b"before")
        raw.send(1, "queue.declare", queue="nowhere", passive=True)
        while (got := raw.read())[0] == "basic.ack":
            pass
        assert got[0] == "channel.close"
        raw.send(1, "channel.close-ok")
    raw.socket.close()


def test_a_client_may_go_on_writing_after_the_connection_is_closed(broker: Broker, name: str) -> None:
    raw = Raw(broker).open()
    raw.channel()
    raw.send(0, "connection.close", reply_code=200)
    for _ in range(2_000):  # megabytes: more than the buffers of a socket that nobody reads
        raw.frame(3, 1, bytes(4_000))
    raw.expect("connection.close-ok")
    for _ in range(200):
        raw.frame(3, 1, bytes(4_000))
    raw.socket.shutdown(socket.SHUT_WR)
    assert raw.ended()


def test_a_client_that_does_not_close_is_cut_off(broker: Broker) -> None:
    raw = Raw(broker).open()
    raw.socket.settimeout(20)
    raw.send(0, "connection.close", reply_code=200)
    raw.expect("connection.close-ok")
    assert raw.ended()


def test_exclusive_queues_are_gone_when_the_close_is_answered(broker: Broker, connect: Connect, name: str) -> None:
    raw = Raw(broker).open()
    raw.channel()
    raw.send(1, "queue.declare", queue=name, exclusive=True)
    raw.expect("queue.declare-ok")
    raw.send(0, "connection.close", reply_code=200)
    raw.expect("connection.close-ok")
    connect().channel().queue_declare(name)  # would be locked otherwise
    raw.socket.close()


def test_who_deletes_a_queue_hears_of_it_before_its_consumers_end(synced: Broker, name: str) -> None:
    raw = Raw(synced)
    raw.login(capabilities={"consumer_cancel_notify": True})
    raw.expect("connection.tune")
    raw.send(0, "connection.tune-ok", channel_max=100, frame_max=4096, heartbeat=0)
    raw.send(0, "connection.open", virtual_host="/")
    raw.expect("connection.open-ok")
    raw.channel()
    raw.send(1, "queue.declare", queue=name, durable=True)
    raw.expect("queue.declare-ok")
    raw.send(1, "basic.consume", queue=name, consumer_tag="own")
    raw.expect("basic.consume-ok")
    raw.send(1, "queue.delete", queue=name)
    raw.expect("queue.delete-ok")
    assert raw.expect("basic.cancel") == b"\3own\1"
    raw.socket.close()
