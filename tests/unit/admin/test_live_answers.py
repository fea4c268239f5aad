"""Server-sent events end with the login by which they were asked for, and with the rule that allowed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.users import ROOT, add_users

pytestmark = pytest.mark.timeout(120)
EVE = ("eve", "of eve")
STREAMS = {"/events/overview": "", "/v1/tail?filter=a/%23": "", "/v1/events": "admin"}
Change = Callable[[httpx.Client, httpx.Client], Any]

ENDS: dict[str, Change] = {
    "removed": lambda root, _: root.delete("/v1/users/eve"),
    "another password": lambda root, _: root.patch("/v1/users/eve", json={"password": "another"}),
    "another namespace": lambda root, _: root.patch("/v1/users/eve", json={"namespace": "yard"}),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        add_users(broker)
        with httpx.Client(base_url=broker.http_url, auth=ROOT) as root:
            root.put("/v1/namespaces/yard").raise_for_status()
        yield broker


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=30) as client:
        yield client


@contextmanager
def eve_of(broker: Broker, root: httpx.Client, *, admin: bool = False, session: bool = False) -> Iterator[httpx.Client]:
    """A user of its own for each try, by HTTP Basic or with a session."""
    root.delete("/v1/users/eve")
    root.post("/v1/users", json={"name": EVE[0], "password": EVE[1], "admin": admin}).raise_for_status()
    root.post("/v1/users/eve/rules", json={"actions": ["consume"], "filter": "a/#"}).raise_for_status()
    with httpx.Client(base_url=broker.http_url, auth=None if session else EVE, timeout=30) as client:
        if session:
            client.post("/login", json={"user": EVE[0], "password": EVE[1]}).raise_for_status()
        yield client


def opened(client: httpx.Client, path: str, stack: ExitStack) -> Iterator[str]:
    answer = stack.enter_context(client.stream("GET", path))
    assert answer.status_code == 200, path
    lines = answer.iter_lines()
    next(lines)
    return lines


@pytest.mark.parametrize("session", [False, True], ids=["basic", "session"])
@pytest.mark.parametrize("why", ENDS)
def test_a_stream_ends_with_its_login(broker: Broker, root: httpx.Client, why: str, session: bool) -> None:
    for path, needs in STREAMS.items():
        if needs and why == "another namespace":
            continue  # an admin has all of them
        with eve_of(broker, root, admin=bool(needs), session=session) as eve, ExitStack() as stack:
            lines = opened(eve, path, stack)
            ENDS[why](root, eve).raise_for_status()
            for _ in lines:  # to its end: a proper one, or httpx raises
                pass
            if session or why != "another namespace":  # with the password it comes back into the other one
                assert eve.get(path).status_code == 401, "who asks again is told to log in"


def test_a_stream_ends_with_a_logout_and_others_go_on(broker: Broker, root: httpx.Client) -> None:
    with eve_of(broker, root, session=True) as eve, ExitStack() as stack:
        lines = opened(eve, "/events/overview", stack)
        others = opened(root, "/events/overview", stack)
        assert eve.post("/logout", json={}).status_code == 204
        for _ in lines:
            pass
        for _ in range(20):
            next(others)


def test_a_stream_ends_by_its_sessions_time() -> None:
    with Broker("http.session_ms=3s") as broker:
        add_users(broker)
        with httpx.Client(base_url=broker.http_url, timeout=30) as http, ExitStack() as stack:
            http.post("/login", json={"user": ROOT[0], "password": ROOT[1]}).raise_for_status()
            for _ in opened(http, "/v1/tail?filter=%23", stack):
                pass


def test_a_tail_ends_when_the_rule_is_taken_away(broker: Broker, root: httpx.Client) -> None:
    with eve_of(broker, root) as eve, ExitStack() as stack:
        lines = opened(eve, "/v1/tail?filter=a/%23", stack)
        root.post("/v1/users/eve/rules", json={"actions": ["publish"], "filter": "b"}).raise_for_status()
        root.post("/v1/messages", json={"topic": "a/1", "value": "still read"}).raise_for_status()
        assert any("still read" in line for line in lines)
        root.delete("/v1/users/eve/rules", params={"filter": "a/#"}).raise_for_status()
        assert [line for line in lines if line][-2:] == [
            "event: ended",
            "data: user eve may not consume all that a/# means",
        ]


def test_nobody_is_kept_for_who_has_left(broker: Broker, root: httpx.Client) -> None:
    assert broker.app is not None
    with ExitStack() as stack:
        lines = opened(root, "/events/overview", stack)
        assert len(broker.app.live) >= 1 and next(lines) is not None
    live = broker.app.live
    eventually(lambda: len(live) == 0, "its client has left")
