"""Dead letters: why they died, where they go, and that they do not go round for ever."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.protocol.amqp.conftest import bodies, declared, eventually, ready


def with_dead_letters(channel: BlockingChannel, name: str, **arguments: object) -> tuple[str, str]:
    """A queue whose dead letters go through an exchange of their own to another queue."""
    channel.exchange_declare(name + ".dlx", "fanout")
    dead = declared(channel, name + ".dead")
    channel.queue_bind(dead, name + ".dlx")
    return declared(channel, name, arguments={"x-dead-letter-exchange": name + ".dlx", **arguments}), dead


def first_death(channel: BlockingChannel, dead: str):  # type: ignore[no-untyped-def]
    method, properties, body = eventually(lambda: _got(channel, dead))
    return method, properties, body, properties.headers["x-death"][0]


def _got(channel: BlockingChannel, queue: str):  # type: ignore[no-untyped-def]
    got = channel.basic_get(queue, auto_ack=True)
    return got if got[0] is not None else None


def test_a_rejected_message_tells_its_story(channel: BlockingChannel, name: str) -> None:
    queue, dead = with_dead_letters(channel, name)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"mine": 1}, correlation_id="c"))
    channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    method, properties, body, death = first_death(channel, dead)
    assert (body, method.exchange, method.routing_key) == (b"x", name + ".dlx", queue)
    assert properties.correlation_id == "c"
    assert {key: value for key, value in death.items() if key != "time"} == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    headers = properties.headers
    assert (headers["mine"], headers["x-first-death-reason"], headers["x-first-death-queue"]) == (1, "rejected", queue)
    assert (headers["x-last-death-reason"], headers["x-last-death-exchange"]) == ("rejected", "")
    assert ready(channel, queue) == 0


def test_an_expired_message_keeps_its_expiration_as_a_memory(channel: BlockingChannel, name: str) -> None:
    queue, dead = with_dead_letters(channel, name)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration="40"))
    _, properties, _, death = first_death(channel, dead)
    assert (death["reason"], death["original-expiration"], properties.expiration) == ("expired", "40", None)


def test_the_oldest_over_the_length_limit_die_of_maxlen(channel: BlockingChannel, name: str) -> None:
    queue, dead = with_dead_letters(channel, name, **{"x-max-length": 1})
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    assert eventually(lambda: ready(channel, dead) == 2)
    _, _, body, death = first_death(channel, dead)
    assert (body, death["reason"]) == (b"1", "maxlen")
    assert bodies(channel, queue) == [b"3"]


def test_a_refused_publish_may_be_dead_lettered(channel: BlockingChannel, name: str) -> None:
    queue, dead = with_dead_letters(channel, name, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"fits")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", queue, b"over")
    _, _, body, death = first_death(channel, dead)
    assert (body, death["reason"]) == (b"over", "maxlen")


def test_used_up_deliveries_die_of_delivery_limit(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name + ".dlx", "fanout")
    dead = declared(channel, name + ".dead")
    channel.queue_bind(dead, name + ".dlx")
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": name + ".dlx"}
    queue = declared(channel, name, durable=True, arguments=arguments)
    channel.basic_publish("", queue, b"x")
    for _ in range(2):
        channel.basic_nack(channel.basic_get(queue)[0].delivery_tag, requeue=True)
    assert first_death(channel, dead)[3]["reason"] == "delivery_limit"


def test_a_dead_letter_routing_key_replaces_the_original(channel: BlockingChannel, name: str) -> None:
    dead = declared(channel, name + ".dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = declared(channel, name, arguments=arguments)
    channel.basic_publish("amq.direct", "nobody", b"-")
    channel.basic_publish("", queue, b"x")
    channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    method, _, _, death = first_death(channel, dead)
    assert (method.exchange, method.routing_key, death["routing-keys"]) == ("", dead, [queue])


def test_a_round_trip_counts_deaths_and_a_mere_expiry_round_is_dropped(channel: BlockingChannel, name: str) -> None:
    """Retry by expiry: work → (reject) → wait → (expire) → work. A circle of expiries alone ends."""
    work, wait = name + ".work", name + ".wait"
    declared(channel, work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait})
    declared(
        channel,
        wait,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 20},
    )
    channel.basic_publish("", work, b"x")
    for round_number in range(3):
        method, properties, _ = eventually(lambda: _unacked(channel, work))
        deaths = (properties.headers or {}).get("x-death", [])
        assert [death["count"] for death in deaths] == [round_number] * (2 if round_number else 0)
        channel.basic_reject(method.delivery_tag, requeue=False)
    eventually(lambda: _unacked(channel, work))

    circle = name + ".circle"
    declared(
        channel,
        circle,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": circle, "x-message-ttl": 20},
    )
    channel.basic_publish("", circle, b"x")
    eventually(lambda: ready(channel, circle) == 0)


def _unacked(channel: BlockingChannel, queue: str):  # type: ignore[no-untyped-def]
    got = channel.basic_get(queue)
    return got if got[0] is not None else None


@pytest.mark.parametrize("own_key", [False, True])
def test_copies_of_a_message_get_its_dead_letter_unless_the_queue_names_a_key(
    channel: BlockingChannel, name: str, own_key: bool
) -> None:
    dead, copied = declared(channel, name + ".dead"), declared(channel, name + ".copied")
    arguments = {"x-dead-letter-exchange": ""} | ({"x-dead-letter-routing-key": dead} if own_key else {})
    queue = declared(channel, name, arguments=arguments)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": [copied]}))
    assert eventually(lambda: bodies(channel, copied)) == [b"x"]
    channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    _, properties, _, death = first_death(channel, dead if own_key else copied)
    assert death["routing-keys"] == [queue, copied]
    assert properties.headers.get("CC") == (None if own_key else [copied])
    assert bodies(channel, copied) == []
