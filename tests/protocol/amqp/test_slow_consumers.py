"""Clients that do not read cost the broker what they may leave unread, each and all together."""

from __future__ import annotations

from contextlib import ExitStack

import pika
from pika.adapters.blocking_connection import BlockingChannel

from mainstem.testing.broker import Broker
from tests.protocol.amqp.conftest import parameters

CONSUMERS, MESSAGES, TOTAL_BYTES = 8, 8_000, 2 << 20


def connected(broker: Broker, stack: ExitStack) -> BlockingChannel:
    connection = pika.BlockingConnection(parameters(broker))
    stack.callback(connection.close)
    return connection.channel()


def test_many_slow_consumers_together_cost_what_all_may_leave_unread_and_lose_nothing() -> None:
    with Broker(f"limits.output_bytes_total_max={TOTAL_BYTES}") as broker, ExitStack() as stack:
        app = broker.app
        assert app is not None
        received: list[list[bytes]] = [[] for _ in range(CONSUMERS)]
        channels = []
        for got in received:
            channel = connected(broker, stack)
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queue, "amq.fanout")
            channel.basic_consume(queue, lambda _c, _m, _p, body, got=got: got.append(body), auto_ack=True)
            channels.append(channel)
        publisher = connected(broker, stack)
        for number in range(MESSAGES):
            publisher.basic_publish("amq.fanout", "", b"%6d" % number + b"x" * 1000)
        publisher.queue_declare("", exclusive=True)  # its answer comes after all of them were taken
        left = app.unsent.bytes
        assert TOTAL_BYTES // 2 < left < TOTAL_BYTES + CONSUMERS * (192 << 10), "each alone may leave a megabyte"
        for channel, got in zip(channels, received, strict=True):
            while len(got) < MESSAGES:
                channel.connection.process_data_events(time_limit=10)
            assert [int(body[:6]) for body in got] == list(range(MESSAGES))
