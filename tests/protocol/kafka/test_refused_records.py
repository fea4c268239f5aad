"""Records that Kafka refuses: with its error, on the short way of one batch per request and on the long one."""

from __future__ import annotations

import struct
import time

import pytest
from confluent_kafka import KafkaError, Message

from mainstem.codec.batch import crc32c
from mainstem.testing import Broker
from tests.protocol.kafka.clients import create_topic, producer, read_all, unique
from tests.protocol.kafka.raw import RawClient

INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
RECORD = bytes((16, 0, 0, 0, 2)) + b"k" + bytes((2,)) + b"v" + bytes((0,))
HOUR_MS = 3_600_000


def batch(records: bytes, count: int = 1, attributes: int = 0, time_ms: int = 1_700_000_000_000) -> bytes:
    tail = struct.pack(">hiqqqhii", attributes, count - 1, time_ms, time_ms, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


@pytest.mark.parametrize("config", [{}, {"cleanup_policy": "compact"}, {"compression_type": "zstd"}])
def test_records_that_lie_about_their_number_or_lengths_are_refused(broker: Broker, config: dict[str, str]) -> None:
    topic = create_topic(broker, unique("lies"), **config)
    lies = {
        "fewer": batch(RECORD, 5),
        "far fewer": batch(RECORD, (1 << 31) - 1),
        "more": batch(RECORD * 2, 1),
        "a rest": batch(RECORD + b"zz"),
        "a long record": batch(bytes((18,)) + RECORD[1:]),
        "a short record": batch(bytes((14,)) + RECORD[1:]),
        "a long value": batch(RECORD[:6] + bytes((100,)) + RECORD[7:]),
        "a negative key": batch(RECORD[:4] + bytes((17,)) + RECORD[5:]),
        "missing headers": batch(RECORD[:-1] + bytes((6,))),
        "a header without a name": batch(bytes((20,)) + RECORD[1:-1] + bytes((2, 1, 1))),
    }
    with RawClient(broker) as raw:
        for what, sent in lies.items():
            assert raw.produce(topic, sent).error_code == INVALID_RECORD, what
        answer = raw.produce(topic, batch(RECORD))
        assert (answer.error_code, answer.base_offset) == (0, 0), "what was refused took no offset"
    assert [message.value() for message in read_all(broker, topic, 1)] == [b"v"]


def test_a_compressed_batch_cannot_claim_two_billion_records(broker: Broker) -> None:
    topic = create_topic(broker, unique("claims"))
    with RawClient(broker) as raw:
        assert raw.produce(topic, batch(b"junk", (1 << 31) - 1, attributes=1)).error_code == INVALID_RECORD


def test_a_record_of_the_future_is_refused_unless_the_topic_allows_it(broker: Broker) -> None:
    usual = create_topic(broker, unique("future"))
    bold = create_topic(broker, unique("future"), message_timestamp_after_max_ms=str(30 * 24 * HOUR_MS))
    now_ms = int(time.time() * 1_000)
    with RawClient(broker) as raw:
        for _ in range(2):  # the first finds the partition, the second knows it
            assert raw.produce(usual, batch(RECORD, time_ms=now_ms + HOUR_MS // 2)).error_code == 0
            assert raw.produce(usual, batch(RECORD, time_ms=now_ms + 2 * HOUR_MS)).error_code == INVALID_TIMESTAMP
            assert raw.produce(bold, batch(RECORD, time_ms=now_ms + 2 * HOUR_MS)).error_code == 0


def test_one_record_that_is_too_old_is_enough(broker: Broker) -> None:
    topic = create_topic(broker, unique("past"), message_timestamp_before_max_ms=str(HOUR_MS))
    earlier = bytes((18, 0, 0xBF, 0xA9, 0x07, 2, 2)) + b"k" + bytes((1, 0))  # by a minute
    now_ms = int(time.time() * 1_000)
    with RawClient(broker) as raw:
        assert raw.produce(topic, batch(RECORD, time_ms=now_ms)).error_code == 0
        assert raw.produce(topic, batch(RECORD + earlier, 2, time_ms=now_ms)).error_code == 0
        answer = raw.produce(topic, batch(RECORD + earlier, 2, time_ms=now_ms - HOUR_MS + 1_000))
        assert answer.error_code == INVALID_TIMESTAMP
        assert [one.batch_index for one in answer.record_errors] == [1], "the one that is too old is named"


def test_the_records_without_a_key_are_named_and_the_others_fail_for_their_sake(broker: Broker) -> None:
    topic = create_topic(broker, unique("keys"), cleanup_policy="compact")
    keyless = bytes((14, 0, 0, 0, 1, 2)) + b"v" + bytes((0,))
    with RawClient(broker) as raw:
        answer = raw.produce(topic, batch(RECORD + keyless + RECORD + keyless, 4))
        assert answer.error_code == INVALID_RECORD
        assert [one.batch_index for one in answer.record_errors] == [1, 3]
    errors: dict[bytes, str] = {}
    sender = producer(broker, linger_ms=200)

    def note(error: KafkaError | None, message: Message) -> None:
        errors[message.value() or b""] = error.name() if error is not None else ""

    for value, key in ((b"1", b"k"), (b"2", None), (b"3", None)):  # of one alone librdkafka does not tell them apart
        sender.produce(topic, value, key=key, on_delivery=note)
    sender.flush(10)
    assert errors == {b"1": "_INVALID_DIFFERENT_RECORD", b"2": "INVALID_RECORD", b"3": "INVALID_RECORD"}
