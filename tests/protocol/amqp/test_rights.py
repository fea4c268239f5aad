"""A queue is bound only to what its binder may read: all of it. Who may consume the queue then gets what is in it.
Messages are sent on only to where their sender may publish anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mainstem.testing.broker import Broker


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A broker with an admin, and a user who may read `a/+` but for `a/secret`, and has queues below `ann`."""
    with Broker() as broker:
        assert broker.app is not None and broker.loop is not None
        access = broker.app.broker.access

        async def add() -> None:
            await access.add_user("root", "secret", admin=True)
            await access.add_user("ann", "pass word")
            await access.add_rule("ann", allow=True, actions=["consume", "create"], topic_filter="ann/#")
            await access.add_rule("ann", allow=True, actions=["publish"], topic_filter="own/#")
            await access.add_rule("ann", allow=True, actions=["create"], topic_filter="+")
            await access.add_rule("ann", allow=True, actions=["consume"], topic_filter="a/+")
            await access.add_rule("ann", allow=True, actions=["consume"], topic_filter="amq.fanout/mine")
            await access.add_rule("ann", allow=False, actions=["consume"], topic_filter="a/secret")

        asyncio.run_coroutine_threadsafe(add(), broker.loop).result(30)
        yield broker.amqp_port


@pytest.fixture
def ann(port: int) -> Iterator[BlockingChannel]:
    login = pika.PlainCredentials("ann", "pass word")
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
