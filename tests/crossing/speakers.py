"""Three real clients that say and hear the same message, each in its own protocol's words."""

from __future__ import annotations

from mainstem.testing.broker import Endpoints
from tests.crossing.amqp_speaker import AmqpSpeaker
from tests.crossing.kafka_speaker import KafkaSpeaker
from tests.crossing.message import Speaker
from tests.crossing.mqtt_speaker import MqttSpeaker

PROTOCOLS = ("mqtt", "kafka", "amqp")


def speakers_of(endpoints: Endpoints) -> dict[str, Speaker]:
    return {"mqtt": MqttSpeaker(endpoints), "kafka": KafkaSpeaker(endpoints), "amqp": AmqpSpeaker(endpoints)}
