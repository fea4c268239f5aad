"""A live topic moves to another engine or layout while clients of all protocols go on; its offsets are kept."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from mainstem.testing import BrokerProcess
from tests.crossing.commands import http, mainstem
from tests.crossing.message import Ear, Message, Speaker
from tests.crossing.speakers import PROTOCOLS, WITH_HISTORY, speakers_of

MOVES = [
    ("--layout", "dedicated"),
    ("--engine", "memory"),
    ("--engine", "rocksdb"),
    ("--layout", "shared"),
    ("--engine", "segment"),
]
ROUNDS_PER_STEP = 3
END = b"end"  # said last: whoever heard it has heard all before it, and none of that twice


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("moves") / "data") as running:
        yield running


@pytest.fixture
def speakers(broker: BrokerProcess) -> Iterator[dict[str, Speaker]]:
    made = speakers_of(broker)
    yield made
    for speaker in made.values():
        speaker.close()


class Publishers:
    """Each protocol says its own numbers, in order, until told to stop."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.said: dict[str, list[bytes]] = {protocol: [] for protocol in PROTOCOLS}
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(broker, topic, name)) for name in PROTOCOLS]
        for thread in self._threads:
            thread.start()

    def _run(self, broker: BrokerProcess, topic: str, protocol: str) -> None:
        try:
            speaker = speakers_of(broker)[protocol]
            for number in itertools.count():
                if self._stop.is_set():
                    break
                value = f"{protocol} {number}".encode()
                speaker.say(Message(topic, value))
                self.said[protocol].append(value)
            speaker.close()
        except BaseException as failure:
            self._failures.append(failure)

    def count(self) -> int:
        assert not self._failures, self._failures
        return min(len(values) for values in self.said.values())

    def wait_for(self, count: int) -> None:
        stop = threading.Event()
        for _ in range(2_000):
            if self.count() >= count:
                return
            stop.wait(0.01)
        raise AssertionError(f"{ {name: len(values) for name, values in self.said.items()} } after 20 s")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a publisher hangs"
        self.count()


def heard_by(ear: Ear, topic: str, count: int) -> list[Any]:
    return [ear.hear(topic) for _ in range(count)]


def in_order(values: list[bytes], said: dict[str, list[bytes]]) -> None:
    """Each publisher's messages once and in its order, and nothing else."""
    assert len(values) == sum(map(len, said.values()))
    for protocol, mine in said.items():
        assert [value for value in values if value.startswith(protocol.encode())] == mine, protocol


def test_clients_of_all_protocols_go_on_while_a_topic_moves(
    broker: BrokerProcess, speakers: dict[str, Speaker]
) -> None:
    topic = f"moving/{uuid.uuid4().hex[:8]}"
    speakers["mqtt"].say(Message(topic, b"first"))
    ears = {reader: speakers[reader].listen(topic) for reader in PROTOCOLS}
    publishers = Publishers(broker, topic)
    for flag, value in MOVES:
        publishers.wait_for(publishers.count() + ROUNDS_PER_STEP)
        mainstem(broker, "topic", "alter", topic, flag, value)
    publishers.wait_for(publishers.count() + ROUNDS_PER_STEP)
    publishers.stop()
    speakers["mqtt"].say(Message(topic, END))
    live: dict[str, list[Any]] = {}
    for reader, ear in ears.items():
        with ear:
            live[reader] = ear.hear_until(topic, END)
        in_order([heard.message.value for heard in live[reader]], publishers.said)
    offsets = [heard.meta["offset"] for heard in live["kafka"]]
    assert offsets == sorted(set(offsets))
    for reader in WITH_HISTORY:
        with speakers[reader].history(topic) as ear:
            first, *history = ear.hear_until(topic, END)
        assert first.message.value == b"first", reader
        assert [h.message.value for h in history] == [h.message.value for h in live["kafka"]], reader
        if reader == "kafka":
            assert [h.meta["offset"] for h in history] == offsets


def test_the_log_of_every_span_is_read_after_a_restart(start_broker: Any) -> None:
    """Memory keeps nothing over a restart, so it is not among these."""
    broker = start_broker()
    speakers = speakers_of(broker)
    topic, values = "moved/t", []
    for n, (flag, value) in enumerate([move for move in MOVES if "memory" not in move]):
        for protocol in WITH_HISTORY:
            values.append(f"{n} {protocol}".encode())
            speakers[protocol].say(Message(topic, values[-1]))
        mainstem(broker, "topic", "alter", topic, flag, value)
    values.append(b"last")
    speakers["mqtt"].say(Message(topic, b"last"))
    with speakers["kafka"].history(topic) as ear:
        before = heard_by(ear, topic, len(values))
    broker.restart()
    speakers = speakers_of(broker)
    for reader in WITH_HISTORY:
        with speakers[reader].history(topic) as ear:
            after = heard_by(ear, topic, len(values))
        assert [heard.message.value for heard in after] == values, reader
        if reader == "kafka":
            assert [h.meta["offset"] for h in after] == [h.meta["offset"] for h in before]


def test_a_queue_and_a_view_keep_what_they_had_when_the_topic_moves(
    broker: BrokerProcess, speakers: dict[str, Speaker]
) -> None:
    name = f"held{uuid.uuid4().hex[:8]}"
    topic = f"{name}/t"
    http(broker, "POST", "/v1/queues", {"name": name, "filter": f"{name}/#"})
    http(broker, "POST", "/v1/views", {"name": f"v{name}", "filter": f"{name}/#"})
    speakers["mqtt"].say(Message(topic, b"1"))
    mainstem(broker, "topic", "alter", topic, "--layout", "dedicated")
    speakers["amqp"].say(Message(topic, b"2"))
    mainstem(broker, "topic", "alter", topic, "--engine", "rocksdb")
    speakers["kafka"].say(Message(topic, b"3"))
    assert http(broker, "GET", f"/v1/queues/{name}")["ready"] == 3
    with speakers["mqtt"].listen(f"$queue/{name}") as ear:
        assert [heard.message.value for heard in heard_by(ear, topic, 3)] == [b"1", b"2", b"3"]
    with speakers["mqtt"].history(f"v{name}") as ear:
        assert [heard.message.value for heard in heard_by(ear, topic, 3)] == [b"1", b"2", b"3"]
