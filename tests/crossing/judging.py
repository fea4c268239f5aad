"""Whether what was heard is what was said: exact, mapped, not expressible, or lost."""

from __future__ import annotations

from mainstem.model.cut_names import is_cut
from mainstem.model.topic import amqp_key, kafka_name
from tests.crossing.message import EXACT, FIELDS, MAPPED, NOT_EXPRESSIBLE, Headers, Heard, Message, Speaker, parts_of

EXPIRY_LATE_S_MAX = 60
# What no reader may be told unless it was said. (Every Kafka record has a time, and typed headers read as plain ones.)
UNSAID = [name for name in FIELDS if name not in ("topic", "value", "key", "event_time_us", "headers", "typed")]
ALWAYS = {"nats": {"transient"}}  # what NATS publishes is like QoS 0
NO_WORD = {"kafka": {"transient"}, "nats": {"transient"}}  # fields a protocol's messages have no place for


def own(message: Message, heard: Heard, speaker: Speaker) -> str:
    """Back to the protocol that wrote it: nothing changed, nothing added."""
    expected = speaker.raw_of(message)
    assert heard.raw == expected, f"sent {expected!r}, came back {heard.raw!r}"
    assert heard.origin is None
    if message.event_time_us is not None:  # no part of what Kafka says raw: there each record has one
        assert heard.message.event_time_us == message.event_time_us, f"event time {heard.message.event_time_us}"
    _check_expiry(message, heard.message)
    return EXACT


def foreign(message: Message, heard: Heard, writer: str, reader: str, elsewhere: Headers) -> str:
    """To another protocol; `elsewhere` is how typed headers read there. The worst place of all parts."""
    told = heard.message
    assert heard.origin == writer, f"ms-origin is {heard.origin!r}"
    assert told.topic == message.topic
    assert told.value == message.value, f"value {told.value!r:.80}"
    places = {_topic_place(message.topic, heard, reader), heard.places.get("value", EXACT)}
    for name in parts_of(message):
        places.add(_part(message, heard, reader, name, elsewhere))
    if message.key is None and writer != "kafka":
        assert told.key in (None, message.topic.encode()), f"key {told.key!r}"
    for name in UNSAID:
        if not (getattr(message, name) or name in ALWAYS.get(writer, ())):
            assert not getattr(told, name), f"{name} was not said and is {getattr(told, name)!r}"
    assert message.headers or message.typed or not told.headers, f"no headers were said, and there are {told.headers!r}"
    return next(place for place in (NOT_EXPRESSIBLE, MAPPED, EXACT) if place in places)


def is_long(topic: str) -> bool:
    return is_cut(kafka_name(topic.encode()).encode()) or is_cut(amqp_key(topic.encode()))


def _topic_place(topic: str, heard: Heard, reader: str) -> str:
    spelled = {"kafka": kafka_name(topic.encode()).encode(), "amqp": amqp_key(topic.encode())}.get(reader, b"")
    if not is_cut(spelled):
        return EXACT
    assert heard.full_topic == topic, "a cut name without ms-topic"
    return MAPPED


def _part(message: Message, heard: Heard, reader: str, name: str, elsewhere: Headers) -> str:
    expected, found = getattr(message, name), getattr(heard.message, name)
    if name in NO_WORD.get(reader, ()):
        return NOT_EXPRESSIBLE
    if name == "expires_s":
        _check_expiry(message, heard.message)
        return heard.places[name]
    if name == "headers" and heard.left_out:
        kept = [pair for pair in expected if not any(_is_named(pair[0], left) for left in heard.left_out)]
        assert len(kept) == len(expected) - len(heard.left_out), f"left out are {heard.left_out!r:.200}"
        assert found == kept, f"headers are {found!r:.200}"
        return NOT_EXPRESSIBLE
    if name == "typed" and reader != "amqp":
        assert heard.message.headers == elsewhere, f"typed headers read {heard.message.headers!r}"
        assert heard.amqp_headers is not None, "the table as it was sent is missing"
        return MAPPED
    if name == "headers" and reader == "amqp":
        expected = _grouped(expected)
    assert found == expected, f"{name} is {found!r:.200}, said was {expected!r:.200}"
    return heard.places[name]


def _is_named(header: str, left_out: str) -> bool:
    """A name that is too long is named by its beginning."""
    return bool(left_out) and header.startswith(left_out)


def _grouped(headers: Headers) -> Headers:
    """As a table has them: a name stands once, where it stood first, with all its values in their order."""
    names = list(dict.fromkeys(name for name, _ in headers))
    return [pair for name in names for pair in headers if pair[0] == name]


def _check_expiry(said: Message, heard: Message) -> None:
    if said.expires_s is not None:
        assert heard.expires_s is not None, "the expiry is missing"
        assert said.expires_s - EXPIRY_LATE_S_MAX <= heard.expires_s <= said.expires_s, f"expires in {heard.expires_s}"
