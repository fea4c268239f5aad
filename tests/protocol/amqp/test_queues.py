"""Queues: declaring, taking turns, giving back, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.protocol.amqp.conftest import Connect, bodies, collect, declared, eventually, ready


@contextmanager
def refused(code: int, text: str) -> Iterator[None]:
    """The channel is closed with that code and a text that contains the pattern."""
    with pytest.raises(ChannelClosedByBroker) as closed:
        yield
    assert closed.value.reply_code == code
    assert re.search(text, closed.value.reply_text), closed.value.reply_text


def publish(channel: BlockingChannel, queue: str, *values: bytes, **properties: object) -> None:
    for value in values:
        channel.basic_publish("", queue, value, pika.BasicProperties(**properties) if properties else None)


def test_a_published_message_is_got_once(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    publish(channel, queue, b"one", b"two")
    assert ready(channel, queue) == 2
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.message_count, method.routing_key) == (b"one", False, 1, queue)
    channel.basic_ack(method.delivery_tag)
    assert bodies(channel, queue) == [b"two"]
    assert channel.basic_get(queue) == (None, None, None)


def test_a_missing_queue_is_named_in_the_error(channel: BlockingChannel) -> None:
    with refused(404, r"NOT_FOUND - no queue 'nowhere' in vhost '/'"):
        channel.queue_declare("nowhere", passive=True)


def test_declaring_again_with_another_argument_names_it(connect: Connect, name: str) -> None:
    channel = connect().channel()
    declared(channel, name, durable=True, arguments={"x-max-length": 5})
    declared(channel, name, durable=True, arguments={"x-max-length": 5})
    with refused(
        406, f"inequivalent arg 'durable' for queue '{name}' in vhost '/': received 'false' but current is 'true'"
    ):
        channel.queue_declare(name, durable=False, arguments={"x-max-length": 5})
    channel = connect().channel()
    with refused(
        406, f"inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': received '6' but current is '5'"
    ):
        channel.queue_declare(name, durable=True, arguments={"x-max-length": 6})
    channel = connect().channel()
    with refused(406, "inequivalent arg 'x-max-length' .*: received none but current is the value '5' of type"):
        channel.queue_declare(name, durable=True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-message-ttl": "soon"}, "invalid arg 'x-message-ttl'.*expected integer"),
        ({"x-expires": 0}, "invalid arg 'x-expires'.*value_zero"),
        ({"x-max-length": -1}, "invalid arg 'x-max-length'.*value_negative"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-max-priority": 256}, "invalid arg 'x-max-priority'"),
        ({"x-overflow": "explode"}, "invalid arg 'x-overflow'"),
        ({"x-queue-type": "quantum"}, "invalid arg 'x-queue-type'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    channel: BlockingChannel, name: str, arguments: dict[str, object], why: str
) -> None:
    with refused(406, why):
        channel.queue_declare(name, arguments=arguments)


def test_reserved_names_are_refused(channel: BlockingChannel) -> None:
    with refused(403, r"queue name 'amq.mine' contains reserved prefix 'amq.\*'"):
        channel.queue_declare("amq.mine")


def test_the_empty_name_is_the_last_queue_declared(channel: BlockingChannel) -> None:
    queue = declared(channel, "", exclusive=True)
    assert queue.startswith("amq.gen-")
    channel.basic_publish("", queue, b"x")
    assert channel.basic_get("", auto_ack=True)[2] == b"x"


def test_an_exclusive_queue_belongs_to_its_connection_and_goes_with_it(connect: Connect, name: str) -> None:
    mine = connect()
    declared(mine.channel(), name, exclusive=True)
    other = connect()
    with refused(405, f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'"):
        other.channel().queue_declare(name, passive=True)
    mine.close()
    eventually(lambda: _is_gone(other, name))


def _is_gone(connection: pika.BlockingConnection, queue: str) -> bool:
    try:
        connection.channel().queue_declare(queue, passive=True)
    except ChannelClosedByBroker as error:
        return error.reply_code == 404
    return False


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Connect, name: str) -> None:
    channel = connect().channel()
    declared(channel, name, auto_delete=True)
    assert ready(channel, name) == 0  # never had one: it stays
    tag = channel.basic_consume(name, lambda *_: None)
    channel.basic_cancel(tag)
    eventually(lambda: _is_gone(connect(), name))


def test_an_unused_queue_expires(connect: Connect, name: str) -> None:
    channel = connect().channel()
    declared(channel, name, arguments={"x-expires": 100})
    eventually(lambda: _is_gone(connect(), name))


def test_deleting_says_how_many_were_ready_and_minds_its_conditions(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    publish(channel, queue, b"a", b"b")
    with refused(406, f"queue '{name}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)
    channel = connect().channel()
    channel.basic_consume(queue, lambda *_: None)
    with refused(406, f"queue '{name}' in vhost '/' in use"):
        connect().channel().queue_delete(queue, if_unused=True)
    channel.close()
    channel = connect().channel()
    assert channel.queue_delete(queue).method.message_count == 2
    assert channel.queue_delete(queue).method.message_count == 0


def test_purging_leaves_what_is_unacked(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    publish(channel, queue, b"held", b"b", b"c")
    channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 2
    channel.close()
    channel = connect().channel()
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"held", True)


def test_nack_puts_a_message_back_at_its_place(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    publish(channel, queue, b"a", b"b", b"c")
    first, second = channel.basic_get(queue)[0], channel.basic_get(queue)[0]
    channel.basic_nack(second.delivery_tag, requeue=True)
    channel.basic_nack(first.delivery_tag, requeue=True)
    got = [channel.basic_get(queue) for _ in range(3)]
    assert [(body, method.redelivered) for method, _, body in got] == [(b"a", True), (b"b", True), (b"c", False)]


def test_closing_the_channel_gives_everything_back_in_order(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = declared(channel, name)
    publish(channel, queue, *(b"%d" % n for n in range(10)))
    collected = []
    channel.basic_consume(queue, lambda _, method, __, body: collected.append(body))
    while len(collected) < 10:
        connection.process_data_events(0.02)
    channel.close()
    again = collect(connection.channel(), queue, 10)
    assert [body for _, _, body in again] == collected
    assert all(method.redelivered for method, _, _ in again)


def test_acks_may_be_many_at_once(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    publish(channel, queue, *(b"%d" % n for n in range(5)))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(5)]
    channel.basic_ack(tags[2], multiple=True)
    channel.basic_ack(0, multiple=True)
    assert ready(channel, queue) == 0
    channel.queue_purge(queue)


@pytest.mark.parametrize("how", ["twice", "unknown"])
def test_acking_what_is_not_there_closes_the_channel(connect: Connect, name: str, how: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    publish(channel, queue, b"a")
    tag = channel.basic_get(queue)[0].delivery_tag if how == "twice" else 7
    with refused(406, f"unknown delivery tag {tag}"):
        channel.basic_ack(tag)
        if how == "twice":
            channel.basic_ack(tag)
        channel.queue_declare(queue, passive=True)


def test_recover_redelivers_and_refuses_what_rabbitmq_refuses(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    publish(channel, queue, b"a")
    channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"a", True)


def test_prefetch_limits_what_is_unacked(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = declared(channel, name)
    publish(channel, queue, *(b"%d" % n for n in range(10)))
    channel.basic_qos(prefetch_count=3)
    got = []
    channel.basic_consume(queue, lambda _, method, __, body: got.append(method.delivery_tag))
    connection.process_data_events(0.2)
    assert len(got) == 3
    channel.basic_ack(got[1], multiple=True)
    while len(got) < 5:
        connection.process_data_events(0.02)
    connection.process_data_events(0.1)
    assert len(got) == 5
    assert ready(channel, queue) == 5


def test_a_global_prefetch_is_shared_by_the_channel(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queues = [declared(channel, name + end) for end in "ab"]
    for queue in queues:
        publish(channel, queue, *(b"%d" % n for n in range(5)))
    channel.basic_qos(prefetch_count=4, global_qos=True)
    got = []
    for queue in queues:
        channel.basic_consume(queue, lambda _, method, __, body: got.append(method.delivery_tag))
    connection.process_data_events(0.2)
    assert len(got) == 4
    channel.basic_qos(prefetch_count=6, global_qos=True)
    while len(got) < 6:
        connection.process_data_events(0.02)
    channel.basic_ack(0, multiple=True)
    while len(got) < 10:
        connection.process_data_events(0.02)


def test_consumers_take_turns_and_higher_priorities_come_first(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = declared(channel, name)
    counts: dict[str, int] = {}

    def count(which: str):  # type: ignore[no-untyped-def]
        def on_message(_: object, method: object, __: object, body: bytes) -> None:
            counts[which] = counts.get(which, 0) + 1

        return on_message

    for which in "ab":
        channel.basic_consume(queue, count(which), auto_ack=True)
    publish(channel, queue, *(b"x" for _ in range(10)))
    while sum(counts.values()) < 10:
        connection.process_data_events(0.02)
    assert counts == {"a": 5, "b": 5}
    channel.basic_consume(queue, count("high"), auto_ack=True, arguments={"x-priority": 10})
    publish(channel, queue, *(b"x" for _ in range(10)))
    while sum(counts.values()) < 20:
        connection.process_data_events(0.02)
    assert counts["high"] == 10


def test_an_exclusive_consumer_keeps_others_away(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name)
    channel.basic_consume(queue, lambda *_: None, exclusive=True)
    with refused(403, f"queue '{name}' in vhost '/' in exclusive use"):
        connect().channel().basic_consume(queue, lambda *_: None)


def test_a_single_active_consumer_is_followed_by_the_next(connect: Connect, name: str) -> None:
    first, second = connect(), connect()
    got: list[str] = []
    channel = first.channel()
    queue = declared(channel, name, arguments={"x-single-active-consumer": True})
    tag = channel.basic_consume(queue, lambda *_: got.append("first"), auto_ack=True)
    second.channel().basic_consume(queue, lambda *_: got.append("second"), auto_ack=True)
    publish(channel, queue, b"1", b"2", b"3")
    while len(got) < 3:
        first.process_data_events(0.02)
        second.process_data_events(0.02)
    assert got == ["first"] * 3
    channel.basic_cancel(tag)
    publish(channel, queue, b"4")
    while len(got) < 4:
        second.process_data_events(0.02)
    assert got[-1] == "second"


def test_deleting_a_queue_cancels_its_consumers(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = declared(channel, name)
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    connect().channel().queue_delete(queue)
    eventually(lambda: connection.process_data_events(0.02) or cancelled)
    assert cancelled == [tag]


def test_messages_expire_at_the_head_without_consumers(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-message-ttl": 80})
    publish(channel, queue, b"a", b"b")
    assert ready(channel, queue) == 2
    eventually(lambda: ready(channel, queue) == 0)


def test_a_messages_own_expiration_counts_if_it_is_lower(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-message-ttl": 60_000})
    publish(channel, queue, b"short", expiration="50")
    publish(channel, queue, b"long", expiration="120000")
    eventually(lambda: ready(channel, queue) == 1)
    assert bodies(channel, queue) == [b"long"]


def test_an_expiration_that_is_no_number_is_refused(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    with refused(406, "invalid expiration 'soon'"):
        publish(channel, queue, b"x", expiration="soon")
        channel.queue_declare(queue, passive=True)


def test_over_its_length_a_queue_drops_the_oldest(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-length": 2})
    publish(channel, queue, b"1", b"2", b"3", b"4")
    assert ready(channel, queue) == 2
    assert bodies(channel, queue) == [b"3", b"4"]


def test_over_its_bytes_a_queue_drops_the_oldest(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-length-bytes": 10})
    publish(channel, queue, b"12345", b"67890", b"abcde")
    assert bodies(channel, queue) == [b"67890", b"abcde"]


def test_a_full_queue_may_refuse_publishes(connect: Connect, name: str) -> None:
    channel = connect().channel()
    queue = declared(channel, name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"fits")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"does not")
    assert bodies(channel, queue) == [b"fits"]
    channel.basic_publish("", queue, b"fits again")
    assert bodies(channel, queue) == [b"fits again"]


def test_priorities_come_first_and_keep_their_order(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-priority": 5})
    for number, priority in enumerate([0, 5, 1, 5, 9, None, 3]):
        publish(channel, queue, b"%d" % number, **({} if priority is None else {"priority": priority}))
    assert ready(channel, queue) == 7
    assert bodies(channel, queue) == [b"1", b"3", b"4", b"6", b"2", b"0", b"5"]


def test_a_priority_queue_gives_back_at_its_place(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name, arguments={"x-max-priority": 5})
    publish(channel, queue, b"low", priority=1)
    publish(channel, queue, b"high", priority=4)
    method, _, body = channel.basic_get(queue)
    assert body == b"high"
    channel.basic_nack(method.delivery_tag)
    assert bodies(channel, queue) == [b"high", b"low"]


def test_a_backlog_is_consumed_in_order_by_small_prefetch(channel: BlockingChannel, name: str) -> None:
    queue = declared(channel, name)
    publish(channel, queue, *(b"%d" % n for n in range(500)))
    channel.basic_qos(prefetch_count=1)
    got: list[bytes] = []

    def take(_: object, method: object, __: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    channel.basic_consume(queue, take)
    eventually(lambda: channel.connection.process_data_events(0.02) or len(got) == 500)
    assert got == [b"%d" % n for n in range(500)]


def test_quorum_queues_count_deliveries_and_stop_at_the_limit(channel: BlockingChannel, name: str) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    queue = declared(channel, name, durable=True, arguments=arguments)
    publish(channel, queue, b"poison")
    counts = []
    for _ in range(3):
        method, properties, _ = channel.basic_get(queue)
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert counts == [None, 1, 2]
    assert channel.basic_get(queue)[0] is None


def test_an_ordered_queue_gives_a_key_to_one_consumer_at_a_time(connect: Connect, name: str) -> None:
    publisher, one, other = (connect().channel() for _ in range(3))
    queue = declared(publisher, name, arguments={"x-mainstem-order-by-key": True})
    got: dict[str, list[tuple[int, bytes]]] = {"one": [], "other": []}
    for who, channel in (("one", one), ("other", other)):
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume(queue, lambda _, m, __, body, who=who: got[who].append((m.delivery_tag, body)))  # type: ignore[misc]
    for number in range(4):
        for kind in ("a", "b"):
            named = pika.BasicProperties(headers={"ms-key": kind})
            publisher.basic_publish("", queue, f"{kind}{number}".encode(), named)

    def come(count: int) -> bool:
        for channel in (one, other):
            channel.connection.process_data_events(0.02)
        return len(got["one"]) + len(got["other"]) == count

    eventually(lambda: come(4))
    assert sorted(body for _, body in got["one"]) in ([b"a0", b"a1"], [b"b0", b"b1"])
    one.basic_ack(got["one"][0][0])
    eventually(lambda: come(5))
    key = got["one"][0][1][:1]
    assert got["one"][2][1] == key + b"2"
    one.connection.close()  # what it holds, and what waited for it, may now be anybody's
    other.basic_ack(0, multiple=True)
    taken = {body for _, body in got["other"]}

    def rest() -> bool:
        other.connection.process_data_events(0.02)
        other.basic_ack(0, multiple=True) if got["other"] else None
        return len({body for _, body in got["other"]}) == 7

    eventually(rest)
    mine = [body for _, body in got["other"] if body[:1] == key]
    assert mine == [key + b"1", key + b"2", key + b"3"]
    assert taken.isdisjoint(mine)


def test_an_ordered_queue_has_no_priorities(channel: BlockingChannel, name: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-mainstem-order-by-key"):
        declared(channel, name, arguments={"x-mainstem-order-by-key": True, "x-max-priority": 3})
