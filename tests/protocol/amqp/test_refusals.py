"""RabbitMQ's own answers to what makes no sense, word for word."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import Connect, declared
from tests.protocol.amqp.test_queues import refused

INVALID = "^PRECONDITION_FAILED - invalid arg '{}' for queue '{}' in vhost '/'{}$"


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", 1 << 40, "{value_too_large,1099511627776}"),
        ("x-max-length", "many", '"expected integer, got longstr"'),
        ("x-max-length", None, '"expected integer, got void"'),
        ("x-overflow", "explode", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-single-active-consumer", "yes", "{unacceptable_type,longstr}"),
        ("x-queue-mode", "busy", "\"unsupported queue mode 'busy'\""),
        ("x-queue-type", "quantum", "\"unsupported queue type 'quantum'\""),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_or_type(
    channel: BlockingChannel, name: str, argument: str, value: Any, why: str
) -> None:
    with refused(406, INVALID.format(argument, name, ": " + why)):
        channel.queue_declare(name, arguments={argument: value})


def test_the_names_of_exchanges_must_be_text(connect: Connect, name: str) -> None:
    with refused(406, f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'"):
        connect().channel().queue_declare(name, arguments={"x-dead-letter-exchange": 5})
    with refused(406, f"invalid type 'signedint' for arg 'alternate-exchange' in exchange '{name}' in vhost '/'"):
        connect().channel().exchange_declare(name, arguments={"alternate-exchange": 5})


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("classic", "x-max-age", "1h"),
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-queue-mode", "lazy"),
        ("stream", "x-expires", 1000),
        ("stream", "x-overflow", "drop-head"),
        ("stream", "x-delivery-limit", 3),
    ],
)
def test_an_argument_of_another_kind_of_queue_is_refused(
    channel: BlockingChannel, name: str, kind: str, argument: str, value: Any
) -> None:
    with refused(406, INVALID.format(argument, name, f" of queue type rabbit_{kind}_queue")):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, argument: value})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_quorum_queues_and_streams_are_there_to_stay(
    channel: BlockingChannel, name: str, kind: str, options: dict[str, bool], what: str
) -> None:
    with refused(406, f"invalid property '{what}' for queue '{name}' in vhost '/'"):
        channel.queue_declare(name, arguments={"x-queue-type": kind}, **options)


def test_an_exclusive_queue_is_declared_again_only_as_exclusive(channel: BlockingChannel, name: str) -> None:
    declared(channel, name, exclusive=True)
    declared(channel, name, exclusive=True)
    with refused(405, f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'"):
        channel.queue_declare(name)


def test_the_empty_name_means_nothing_before_a_queue_was_declared(connect: Connect) -> None:
    with refused(404, "no previously declared queue"):
        connect().channel().queue_delete("")
    with refused(404, "no previously declared queue"):
        connect().channel().queue_unbind("", "amq.direct", "key")


def test_asking_passively_for_the_empty_name_finds_nothing(channel: BlockingChannel) -> None:
    declared(channel, "", exclusive=True)
    with refused(404, "no queue '' in vhost '/'"):
        channel.queue_declare("", passive=True)


def test_a_get_is_answered_beside_an_exclusive_consumer(connect: Connect, name: str) -> None:
    holder, other = connect().channel(), connect().channel()
    declared(holder, name)
    holder.basic_consume(name, lambda *_: None, exclusive=True)
    assert other.basic_get(name)[0] is None


def test_one_active_consumer_at_a_time_is_not_one_alone(channel: BlockingChannel, name: str) -> None:
    declared(channel, name, arguments={"x-single-active-consumer": True})
    with refused(403, f"queue '{name}' in vhost '/' in exclusive use"):
        channel.basic_consume(name, lambda *_: None, exclusive=True)


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("soon", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("4294967296", "{value_too_large,4294967296}"),
    ],
)
def test_a_wrong_expiration_is_explained(channel: BlockingChannel, name: str, expiration: str, why: str) -> None:
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration=expiration))
    with refused(406, f"invalid expiration '{expiration}': {why}"):
        channel.queue_declare(name, passive=True)
