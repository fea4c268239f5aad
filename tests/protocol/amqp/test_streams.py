"""Stream queues: read without taking, from anywhere."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import Connect, declared, eventually
from tests.protocol.amqp.test_queues import refused

STREAM = {"x-queue-type": "stream"}


def read(channel: BlockingChannel, queue: str, count: int, offset: Any = None, *, prefetch: int = 100) -> list[Any]:
    """Consume from an offset until `count` came; acked as they come."""
    channel.basic_qos(prefetch_count=prefetch)
    got: list[Any] = []

    def take(_: object, method: Any, properties: Any, body: bytes) -> None:
        got.append((body, properties.headers["x-stream-offset"]))
        channel.basic_ack(method.delivery_tag)

    arguments = {} if offset is None else {"x-stream-offset": offset}
    tag = channel.basic_consume(queue, take, arguments=arguments)
    eventually(lambda: channel.connection.process_data_events(0.02) or len(got) >= count)
    channel.basic_cancel(tag)
    return got


def filled(channel: BlockingChannel, name: str, count: int) -> str:
    queue = declared(channel, name, durable=True, arguments=STREAM)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)
    channel.queue_declare(queue, passive=True)
    return queue


def bodies_of(got: list[Any]) -> list[bytes]:
    return [body for body, _ in got]


def test_every_reader_gets_everything_from_the_first(connect: Connect, name: str) -> None:
    queue = filled(connect().channel(), name, 10)
    for _ in range(2):
        got = read(connect().channel(), queue, 10, "first")
        assert bodies_of(got) == [b"%d" % n for n in range(10)]
        offsets = [offset for _, offset in got]
        assert offsets == sorted(set(offsets))


def test_a_small_prefetch_still_reads_everything(connect: Connect, name: str) -> None:
    queue = filled(connect().channel(), name, 50)
    assert bodies_of(read(connect().channel(), queue, 50, "first", prefetch=3)) == [b"%d" % n for n in range(50)]


def test_an_offset_names_where_to_go_on(connect: Connect, name: str) -> None:
    queue = filled(connect().channel(), name, 10)
    all_of_it = read(connect().channel(), queue, 10, "first")
    assert read(connect().channel(), queue, 3, all_of_it[7][1]) == all_of_it[7:]


def test_next_reads_only_what_comes(connect: Connect, name: str) -> None:
    publisher = connect().channel()
    queue = filled(publisher, name, 5)
    connection = connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    got: list[bytes] = []
    channel.basic_consume(queue, lambda *a: got.append(a[3]), arguments={"x-stream-offset": "next"})
    connection.process_data_events(0.1)
    publisher.basic_publish("", queue, b"new")
    eventually(lambda: connection.process_data_events(0.02) or got)
    assert got == [b"new"]


def test_last_and_times_are_understood(connect: Connect, name: str) -> None:
    publisher = connect().channel()
    queue = filled(publisher, name, 5)
    assert bodies_of(read(connect().channel(), queue, 1, "last"))[-1] == b"4"
    assert len(read(connect().channel(), queue, 5, "1h")) == 5
    from datetime import UTC, datetime

    assert len(read(connect().channel(), queue, 5, datetime.fromtimestamp(time.time() - 60, UTC))) == 5


def test_what_streams_do_not_do_is_refused(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = filled(channel, name, 1)
    with refused(406, "consumer prefetch count is not set for stream queue"):
        channel.basic_consume(queue, lambda *_: None)
    channel = connect().channel()
    channel.basic_qos(prefetch_count=1)
    with refused(406, "invalid arg 'x-stream-offset'"):
        channel.basic_consume(queue, lambda *_: None, arguments={"x-stream-offset": "yesterday"})
    with refused(406, "invalid property 'non-durable' for queue"):
        connect().channel().queue_declare(name + "t", arguments=STREAM)
    with refused(406, "invalid arg 'x-max-priority' for queue .* of queue type rabbit_stream_queue"):
        connect().channel().queue_declare(name + "p", durable=True, arguments={**STREAM, "x-max-priority": 3})


def test_a_view_is_consumed_under_its_own_name(broker: Any, connect: Connect, name: str) -> None:
    import httpx

    publisher = connect().channel()
    publisher.basic_publish("amq.topic", f"{name}.a.temp", b"1")
    publisher.basic_publish("amq.topic", f"{name}.a.other", b"no")
    publisher.basic_publish("amq.topic", f"{name}.b.temp", b"2")
    publisher.queue_declare("", exclusive=True)
    answer = httpx.post(
        f"{broker.http_url}/v1/views", json={"name": f"{name}view", "filter": f"{name}/+/temp"}, timeout=10
    )
    assert answer.status_code < 300, answer.text
    assert bodies_of(read(connect().channel(), f"{name}view", 2, "first")) == [b"1", b"2"]
    queue = declared(connect().channel(), name + "q", arguments={"x-view": f"{name}view", "x-from": "earliest"})
    channel = connect().channel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    publisher.basic_publish("amq.topic", f"{name}.c.temp", b"3")
    eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count == 2)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_queue_types_are_kept(connect: Connect, name: str, kind: str) -> None:
    channel = connect().channel()
    declared(channel, name, durable=True, arguments={"x-queue-type": kind})
    declared(channel, name, durable=True, arguments={"x-queue-type": kind})
    other = "quorum" if kind != "quorum" else "classic"
    with refused(406, "inequivalent arg 'x-queue-type'"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": other})


def test_deleting_a_stream_cancels_its_readers(connect: Connect, name: str) -> None:
    channel, cancelled = connect().channel(), []
    queue = filled(channel, name, 1)
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_qos(prefetch_count=10)
    tag = channel.basic_consume(queue, lambda *_: None)
    connect().channel().queue_delete(queue)
    eventually(lambda: channel.connection.process_data_events(0.02) or cancelled)
    assert cancelled == [tag]


def test_a_stream_counts_its_own_records_from_zero(connect: Connect, name: str) -> None:
    other = connect().channel()
    for number in range(3):
        other.basic_publish("", f"{name}-other", b"%d" % number)
    queue = filled(connect().channel(), name, 20)
    assert read(connect().channel(), queue, 20, "first") == [(b"%d" % n, n) for n in range(20)]
    assert read(connect().channel(), queue, 5, 15) == [(b"%d" % n, n) for n in range(15, 20)]
    assert read(connect().channel(), queue, 1, "last") == [(b"19", 19)]


def test_it_counts_only_what_it_took_and_two_streams_count_apart(connect: Connect, name: str) -> None:
    channel = connect().channel()
    wide = declared(channel, f"{name}-wide", durable=True, arguments=STREAM)
    narrow = declared(channel, f"{name}-narrow", durable=True, arguments=STREAM)
    channel.queue_bind(wide, "amq.topic", f"{name}.#")
    channel.queue_bind(narrow, "amq.topic", f"{name}.*.odd")
    for number in range(200):  # more than lie between two marks
        channel.basic_publish("amq.topic", f"{name}.a.{'odd' if number % 2 else 'even'}", b"%d" % number)
        if number == 99:
            channel.basic_publish("", wide, b"direct")
            channel.queue_declare(wide, passive=True)
    channel.queue_declare(wide, passive=True)
    odd = [(b"%d" % n, n // 2) for n in range(1, 200, 2)]
    assert read(connect().channel(), narrow, 100, "first") == odd
    assert read(connect().channel(), narrow, 30, 70) == odd[70:]
    assert read(connect().channel(), wide, 2, 199) == [(b"198", 199), (b"199", 200)]
    assert read(connect().channel(), wide, 1, 100)[0] == (b"direct", 100)


def test_its_numbers_go_on_when_its_limit_dropped_the_oldest(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name, durable=True, arguments={**STREAM, "x-max-length-bytes": 500})
    for number in range(20):
        channel.basic_publish("", queue, b"%02d" % number + b"." * 98)
    eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count == 5)
    assert [(body[:2], at) for body, at in read(connect().channel(), queue, 5, "first")] == [
        (b"%d" % n, n) for n in range(15, 20)
    ]
    assert [at for _, at in read(connect().channel(), queue, 5, 3)] == [15, 16, 17, 18, 19]
    assert [at for _, at in read(connect().channel(), queue, 2, 18)] == [18, 19]


def test_what_is_older_than_its_maximum_age_is_gone_and_counted(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name, durable=True, arguments={**STREAM, "x-max-age": "1s"})
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    channel.queue_declare(queue, passive=True)
    eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count == 0)
    channel.basic_publish("", queue, b"new")
    assert read(connect().channel(), queue, 1, "first") == [(b"new", 3)]
