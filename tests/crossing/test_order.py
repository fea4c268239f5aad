"""Order per topic holds in every pair, live and from history, however topics and writers are mixed."""

from __future__ import annotations

import uuid

import pytest

from tests.crossing.message import Message, Speaker
from tests.crossing.speakers import PROTOCOLS, WITH_HISTORY

TOPICS, MESSAGES = 4, 30


@pytest.mark.parametrize("writer", PROTOCOLS)
def test_one_writer_of_many_topics(speakers: dict[str, Speaker], writer: str) -> None:
    run = uuid.uuid4().hex[:8]
    topics = [f"order/{run}/{n}" for n in range(TOPICS)]
    for topic in topics:
        speakers[writer].say(Message(topic, b"first"))
    ears = {reader: speakers[reader].listen(*topics) for reader in PROTOCOLS}
    for n in range(MESSAGES):
        for topic in topics:
            speakers[writer].say(Message(topic, b"%d" % n))
    expected = [b"%d" % n for n in range(MESSAGES)]
    for reader, ear in ears.items():
        with ear:
            for topic in topics:
                assert [ear.hear(topic).message.value for _ in range(MESSAGES)] == expected, (reader, topic)
    for reader in WITH_HISTORY:
        with speakers[reader].history(*topics) as ear:
            for topic in topics:
                found = [ear.hear(topic).message.value for _ in range(MESSAGES + 1)]
                assert found == [b"first", *expected], (reader, topic)


def test_all_readers_see_all_writers_of_one_topic_in_the_same_order(speakers: dict[str, Speaker]) -> None:
    topic = f"order/{uuid.uuid4().hex[:8]}/mixed"
    speakers["mqtt"].say(Message(topic, b"first"))
    ears = {reader: speakers[reader].listen(topic) for reader in PROTOCOLS}
    said = [f"{writer} {n}".encode() for n in range(MESSAGES) for writer in PROTOCOLS]
    for n in range(MESSAGES):
        for writer in PROTOCOLS:
            speakers[writer].say(Message(topic, f"{writer} {n}".encode()))
    for reader, ear in ears.items():
        with ear:
            assert [ear.hear(topic).message.value for _ in said] == said, reader
    for reader in WITH_HISTORY:
        with speakers[reader].history(topic) as ear:
            assert [ear.hear(topic).message.value for _ in range(len(said) + 1)][1:] == said, reader
