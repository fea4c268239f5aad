"""At 80 % of a quota an operator is warned: by a metric, an event, the command line and the console."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.testing import Broker
from tests.cli.commands import said
from tests.crossing.commands import eventually
from tests.protocol.mqtt.raw import Raw
from tests.users import ROOT


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        http.post("/v1/users", json={"name": ROOT[0], "password": ROOT[1], "admin": True}).raise_for_status()
        http.auth = httpx.BasicAuth(*ROOT)
        http.put("/v1/namespaces/shop", json={"quota": {"topics_max": 10, "queues_max": 10}}).raise_for_status()
        yield http


@pytest.fixture
def events(broker: Broker, root: httpx.Client) -> Iterator[Any]:
    url = broker.http_url.replace("://", f"://{ROOT[0]}:{ROOT[1]}@")
    command = [sys.executable, "-u", "-m", "mainstem", "events", "--json", "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    app = broker.app
    assert app is not None
    eventually(lambda: app.events.watchers > 0, "somebody watches")
    yield process.stdout
    process.kill()
    process.communicate()


def near(root: httpx.Client) -> float:
    lines = root.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("mainstem_quotas_near ")).split()[1])


def make_topics(root: httpx.Client, numbers: range) -> None:
    for number in numbers:
        body = {"topic": f"t/{number}", "value": "x"}
        root.post("/v1/messages", json=body, params={"namespace": "shop"}).raise_for_status()


def test_a_warning_begins_at_eighty_percent_and_ends_below(broker: Broker, root: httpx.Client, events: Any) -> None:
    make_topics(root, range(7))
    use = root.get("/v1/namespaces/shop").json()["use"]
    assert use["topics_max"] == {"used": 7, "limit": 10, "left": 3, "near": False}
    assert near(root) == 0
    make_topics(root, range(7, 8))
    for line in events:
        event = json.loads(line)
        if "topics_max" in event["text"]:
            break
    assert event["text"] == "namespace shop uses 80 % of its topics_max of 10"
    assert event["level"] == "warning"
    eventually(lambda: near(root) == 1, "one quota is near its limit")
    use = root.get("/v1/namespaces/shop").json()["use"]
    assert (use["topics_max"]["near"], use["queues_max"]["near"]) == (True, False)
    url = broker.http_url.replace("://", f"://{ROOT[0]}:{ROOT[1]}@")
    described = [line.split() for line in said("namespace", "describe", "shop", "--url", url).splitlines()]
    assert ["near", "yes"] in described
    assert "80 % used" in root.get("/namespace?name=shop").text
    root.patch("/v1/namespaces/shop", json={"quota": {"topics_max": 100}}).raise_for_status()
    eventually(lambda: near(root) == 0, "there is room again")
    assert "% used" not in root.get("/namespace?name=shop").text


def test_a_users_quota_is_warned_of_in_the_same_way(broker: Broker, root: httpx.Client) -> None:
    user = {"name": "ann", "password": "pass word", "namespace": "shop"}
    root.post("/v1/users", json=user).raise_for_status()
    root.patch("/v1/users/ann", json={"quota": {"connections_max": 1}}).raise_for_status()
    assert "% used" not in root.get("/user?name=ann").text
    with Raw.connected(broker.mqtt_port, username="ann", password=b"pass word"):
        eventually(lambda: near(root) == 1, "one of one connection is used")
        assert "100 % used" in root.get("/user?name=ann").text
    eventually(lambda: near(root) == 0, "and given back")
