"""Exchanges and bindings: who gets what is published where."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import Connect, bodies, declared
from tests.protocol.amqp.test_queues import refused


def bound(channel: BlockingChannel, queue: str, exchange: str, *keys: str, **arguments: object) -> str:
    declared(channel, queue, exclusive=True)
    for key in keys or ("",):
        channel.queue_bind(queue, exchange, key, arguments=arguments or None)
    return queue


@pytest.mark.parametrize("exchange", ["amq.direct", "own"])
def test_direct_wants_the_very_key(channel: BlockingChannel, name: str, exchange: str) -> None:
    if exchange == "own":
        exchange = name + "x"
        channel.exchange_declare(exchange, "direct")
    queue = bound(channel, name, exchange, "a.b", "#")
    for key in ("a.b", "a", "a.b.c", "#", ""):
        channel.basic_publish(exchange, key, key.encode())
    assert bodies(channel, queue) == [b"a.b", b"#"]


@pytest.mark.parametrize("exchange", ["amq.fanout", "own"])
def test_fanout_wants_no_key(channel: BlockingChannel, name: str, exchange: str) -> None:
    if exchange == "own":
        exchange = name + "x"
        channel.exchange_declare(exchange, "fanout")
    queues = [bound(channel, name + end, exchange, "ignored") for end in "ab"]
    for key in ("", "a.b.c", "*"):
        channel.basic_publish(exchange, key, key.encode())
    for queue in queues:
        assert bodies(channel, queue) == [b"", b"a.b.c", b"*"]


TOPIC_PATTERNS = [
    ("a.b", ["a.b"], ["a", "a.b.c", "a.", ""]),
    ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
    ("*.b", ["a.b", ".b"], ["b", "a.b.c"]),
    ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "ab"]),
    ("#.c", ["c", "a.c", "a.b.c"], ["c.a", ""]),
    ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "c", "a.c.b"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.b.c"], ["a.c"]),
    ("*.#.*", ["a.b", "a.b.c"], ["a"]),
    ("#", ["", "a", "a.b.c"], []),
]


@pytest.mark.parametrize("exchange", ["amq.topic", "own"])
@pytest.mark.parametrize(("pattern", "yes", "no"), TOPIC_PATTERNS)
def test_topic_patterns(
    channel: BlockingChannel, name: str, exchange: str, pattern: str, yes: list[str], no: list[str]
) -> None:
    if exchange == "own":
        exchange = name + "x"
        channel.exchange_declare(exchange, "topic", auto_delete=True)
    queue = bound(channel, name, exchange, pattern)
    for key in (*yes, *no):
        channel.basic_publish(exchange, key, key.encode())
    expected = [key.encode() for key in yes if not (exchange == "amq.topic" and key == "" and pattern == "#.c")]
    assert bodies(channel, queue) == expected


def test_a_queue_matched_by_several_bindings_gets_one_copy(channel: BlockingChannel, name: str) -> None:
    queue = bound(channel, name, "amq.topic", f"{name}.*", f"{name}.#", "#")
    channel.basic_publish("amq.topic", f"{name}.x", b"once")
    assert bodies(channel, queue).count(b"once") == 1


HEADERS_CASES = [
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {"a": "1"}, False),
    ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    ({"x-match": "any", "a": 1, "b": "x"}, {"c": "x"}, False),
    ({"x-match": "all", "a": None}, {"a": "anything"}, True),
    ({"x-match": "all", "a": None}, {}, False),
    ({"x-match": "all", "x-b": 1, "a": 1}, {"a": 1}, True),
    ({"x-match": "all-with-x", "x-b": 1, "a": 1}, {"a": 1}, False),
    ({"x-match": "any-with-x", "x-b": 1}, {"x-b": 1}, True),
]


@pytest.mark.parametrize(("wanted", "headers", "expected"), HEADERS_CASES)
def test_headers_exchanges(
    channel: BlockingChannel, name: str, wanted: dict[str, object], headers: dict[str, object], expected: bool
) -> None:
    exchange = name + "h"
    channel.exchange_declare(exchange, "headers", auto_delete=True)
    declared(channel, name, exclusive=True)
    channel.queue_bind(name, exchange, arguments=wanted)
    channel.basic_publish(exchange, "key", b"x", pika.BasicProperties(headers=headers))
    assert bodies(channel, name) == ([b"x"] if expected else [])


def test_exchanges_lead_to_exchanges(channel: BlockingChannel, name: str) -> None:
    first, second = name + "1", name + "2"
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "fanout")
    channel.exchange_bind(second, first, "a.#")
    far = bound(channel, name + "far", second)
    near = bound(channel, name + "near", first, "#")
    for key in ("a.b", "b"):
        channel.basic_publish(first, key, key.encode())
    assert bodies(channel, far) == [b"a.b"]
    assert bodies(channel, near) == [b"a.b", b"b"]
    method = _published(channel, first, "a.c", far)
    assert (method.exchange, method.routing_key) == (first, "a.c")
    channel.exchange_unbind(second, first, "a.#")
    channel.basic_publish(first, "a.b", b"no more")
    assert bodies(channel, far) == []


def _published(channel: BlockingChannel, exchange: str, key: str, queue: str):  # type: ignore[no-untyped-def]
    channel.basic_publish(exchange, key, b"x")
    return channel.basic_get(queue, auto_ack=True)[0]


def test_a_circle_of_exchanges_delivers_once(channel: BlockingChannel, name: str) -> None:
    one, two = name + "1", name + "2"
    for exchange in (one, two):
        channel.exchange_declare(exchange, "fanout")
    channel.exchange_bind(two, one)
    channel.exchange_bind(one, two)
    queue = bound(channel, name, one)
    channel.basic_publish(two, "", b"x")
    assert bodies(channel, queue) == [b"x"]


def test_what_an_exchange_cannot_route_goes_to_its_alternate(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name + "alt", "fanout")
    channel.exchange_declare(name + "x", "direct", arguments={"alternate-exchange": name + "alt"})
    taken, rest = bound(channel, name + "a", name + "x", "known"), bound(channel, name + "b", name + "alt")
    channel.basic_publish(name + "x", "known", b"1")
    channel.basic_publish(name + "x", "unknown", b"2")
    assert (bodies(channel, taken), bodies(channel, rest)) == ([b"1"], [b"2"])


def test_carbon_copies_go_to_further_keys_and_blind_ones_do_not_show(channel: BlockingChannel, name: str) -> None:
    queues = [declared(channel, name + end, exclusive=True) for end in ("to", "cc", "bcc", "none")]
    properties = pika.BasicProperties(headers={"CC": [name + "cc"], "BCC": [name + "bcc"], "kept": 1})
    channel.basic_publish("", name + "to", b"x", properties)
    for queue in queues[:3]:
        method, got, body = channel.basic_get(queue, auto_ack=True)
        assert (body, method.routing_key) == (b"x", name + "to")
        assert got.headers == {"CC": [name + "cc"], "kept": 1}
    assert bodies(channel, queues[3]) == []


def test_unbinding_keeps_what_came_before(channel: BlockingChannel, name: str) -> None:
    queue = bound(channel, name, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"before")
    channel.queue_unbind(queue, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"after")
    channel.queue_bind(queue, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"again")
    assert bodies(channel, queue) == [b"before", b"again"]


def test_a_binding_starts_when_it_is_made(channel: BlockingChannel, name: str) -> None:
    channel.basic_publish("amq.topic", f"{name}.x", b"too early")
    queue = bound(channel, name, "amq.topic", f"{name}.#")
    channel.basic_publish("amq.topic", f"{name}.x", b"in time")
    assert bodies(channel, queue) == [b"in time"]


def test_an_exchange_of_its_own_does_not_leak_into_amq_topic(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic")
    other = bound(channel, name + "q", "amq.topic", f"{name}.#")
    own = bound(channel, name + "own", name, "#")
    channel.basic_publish(name, "k", b"own")
    channel.basic_publish("amq.topic", f"{name}.k", b"topic")
    assert bodies(channel, other) == [b"topic"]
    assert bodies(channel, own) == [b"own"]


def test_errors_about_exchanges_are_rabbitmqs(connect: Connect, name: str) -> None:
    channel = connect().channel()
    with refused(404, f"no exchange '{name}' in vhost '/'"):
        channel.basic_publish(name, "k", b"x")
        channel.queue_declare("", exclusive=True)
    with refused(403, "operation not permitted on the default exchange"):
        connect().channel().exchange_declare("", "direct")
    with refused(403, r"exchange name 'amq.mine' contains reserved prefix 'amq.\*'"):
        connect().channel().exchange_declare("amq.mine", "direct")
    with refused(403, "deletion of system exchange 'amq.topic' in vhost '/' not allowed"):
        connect().channel().exchange_delete("amq.topic")
    channel = connect().channel()
    channel.exchange_declare(name, "direct")
    with refused(
        406, f"inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'fanout' but current is 'direct'"
    ):
        channel.exchange_declare(name, "fanout")
    channel = connect().channel()
    bound(channel, name + "q", name, "k")
    with refused(406, f"exchange '{name}' in vhost '/' in use"):
        channel.exchange_delete(name, if_unused=True)


def test_an_internal_exchange_takes_no_publishes(connect: Connect, name: str) -> None:
    channel = connect().channel()
    channel.exchange_declare(name, "fanout", internal=True)
    with refused(403, f"cannot publish to internal exchange '{name}' in vhost '/'"):
        channel.basic_publish(name, "", b"x")
        channel.queue_declare("", exclusive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(connect: Connect, name: str) -> None:
    channel = connect().channel()
    channel.exchange_declare(name, "fanout", auto_delete=True)
    queue = bound(channel, name + "q", name)
    channel.queue_unbind(queue, name, "")
    with refused(404, f"no exchange '{name}'"):
        channel.exchange_declare(name, "fanout", passive=True)


def test_deleting_an_exchange_ends_its_bindings(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout")
    queue = bound(channel, name + "q", name)
    channel.basic_publish(name, "", b"before")
    channel.exchange_delete(name)
    channel.exchange_declare(name, "fanout")
    channel.basic_publish(name, "", b"unbound")
    assert bodies(channel, queue) == [b"before"]
