"""x-consumer-timeout: who leaves a delivery unacknowledged for too long loses its channel, and others get the message."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.protocol.amqp.conftest import Connect, declared, eventually, ready
from tests.protocol.amqp.test_queues import refused

TIMEOUT = {"x-consumer-timeout": 1000}


@pytest.mark.parametrize("told_by", ["queue", "consumer"])
def test_the_channel_ends_and_the_message_goes_back(connect: Connect, name: str, told_by: str) -> None:
    other = connect().channel()
    queue = declared(other, name, durable=True, arguments=TIMEOUT if told_by == "queue" else {})
    other.basic_publish("", queue, b"slow")
    connection = connect()
    channel, beside = connection.channel(), connection.channel()
    got: list[bytes] = []
    channel.basic_consume(queue, lambda *a: got.append(a[3]), arguments=TIMEOUT if told_by == "consumer" else {})
    eventually(lambda: connection.process_data_events(0.02) or got)
    with pytest.raises(ChannelClosedByBroker, match="delivery acknowledgement on channel 1 timed out") as closed:
        channel.start_consuming()
    assert closed.value.reply_code == 406
    assert ready(other, queue) == 1
    method, _, body = beside.basic_get(queue, auto_ack=True)  # the connection and its other channels go on
    assert (body, method.redelivered) == (b"slow", True)


def test_who_acknowledges_in_time_goes_on(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = declared(channel, name, durable=True, arguments=TIMEOUT)
    got: list[bytes] = []

    def take(_: object, method: object, __: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    channel.basic_consume(queue, take)
    for number in range(30):  # for three times as long as one delivery may take
        channel.basic_publish("", queue, b"%d" % number)
        connection.process_data_events(0.1)
    eventually(lambda: connection.process_data_events(0.02) or len(got) == 30)
    assert channel.is_open


def test_a_timeout_that_is_none_is_refused(connect: Connect, name: str) -> None:
    with refused(406, "invalid arg 'x-consumer-timeout'"):
        connect().channel().queue_declare(name, arguments={"x-consumer-timeout": "soon"})
    channel = connect().channel()
    queue = declared(channel, name)
    with refused(406, "invalid arg 'x-consumer-timeout'"):
        channel.basic_consume(queue, lambda *_: None, arguments={"x-consumer-timeout": -1})
