"""Who connects with another user's client id gets nothing of that session, and does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mainstem.protocols.mqtt.wire.properties import Properties, Property
from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, connect_packet
from tests.users import ANN, ROOT, add_users, allow

BOB = ("bob", "hidden")
CLIENT_ID = "shared-id"


@pytest.fixture
def guarded() -> Iterator[Broker]:
    with Broker() as broker:
        add_users(broker)
        assert broker.app is not None and broker.loop is not None
        access = broker.app.broker.access

        async def add() -> None:
            await access.add_user(*BOB)

        asyncio.run_coroutine_threadsafe(add(), broker.loop).result(30)
        allow(broker, "#", "consume", "publish")
        yield broker


def connack(broker: Broker, login: tuple[str, str], version: int, *, clean: bool = False) -> tuple[Raw, int, bool]:
    """(the client, its reason or code, session present)"""
    client = Raw(broker.mqtt_port)
    properties: Properties = {Property.SESSION_EXPIRY: 1000} if version == 5 else {}
    name, password = login[0], login[1].encode()
    packet = connect_packet(
        CLIENT_ID, version=version, clean=clean, username=name, password=password, properties=properties
    )
    client.send(packet)
    kind, answer = client.packet()
    assert kind == 0x20, answer
    return client, answer[1], bool(answer[0])


@pytest.mark.parametrize(("version", "refusal"), [(5, 0x87), (4, 5)])
def test_another_user_is_refused_while_it_is_connected_and_after(guarded: Broker, version: int, refusal: int) -> None:
    owner, code, _ = connack(guarded, ANN, version)
    assert code == 0
    for clean in (False, True):
        thief, code, _ = connack(guarded, BOB, version, clean=clean)
        assert code == refusal
        thief.socket.close()
    owner.send(b"\xc0\x00")
    assert owner.packet()[0] == 0xD0, "the owner was disconnected"
    owner.socket.close()
    thief, code, _ = connack(guarded, BOB, version)
    assert code == refusal
    thief.socket.close()
    back, code, present = connack(guarded, ANN, version)
    assert (code, present) == (0, True)
    back.socket.close()


def test_what_a_removed_user_left_is_nobodys(guarded: Broker) -> None:
    owner, code, _ = connack(guarded, ANN, 5)
    assert code == 0
    owner.socket.close()
    remove(guarded, ANN[0])
    other, code, present = connack(guarded, BOB, 5)
    assert (code, present) == (0, False)
    other.socket.close()


def test_a_session_from_before_there_were_users_is_the_next_ones() -> None:
    with Broker() as broker:
        first, code, _ = connack(broker, ("whoever", "x"), 5)
        assert code == 0
        first.socket.close()
        add_users(broker)
        for login, expected in ((ROOT, (0, True)), (ANN, (0x87, False)), (ROOT, (0, True))):
            client, code, present = connack(broker, login, 5)
            assert (code, present) == expected
            client.socket.close()


def remove(broker: Broker, name: str) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def remove() -> None:
        await access.remove_user(name)

    asyncio.run_coroutine_threadsafe(remove(), broker.loop).result(30)
