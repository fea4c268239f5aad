"""An expired message reaches nobody, whoever wrote it; as a dead letter it keeps what it was."""

from __future__ import annotations

import uuid

import pika
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.crossing.message import Message, Speaker
from tests.crossing.speakers import WITH_HISTORY

SOON_S = 1


@pytest.mark.parametrize("writer", ["mqtt", "amqp"])
def test_history_leaves_expired_messages_out(broker: Broker, speakers: dict[str, Speaker], writer: str) -> None:
    topic = f"expiry/{uuid.uuid4().hex[:8]}"
    speakers[writer].say(Message(topic, b"short", expires_s=SOON_S))
    speakers[writer].say(Message(topic, b"long", expires_s=3600))

    def gone() -> bool:
        with speakers["kafka"].history(topic) as ear:
            return ear.hear(topic).message.value == b"long"

    eventually(gone, "the short one has expired")
    for reader in WITH_HISTORY:
        with speakers[reader].history(topic) as ear:
            assert ear.hear(topic).message.value == b"long", reader


def test_an_expired_mqtt_message_is_a_dead_letter_with_all_its_properties(
    broker: Broker, speakers: dict[str, Speaker]
) -> None:
    name = uuid.uuid4().hex[:8]
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare(f"dead-{name}", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead-{name}"}
    channel.queue_declare(f"work-{name}", durable=True, arguments=arguments)
    channel.queue_bind(f"work-{name}", "amq.topic", f"expiry.{name}")
    said = Message(f"expiry/{name}", b"v", headers=[("region", b"eu")], message_id="m-1", expires_s=SOON_S)
    speakers["mqtt"].say(said)
    found: list[tuple[pika.BasicProperties, bytes]] = []

    def dead() -> bool:
        method, properties, body = channel.basic_get(f"dead-{name}", auto_ack=True)
        if method is not None:
            found.append((properties, body))
        return bool(found)

    eventually(dead, "it is dead-lettered")
    [(properties, body)] = found
    assert (body, properties.message_id, properties.headers["region"]) == (b"v", "m-1", "eu")
    assert properties.headers["x-death"][0]["reason"] == "expired"
    connection.close()
