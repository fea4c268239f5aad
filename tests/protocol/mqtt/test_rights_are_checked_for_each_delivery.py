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


def test_what_many_take_from_is_not_shared_with_someone_who_may_not_have_all_of_it(guarded: int) -> None:
    """Passed over, what is denied would stay in the queue for ever where nobody else takes from it."""
    group, queue = f"$share/{unique('group')}/a/#", f"$queue/{unique('queue')}/a/#"
    with Raw.connected(guarded, **ROOT) as root, Raw.connected(guarded, **ANN) as ann:
        assert ann.subscribe((group, 1)) == [0x80]
        assert ann.subscribe((queue, 1)) == [0x80]
        for shared in (group, queue):
            with Raw.connected(guarded, **ROOT) as other:
                assert other.subscribe((shared, 1)) == [1]
                assert ann.subscribe((shared, 1)) == [0x80]
                root.publish("a/secret", b"the other's", qos=1)
                assert other.message().payload == b"the other's"
        assert ann.subscribe((f"$share/{unique('group')}/a/open", 1)) == [1]
        ann.nothing_more()
