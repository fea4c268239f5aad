"""A memory log that is full is a ring: the oldest goes, what is held stays, and `overflow = "refuse"` keeps all."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually, http
from tests.crossing.message import Message
from tests.crossing.mqtt_speaker import MqttSpeaker

SMALL = 1 << 20
VALUE = bytes(4_000)
MANY = 600  # more than twice what fits


def shrink(broker: Broker, topic: bytes) -> Any:
    """The log of a topic, as small as a test can fill."""
    assert broker.app is not None
    log = broker.app.broker.namespace("/").route(topic).log
    engine: Any = log.engine
    engine._bytes_max = SMALL
    engine._part_bytes_max = SMALL // 16
    return log


def values(broker: Broker, topic: str) -> list[str]:
    path = f"/v1/messages?topic={topic}&from=earliest&limit=500"
    return [row["key"] for row in http(broker, "GET", path)["items"]]


@pytest.mark.parametrize("layout", ["shared", "dedicated"])
def test_the_oldest_records_go_and_are_counted(layout: str) -> None:
    with Broker(f"topics.layout={layout}") as broker:
        speaker = MqttSpeaker(broker)
        speaker.say(Message("ring/a", b"first"))
        log = shrink(broker, b"ring/a")
        for n in range(MANY):
            speaker.say(Message("ring/a", VALUE, key=b"%d" % n))
        kept = values(broker, "ring/a")
        assert kept[-1] == str(MANY - 1), "the newest are there"
        assert kept == [str(n) for n in range(MANY - len(kept), MANY)], "without a gap"
        assert 100 < len(kept) < 300
        facts = http(broker, "GET", "/v1/topics/ring%2Fa")
        assert facts["records"] == len(kept)
        (span,) = facts["placement"][0]["spans"]
        assert span["overflowed"] == log.overflowed
        others = log.overflowed - (
            MANY + 1 - len(kept)
        )  # a shared log also holds the broker's own history: a point each 10 s
        assert 0 <= others <= (20 if layout == "shared" else 0)
        speaker.close()


def test_what_a_retained_message_holds_stays() -> None:
    with Broker() as broker:
        speaker = MqttSpeaker(broker)
        speaker.say(Message("ring/kept", b"retained", retain=True))
        shrink(broker, b"ring/kept")
        for n in range(MANY):
            speaker.say(Message("ring/b", VALUE, key=b"%d" % n))
        retained = http(broker, "GET", "/v1/messages?topic=ring/b&from=-1")["items"]
        assert retained[0]["key"] == str(MANY - 1)
        with speaker._subscribed(["ring/kept"], None) as ear:  # retain handling 2: nothing is sent at subscribing
            assert ear.count == 0
        assert _retained(broker) == b"retained"
        speaker.close()


def _retained(broker: Broker) -> bytes:
    import paho.mqtt.subscribe as subscribe

    message = subscribe.simple("ring/kept", hostname=broker.host, port=broker.mqtt_port)
    return bytes(message.payload)  # type: ignore[union-attr]


def test_a_log_that_refuses_keeps_its_first_records() -> None:
    with Broker("topics.overflow=refuse") as broker:
        speaker = MqttSpeaker(broker)
        speaker.say(Message("ring/c", VALUE, key=b"0"))
        log = shrink(broker, b"ring/c")
        for _ in range(1, MANY):
            speaker._client.publish("ring/c", VALUE, qos=0)
        eventually(lambda: log.meters.refused > 0, "some are refused")
        assert values(broker, "ring/c")[0] == "0"
        assert log.overflowed == 0
        speaker.close()


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_amqp_is_told_of_each_publish_that_a_full_log_refused(delivery_mode: int) -> None:
    with Broker("topics.overflow=refuse") as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=delivery_mode)
        channel.basic_publish("amq.topic", "ring.d", b"first", properties)
        shrink(broker, b"ring/d")
        taken = refused = 0
        for _ in range(MANY):
            try:
                channel.basic_publish("amq.topic", "ring.d", VALUE, properties)
                taken += 1
            except pika.exceptions.NackError:
                refused += 1
        assert refused
        eventually(
            lambda: http(broker, "GET", "/v1/topics/ring%2Fd")["records"] == taken + 1, "each that was confirmed"
        )
        connection.close()
