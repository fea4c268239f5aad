"""A login holds as long as its user does: who was let in as more than the user is now has to leave, by every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from mainstem.broker.rights.access import Access
from mainstem.metadata.store import Written
from mainstem.protocols.kafka.messages import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient
from tests.protocol.mqtt.raw import Raw
from tests.protocol.nats.raw import Raw as Nats
from tests.users import ROOT, add_users

OPS = ("ops", "oh peace")
NOT_AUTHORIZED = 0x87


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


def change(broker: Broker, what: Callable[[Access], Written]) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def run() -> None:
        await what(access)

    asyncio.run_coroutine_threadsafe(run(), broker.loop).result(60)


class Connected:
    """One user by four protocols."""

    def __init__(self, broker: Broker, user: tuple[str, str] | None) -> None:
        login = {"username": user[0], "password": user[1].encode()} if user is not None else {}
        self.mqtt = Raw.connected(broker.mqtt_port, version=5, **login)
        credentials = pika.PlainCredentials(*(user or ("guest", "guest")))
        self.amqp = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=credentials)
        )
        self.kafka = RawClient(broker)
        if user is not None:
            self.kafka.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN"))
            self.kafka.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes="\0{}\0{}".format(*user).encode()))
        self.nats = Nats(broker.nats_port, **({"user": user[0], "pass": user[1]} if user is not None else {}))
        self.are_served()

    def are_served(self) -> None:
        self.mqtt.ping()
        self.amqp.channel().close()
        self.kafka.ask("Metadata", 12, MetadataRequest(topics=[]))
        assert self.nats.synced() == []

    def are_sent_away(self) -> None:
        said = self.mqtt.closed()
        assert (said[0], said[2]) == (0xE0, NOT_AUTHORIZED)
        with pytest.raises(ConnectionClosedByBroker, match=r"320.*its user was removed"):
            self.amqp.channel()
        with pytest.raises(ConnectionError):
            self.kafka.ask("Metadata", 12, MetadataRequest(topics=[]))
        assert self.nats.rest() == b"-ERR 'Authorization Violation'\r\n"


def test_who_came_in_before_there_were_users_leaves_when_the_first_is_added(broker: Broker) -> None:
    anybody = Connected(broker, None)
    change(broker, lambda access: access.add_user(*ROOT, admin=True))
    anybody.are_sent_away()
    Connected(broker, ROOT)


def test_an_admin_who_is_removed_leaves_and_others_stay(broker: Broker) -> None:
    add_users(broker)
    change(broker, lambda access: access.add_user(*OPS, admin=True))
    root, ops = Connected(broker, ROOT), Connected(broker, OPS)
    change(broker, lambda access: access.remove_user(OPS[0]))
    ops.are_sent_away()
    root.are_served()


def test_a_new_password_or_rule_sends_nobody_away(broker: Broker) -> None:
    add_users(broker)
    root = Connected(broker, ROOT)
    change(broker, lambda access: access.set_password(ROOT[0], "another"))
    change(broker, lambda access: access.add_rule(ROOT[0], allow=True, actions=["publish"], topic_filter="a/#"))
    root.are_served()
