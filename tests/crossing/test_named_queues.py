"""Routing that filters cannot express names queues in the record; whoever reads the topic itself gets it all the same."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port)) as connection:
        made = connection.channel()
        made.confirm_delivery()
        yield made


@pytest.mark.parametrize("kind", ["$share/{}/{}/#", "$queue/{}/{}/#"])
@pytest.mark.parametrize("how", ["headers exchange", "carbon copy"])
def test_a_group_of_mqtt_subscribers_gets_what_names_other_queues(
    broker: Broker, channel: BlockingChannel, kind: str, how: str
) -> None:
    name = f"n{uuid.uuid4().hex[:8]}"
    channel.queue_declare(f"{name}-own", exclusive=True)
    channel.exchange_declare(name, "headers", auto_delete=False)
    channel.queue_bind(f"{name}-own", name, arguments={"x-match": "all", "colour": "red"})
    channel.queue_bind(f"{name}-own", "amq.topic", f"{name}-own")
    with Raw.connected(broker.mqtt_port) as member:
        member.subscribe((kind.format(name, name), 1))
        if how == "headers exchange":
            channel.basic_publish(name, "k", b"1", pika.BasicProperties(headers={"colour": "red"}))
        else:
            copies = pika.BasicProperties(headers={"CC": [f"{name}-own"]})
            channel.basic_publish("amq.topic", f"{name}.k", b"1", copies)
        assert member.message().payload == b"1"
        member.nothing_more()
    assert [channel.basic_get(f"{name}-own", auto_ack=True)[2] for _ in range(2)] == [b"1", None]
    channel.exchange_delete(name)
