"""A filter may overlap topics that its subscriber may not read; none of them comes, by no kind of subscription."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainstem.testing.broker import Broker
from tests.protocol.mqtt.raw import Raw, unique
from tests.users import add_users, allow, deny

ROOT: dict[str, object] = {"username": "root", "password": b"secret"}
ANN: dict[str, object] = {"username": "ann", "password": b"pass word"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    """A broker with an admin, and a user who may read `a/#` but for `a/secret`."""
    with Broker() as broker:
        add_users(broker)
        allow(broker, "a/#", "consume", "create")
        deny(broker, "a/secret", "consume")
        yield broker.mqtt_port


def test_of_retained_messages(guarded: int) -> None:
    with Raw.connected(guarded, **ROOT) as root, Raw.connected(guarded, **ANN) as ann:
        root.publish("a/secret", b"kept", qos=1, retain=True)
        root.publish("a/open", b"kept", qos=1, retain=True)
        ann.subscribe(("a/#", 0))
        assert ann.message().topic == "a/open"
        ann.nothing_more()
        for topic in ("a/secret", "a/open"):
            root.publish(topic, b"", qos=1, retain=True)


@pytest.mark.parametrize("qos", [0, 1])
def test_of_shared_messages_which_another_member_gets(guarded: int, qos: int) -> None:
    shared = f"$share/{unique('group')}/a/#"
    with Raw.connected(guarded, **ROOT) as root, Raw.connected(guarded, **ANN) as ann:
        ann.subscribe((shared, qos))
        root.publish("a/secret", b"nobody's", qos=1)
        root.publish("a/open", b"ann's", qos=1)
        assert ann.message().payload == b"ann's"
        with Raw.connected(guarded, **ROOT) as other:
            other.subscribe((shared, qos))
            for _ in range(3):
                root.publish("a/secret", b"the other's", qos=1)
                assert other.message().payload == b"the other's"
        ann.nothing_more()


def test_of_a_queue_where_they_wait_for_one_who_may(guarded: int) -> None:
    queue = f"$queue/{unique('queue')}/a/#"
    with Raw.connected(guarded, **ROOT) as root, Raw.connected(guarded, **ANN) as ann:
        assert ann.subscribe((queue, 1)) == [0x80]  # by the queue's name AMQP and Kafka would read all of it
        with Raw.connected(guarded, **ROOT) as maker:
            maker.subscribe((queue, 1))
        assert ann.subscribe((queue, 1)) == [1]
        root.publish("a/open", b"first", qos=1)
        assert ann.message().payload == b"first"
        root.publish("a/secret", b"second", qos=1)
        ann.nothing_more()
        with Raw.connected(guarded, **ROOT) as other:
            other.subscribe((queue, 1))
            assert other.message().payload == b"second"
