"""Kafka clients that go on while their broker dies and comes back, and what must hold afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mainstem.testing import BrokerProcess
from tests.protocol.kafka.clients import consumer, create_topic, producer, send, take, unique

# librdkafka 2.16 "re-bootstraps" when its only broker is away, and can then wait for its own broker thread for ever.
SAME_BROKER = {"metadata.recovery.strategy": "none"}
ACKS_EACH = 300  # before the broker dies

Crash = Callable[[], None]


def values_of(broker: BrokerProcess, topic: str, **settings: Any) -> list[bytes]:
    """Everything in the topic's one partition, up to its end."""
    source = consumer(broker, enable_partition_eof=True, **settings)
    source.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = source.poll(1)
        if message is None:
            continue
        if message.error():
            if message.error().name() == "_PARTITION_EOF":
                source.close()
                return found
            continue
        found.append(message.value())
    raise AssertionError("the end was never reached")


class IdempotentLoad:
    """One idempotent producer and the ledger of what it was told was kept."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._topic = topic
        self._stop = threading.Event()
        self._sender = producer(broker, enable_idempotence=True, linger_ms=2, message_timeout_ms=120_000)
        self.acked: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            self._sender.produce(self._topic, b"%d" % n, on_delivery=self._told)
            self._sender.poll(0)
            n += 1
            self._stop.wait(0.0005)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acked.append(message.value())

    def wait_for(self, count: int) -> None:
        goal, deadline = len(self.acked) + count, time.monotonic() + 60
        while len(self.acked) < goal:
            assert time.monotonic() < deadline, "nothing is acked any more"
            time.sleep(0.01)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._sender.flush(90) == 0


def check_idempotent_producer(broker: BrokerProcess, crash: Crash, crashes: int) -> None:
    """Nothing acked is lost, nothing is there twice, nothing overtakes."""
    topic = create_topic(broker, unique("idem"))
    load = IdempotentLoad(broker, topic)
    try:
        for _ in range(crashes):
            load.wait_for(ACKS_EACH)
            crash()
    finally:
        load.finish()
    stored = values_of(broker, topic)
    assert not [value for value, times in Counter(stored).items() if times > 1]
    assert len(load.acked) >= crashes * ACKS_EACH
    assert set(load.acked) <= set(stored)
    assert [int(value) for value in stored] == sorted(int(value) for value in stored)


class Copier:
    """Read, process, write: each record of `source` once in `target`, whatever happens to the broker."""

    def __init__(self, broker: BrokerProcess, source: str, target: str, group: str) -> None:
        self._broker, self._source, self._target, self._group = broker, source, target, group
        self._transactional_id = unique("copier")
        self.committed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            reader: Consumer | None = None
            try:
                reader = consumer(self._broker, group_id=self._group, session_timeout_ms=6_000, **SAME_BROKER)
                reader.subscribe([self._source])
                writer = producer(
                    self._broker,
                    transactional_id=self._transactional_id,
                    transaction_timeout_ms=10_000,
                    **SAME_BROKER,
                )
                writer.init_transactions(30)
                while not self._stop.is_set():
                    self._copy(reader, writer)
            except KafkaException:
                continue  # whatever it was: begin again from what is committed
            finally:
                if reader is not None:
                    reader.close()

    def _copy(self, reader: Consumer, writer: Producer) -> None:
        messages = [message for message in reader.consume(20, 0.5) if not message.error()]
        if not messages:
            return
        writer.begin_transaction()
        for message in messages:
            writer.produce(self._target, b"copy of " + message.value())
        ends = {m.partition(): m.offset() + 1 for m in messages}
        offsets = [TopicPartition(self._source, partition, end) for partition, end in ends.items()]
        writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 10)
        writer.commit_transaction(10)
        self.committed += len(messages)


def check_exactly_once(broker: BrokerProcess, crash: Crash, crashes: int, count: int = 600) -> None:
    """Each record that went in comes out once, committed."""
    source, target = create_topic(broker, unique("in"), 2), create_topic(broker, unique("out"))
    send(broker, source, [b"%d" % n for n in range(count)])
    copier = Copier(broker, source, target, unique("g"))
    try:
        for _ in range(crashes):
            goal = min(copier.committed + count // (2 * crashes), count)
            deadline = time.monotonic() + 60
            while copier.committed < goal and time.monotonic() < deadline:
                time.sleep(0.005)
            crash()
        reader = consumer(broker, isolation_level="read_committed")
        reader.assign([TopicPartition(target, 0, 0)])
        copies = [message.value() for message in take(reader, count, 100)]
        reader.close()
    finally:
        copier.stop()
    expected = sorted(b"copy of %d" % n for n in range(count))
    assert sorted(copies) == expected
    assert sorted(values_of(broker, target, isolation_level="read_committed")) == expected
