"""Subjects and topics: `sensors.kitchen-value` is about the values of `sensors/kitchen`, and ruled by that topic's rules."""

from __future__ import annotations

from mainstem.model.errors import MainstemError
from mainstem.model.topic import kafka_name, topic_of_kafka

VALUE, KEY = "-value", "-key"


def topic_of_subject(subject: str) -> str:
    """The topic whose rules say who may do what with the subject; another strategy's name is read as a topic itself."""
    name = subject.removesuffix(VALUE) if subject.endswith(VALUE) else subject.removesuffix(KEY)
    if "/" in name:
        return name
    try:
        return topic_of_kafka(name).decode()
    except (MainstemError, UnicodeDecodeError):
        return name


def subject_of_topic(topic: bytes) -> str:
    """By the strategy that clients begin with: the topic's Kafka name and `-value`."""
    return kafka_name(topic) + VALUE
