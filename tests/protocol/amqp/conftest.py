"""One broker for the folder; each test has its own connection and its own names."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from mainstem.testing.broker import Broker

_names = itertools.count()
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def parameters(broker: Any, **options: Any) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0, **options)


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Another connection, closed at the end."""
    opened: list[pika.BlockingConnection] = []

    def make(**options: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(parameters(broker, **options))
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def name() -> str:
    """A name nobody else uses."""
    return f"t{next(_names)}"


def declared(channel: BlockingChannel, name: str, **options: Any) -> str:
    """Declare a queue and say its name."""
    queue: str = channel.queue_declare(name, **options).method.queue
    return queue


def ready(channel: BlockingChannel, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Everything that is ready, taken."""
    taken = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        taken.append(got[2])
    return taken


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll until it is true; the value that was."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {seconds} s")
        time.sleep(0.01)


def collect(channel: BlockingChannel, queue: str, count: int, *, seconds: float = 10.0, **options: Any) -> list[Any]:
    """Consume until `count` deliveries have come: [(method, properties, body)], all acked."""
    got: list[Any] = []
    tag = channel.basic_consume(
        queue, lambda _, method, properties, body: got.append((method, properties, body)), **options
    )
    deadline = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.02)
    channel.basic_cancel(tag)
    for method, _, _ in got:
        if not options.get("auto_ack"):
            channel.basic_ack(method.delivery_tag)
    assert len(got) >= count, f"{len(got)} of {count} came"
    return got
