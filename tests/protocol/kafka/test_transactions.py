"""Transactions: all or nothing, fencing, read_committed in Kafka and beyond it, offsets sent along."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from mainstem.protocols.kafka.messages import (
    EndTxnRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from mainstem.testing import Broker
from tests.protocol.kafka.clients import consumer, create_topic, producer, read_all, send, take, unique
from tests.protocol.kafka.raw import RawClient, batch_of


def transactional(broker: Broker, transactional_id: str, **settings: object) -> Producer:
    sender = producer(broker, **{"transactional_id": transactional_id, **settings})
    sender.init_transactions(20)
    return sender


def committed(broker: Broker, topic: str, count: int) -> list[bytes]:
    return [m.value() for m in read_all(broker, topic, count, isolation_level="read_committed")]


def test_only_committed_records_are_read_and_in_order(broker: Broker) -> None:
    topic = create_topic(broker, unique("txn"))
    sender = transactional(broker, unique("id"))
    for round_number, commit in enumerate([True, False, True]):
        sender.begin_transaction()
        for n in range(3):
            sender.produce(topic, b"%d-%d" % (round_number, n))
        sender.flush(10)
        sender.commit_transaction(10) if commit else sender.abort_transaction(10)
    send(broker, topic, [b"plain"])
    expected = [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2", b"plain"]
    assert committed(broker, topic, 7) == expected
    every = read_all(broker, topic, 10, isolation_level="read_uncommitted")
    assert len(every) == 10


def test_readers_of_uncommitted_records_do_not_wait_for_an_open_transaction(broker: Broker) -> None:
    topic = create_topic(broker, unique("open"))
    send(broker, topic, [b"plain"])
    sender = transactional(broker, unique("id"))
    sender.begin_transaction()
    for number in range(3):
        sender.produce(topic, b"open %d" % number)
        sender.flush(10)
        every = read_all(broker, topic, number + 2, isolation_level="read_uncommitted", fetch_message_max_bytes=1)
        assert len(every) == number + 2
    assert committed(broker, topic, 1) == [b"plain"]
    sender.abort_transaction(10)


def test_http_readers_and_views_are_shown_committed_records_only(broker: Broker) -> None:
    topic, view = create_topic(broker, unique("browsed")), unique("view")
    sender = transactional(broker, unique("id"))
    for round_number, commit in enumerate([False, True]):
        sender.begin_transaction()
        sender.produce(topic, b"round %d" % round_number)
        sender.flush(10)
        sender.commit_transaction(10) if commit else sender.abort_transaction(10)
    sender.begin_transaction()
    sender.produce(topic, b"open")
    sender.flush(10)
    send(broker, topic, [b"behind it"])

    def browsed() -> list[str]:
        answer = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": topic, "from": "earliest"})
        return [one["value"] for one in answer.json()["items"]]

    made = httpx.post(f"{broker.http_url}/v1/views", json={"name": view, "filter": topic})
    assert made.status_code < 300, made.text
    assert browsed() == ["round 1"]
    slot = consumer(broker).list_topics(view, timeout=10).topics[view].partitions.keys() - {
        0
    }  # the stem's is the first
    assert [m.value() for m in read_all(broker, view, 1, partition=max(slot))] == [b"round 1"]
    sender.abort_transaction(10)
    assert browsed() == ["round 1", "behind it"]
    assert [m.value() for m in read_all(broker, view, 2, partition=max(slot))] == [b"round 1", b"behind it"]


def test_an_open_transaction_hides_what_follows_until_it_ends(broker: Broker) -> None:
    topic = create_topic(broker, unique("lso"))
    sender = transactional(broker, unique("id"))
    sender.begin_transaction()
    sender.produce(topic, b"in the transaction")
    sender.flush(10)
    send(broker, topic, [b"behind it"])
    reader = consumer(broker, isolation_level="read_committed")
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(1.5) is None
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 0)
    sender.abort_transaction(10)
    assert take(reader, 1)[0].value() == b"behind it"
    reader.close()


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(broker: Broker) -> None:
    topic, transactional_id = create_topic(broker, unique("fence")), unique("id")
    zombie = transactional(broker, transactional_id)
    zombie.begin_transaction()
    zombie.produce(topic, b"from the zombie")
    zombie.flush(10)
    successor = transactional(broker, transactional_id)
    successor.begin_transaction()
    successor.produce(topic, b"from its successor")
    successor.commit_transaction(10)
    with pytest.raises(KafkaException) as failure:
        zombie.commit_transaction(10)
    assert failure.value.args[0].fatal()
    assert failure.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError._FATAL)
    assert committed(broker, topic, 1) == [b"from its successor"]


def test_offsets_travel_with_the_transaction(broker: Broker) -> None:
    source, target, group = create_topic(broker, unique("in")), create_topic(broker, unique("out")), unique("g")
    send(broker, source, [b"%d" % n for n in range(6)])
    reader = consumer(broker, group_id=group)
    reader.subscribe([source])
    sender = transactional(broker, unique("id"))
    for commit in (False, True):
        sender.begin_transaction()
        messages = take(reader, 3)
        for message in messages:
            sender.produce(target, b"copy of " + message.value())
        ends = [TopicPartition(source, 0, messages[-1].offset() + 1)]
        sender.send_offsets_to_transaction(ends, reader.consumer_group_metadata(), 10)
        if commit:
            sender.commit_transaction(10)
        else:
            sender.abort_transaction(10)
            assert reader.committed([TopicPartition(source, 0)], 10)[0].offset == -1001
            reader.seek(TopicPartition(source, 0, 0))
    assert reader.committed([TopicPartition(source, 0)], 10)[0].offset == 3
    assert committed(broker, target, 3) == [b"copy of 0", b"copy of 1", b"copy of 2"]
    reader.close()


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker) -> None:
    topic = create_topic(broker, unique("timeout"))
    sender = transactional(broker, unique("id"), transaction_timeout_ms=1_000, message_timeout_ms=900)
    sender.begin_transaction()
    sender.produce(topic, b"too late")
    sender.flush(10)
    send(broker, topic, [b"behind it"])
    assert committed(broker, topic, 1) == [b"behind it"]  # comes once the open one is aborted


async def test_aiokafka_transactions(broker: Broker) -> None:
    topic = create_topic(broker, unique("aio"))
    sender = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=unique("id"))
    await sender.start()
    async with sender.transaction():
        await sender.send_and_wait(topic, b"kept")
    await sender.begin_transaction()
    await sender.send_and_wait(topic, b"dropped")
    await sender.abort_transaction()
    async with sender.transaction():
        await sender.send_and_wait(topic, b"kept too")
    await sender.stop()
    reader = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await reader.start()
    assert [(await reader.getone()).value for _ in range(2)] == [b"kept", b"kept too"]
    await reader.stop()


def test_kafka_python_transactions(broker: Broker) -> None:
    topic = create_topic(broker, unique("kp"))
    sender = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=unique("id"))
    sender.init_transactions()
    for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
        sender.begin_transaction()
        sender.send(topic, value).get(10)
        sender.commit_transaction() if commit else sender.abort_transaction()
    sender.close()
    reader = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    assert [next(reader).value for _ in range(2)] == [b"kept", b"kept too"]
    reader.close()


def test_transactions_and_producers_are_described(broker: Broker) -> None:
    topic, transactional_id = create_topic(broker, unique("describe")), unique("id")
    sender = transactional(broker, transactional_id)
    sender.begin_transaction()
    sender.produce(topic, b"v")
    sender.flush(10)
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    listed = {
        one["transactional_id"] if isinstance(one, dict) else one.transactional_id: one for one in _listed(client)
    }
    assert transactional_id in listed
    client.close()
    sender.abort_transaction(10)


def _listed(client: KafkaAdminClient) -> list[Any]:
    listed = client.list_transactions()
    return list(listed) if not isinstance(listed, dict) else [one for ones in listed.values() for one in ones]


def test_each_transaction_has_an_epoch_of_its_own_with_clients_that_know_it(broker: Broker) -> None:
    """KIP-890: partitions join by being written to, EndTxn returns the next epoch, a late write is fenced."""
    topic, transactional_id = create_topic(broker, unique("tv2")), unique("id")
    with RawClient(broker) as raw:
        ask = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        made = raw.ask("InitProducerId", 5, ask)
        producer_id, epoch = made.producer_id, made.producer_epoch

        def write(epoch: int, sequence: int, value: bytes) -> int:
            batch = batch_of(
                [value], attributes=16, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            part = ProduceRequest.PartitionProduceData(index=0, records=batch)
            data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
            request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=9_000, topic_data=[data])
            return int(raw.ask("Produce", 12, request).responses[0].partition_responses[0].error_code)

        assert write(epoch, 0, b"one") == 0
        end = EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
        ended = raw.ask("EndTxn", 5, end)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, producer_id, epoch + 1)
        repeated = raw.ask("EndTxn", 5, end)  # the answer was lost: the same again, and no second commit
        assert (repeated.error_code, repeated.producer_epoch) == (0, epoch + 1)
        assert write(epoch, 1, b"late") == 47
        assert write(epoch + 1, 0, b"two") == 0
        end.producer_epoch, end.committed = epoch + 1, False
        assert raw.ask("EndTxn", 5, end).error_code == 0
    assert committed(broker, topic, 1) == [b"one"]


def test_a_producer_whose_transaction_took_too_long_goes_on_after_aborting_it(broker: Broker) -> None:
    topic, transactional_id = create_topic(broker, unique("late")), unique("id")
    with RawClient(broker) as raw:
        made = raw.ask(
            "InitProducerId", 5, InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=500)
        )
        who = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        part = ProduceRequest.PartitionProduceData(
            index=0, records=batch_of([b"late"], attributes=16, base_sequence=0, **who)
        )
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=9_000, topic_data=[data])
        assert raw.ask("Produce", 12, request).responses[0].partition_responses[0].error_code == 0
        send(broker, topic, [b"behind it"])
        assert committed(broker, topic, 1) == [b"behind it"]  # comes once the open one is aborted
        end = EndTxnRequest(transactional_id=transactional_id, committed=False, **who)
        ended = raw.ask("EndTxn", 5, end)
        assert (ended.error_code, ended.producer_epoch) == (0, made.producer_epoch + 1)
        again = raw.ask(
            "InitProducerId",
            5,
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000, **who),
        )
        assert (again.error_code, again.producer_id) == (0, made.producer_id)


def test_latest_is_the_stable_end_for_readers_of_committed_records(broker: Broker) -> None:
    topic = create_topic(broker, unique("latest"))
    send(broker, topic, [b"0", b"1"])
    sender = transactional(broker, unique("id"))
    sender.begin_transaction()
    sender.produce(topic, b"open")
    sender.flush(10)
    with RawClient(broker) as raw:
        for level, expected in ((0, 3), (1, 2)):
            part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=level,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])],
            )
            assert raw.ask("ListOffsets", 7, request).topics[0].partitions[0].offset == expected
    sender.abort_transaction(10)


def test_mqtt_subscribers_see_committed_records_only(broker: Broker) -> None:
    mqtt = pytest.importorskip("paho.mqtt.client")
    topic = create_topic(broker, unique("crossing"))
    seen: list[bytes] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _, __, message: seen.append(message.payload)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    subscribed: list[int] = []
    client.on_subscribe = lambda *_: subscribed.append(1)
    client.subscribe(topic, 1)
    deadline = time.monotonic() + 10
    while not subscribed and time.monotonic() < deadline:
        time.sleep(0.02)
    sender = transactional(broker, unique("id"))
    for value, commit in ((b"dropped", False), (b"kept", True)):
        sender.begin_transaction()
        sender.produce(topic, value)
        sender.flush(10)
        sender.commit_transaction(10) if commit else sender.abort_transaction(10)
    while not seen and time.monotonic() < deadline + 10:
        time.sleep(0.02)
    client.loop_stop()
    client.disconnect()
    assert seen == [b"kept"]
