"""Numbers of clients: what has digits is not yet one, wherever a message is read that somebody stored long ago."""

from __future__ import annotations

import pytest

from mainstem.broker.streams.expiry import ttl_ns
from mainstem.codec.batch import BatchBuilder
from mainstem.model.amqp_content import Content
from mainstem.model.cron import duration_ns, next_fire
from mainstem.model.crossing import amqp_properties, canonical, kafka_record, mqtt_properties, nats_message
from mainstem.model.errors import InvalidArgument
from mainstem.model.whole_numbers import whole_number
from tests.unit.model.test_crossing import (
    NOW_NS,
    amqp_content,
    amqp_record,
    amqp_short,
    amqp_table,
    kafka_written,
    long_string,
    mqtt_record,
    user,
)

MANY = b"9" * 5_000  # more digits than Python reads
NO_NUMBERS = [MANY, "²".encode(), "١".encode(), b"-1", b"+1", b"", b" 1", b"1_0", b"9" * 19]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_none(text: bytes) -> None:
    assert whole_number(text) is None
    assert whole_number(text.decode()) is None


def test_what_is_one_is_read() -> None:
    assert [whole_number(one) for one in (b"0", "007", b"9" * 18)] == [0, 7, 10**18 - 1]


@pytest.mark.parametrize("name", [b"priority", b"ms-ts", b"ms-expires-at", b"timestamp_in_ms"])
@pytest.mark.parametrize("text", [MANY, b"9" * 30, "²".encode()])
def test_a_record_with_such_a_number_is_read_all_the_same(name: bytes, text: bytes) -> None:
    fields = {"headers": amqp_table([(name, long_string(text))])}
    for record in (
        mqtt_record(user(name, text)),
        amqp_record(amqp_content(**fields)),
        amqp_record(amqp_content(expiration=amqp_short(text[:255]))),
    ):
        found = canonical(record)
        assert (found.priority, found.expires_at_us) == (None, None)


@pytest.mark.parametrize("seconds", [b"\xff" * 8, b"\x7f" + b"\xff" * 7, (1 << 44).to_bytes(8, "big")])
def test_a_time_of_amqp_that_kafka_has_no_number_for_is_left_out(seconds: bytes) -> None:
    record = amqp_record(amqp_content(timestamp=seconds))
    read = kafka_record(record)
    BatchBuilder().add(read.key, read.value, read.headers, read.time_ms)
    assert read.time_ms == record.time_ms


@pytest.mark.parametrize("time_ms", [-1, -5_000, -(1 << 63), (1 << 63) - 1])
def test_a_time_of_kafka_before_1970_is_delivered_by_all(time_ms: int) -> None:
    """-1 is Kafka's word for none."""
    record = kafka_written([], None, b"v")
    record.time_ms = time_ms
    assert mqtt_properties(record, NOW_NS) and nats_message(record, NOW_NS)
    assert ("timestamp" in Content.parse(amqp_properties(record, NOW_NS)).fields) is (time_ms >= 0)


def test_a_time_to_live_that_no_clock_reaches_is_none() -> None:
    assert [ttl_ns(one) for one in (b"9" * 400 + b"s", b"99999999999", b"99999999999h", MANY)] == [None] * 4
    assert [ttl_ns(one) for one in (b"2", b"1h30m", b"never", b"1ms")] == [2 * 10**9, 5_400 * 10**9, 0, None]
    assert [duration_ns(one) for one in ("9" * 400 + "s", "99999999999h")] == [None, None]


@pytest.mark.parametrize("pattern", ["@every 99999999999h", "² * * * * *", "*/² * * * * *", f"{'9' * 5_000} * * * * *"])
def test_a_schedule_without_a_number_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        next_fire(pattern, 0, 0)
