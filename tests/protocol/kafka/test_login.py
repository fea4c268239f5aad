"""Logging in with SASL, and what a user without rules may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from mainstem.protocols.kafka.messages import ApiVersionsRequest, MetadataRequest, SaslHandshakeRequest
from mainstem.testing import Broker
from tests.protocol.kafka.raw import RawClient

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker with an admin, and a user who may only read and write `mine/#`."""
    with Broker() as broker:
        assert broker.app is not None
        assert broker.loop is not None
        access = broker.app.broker.access

        async def add() -> None:
            await access.add_user("root", "secret", admin=True)
            await access.add_user("ann", "pass word")
            await access.add_rule("ann", allow=True, actions=["publish", "consume", "create"], topic_filter="mine/#")

        asyncio.run_coroutine_threadsafe(add(), broker.loop).result(30)
        yield broker


def settings(broker: Broker, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_lets_the_right_password_in(guarded: Broker, mechanism: str) -> None:
    client = AdminClient(settings(guarded, mechanism, "root", "secret"))
    assert client.list_topics(timeout=15).brokers
    kp = KafkaAdminClient(
        bootstrap_servers=guarded.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="root",
        sasl_plain_password="secret",
    )
    kp.list_topics()
    kp.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(guarded: Broker, mechanism: str) -> None:
    errors: list[KafkaError] = []
    sender = Producer({**settings(guarded, mechanism, "root", "wrong"), "error_cb": errors.append})
    sender.poll(3)
    assert KafkaError._AUTHENTICATION in [error.code() for error in errors]


def test_nothing_but_the_login_is_answered_before_it(guarded: Broker) -> None:
    with RawClient(guarded) as raw:
        assert raw.ask("ApiVersions", 0, ApiVersionsRequest()).error_code == 0
        offered = raw.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="NONSENSE"))
        assert (offered.error_code, offered.mechanisms) == (33, MECHANISMS)
        raw.send("Metadata", 9, MetadataRequest(topics=None))
        assert raw.closed()


def test_before_the_login_requests_are_small(guarded: Broker) -> None:
    with RawClient(guarded) as raw:
        raw.send_bytes((1 << 20).to_bytes(4, "big"))
        assert raw.closed()


def test_rules_hold_on_canonical_topics(guarded: Broker) -> None:
    mine = settings(guarded, "PLAIN", "ann", "pass word")
    client = AdminClient(mine)
    client.create_topics([NewTopic("mine.topic", 1, 1)])["mine.topic"].result(10)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.create_topics([NewTopic("yours.topic", 1, 1)])["yours.topic"].result(10)
    results: dict[str, Any] = {}
    sender = Producer({**mine, "message.timeout.ms": 5_000})
    for topic in ("mine.topic", "yours.topic"):
        sender.produce(topic, b"v", on_delivery=lambda error, m: results.update({m.topic(): error and error.name()}))
    sender.flush(15)
    assert results == {"mine.topic": None, "yours.topic": "TOPIC_AUTHORIZATION_FAILED"}
