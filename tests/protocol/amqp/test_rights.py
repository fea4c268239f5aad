"""A queue is bound only to what its binder may read: all of it. Who may consume the queue then gets what is in it.
Messages are sent on only to where their sender may publish anything."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mainstem.testing.broker import Broker
from tests.users import ANN, add_users, allow, deny


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A broker with an admin, and a user who may read `a/+` but for `a/secret`, and has queues below `ann`."""
    with Broker() as broker:
        add_users(broker)
        allow(broker, "ann/#", "consume", "create")
        allow(broker, "own/#", "publish")
        allow(broker, "+", "create")
        allow(broker, "a/+", "consume")
        allow(broker, "amq.fanout/mine", "consume")
        deny(broker, "a/secret", "consume")
        yield broker.amqp_port


@pytest.fixture
def ann(port: int) -> Iterator[BlockingChannel]:
    login = pika.PlainCredentials(*ANN)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login)) as connection:
        channel = connection.channel()
        channel.queue_declare("ann.queue", durable=True)
        yield channel


def test_a_key_that_may_be_read_is_bound(ann: BlockingChannel) -> None:
    ann.queue_bind("ann.queue", "amq.topic", "a.open")
    ann.queue_unbind("ann.queue", "amq.topic", "a.open")


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("amq.topic", "a.secret"),
        ("amq.topic", "b"),
        ("amq.topic", "#"),
        ("amq.topic", "a.#"),  # deeper than the rule goes
        ("amq.topic", "a.*"),  # means what another rule denies
        ("amq.topic", "#.secret"),
        ("amq.fanout", "mine"),  # the exchange does not look at the key
        ("amq.headers", ""),
    ],
)
def test_a_binding_that_means_more_than_may_be_read_is_refused(ann: BlockingChannel, exchange: str, key: str) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        ann.queue_bind("ann.queue", exchange, key)
    assert caught.value.reply_code == 403
    assert caught.value.reply_text == (
        f"ACCESS_REFUSED - read access to exchange '{exchange}' in vhost '/' refused for user 'ann'"
    )


def test_an_exchange_is_bound_behind_another_where_its_binder_may_publish(ann: BlockingChannel) -> None:
    ann.exchange_declare("own", "topic")
    ann.exchange_bind("own", "amq.topic", "a.open")
    with pytest.raises(ChannelClosedByBroker) as caught:
        ann.exchange_bind("amq.fanout", "amq.topic", "a.open")
    assert caught.value.reply_code == 403
    assert caught.value.reply_text.startswith("ACCESS_REFUSED - write access to exchange 'amq.fanout'")


def test_an_alternate_exchange_is_one_that_may_be_published_to(ann: BlockingChannel) -> None:
    ann.exchange_declare("first", "topic", arguments={"alternate-exchange": "own"})
    with pytest.raises(ChannelClosedByBroker) as caught:
        ann.exchange_declare("second", "topic", arguments={"alternate-exchange": "amq.fanout"})
    assert caught.value.reply_code == 403
    assert caught.value.reply_text.startswith("ACCESS_REFUSED - write access to exchange 'amq.fanout'")
