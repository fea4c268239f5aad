"""A topic's name as each protocol spells it."""

from __future__ import annotations

from mainstem.model.topic import amqp_key, kafka_name


def spellings(name: bytes) -> dict[str, str]:
    return {
        "mqtt": name.decode(errors="replace"),
        "kafka": kafka_name(name),
        "amqp": amqp_key(name).decode(errors="replace"),
    }
