"""Idempotent producers: repeats are recognised, gaps refused, an unknown producer accepted."""

from __future__ import annotations

from mainstem.protocols.kafka.messages import InitProducerIdRequest
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, read_all, send, unique
from tests.protocol.kafka.raw import RawClient, batch_of

OUT_OF_ORDER, FENCED = 45, 47


def producer_id(raw: RawClient) -> int:
    return int(raw.ask("InitProducerId", 4, InitProducerIdRequest(transactional_id=None)).producer_id)


def batch(producer: int, sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    values = [b"%d" % (sequence + n) for n in range(count)]
    return batch_of(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_a_repeat_is_answered_with_the_first_ones_offset_and_not_stored(broker: Broker) -> None:
    topic = create_topic(broker, unique("repeat"))
    with RawClient(broker) as raw:
        producer = producer_id(raw)
        offsets = [raw.produce(topic, batch(producer, n * 2, 2)).base_offset for n in range(5)]
        assert offsets == [0, 2, 4, 6, 8]
        again = [raw.produce(topic, batch(producer, n * 2, 2)) for n in range(5)]
        assert [(one.error_code, one.base_offset) for one in again] == [(0, offset) for offset in offsets]
        assert raw.fetch(topic, 0).responses[0].partitions[0].high_watermark == 10


def test_a_gap_is_refused(broker: Broker) -> None:
    topic = create_topic(broker, unique("gap"))
    with RawClient(broker) as raw:
        producer = producer_id(raw)
        assert raw.produce(topic, batch(producer, 0)).error_code == 0
        assert raw.produce(topic, batch(producer, 2)).error_code == OUT_OF_ORDER
        assert raw.produce(topic, batch(producer, 1)).error_code == 0


def test_an_older_epoch_is_refused_and_a_newer_one_begins_at_zero(broker: Broker) -> None:
    topic = create_topic(broker, unique("epoch"))
    with RawClient(broker) as raw:
        producer = producer_id(raw)
        assert raw.produce(topic, batch(producer, 0, epoch=3)).error_code == 0
        assert raw.produce(topic, batch(producer, 1, epoch=2)).error_code == FENCED
        assert raw.produce(topic, batch(producer, 1, epoch=4)).error_code == OUT_OF_ORDER
        assert raw.produce(topic, batch(producer, 0, epoch=4)).error_code == 0


def test_an_unknown_producer_is_accepted_at_any_sequence(broker: Broker) -> None:
    topic = create_topic(broker, unique("unknown"))
    with RawClient(broker) as raw:
        assert raw.produce(topic, batch(987_654_321, 4_711)).error_code == 0
        assert raw.produce(topic, batch(987_654_321, 4_712)).error_code == 0


def test_sequences_wrap_around(broker: Broker) -> None:
    topic = create_topic(broker, unique("wrap"))
    with RawClient(broker) as raw:
        producer = producer_id(raw)
        assert raw.produce(topic, batch(producer, (1 << 31) - 1)).error_code == 0
        assert raw.produce(topic, batch(producer, 0)).error_code == 0


def test_idempotent_clients_write_each_record_once(broker: Broker) -> None:
    topic = create_topic(broker, unique("client"))
    values = [b"%d" % n for n in range(500)]
    send(broker, topic, values, enable_idempotence=True, linger_ms=1, batch_num_messages=10)
    assert [message.value() for message in read_all(broker, topic, 500)] == values
