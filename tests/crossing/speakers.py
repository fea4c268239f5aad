"""Clients that say and hear the same message, each in its own protocol's words: three real ones, and NATS by hand."""

from __future__ import annotations

from mainstem.testing.broker import Endpoints
from tests.crossing.amqp_speaker import AmqpSpeaker
from tests.crossing.kafka_speaker import KafkaSpeaker
from tests.crossing.message import Speaker
from tests.crossing.mqtt_speaker import MqttSpeaker
from tests.crossing.nats_speaker import NatsSpeaker

PROTOCOLS = ("mqtt", "kafka", "amqp", "nats")
WITH_HISTORY = ("mqtt", "kafka", "amqp")  # core NATS has none
READERS = {"live": PROTOCOLS, "history": WITH_HISTORY}


def speakers_of(endpoints: Endpoints) -> dict[str, Speaker]:
    return {
        "mqtt": MqttSpeaker(endpoints),
        "kafka": KafkaSpeaker(endpoints),
        "amqp": AmqpSpeaker(endpoints),
        "nats": NatsSpeaker(endpoints),
    }
