"""kill -9 under load: nothing acked is lost, nothing is there twice, transactions are whole or not at all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from mainstem.testing import BrokerProcess
from tests.protocol.kafka.clients import consumer, create_topic, producer, send, take, unique

KILLS = 3
# librdkafka 2.16 "re-bootstraps" when its only broker is away, and can then wait for its own broker thread for ever.
SAME_BROKER = {"metadata.recovery.strategy": "none"}


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


def test_an_idempotent_producer_loses_nothing_and_repeats_nothing(broker_process: BrokerProcess) -> None:
    broker, topic = broker_process, unique("idem")
    create_topic(broker, topic)
    acked: list[bytes] = []
    stop = threading.Event()
    sender = producer(broker, enable_idempotence=True, linger_ms=2, message_timeout_ms=120_000)

    def load() -> None:
        n = 0
        while not stop.is_set():
            value = b"%d" % n
            sender.produce(
                topic, value, on_delivery=lambda error, message: error is None and acked.append(message.value())
            )
            sender.poll(0)
            n += 1
            stop.wait(0.0005)

    loader = threading.Thread(target=load)
    loader.start()
    for _ in range(KILLS):
        goal = len(acked) + 300
        while len(acked) < goal:
            time.sleep(0.01)
        broker.kill()
        broker.start()
    stop.set()
    loader.join()
    assert sender.flush(90) == 0
    stored = values_of(broker, topic)
    assert not [value for value, times in Counter(stored).items() if times > 1]
    assert set(acked) <= set(stored)
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


def test_read_process_write_is_exactly_once(broker_process: BrokerProcess) -> None:
    broker = broker_process
    source, target, group = unique("in"), unique("out"), unique("g")
    create_topic(broker, source, 2)
    create_topic(broker, target)
    count = 600
    send(broker, source, [b"%d" % n for n in range(count)])
    copier = Copier(broker, source, target, group)
    for _ in range(KILLS):
        goal = min(copier.committed + 100, count)
        deadline = time.monotonic() + 60
        while copier.committed < goal and time.monotonic() < deadline:
            time.sleep(0.005)
        broker.kill()
        broker.start()
    expected = sorted(b"copy of %d" % n for n in range(count))
    reader = consumer(broker, isolation_level="read_committed")
    reader.assign([TopicPartition(target, 0, 0)])
    copies = [message.value() for message in take(reader, count, 100)]
    copier.stop()
    reader.close()
    assert sorted(copies) == expected
    assert sorted(values_of(broker, target, isolation_level="read_committed")) == expected


def test_committed_offsets_and_group_membership_survive(broker_process: BrokerProcess) -> None:
    broker, topic, group = broker_process, unique("offsets"), unique("g")
    create_topic(broker, topic)
    send(broker, topic, [b"0", b"1", b"2"])
    reader = consumer(broker, group_id=group, session_timeout_ms=6_000, **SAME_BROKER)
    reader.subscribe([topic])
    take(reader, 2)
    reader.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    broker.kill()
    broker.start()
    assert take(reader, 1)[0].value() == b"2"  # the same member goes on
    reader.close()
    again = consumer(broker, group_id=group)
    again.subscribe([topic])
    assert take(again, 1)[0].value() == b"2"
    again.close()


def test_a_repeat_across_a_crash_is_still_a_repeat(broker_process: BrokerProcess) -> None:
    from tests.protocol.kafka.raw import RawClient
    from tests.protocol.kafka.test_idempotence import batch, producer_id

    broker, topic = broker_process, unique("repeat")
    create_topic(broker, topic)
    with RawClient(broker) as raw:
        writer = producer_id(raw)
        first = raw.produce(topic, batch(writer, 0, 3))
    for stop in (broker.kill, broker.stop):
        stop()
        broker.start()
        with RawClient(broker) as raw:
            again = raw.produce(topic, batch(writer, 0, 3))
            assert (again.error_code, again.base_offset) == (0, first.base_offset)
    with RawClient(broker) as raw:
        assert raw.produce(topic, batch(writer, 3)).error_code == 0
        assert producer_id(raw) > writer


def test_an_open_transaction_stays_open_across_a_crash_and_can_be_committed(broker_process: BrokerProcess) -> None:
    broker, topic = broker_process, unique("open")
    create_topic(broker, topic)
    sender = producer(broker, transactional_id=unique("id"), transaction_timeout_ms=60_000)
    sender.init_transactions(20)
    sender.begin_transaction()
    sender.produce(topic, b"before the crash")
    assert sender.flush(20) == 0
    broker.kill()
    broker.start()
    send(broker, topic, [b"plain"])
    sender.produce(topic, b"after the crash")
    sender.commit_transaction(60)
    found = values_of(broker, topic, isolation_level="read_committed")
    assert found == [b"before the crash", b"plain", b"after the crash"]
