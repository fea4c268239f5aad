"""Publishing: confirms, returns, transactions, replies, delays, and that properties come back as they were sent."""

from __future__ import annotations

import datetime
import decimal
import time

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import Connect, bodies, collect, declared, eventually, ready
from tests.protocol.amqp.test_queues import refused


def test_every_property_and_nested_table_comes_back(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    headers = {
        "bool": True,
        "int": -5,
        "long": 1 << 40,
        "text": "größe",
        "bytes": b"\x00\xff",
        "decimal": decimal.Decimal("1.25"),
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "void": None,
        "list": [1, "two", [-3, None], {"four": 4}],
        "table": {"nested": {"deeper": [True, {"end": "x"}]}},
    }
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="cl",
    )
    channel.basic_publish("", queue, b"body", properties)
    _, got, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"body"
    assert b"".join(got.encode()) == b"".join(properties.encode())


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000])
def test_bodies_of_any_size_come_back(channel: BlockingChannel, name: str, size: int) -> None:
    queue = declared(channel, name)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body
    channel.basic_publish("", queue, body)
    assert collect(channel, queue, 1)[0][2] == body


def test_a_small_frame_size_cuts_bodies(connect: Connect, name: str) -> None:
    channel = connect(frame_max=4096).channel()
    queue = declared(channel, name)
    channel.basic_publish("", queue, b"y" * 50_000)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"y" * 50_000


@pytest.mark.parametrize("mode", [1, 2])
def test_publishes_are_confirmed(channel: BlockingChannel, name: str, mode: int) -> None:
    queue = declared(channel, name, durable=True)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=mode))
    assert ready(channel, queue) == 20


def test_what_nobody_takes_is_returned_before_its_confirm(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", name, b"lost", pika.BasicProperties(type="t"), mandatory=True)
    returned = caught.value.messages[0]
    assert (returned.method.reply_code, returned.method.reply_text, returned.method.routing_key) == (
        312,
        "NO_ROUTE",
        name,
    )
    assert (returned.body, returned.properties.type) == (b"lost", "t")
    declared(channel, name)
    channel.basic_publish("", name, b"kept", mandatory=True)
    assert bodies(channel, name) == [b"kept"]


def test_immediate_is_not_implemented(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    method = pika.spec.Basic.Publish(exchange="", routing_key=name, immediate=True)
    channel._impl._send_method(method, (pika.BasicProperties(), b"x"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"540.*NOT_IMPLEMENTED - immediate=true"):
        connection.process_data_events(5)


def test_a_transaction_publishes_and_acks_all_at_once_or_not_at_all(connect: Connect, name: str) -> None:
    channel, other = connect().channel(), connect().channel()
    queue = declared(channel, name)
    other.basic_publish("", queue, b"first")
    channel.tx_select()
    method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue, b"second")
    assert ready(other, queue) == 0
    channel.tx_rollback()
    assert ready(other, queue) == 0
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue, b"third", pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    assert bodies(other, queue) == [b"third"]
    channel.close()
    assert bodies(other, queue) == []


@pytest.mark.parametrize("how", ["unknown", "twice", "twice after many"])
def test_a_transactions_acks_are_checked_when_they_come(connect: Connect, name: str, how: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    for _ in range(3):
        channel.basic_publish("", queue, b"x")
    channel.tx_select()
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    if how == "twice":
        channel.basic_ack(tags[1])
    elif how == "twice after many":
        channel.basic_ack(tags[2], multiple=True)
    wrong = 99 if how == "unknown" else tags[1]
    channel.basic_reject(wrong, requeue=True)
    with refused(406, f"PRECONDITION_FAILED - unknown delivery tag {wrong}"):
        channel.queue_declare(queue, passive=True)
    assert ready(connect().channel(), queue) == 3


def test_confirms_and_transactions_exclude_each_other(connect: Connect) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    with refused(406, "cannot switch from confirm to tx mode"):
        channel.tx_select()
    channel = connect().channel()
    channel.tx_select()
    with refused(406, "cannot switch from tx to confirm mode"):
        channel.confirm_delivery()
    with refused(406, "channel is not transactional"):
        connect().channel().tx_commit()


def test_a_foreign_user_id_is_refused(connect: Connect, name: str) -> None:
    channel = connect().channel()
    with refused(406, "user_id property set to 'mallory' but authenticated user was 'guest'"):
        channel.basic_publish("", name, b"x", pika.BasicProperties(user_id="mallory"))
        channel.queue_declare("", exclusive=True)


def test_direct_reply_to_needs_no_queue(connect: Connect, name: str) -> None:
    client, server = connect(), connect()
    asking, serving = client.channel(), server.channel()
    queue = declared(serving, name)
    answers: list[bytes] = []

    def serve(channel: BlockingChannel, _: object, properties: pika.BasicProperties, body: bytes) -> None:
        assert str(properties.reply_to).startswith("amq.rabbitmq.reply-to.")
        reply = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", str(properties.reply_to), body.upper(), reply)

    serving.basic_consume(queue, serve, auto_ack=True)
    asking.basic_consume("amq.rabbitmq.reply-to", lambda *a: answers.append(a[3]), auto_ack=True)
    asking.basic_publish("", queue, b"ping", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1"))
    eventually(lambda: server.process_data_events(0.01) or client.process_data_events(0.01) or answers)
    assert answers == [b"PING"]
    with refused(406, "fast reply consumer does not exist"):
        other = connect().channel()
        other.basic_publish("", queue, b"x", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        other.queue_declare("", exclusive=True)
    with refused(406, "reply consumer cannot acknowledge"):
        connect().channel().basic_consume("amq.rabbitmq.reply-to", lambda *_: None)


def test_a_delayed_message_comes_when_it_is_due_and_is_routed_then(channel: BlockingChannel, name: str) -> None:
    exchange = name + "x"
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    started = time.monotonic()
    channel.basic_publish(exchange, "k", b"late", pika.BasicProperties(headers={"x-delay": 200}))
    queue = declared(channel, name)
    channel.queue_bind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"now")
    assert bodies(channel, queue) == [b"now"]
    assert eventually(lambda: bodies(channel, queue)) == [b"late"]
    assert time.monotonic() - started >= 0.15


def test_the_copies_of_a_delayed_message_are_delayed_too(channel: BlockingChannel, name: str) -> None:
    queues = [declared(channel, name + end, exclusive=True) for end in ("to", "cc", "bcc")]
    headers = {"x-delay": 200, "CC": [queues[1]], "BCC": [queues[2]]}
    channel.basic_publish("", queues[0], b"late", pika.BasicProperties(headers=headers))
    assert [ready(channel, queue) for queue in queues] == [0, 0, 0]
    assert eventually(lambda: [ready(channel, queue) for queue in queues] == [1, 1, 1])
    for queue in queues:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        assert (body, properties.headers) == (b"late", {"x-delay": 200, "CC": [queues[1]]})


def test_a_message_larger_than_the_limit_is_refused(connect: Connect, name: str) -> None:
    channel = connect().channel()
    with refused(406, "message size 17000000 is larger than configured max size 16777216"):
        channel.basic_publish("", name, b"z" * 17_000_000)
        channel.queue_declare("", exclusive=True)
