"""A topic moves between engines, layouts and stems while idempotent, transactional, MQTT and AMQP writers go on: none of
them notices, every acknowledged message is there once and in its writer's order, and nothing that was aborted is."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mainstem.model.topic import kafka_name
from mainstem.protocols.kafka.messages import InitProducerIdRequest
from mainstem.testing import BrokerProcess
from tests.crossing.commands import WAIT_S, http
from tests.crossing.message import Message
from tests.crossing.speakers import speakers_of
from tests.protocol.kafka.raw import RawClient, batch_of

PLACES = [(engine, layout) for engine in ("segment", "rocksdb", "memory") for layout in ("shared", "dedicated")]
PAIRS = list(itertools.permutations(PLACES, 2))
QUICK = [PAIRS[0], (("memory", "dedicated"), ("segment", "shared")), (("segment", "shared"), ("rocksdb", "shared"))]
OUT_OF_ORDER = 45
END = b"end"  # said last: whoever heard it has heard all before it, and none of that twice


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("moves") / "data") as running:
        yield running


def alter(broker: BrokerProcess, topic: str, **settings: Any) -> None:
    http(broker, "PATCH", f"/v1/topics/{topic.replace('/', '%2F')}", {"settings": settings})


class Writers:
    """Each says its own numbers, in order, until told to stop; `said` is what was acknowledged."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self.said: dict[str, list[bytes]] = {}
        self._threads: list[threading.Thread] = []
        for name, write in {
            "idempotent": self._idempotent,
            "transactional": self._transactional,
            "mqtt": lambda said: self._plain("mqtt", said),
            "amqp": lambda said: self._plain("amqp", said),
        }.items():
            self.said[name] = []
            self._threads.append(threading.Thread(target=self._run, args=(name, write)))
        for thread in self._threads:
            thread.start()

    def _run(self, name: str, write: Callable[[list[bytes]], None]) -> None:
        try:
            write(self.said[name])
        except BaseException as failure:
            self._failures.append(failure)

    def _producer(self, **settings: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._broker.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,
                **settings,
            }
        )

    def _send(self, producer: Producer, values: list[bytes]) -> None:
        failed: list[Any] = []
        for value in values:
            producer.produce(
                kafka_name(self._topic.encode()), value, on_delivery=lambda e, _: failed.append(e) if e else None
            )
        assert producer.flush(WAIT_S) == 0
        assert not failed, failed

    def _idempotent(self, said: list[bytes]) -> None:
        producer = self._producer()
        for number in itertools.count():
            if self._stop.is_set():
                return
            values = [b"idempotent %d %d" % (number, n) for n in range(3)]
            self._send(producer, values)
            said += values

    def _transactional(self, said: list[bytes]) -> None:
        producer = self._producer(**{"transactional.id": f"txn-{uuid.uuid4().hex[:8]}"})
        producer.init_transactions(WAIT_S)
        for number in itertools.count():
            if self._stop.is_set():
                return
            values = [b"transactional %d %d" % (number, n) for n in range(2)]
            producer.begin_transaction()
            if number % 3 == 2:
                self._send(producer, [b"aborted %d" % number])
                producer.abort_transaction(WAIT_S)
                continue
            self._send(producer, values)
            producer.commit_transaction(WAIT_S)
            said += values

    def _plain(self, protocol: str, said: list[bytes]) -> None:
        speaker = speakers_of(self._broker)[protocol]
        for number in itertools.count():
            if self._stop.is_set():
                break
            value = f"{protocol} {number}".encode()
            speaker.say(Message(self._topic, value))
            said.append(value)
        speaker.close()

    def go_on(self) -> None:
        """Until each has said something more."""
        before = {name: len(said) for name, said in self.said.items()}
        deadline = time.monotonic() + 2 * WAIT_S
        while any(len(said) == before[name] for name, said in self.said.items()):
            assert not self._failures, self._failures
            assert time.monotonic() < deadline, f"stopped at {before}"
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
            assert not thread.is_alive(), "a writer hangs"
        assert not self._failures, self._failures


def committed(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "r", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(kafka_name(topic.encode()), 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def check(broker: BrokerProcess, topic: str, said: dict[str, list[bytes]]) -> None:
    total = sum(map(len, said.values()))
    speakers = speakers_of(broker)
    speakers["mqtt"].say(Message(topic, END))
    found: dict[str, list[bytes | None]] = {"kafka": [*committed(broker, topic, total + 1)]}
    assert found["kafka"].pop() == END
    for reader in ("mqtt", "amqp"):
        with speakers[reader].history(topic) as ear:
            found[reader] = [heard.message.value for heard in ear.hear_until(topic, END)]
    for reader, values in found.items():
        assert len(values) == total, reader
        for name, mine in said.items():
            assert [v for v in values if v is not None and v.startswith(name.encode())] == mine, (name, reader)


def move(broker: BrokerProcess, first: dict[str, Any], second: dict[str, Any]) -> None:
    topic = f"moving/{uuid.uuid4().hex[:8]}"
    http(broker, "POST", "/v1/topics", {"name": topic, "settings": first})
    writers = Writers(broker, topic)
    for place in (second, first, second):
        writers.go_on()
        alter(broker, topic, **place)
    writers.go_on()
    writers.stop()
    check(broker, topic, writers.said)


def place(engine: str, layout: str) -> dict[str, Any]:
    return {"engine": engine, "layout": layout}


@pytest.mark.parametrize(("first", "second"), QUICK)
def test_writers_go_on_while_a_topic_moves_there_and_back(
    broker: BrokerProcess, first: tuple[str, str], second: tuple[str, str]
) -> None:
    move(broker, place(*first), place(*second))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [pair for pair in PAIRS if pair not in QUICK])
def test_writers_go_on_between_all_pairs_of_engine_and_layout(
    broker: BrokerProcess, first: tuple[str, str], second: tuple[str, str]
) -> None:
    move(broker, place(*first), place(*second))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["segment", "rocksdb", "memory"])
def test_writers_go_on_between_stems_of_one_engine(broker: BrokerProcess, engine: str) -> None:
    move(broker, place(engine, "shared"), {**place(engine, "shared"), "retention_ms": 3_600_000})


def test_a_producer_is_known_in_the_new_log_by_its_last_batches_also_after_two_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        http(broker, "POST", "/v1/topics", {"name": "t", "settings": {"layout": "shared"}})
        with RawClient(broker) as raw:  # type: ignore[arg-type]
            producer = raw.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None)).producer_id

            def produce(raw: RawClient, sequence: int) -> Any:
                batch = batch_of([b"%d" % sequence], producer_id=producer, producer_epoch=0, base_sequence=sequence)
                return raw.produce("t", batch)

            assert produce(raw, 0).error_code == 0
            alter(broker, "t", layout="dedicated")
            offset = produce(raw, 1).base_offset
            alter(broker, "t", layout="shared")
            assert (produce(raw, 1).error_code, produce(raw, 1).base_offset) == (0, offset), "a repeat"
            assert produce(raw, 3).error_code == OUT_OF_ORDER
        for _ in range(2):
            broker.kill()
            broker.start()
        with RawClient(broker) as raw:  # type: ignore[arg-type]
            assert (produce(raw, 1).error_code, produce(raw, 1).base_offset) == (0, offset)
            assert produce(raw, 3).error_code == OUT_OF_ORDER
            assert produce(raw, 2).error_code == 0


def test_a_move_waits_for_an_open_transaction(broker: BrokerProcess) -> None:
    topic = f"moving/{uuid.uuid4().hex[:8]}"
    http(broker, "POST", "/v1/topics", {"name": topic, "settings": place("segment", "dedicated")})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "held", "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(kafka_name(topic.encode()), b"kept")
    assert producer.flush(WAIT_S) == 0
    moved = threading.Thread(target=alter, args=(broker, topic), kwargs=place("rocksdb", "dedicated"))
    moved.start()
    moved.join(0.3)
    assert moved.is_alive()
    producer.commit_transaction(WAIT_S)
    moved.join(WAIT_S)
    assert not moved.is_alive()
    facts = http(broker, "GET", f"/v1/topics/{topic.replace('/', '%2F')}")
    assert facts["settings"]["engine"]["value"] == "rocksdb"
    assert committed(broker, topic, 1) == [b"kept"]
