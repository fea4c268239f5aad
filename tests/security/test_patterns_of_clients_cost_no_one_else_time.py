"""Regular expressions that clients choose: RE2's, and only over names that the client may see."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mainstem.protocols.kafka.messages import (
    ConsumerGroupHeartbeatRequest,
    CreateTopicsRequest,
    ListTransactionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mainstem.testing import Broker, BrokerProcess
from tests.protocol.kafka.raw import RawClient
from tests.security.canary import ask_all
from tests.security.issuer import AUDIENCE, Issuer
from tests.users import ANN, ROOT, add_users, allow

EXPONENTIAL = ["(?:a|aa)*b", "(a+)+$", "(a|a?)+c", "((a*)*)*d"]


def beat(client: RawClient, group: str, pattern: str) -> Any:
    joining = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        topic_partitions=[],
        subscribed_topic_regex=pattern,
    )
    return client.ask("ConsumerGroupHeartbeat", 1, joining)


def create(client: RawClient, *names: str) -> None:
    topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = client.ask("CreateTopics", 5, CreateTopicsRequest(topics=topics, timeout_ms=20_000))
    assert [one.error_code for one in answer.topics] == [0] * len(names)


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_a_subscription_that_makes_others_backtrack_is_answered(attacked: BrokerProcess, pattern: str) -> None:
    name = "a" * 200 + f"-{EXPONENTIAL.index(pattern)}"
    with RawClient(attacked) as client:
        create(client, name)
        assert beat(client, f"g{EXPONENTIAL.index(pattern)}", pattern).error_code == 0
        ask_all(attacked)


def test_transactions_are_listed_by_a_pattern_of_any_kind(attacked: BrokerProcess) -> None:
    with RawClient(attacked) as client:
        for pattern in EXPONENTIAL:
            asked = ListTransactionsRequest(duration_filter=-1, transactional_id_pattern=pattern)
            assert client.ask("ListTransactions", 2, asked).error_code == 0
        broken = ListTransactionsRequest(duration_filter=-1, transactional_id_pattern="a(?=b)")
        assert client.ask("ListTransactions", 2, broken).error_code == 128  # INVALID_REGULAR_EXPRESSION


def test_a_pattern_does_not_find_what_its_user_may_not_see() -> None:
    with Broker() as broker:
        add_users(broker)
        allow(broker, "mine/#", "consume")
        with logged_in(broker, *ROOT) as root:
            create(root, "mine.one", "others.two")
            assert assigned(beat_until_assigned(root, "all")) == 2
        with logged_in(broker, *ANN) as ann:
            assert assigned(beat_until_assigned(ann, "few")) == 1


def test_a_pattern_finds_what_its_token_lets_it_see() -> None:
    issuer = Issuer()
    with issuer.served() as address, Broker(f"jwt.keys={address}", f"jwt.audience={AUDIENCE}") as broker:
        add_users(broker)
        with logged_in(broker, *ROOT) as root:
            create(root, "mine.one", "others.two", "mine.secret.one")
        rules = [
            {"actions": ["consume"], "filter": "mine/#"},
            {"actions": ["describe"], "filter": "mine/secret/#", "allow": False},
        ]
        with logged_in(broker, "tom", issuer.token(sub="tom", rules=rules)) as tom:
            assert assigned(beat_until_assigned(tom, "by-token")) == 1


def logged_in(broker: Broker, name: str, password: str) -> RawClient:
    client = RawClient(broker)
    assert client.ask("SaslHandshake", 1, SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
    plain = b"\0" + name.encode() + b"\0" + password.encode()
    assert client.ask("SaslAuthenticate", 2, SaslAuthenticateRequest(auth_bytes=plain)).error_code == 0
    return client


def beat_until_assigned(client: RawClient, group: str) -> Any:
    deadline = time.monotonic() + 20
    while True:
        answer = beat(client, group, ".*(one|two)")
        assert answer.error_code == 0, answer.error_message
        if answer.assignment is not None and answer.assignment.topic_partitions:
            return answer
        assert time.monotonic() < deadline, "nothing assigned"


def assigned(answer: Any) -> int:
    return len(answer.assignment.topic_partitions)
