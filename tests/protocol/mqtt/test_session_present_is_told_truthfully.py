import time

import pytest

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Raw, unique


@pytest.mark.parametrize("version", [4, 5])
def test_only_when_a_stored_session_goes_on(port: int, version: int) -> None:
    client_id = unique("present")
    options: dict[str, object] = {"version": version, "clean": False}
    if version == 5:
        options["properties"] = {Property.SESSION_EXPIRY: 100}
    with Raw.connected(port, client_id, **options) as first:
        assert not first.session_present
        first.disconnect()
    with Raw.connected(port, client_id, **options) as again:
        assert again.session_present
        again.disconnect()
    with Raw.connected(port, client_id, **{**options, "clean": True}) as clean:
        assert not clean.session_present


def test_not_after_a_session_that_expires_at_once(port: int) -> None:
    client_id = unique("gone")
    with Raw.connected(port, client_id, version=5, clean=False) as first:
        first.disconnect()
    with Raw.connected(port, client_id, version=5, clean=False) as again:
        assert not again.session_present


def test_not_after_disconnect_shortened_the_expiry_to_zero(port: int) -> None:
    client_id = unique("shortened")
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 100}}
    with Raw.connected(port, client_id, **options) as first:
        first.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00")
        first.closed()
    with Raw.connected(port, client_id, **options) as again:
        assert not again.session_present


def test_not_after_its_time_although_sessions_are_ended_once_a_second(port: int) -> None:
    options: dict[str, object] = {"version": 5, "clean": False, "properties": {Property.SESSION_EXPIRY: 1}}
    clients = [unique("late") for _ in range(5)]  # that leave at various moments of a second
    left: list[float] = []
    for client_id in clients:
        with Raw.connected(port, client_id, **options) as first:
            first.disconnect()
        left.append(time.monotonic())
        time.sleep(0.15)
    for client_id, at in zip(clients, left, strict=True):
        time.sleep(max(0.0, at + 1.02 - time.monotonic()))
        with Raw.connected(port, client_id, **options) as again:
            assert not again.session_present


def test_an_expiry_of_zero_cannot_be_prolonged(port: int) -> None:
    with Raw.connected(port, version=5) as client:
        client.send(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x09")
        said = client.closed()
        assert said[0] == 0xE0 and said[2] == 0x82


def test_not_to_mqtt_3_1_whose_connack_has_no_such_flag(port: int) -> None:
    client_id, options = unique("old"), {"version": 3, "clean": False}
    with Raw.connected(port, client_id, **options) as first:
        first.subscribe(("old/#", 1))
        first.disconnect()
    with Raw.connected(port, client_id, **options) as again, Raw.connected(port) as other:
        assert not again.session_present
        other.publish("old/topic", b"its session went on all the same", qos=1)
        assert again.message().payload == b"its session went on all the same"
