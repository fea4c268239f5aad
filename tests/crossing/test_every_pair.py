"""What one protocol publishes, each of the three reads, live and from history, field by field."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mainstem.testing import BrokerProcess
from tests.crossing.speakers import SPEAKERS, Message

PROTOCOLS = tuple(SPEAKERS)
# A pairwise cover of engine × layout; `make test-all` runs the whole product.
SETTINGS = [("segment", "shared"), ("memory", "dedicated"), ("rocksdb", "shared"), ("segment", "dedicated")]
REST = [("memory", "shared"), ("rocksdb", "dedicated")]


@pytest.fixture(
    scope="module",
    params=[*SETTINGS, *(pytest.param(setting, marks=pytest.mark.slow) for setting in REST)],
    ids=lambda setting: "-".join(setting),
)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    engine, layout = request.param
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), f"topics.layout={layout}", engine=engine)
    with process:
        yield process


@pytest.fixture(scope="module")
def speakers(broker: BrokerProcess) -> Iterator[dict[str, Any]]:
    made = {name: speaker(broker) for name, speaker in SPEAKERS.items()}
    yield made
    for speaker in made.values():
        speaker.close()


def fresh_topic() -> str:
    return f"cross/{uuid.uuid4().hex[:12]}/t"


FULL = Message(
    "",
    b'{"t": 21.5}',
    key=b"dev-7",
    headers=[("region", b"eu"), ("unit", "°C".encode())],
    content_type="application/json",
    content_encoding="identity",
    reply_to="answers/here",
    correlation=b"c-1",
    message_id="m-1",
    expires_s=3600,
    priority=5,
    event_time_ms=1_700_000_000_123,
)


def same(said: Message, heard: Message, *, writer: str, reader: str) -> None:
    """Equal in every field that was said; expiry counts down, the default key is the topic."""
    expected = said
    if said.expires_s is not None:
        assert heard.expires_s is not None
        assert 0 <= said.expires_s - heard.expires_s <= 60
    if said.key is None:
        expected = replace(expected, key=heard.key)
        assert heard.key in (None, said.topic.encode())
    if said.event_time_ms is None:
        expected = replace(expected, event_time_ms=heard.event_time_ms)
    assert heard == replace(expected, expires_s=heard.expires_s), f"{writer} to {reader}"


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("writer", PROTOCOLS)
@pytest.mark.parametrize("when", ["live", "history"])
def test_a_full_message_arrives_with_every_field(speakers: dict[str, Any], writer: str, reader: str, when: str) -> None:
    topic = fresh_topic()
    said = speakers[writer].sayable(replace(FULL, topic=topic))
    if when == "history":
        speakers[writer].say(said)
        with speakers[reader].history(topic) as ear:
            heard = ear.hear()
    else:
        speakers[writer].say(Message(topic, b"first"))  # so that Kafka's consumer finds the topic
        with speakers[reader].listen(topic) as ear:
            speakers[writer].say(said)
            heard = ear.hear()
    same(said, heard, writer=writer, reader=reader)


CORNERS = {
    "empty value": Message("", b""),
    "null value": Message("", None, key=b"k"),
    "binary value": Message("", bytes(range(256))),
    "binary key": Message("", b"v", key=b"\xff\x00\xfe"),
    "binary header": Message("", b"v", headers=[("h", b"\xff\xfe\x00")]),
    "duplicate headers": Message("", b"v", headers=[("h", b"1"), ("h", b"2")]),
    "null header": Message("", b"v", headers=[("h", None)]),
    "empty header": Message("", b"v", headers=[("h", b"")]),
    "header named like a mark": Message("", b"v", headers=[("h;b64", b"x")]),
    "binary correlation": Message("", b"v", correlation=b"\xff\x00"),
}


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("writer", PROTOCOLS)
@pytest.mark.parametrize("corner", CORNERS)
def test_what_is_easily_lost_is_not(speakers: dict[str, Any], writer: str, reader: str, corner: str) -> None:
    topic = fresh_topic()
    said = speakers[writer].sayable(replace(CORNERS[corner], topic=topic))
    speakers[writer].say(said)
    with speakers[reader].history(topic) as ear:
        same(said, ear.hear(), writer=writer, reader=reader)


NAMES = [
    "a/b",
    "/a//b/",
    "10.0.0.1/x",
    "dev_1/te_mp",
    "a b/c d",
    "größe/温度",
    "a__b",
    "x_x20/y",
    "50%/of%2F",
    "/".join("abcdefghij"[n % 10] for n in range(200)),
]


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("writer", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_survive(speakers: dict[str, Any], writer: str, reader: str, name: str) -> None:
    topic = f"{uuid.uuid4().hex[:8]}/{name}"
    speakers[writer].say(Message(topic, b"v"))
    with speakers[reader].history(topic) as ear:
        assert ear.hear().value == b"v"


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("writer", PROTOCOLS)
def test_order_per_topic_holds(speakers: dict[str, Any], writer: str, reader: str) -> None:
    topic = fresh_topic()
    for n in range(50):
        speakers[writer].say(Message(topic, b"%d" % n))
    with speakers[reader].history(topic) as ear:
        assert [ear.hear().value for _ in range(50)] == [b"%d" % n for n in range(50)]
