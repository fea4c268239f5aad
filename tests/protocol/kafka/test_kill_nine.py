"""kill -9 under load: nothing acked is lost, nothing is there twice, transactions are whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from confluent_kafka import TopicPartition

from mainstem.testing import BrokerProcess
from tests.protocol.kafka.clients import consumer, create_topic, producer, send, take, unique
from tests.protocol.kafka.crash_loads import SAME_BROKER, check_exactly_once, check_idempotent_producer, values_of

KILLS = 3


def killing(broker: BrokerProcess) -> Callable[[], None]:
    def crash() -> None:
        broker.kill()
        broker.start()

    return crash


def test_an_idempotent_producer_loses_nothing_and_repeats_nothing(broker_process: BrokerProcess) -> None:
    check_idempotent_producer(broker_process, killing(broker_process), KILLS)


def test_read_process_write_is_exactly_once(broker_process: BrokerProcess) -> None:
    check_exactly_once(broker_process, killing(broker_process), KILLS)


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


def test_the_end_of_a_small_log_jumps_by_little_and_the_lag_counts_records(broker_process: BrokerProcess) -> None:
    """Offsets that may have been shown are not used again; whoever reckons end minus start is misled by few."""
    broker, topic, group = broker_process, unique("small"), unique("g")
    create_topic(broker, topic)
    send(broker, topic, [b"0", b"1", b"2"])
    reader = consumer(broker, group_id=group, **SAME_BROKER)
    reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    for kills in range(1, 4):
        broker.kill()
        broker.start()
        _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        assert 3 <= end <= 3 + 256 * kills
    reader.close()
    facts = httpx.get(f"{broker.http_url}/v1/groups/{group}").json()
    assert facts["lag"] == 2, "records are counted, not offsets"
