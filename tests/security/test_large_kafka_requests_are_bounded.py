"""A request of a few hundred kilobytes may name tens of thousands of things: it is answered in slices, or refused whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import DescribeConfigsRequest, DescribeGroupsRequest, MetadataRequest
from mainstem.testing import BrokerProcess
from tests.protocol.kafka.raw import RawClient
from tests.security.canary import ask_all

NAMES = [f"named-{number}" for number in range(50_000)]


def topics(names: list[str]) -> Any:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )


@pytest.mark.parametrize(
    ("api", "version", "asked"),
    [
        ("Metadata", 9, topics(NAMES)),
        ("DescribeGroups", 5, DescribeGroupsRequest(groups=NAMES)),
        (
            "DescribeConfigs",
            4,
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name)
                    for name in NAMES
                ]
            ),
        ),
    ],
)
def test_others_are_answered_meanwhile(attacked: BrokerProcess, api: str, version: int, asked: Any) -> None:
    with RawClient(attacked) as client:
        client.send(api, version, asked)
        answers: list[bytes] = []
        reading = threading.Thread(target=lambda: answers.append(client.receive_bytes()))
        reading.start()
        while reading.is_alive():
            ask_all(attacked)
        assert len(answers[0]) > 10 * len(NAMES)


def test_more_than_a_broker_can_answer_ends_its_connection(attacked: BrokerProcess) -> None:
    with RawClient(attacked) as client:
        client.send("Metadata", 9, topics(["x"] * (wire.REQUEST_ITEMS_MAX + 1)))
        assert client.closed()
    assert "more than 100000 items in all" in attacked.log()
    ask_all(attacked)
