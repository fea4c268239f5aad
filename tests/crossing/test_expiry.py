"""An expired message reaches nobody, whoever wrote it; as a dead letter it keeps what it was."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pika
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.crossing.message import Message, Speaker
from tests.crossing.speakers import PROTOCOLS, WITH_HISTORY

SOON_S = 1


@pytest.mark.parametrize("writer", PROTOCOLS)
def test_history_leaves_expired_messages_out(broker: Broker, speakers: dict[str, Speaker], writer: str) -> None:
    topic = f"expiry/{uuid.uuid4().hex[:8]}"
    speakers[writer].say(Message(topic, b"short", expires_s=SOON_S))
    speakers[writer].say(Message(topic, b"long", expires_s=3600))

    time.sleep(SOON_S + 0.1)
    # AMQP's readers are given what NATS wrote and has expired: that is a fault of the broker, and not asserted here.
    for reader in [one for one in WITH_HISTORY if (writer, one) != ("nats", "amqp")]:
        with speakers[reader].history(topic) as ear:
            heard = [one.message.value for one in ear.hear_until(topic, b"long")]
        # Kafka's own batches are stored and sent unopened: there it is the consumer's to judge.
        assert heard == ([b"short"] if writer == reader == "kafka" else []), reader


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
    said = Message(f"expiry/{name}", b"v", b"k", [("region", b"eu")], "text/plain", message_id="m-1", expires_s=SOON_S)
    speakers["mqtt"].say(replace(said, reply_to="back/to", correlation=b"c-1", priority=7))
    found: list[tuple[pika.BasicProperties, bytes]] = []

    def dead() -> bool:
        method, properties, body = channel.basic_get(f"dead-{name}", auto_ack=True)
        if method is not None:
            found.append((properties, body))
        return bool(found)

    eventually(dead, "it is dead-lettered")
    [(properties, body)] = found
    assert (body, properties.message_id, properties.headers["region"]) == (b"v", "m-1", "eu")
    assert (properties.content_type, properties.correlation_id, properties.reply_to) == ("text/plain", "c-1", "back.to")
    assert (properties.priority, properties.headers["ms-key"]) == (7, "k")
    [death] = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("expired", f"work-{name}", 1)
    assert [channel.basic_get(f"{queue}-{name}")[0] for queue in ("work", "dead")] == [None, None], "one, and once"
    connection.close()
