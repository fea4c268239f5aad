"""Length limits count message by message, however many come at once."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from mainstem.testing import BrokerProcess
from tests.protocol.amqp.conftest import bodies, declared, eventually, parameters, ready


def refuses(channel: BlockingChannel, queue: str, body: bytes) -> bool:
    try:
        channel.basic_publish("", queue, body)
    except pika.exceptions.NackError:
        return True
    return False


def test_messages_that_come_in_one_read_do_not_overfill_a_queue(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    assert ready(channel, queue) == 3
    assert bodies(channel, queue) == [b"0", b"1", b"2"]


def test_delayed_messages_that_are_due_do_not_overfill_a_queue_and_others_get_them(
    channel: BlockingChannel, name: str
) -> None:
    exchange = name + "x"
    channel.exchange_declare(exchange, "fanout")
    queue = declared(channel, name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    other = declared(channel, name + "-other")
    for one in (queue, other):
        channel.queue_bind(one, exchange)
    for number in range(5):
        channel.basic_publish(exchange, "", b"%d" % number, pika.BasicProperties(headers={"x-delay": 50}))
    eventually(lambda: ready(channel, other) == 5)
    assert bodies(channel, queue) == [b"0", b"1"]


def test_a_full_queue_with_a_consumer_refuses_nothing_that_the_consumer_takes(
    channel: BlockingChannel, name: str
) -> None:
    queue = declared(channel, name, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    got: list[bytes] = []
    channel.basic_consume(queue, lambda *delivery: got.append(delivery[3]), auto_ack=True)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    eventually(lambda: channel.connection.process_data_events(0.02) or len(got) == 100)


def test_a_message_that_would_exceed_the_bytes_is_refused(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    assert [refuses(channel, queue, body) for body in (b"1234", b"1234", b"1234", b"12")] == [False, False, True, False]
    assert bodies(channel, queue) == [b"1234", b"1234", b"12"]


def test_what_comes_back_to_a_full_queue_puts_it_over_its_limit(channel: BlockingChannel, name: str) -> None:
    dead = declared(channel, name + "-dead")
    queue = declared(
        channel,
        name,
        arguments={"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    for number in range(2):
        channel.basic_publish("", queue, b"%d" % number)
    method, _, body = channel.basic_get(queue)
    assert body == b"0"
    channel.basic_publish("", queue, b"2")
    channel.basic_nack(method.delivery_tag, requeue=True)
    assert eventually(lambda: ready(channel, dead)) == 1
    assert bodies(channel, dead) == [b"0"]
    assert bodies(channel, queue) == [b"1", b"2"]


def test_what_comes_back_counts_in_the_bytes_of_a_queue(channel: BlockingChannel, name: str) -> None:
    dead = declared(channel, name + "-dead")
    queue = declared(
        channel,
        name,
        arguments={"x-max-length-bytes": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    for body in (b"first", b"again"):
        channel.basic_publish("", queue, body)
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
    channel.basic_publish("", queue, b"third")
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert eventually(lambda: bodies(channel, dead)) == [b"first"]
    assert ready(channel, queue) == 2
    channel.basic_publish("", queue, b"4th")
    assert eventually(lambda: bodies(channel, dead)) == [b"again"]
    assert bodies(channel, queue) == [b"third", b"4th"]
    for body in (b"fifth", b"sixth"):
        channel.basic_publish("", queue, body)
    assert bodies(channel, queue) == [b"fifth", b"sixth"]
    assert bodies(channel, dead) == []


def test_a_queue_full_of_what_came_back_refuses_publishes(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"12345678")
    channel.basic_nack(channel.basic_get(queue)[0].delivery_tag, requeue=True)
    assert refuses(channel, queue, b"1234")
    assert bodies(channel, queue) == [b"12345678"]
    assert not refuses(channel, queue, b"1234")


@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_the_bytes_of_a_queue_are_known_after_a_restart(tmp_path: Path, overflow: str, came_back: bool) -> None:
    arguments = {"x-max-length-bytes": 10, "x-overflow": overflow}
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(parameters(broker))
        channel = connection.channel()
        channel.confirm_delivery()
        declared(channel, "full", durable=True, arguments=arguments)
        channel.basic_publish("", "full", b"12345678", pika.BasicProperties(delivery_mode=2))
        if came_back:
            channel.basic_nack(channel.basic_get("full")[0].delivery_tag, requeue=True)
        connection.close()
        broker.restart()
        connection = pika.BlockingConnection(parameters(broker))
        channel = connection.channel()
        channel.confirm_delivery()
        assert refuses(channel, "full", b"1234") == (overflow == "reject-publish")
        eventually(lambda: ready(channel, "full") == 1)
        assert bodies(channel, "full") == [b"1234" if overflow == "drop-head" else b"12345678"]
        connection.close()
