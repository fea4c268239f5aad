"""A broker that starts over in its place keeps its listening sockets: who connects meanwhile waits for what comes next."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from mainstem.server.listeners import KEPT, keep_over_exec, kept_over_exec, take_ports
from mainstem.server.settings import Listeners


@pytest.fixture
def before() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def settings(mqtt: int | None) -> Listeners:
    found = Listeners(host="127.0.0.1")
    for name in (name for name in Listeners.__dataclass_fields__ if name.endswith("_port")):
        setattr(found, name, None)
    setattr(found, "mqtt_port", mqtt)  # noqa: B010 -- made of the table of doors
    return found


def hand_on(before: socket.socket) -> dict[str, socket.socket]:
    """As over `exec`: the number of its descriptor is all that is left."""
    copied = before.dup()
    keep_over_exec({"mqtt": copied})
    copied.detach()
    kept = kept_over_exec()
    assert KEPT not in os.environ
    assert not any(one.get_inheritable() for one in kept.values())
    return kept


def test_a_client_that_connects_between_two_processes_is_served_by_the_second(before: socket.socket) -> None:
    kept, port = hand_on(before), before.getsockname()[1]
    before.close()
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        taken = take_ports(settings(port), move=False, kept=kept)
        accepted, _ = taken.sockets["mqtt"].accept()
        accepted.sendall(b"welcome")
        assert client.recv(7) == b"welcome"
        accepted.close()
    taken.close()


@pytest.mark.parametrize("switched_off", [True, False])
def test_a_socket_that_the_settings_no_longer_name_is_closed(before: socket.socket, switched_off: bool) -> None:
    kept = hand_on(before)
    before.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        elsewhere = other.getsockname()[1]
    old = kept["mqtt"]
    taken = take_ports(settings(None if switched_off else elsewhere), move=False, kept=kept)
    assert old.fileno() == -1
    assert [one.getsockname()[1] for one in taken.sockets.values()] == ([] if switched_off else [elsewhere])
    taken.close()
