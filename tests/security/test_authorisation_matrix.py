"""Every operation of the table × allowed, denied, another namespace × every protocol that can say it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pika.exceptions
import pytest

from mainstem.admin.api import OPERATIONS
from mainstem.admin.calls import Operation
from mainstem.broker.rights.operations import TABLE, Need, Scope
from mainstem.broker.rights.rules import Action, Kind, Rule
from mainstem.testing import Broker
from tests.security.attempts import ATTEMPTS, Client, amqp, commit, make_stream, name_of
from tests.users import ROOT

ANN, EVE, OWN = (
    ("ann", "pass word"),
    ("eve", "pass word"),
    ("own", "pass word"),
)  # of t1, of t2, whose groups they are in t1
EVERYTHING = [
    Rule.make(allow=True, actions=list(Action), pattern="#" if kind is Kind.TOPIC else "*", kind=kind)
    for kind in Kind
    if kind is not Kind.CLUSTER
]
BROKER_WIDE = (Scope.BROKER,)
CHANGED = ["nothing is made yet"]
SAID = [
    pytest.param(need, protocol, id=f"{need.operation}-{protocol}")
    for need in TABLE
    for protocol in need.protocols
    if protocol != "http"
]
ENDPOINTS = [pytest.param(one, id=f"{one.method} {one.path}") for one in OPERATIONS if not one.streams]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one, httpx.Client(base_url=one.http_url, timeout=20) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        for name in ("t1", "t2"):
            http.post("/v1/namespaces", json={"name": name}).raise_for_status()
        for user, namespace in ((ANN, "t1"), (EVE, "t2"), (OWN, "t1")):
            body = {"name": user[0], "password": user[1], "namespace": namespace}
            http.post("/v1/users", json=body).raise_for_status()
        set_rules(one, EVE, EVERYTHING)
        set_rules(one, OWN, EVERYTHING)
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, params={"namespace": "t1"}, timeout=20) as client:
        yield client


@pytest.fixture(autouse=True)
def made(broker: Broker, root: httpx.Client, request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything that is tried on exists in t1, whatever the test before deleted."""
    if CHANGED:
        make_all(broker, root)
        CHANGED.clear()
    yield
    if any(word in request.node.name for word in ("delete", "create", "queue", "DELETE", "POST")):
        CHANGED.append(request.node.name)


def make_all(broker: Broker, root: httpx.Client) -> None:
    root.post("/v1/topics", json={"name": "obj", "settings": {"layout": "dedicated"}})
    root.post("/v1/topics", json={"name": "t1only", "settings": {"layout": "dedicated"}})
    root.post("/v1/views", json={"name": "objview", "filter": "obj/#"})
    root.post("/v1/queues", json={"name": "objqueue", "filter": "q/#"})
    root.post("/v1/messages", json={"topic": "q/1", "value": "x"}).raise_for_status()
    for path in ("/v1/topics/newtopic", "/v1/views/newview", "/v1/queues/newqueue", "/v1/groups/newgroup"):
        root.delete(path)
    api = httpx.Client(base_url=f"{broker.http_url}/api", auth=ROOT, timeout=20)
    api.put("/exchanges/t1/objexchange", json={"type": "direct"})
    api.put("/queues/t1/bound", json={})
    api.delete("/exchanges/t1/newexchange")
    api.close()
    with Client(broker, OWN) as client:
        for name in ("objgroup", "t1only"):
            assert commit(client, name) == 0
    make_stream(broker, "t1", "objstream")
    for name in ("objid", "t1only"):
        assert ATTEMPTS["transaction.publish", "kafka"](broker, OWN, name)


def set_rules(broker: Broker, user: tuple[str, str], rules: list[Rule]) -> None:
    assert broker.app is not None and broker.loop is not None
    access = broker.app.broker.access

    async def change() -> None:
        await access.set_rules(user[0], rules)

    asyncio.run_coroutine_threadsafe(change(), broker.loop).result(30)


def rules_for(need: Need, *, denied: bool) -> list[Rule]:
    """Everything else is allowed, the one thing is or is not: what decides is the one rule."""
    assert need.action is not None and need.kind is not None
    name = "t1" if need.scope is Scope.NAMESPACE else "#" if need.scope is Scope.WHOLE else name_of(need.operation)
    if need.operation == "exchange.bind":
        name = "objexchange/#"
    rule = Rule.make(allow=not denied, actions=[need.action], pattern=name, kind=need.kind)
    others = [one for one in EVERYTHING if one.kind is not need.kind]
    rest = [
        Rule.make(allow=True, actions=[a for a in Action if a is not need.action], pattern=one.filter, kind=one.kind)
        for one in EVERYTHING
        if one.kind is need.kind
    ]
    if need.kind is Kind.TOPIC:  # what the attempt needs besides: to read what it is made of
        rest += [Rule.make(allow=True, actions=["consume"], pattern="q/#")]
    if need.kind in (Kind.QUEUE, Kind.EXCHANGE):  # those are also ruled as the topics of their names
        others = [Rule.make(allow=True, actions=["consume", "publish"], pattern="q/#")]
        others += [one for one in EVERYTHING if one.kind not in (need.kind, Kind.TOPIC)]
        rest = []
    return [rule, *others, *rest]


@pytest.mark.parametrize(("need", "protocol"), SAID)
def test_by_protocol(broker: Broker, need: Need, protocol: str) -> None:
    ask = ATTEMPTS[need.operation, protocol]  # a line of the table that nobody tries is a failure
    if need.scope in BROKER_WIDE:
        set_rules(broker, ANN, EVERYTHING)
        assert ask(broker, ROOT, "")
        assert not ask(broker, ANN, "")
        return
    name = name_of(need.operation)
    set_rules(broker, ANN, rules_for(need, denied=True))
    assert not ask(broker, ANN, name), "denied, and done all the same"
    set_rules(broker, ANN, rules_for(need, denied=False))
    assert ask(broker, ANN, name), "allowed, and refused all the same"


@pytest.mark.parametrize(("need", "protocol"), SAID)
def test_from_another_namespace(broker: Broker, root: httpx.Client, need: Need, protocol: str) -> None:
    """Who may do everything in t2 changes and gets nothing of what has the same name in t1."""
    if protocol == "amqp":
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError), amqp(broker, EVE):
            pass
        return
    if need.scope in BROKER_WIDE:
        assert not ATTEMPTS[need.operation, protocol](broker, EVE, "")
        return
    before = _state(root)
    name = "t1only" if need.scope is Scope.EACH else name_of(need.operation)
    try:
        done = ATTEMPTS[need.operation, protocol](broker, EVE, name)
    except (AssertionError, IndexError):  # there is no such thing in t2
        done = False
    if need.scope is Scope.EACH:
        assert not done
    assert _state(root) == before


def _state(root: httpx.Client) -> list[Any]:
    def names(path: str) -> list[str]:
        return sorted(row["name"] for row in root.get(path).json()["items"])

    records = root.get("/v1/topics/obj").json()["records"]
    group = root.get("/v1/groups/objgroup").json()
    queue = root.get("/v1/queues/objqueue").json()
    ready = queue["ready"] + queue["unacked"]
    return [
        records,
        group.get("offsets"),
        ready,
        *(names(f"/v1/{kind}") for kind in ("topics", "views", "queues", "groups")),
    ]


BODIES: dict[str, dict[str, Any]] = {
    "back_up": {"directory": "relative"},
    "create_topic": {"name": "newtopic"},
    "alter_topic": {"settings": {"retention_ms": 1000}},
    "create_view": {"name": "newview", "filter": "q/#"},
    "create_stream": {"name": "newstream"},
    "alter_stream": {"durability": "os"},
    "publish": {"topic": "obj", "value": "x"},
    "try_it": {"topic": "obj", "value": "x", "protocol": "none"},
    "create_group": {"name": "newgroup", "topic": "q.1"},
    "reset_group": {"group": "objgroup", "to": "earliest"},
    "create_queue": {"name": "newqueue", "filter": "q/#"},
    "alter_queue": {"length_max": 1000},
    "add_namespace": {"name": "t1"},
    "alter_namespace": {},
    "add_user": {"name": "ann", "password": "again"},
    "set_password": {},
    "set_roles": {"roles": ["none"]},
    "add_rule": {"actions": ["fly"], "filter": "a"},
    "put_role": {"name": "a b"},
    "run_query": {"sql": "select 1 as one"},
}
QUERIES = {
    "browse": {"topic": "obj"},
    "get_series": {"topic": "obj"},
    "get_trace": {"topic": "obj", "offset": "0"},
    "read_table": {},
    "remove_rules": {"filter": "none"},
    "explain_rules": {"action": "consume", "filter": "a"},
}


def send(http: httpx.Client, one: Operation, **query: str) -> int:
    kind = one.needs.partition(".")[0]
    name = {"user": "nobody", "rule": "nobody", "role": "nobody", "namespace": "t1"}.get(kind)
    name = name or ("none" if kind in ("session", "connection") else name_of(one.needs))
    path = re.sub(r"\{\w+(:path)?\}", name, one.path)
    body = BODIES.get(one.handler.__name__, {}) if one.method in ("POST", "PATCH", "PUT") else None
    query = {**QUERIES.get(one.handler.__name__, {}), **query}
    return http.request(one.method, path, params=query, json=body).status_code


@pytest.mark.parametrize("one", ENDPOINTS)
def test_by_http(broker: Broker, one: Operation) -> None:
    need = one.need
    with httpx.Client(base_url=broker.http_url, auth=ANN, timeout=20) as http:
        if need.scope is Scope.LOGIN:
            set_rules(broker, ANN, [])
            assert send(http, one) == (403 if one.needs == "history.read" else 200)  # that asks for an object's right
        elif need.scope is Scope.BROKER:
            set_rules(broker, ANN, EVERYTHING)
            assert send(http, one) == 403
            http.auth = httpx.BasicAuth(*ROOT)
            assert send(http, one) not in (401, 403)
        elif need.scope is Scope.EACH:
            set_rules(broker, ANN, rules_for(need, denied=True))
            assert send(http, one) == 200
        else:
            set_rules(broker, ANN, rules_for(need, denied=True))
            assert send(http, one) == 403
            set_rules(broker, ANN, rules_for(need, denied=False))
            assert send(http, one) not in (401, 403)


@pytest.mark.parametrize("one", ENDPOINTS)
def test_by_http_from_another_namespace(broker: Broker, one: Operation) -> None:
    with httpx.Client(base_url=broker.http_url, auth=EVE, timeout=20) as http:
        assert send(http, one, namespace="t1") == 403
        assert httpx.request(one.method, f"{broker.http_url}{one.path}").status_code in (401, 415)


LISTS = {
    "topic.list": "obj",
    "view.list": "objview",
    "stream.list": "objstream",
    "queue.list": "objqueue",
    "group.list": "objgroup",
}


@pytest.mark.parametrize("one", [p for p in ENDPOINTS if p.values[0].needs in LISTS])
def test_lists_show_what_may_be_seen(broker: Broker, one: Operation) -> None:
    with httpx.Client(base_url=broker.http_url, auth=ANN, timeout=20) as http:
        for denied in (True, False):
            set_rules(broker, ANN, rules_for(one.need, denied=denied))
            rows = http.get(one.path).json()["items"]
            shown = LISTS[one.needs] in [row.get("name", row.get("path")) for row in rows]
            assert shown is not denied
