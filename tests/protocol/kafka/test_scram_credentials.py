"""Users' SCRAM credentials by Kafka's own calls, with librdkafka's admin client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from mainstem.testing import Broker

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    with Broker() as running:
        assert running.app is not None and running.loop is not None
        access = running.app.broker.access
        for name, admin in (("root", True), ("plain", False)):
            add = access.add_user(name, "secret", admin=admin)
            asyncio.run_coroutine_threadsafe(_done(add), running.loop).result(10)
        yield running


async def _done(written: Any) -> None:
    await written


def admin(broker: Broker, name: str = "root", password: str = "secret", mechanism: str = "PLAIN") -> AdminClient:
    return AdminClient(login(broker, name, password, mechanism))


def login(broker: Broker, name: str, password: str, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "reconnect.backoff.ms": 9_000,  # a login that fails is not tried again: who fails often is made to wait
        "reconnect.backoff.max.ms": 9_000,
    }


def alter(client: AdminClient, *changes: Any) -> None:
    for future in client.alter_user_scram_credentials(list(changes)).values():
        future.result(10)


def gets_in(broker: Broker, name: str, password: str, mechanism: str) -> bool:
    errors: list[KafkaError] = []
    client = Producer({**login(broker, name, password, mechanism), "error_cb": errors.append})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.list_topics(timeout=0.3)
        except KafkaException:
            client.poll(0)
        else:
            return True
        if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            return False
    raise AssertionError("neither let in nor refused")


def upsertion(name: str, password: bytes, mechanism: Any = SHA_256, iterations: int = 8_192) -> Any:
    return UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, iterations), password)


def test_a_user_made_by_kafka_logs_in_with_scram_and_is_described(guarded: Broker) -> None:
    root = admin(guarded)
    alter(root, upsertion("made", b"first"), upsertion("made", b"first", SHA_512))
    assert gets_in(guarded, "made", "first", "SCRAM-SHA-256")
    assert gets_in(guarded, "made", "first", "SCRAM-SHA-512")
    assert not gets_in(guarded, "made", "first", "PLAIN")
    (future,) = root.describe_user_scram_credentials(["made"]).values()
    infos = future.result(10).scram_credential_infos
    assert {(info.mechanism, info.iterations) for info in infos} == {(SHA_256, 8_192), (SHA_512, 8_192)}


def test_a_credential_is_replaced_and_deleted_and_the_password_stays(guarded: Broker) -> None:
    root = admin(guarded)
    alter(root, upsertion("plain", b"other"))
    assert gets_in(guarded, "plain", "other", "SCRAM-SHA-256")
    assert gets_in(guarded, "plain", "secret", "PLAIN")
    alter(root, UserScramCredentialDeletion("plain", SHA_256))
    assert not gets_in(guarded, "plain", "other", "SCRAM-SHA-256")
    assert gets_in(guarded, "plain", "secret", "SCRAM-SHA-512")
    with pytest.raises(KafkaException):
        alter(root, UserScramCredentialDeletion("plain", SHA_256))


def test_nobody_but_an_admin_may(guarded: Broker) -> None:
    with pytest.raises(KafkaException):
        alter(admin(guarded, "plain"), upsertion("root", b"mine now"))
    assert gets_in(guarded, "root", "secret", "PLAIN")
    assert not gets_in(guarded, "root", "mine now", "SCRAM-SHA-256")


def test_too_few_iterations_are_refused(guarded: Broker) -> None:
    with pytest.raises(KafkaException):
        alter(admin(guarded), upsertion("weak", b"x", iterations=100))
    assert not gets_in(guarded, "weak", "x", "SCRAM-SHA-256")
