"""Random records with every field, said by each protocol and heard by all four, through real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pika.data
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.testing import Broker
from tests.crossing.judging import foreign, own
from tests.crossing.message import Ear, Message, Speaker
from tests.crossing.speakers import PROTOCOLS

# Names of every shape. The first half is made by Kafka (a log of its own), the rest lives in the shared log.
TOPICS = [
    "rnd/plain",
    "rnd/10.0.0.1/x",
    "rnd/größe 温",
    "rnd/a__b/_x20",
    "rnd//e/",
    "rnd/50%/%2F",
    "rnd/*/>",
    "rnd/" + "ü" * 90,
]

printable = st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co"))
words = st.text(printable, max_size=12)
texts = st.text(printable, min_size=1, max_size=40)
lines = words.filter(lambda word: ":" not in word)  # in a NATS line a name's colon is %3A
names = st.builds(lambda word, mark: f"h{word}{mark}", lines, st.sampled_from(["", "", "", ";b64", ";null"]))
values = st.none() | st.binary(max_size=20) | words.map(str.encode)
typed_values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | words | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
replies = st.lists(words.filter(lambda word: not set(word) & set("/+#")), min_size=1, max_size=4).map("/".join)

messages = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    value=st.none() | st.binary(max_size=2_000),
    key=st.none() | st.binary(max_size=30),
    headers=st.lists(st.tuples(names, values), max_size=6),
    content_type=st.none() | texts,
    content_encoding=st.none() | texts,
    reply_to=st.none() | replies.filter(lambda topic: topic not in ("", "$")),
    correlation=st.none() | st.binary(max_size=300),
    message_id=st.none() | texts,
    expires_s=st.none() | st.integers(120, 1_000_000),
    priority=st.none() | st.integers(0, 255),
    event_time_us=st.none() | st.integers(10**15, 4 * 10**15),
    is_text=st.none() | st.just(True),
    transient=st.none() | st.just(True),
    amqp=st.dictionaries(st.sampled_from(["type", "app_id", "cluster_id"]), texts, max_size=3),
)


def sayable(message: Message, writer: str) -> Message:
    """Without what the writer has no words for."""
    if writer == "kafka":  # which is refused times that lie more than an hour ahead
        ahead = (message.event_time_us or 0) > time.time() * 1_000_000
        return replace(message, is_text=None, transient=None, event_time_us=None if ahead else message.event_time_us)
    message = replace(message, value=message.value or b"")
    if writer == "nats":
        return replace(message, is_text=None, transient=None)
    if writer == "amqp":
        return replace(message, headers=list(dict(message.headers).items()), is_text=None)
    if message.is_text:
        message = replace(message, value=message.value.decode(errors="ignore").encode() if message.value else b"")
    return message


@pytest.fixture(scope="module")
def ears(broker: Broker, speakers: dict[str, Speaker]) -> Iterator[dict[str, Ear]]:
    speakers["mqtt"].say(Message(TOPICS[-1], b"so that its short name is known"))
    for n, topic in enumerate(TOPICS):
        speakers["kafka" if n < len(TOPICS) // 2 else "mqtt"].say(Message(topic, b"first"))
    made = {reader: speakers[reader].listen(*TOPICS) for reader in PROTOCOLS}
    yield made
    for ear in made.values():
        ear.close()


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def check(speakers: dict[str, Speaker], ears: dict[str, Ear], message: Message, writer: str) -> None:
    said = sayable(message, writer)
    speakers[writer].say(said)
    heard = {reader: ears[reader].hear(said.topic) for reader in PROTOCOLS}
    for reader in PROTOCOLS:
        if reader == writer:
            own(said, heard[reader], speakers[writer])
        else:
            foreign(said, heard[reader], writer, reader, [])


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(message=messages, writer=st.sampled_from(PROTOCOLS))
def test_any_record_arrives_whole_by_every_pair(
    speakers: dict[str, Speaker], ears: dict[str, Ear], message: Message, writer: str
) -> None:
    check(speakers, ears, message, writer)


@pytest.mark.slow
@settings(max_examples=3_000, deadline=None, suppress_health_check=CHECKS)
@given(message=messages, writer=st.sampled_from(PROTOCOLS))
def test_thousands_of_records_arrive_whole(
    speakers: dict[str, Speaker], ears: dict[str, Ear], message: Message, writer: str
) -> None:
    check(speakers, ears, message, writer)


TYPED_TOPIC = "rnd/plain"


def read_back(text: bytes | None, value: Any) -> Any:
    """What a header tells elsewhere of a typed value, read as one: text as it is, all others as JSON."""
    if text is None:
        return None
    return text.decode() if isinstance(value, str) else json.loads(text)


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=CHECKS)
@given(table=st.dictionaries(names, typed_values, min_size=1, max_size=4))
def test_typed_amqp_tables_come_back_and_are_told_elsewhere(
    speakers: dict[str, Speaker], ears: dict[str, Ear], table: dict[str, Any]
) -> None:
    said = Message(TYPED_TOPIC, typed=table)
    speakers["amqp"].say(said)
    heard = {reader: ears[reader].hear(TYPED_TOPIC) for reader in PROTOCOLS}
    own(said, heard["amqp"], speakers["amqp"])
    for reader in ("mqtt", "kafka", "nats"):
        told = heard[reader]
        assert [(name, read_back(text, table[name])) for name, text in told.message.headers] == list(table.items())
        if any(value is not None and not isinstance(value, str) for value in table.values()):
            assert told.amqp_headers is not None
            sent, _ = pika.data.decode_table(told.amqp_headers, 0)
            assert sent == table
