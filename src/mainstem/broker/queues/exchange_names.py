"""Where a publish to an exchange lies in the one space of topics, and back.

amq.topic, key a.b.c          a/b/c         the topic itself; what other protocols publish counts as published here
default exchange, key tasks   tasks         with the record's DEFAULT_EXCHANGE flag: only the queue it names takes it
exchange orders, key a.b      orders/a/b    with the header ms-exchange
exchange orders, empty key    orders
"""

from __future__ import annotations

from mainstem.broker.queues.bindings import EXCHANGE, NAMED, PLAIN, Reach
from mainstem.model.topic import amqp_key, filter_of_amqp, spelled_level, topic_of_amqp
from mainstem.model.topic_filter import literal_filter

DEFAULT = ""
TOPIC = "amq.topic"


def level_of(exchange: str) -> bytes:
    """An exchange's name as one level; a `.` in it is not a separator."""
    return spelled_level(exchange.encode("utf-8", "surrogateescape"))


def topic_of(exchange: str, key: str) -> bytes:
    """The topic of a publish; an empty key means the exchange's own topic."""
    raw = key.encode("utf-8", "surrogateescape")
    if exchange in (DEFAULT, TOPIC):
        return topic_of_amqp(raw) if raw else level_of(exchange or "amq.default")
    prefix = level_of(exchange)
    return prefix + b"/" + topic_of_amqp(raw) if raw else prefix


def key_of(exchange: str, topic: bytes) -> str:
    """The routing key that `topic_of` made the topic from."""
    if exchange not in (DEFAULT, TOPIC):
        _, slash, topic = topic.partition(b"/")
        if not slash:
            return ""
    elif topic == level_of(exchange or "amq.default"):
        return ""
    return amqp_key(topic).decode("utf-8", "surrogateescape")


def filter_of(exchange: str, kind: str, key: str) -> bytes:
    """What a binding to an exchange of that kind means, as a filter over topics."""
    if kind == "direct":
        return literal_filter(topic_of(exchange, key))
    if kind == "topic":
        pattern = filter_of_amqp(key.encode("utf-8", "surrogateescape"))
        if exchange == TOPIC:
            return pattern if key else literal_filter(topic_of(exchange, ""))
        return literal_filter(topic_of(exchange, "")) + (b"/" + pattern if key else b"")
    return all_of(exchange)


def all_of(exchange: str) -> bytes:
    """Everything published to an exchange that has a first level of its own."""
    return literal_filter(topic_of(exchange, "")) + b"/#"


def anything_to(exchange: str) -> bytes:
    """Whatever may be published to the exchange: what is sent on to it keeps its key."""
    return b"#" if exchange in (DEFAULT, TOPIC) else all_of(exchange)


def reach_of(exchange: str, kind: str, key: str, start: int) -> Reach:
    """How a binding lets records into a queue."""
    if kind == "headers":
        return Reach(NAMED, all_of(exchange), "", start)
    if exchange == TOPIC:
        return Reach(PLAIN, filter_of(exchange, kind, key), "", start)
    return Reach(EXCHANGE, filter_of(exchange, kind, key), exchange, start)
