"""A transaction is stored whole or not at all; what is wrong with a publish is said before its commit."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import Connect, declared, ready
from tests.protocol.amqp.test_queues import refused


def test_a_wrong_publish_closes_the_channel_before_the_commit(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    queue = declared(channel, name)
    channel.tx_select()
    channel.basic_publish("", queue, b"good")
    channel.basic_publish("", queue, b"bad", pika.BasicProperties(expiration="soon"))
    with refused(406, "invalid expiration 'soon': no_integer"):
        channel.queue_declare(queue, passive=True)
    assert ready(connect().channel(), queue) == 0


def test_a_commit_that_fails_stores_nothing(connect: Connect, channel: BlockingChannel, name: str) -> None:
    queue, other = declared(channel, name), connect().channel()
    channel.exchange_declare(name, "fanout")
    channel.tx_select()
    channel.basic_publish("", queue, b"good")
    channel.basic_publish(name, "", b"to an exchange that goes")
    channel.queue_declare(queue, passive=True)
    other.exchange_delete(name)
    with refused(404, f"no exchange '{name}' in vhost '/'"):
        channel.tx_commit()
    assert ready(other, queue) == 0


@pytest.mark.parametrize("select", ["tx_commit", "tx_rollback"])
def test_without_a_transaction_there_is_nothing_to_end(channel: BlockingChannel, select: str) -> None:
    with refused(406, "channel is not transactional"):
        getattr(channel, select)()
