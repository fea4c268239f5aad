"""Order per topic holds in every pair, live and from history, however topics and writers are mixed."""

from __future__ import annotations

import uuid

import pytest

from tests.crossing.message import Ear, Message, Speaker
from tests.crossing.speakers import PROTOCOLS, WITH_HISTORY

TOPICS, MESSAGES = 4, 30
END = b"end"  # said last: whoever heard it has heard all before it, and none of that twice


def heard(ear: Ear, topic: str) -> list[bytes | None]:
    return [one.message.value for one in ear.hear_until(topic, END)]


@pytest.mark.parametrize("writer", PROTOCOLS)
def test_one_writer_of_many_topics(speakers: dict[str, Speaker], writer: str) -> None:
    run = uuid.uuid4().hex[:8]
    topics = [f"order/{run}/{n}" for n in range(TOPICS)]
    for topic in topics:
        speakers[writer].say(Message(topic, b"first"))
    ears = {reader: speakers[reader].listen(*topics) for reader in PROTOCOLS}
    expected = [b"%d" % n for n in range(MESSAGES)]
    for value in (*expected, END):
        for topic in topics:
            speakers[writer].say(Message(topic, value))
    for reader, ear in ears.items():
        with ear:
            for topic in topics:
                assert heard(ear, topic) == expected, (reader, topic)
            assert ear.waiting() == [], reader
    for reader in WITH_HISTORY:
        with speakers[reader].history(*topics) as ear:
            for topic in topics:
                assert heard(ear, topic) == [b"first", *expected], (reader, topic)
            assert ear.waiting() == [], reader


def test_all_readers_see_all_writers_of_one_topic_in_the_same_order(speakers: dict[str, Speaker]) -> None:
    topic = f"order/{uuid.uuid4().hex[:8]}/mixed"
    speakers["mqtt"].say(Message(topic, b"first"))
    ears = {reader: speakers[reader].listen(topic) for reader in PROTOCOLS}
    said = [f"{writer} {n}".encode() for n in range(MESSAGES) for writer in PROTOCOLS]
    for n in range(MESSAGES):
        for writer in PROTOCOLS:
            speakers[writer].say(Message(topic, f"{writer} {n}".encode()))
    speakers["mqtt"].say(Message(topic, END))
    for reader, ear in ears.items():
        with ear:
            assert heard(ear, topic) == said, reader
    for reader in WITH_HISTORY:
        with speakers[reader].history(topic) as ear:
            assert heard(ear, topic) == [b"first", *said], reader
