"""`retained_bytes_max`: told in MQTT's words, counted again after a restart, free again when something is cleared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mainstem.testing import Broker
from tests.protocol.mqtt.raw import Raw, publish_packet

WAIT_S = 20
QUOTA_EXCEEDED = 0x97


def retains(client: Raw, topic: str, payload: bytes) -> int:
    client.send(publish_packet(topic, payload, qos=1, version=5, retain=True))
    _, body = client.packet()
    return body[2] if len(body) > 2 else 0


def use(http: httpx.Client) -> int:
    return int(http.get("/v1/namespaces/%2F").json()["use"].get("retained_bytes_max", {}).get("used", -1))


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_retained_messages_are_refused_beyond_it_and_taken_when_some_are_cleared(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as (http, client):
        assert retains(client, "a/1", b"x" * 97) == 0  # a hundred with its topic, before there is a quota
        http.patch("/v1/namespaces/%2F", json={"quota": {"retained_bytes_max": 300}}).raise_for_status()
        until(lambda: use(http) == 100)
        assert retains(client, "a/2", b"x" * 97) == 0
        assert retains(client, "a/2", b"x" * 47) == 0  # in place of the other
        assert retains(client, "a/3", b"x" * 147) == 0
        until(lambda: use(http) == 300)
        assert retains(client, "a/4", b"x") == QUOTA_EXCEEDED
        client.send(publish_packet("a/4", b"not retained", qos=1, version=5))
        assert client.packet()[1][2:3] in (b"", b"\0")
    with served(data) as (http, client):
        until(lambda: use(http) == 300)
        assert retains(client, "a/4", b"x") == QUOTA_EXCEEDED
        assert retains(client, "a/1", b"") == 0  # clears it
        until(lambda: use(http) == 200)
        assert retains(client, "a/4", b"x") == 0
        http.patch("/v1/namespaces/%2F", json={"quota": {"retained_bytes_max": None}}).raise_for_status()
        assert retains(client, "a/5", b"x" * 1_000) == 0


@contextmanager
def served(data: Path) -> Iterator[tuple[httpx.Client, Raw]]:
    with (
        Broker(engine="segment", data=data) as broker,
        httpx.Client(base_url=broker.http_url, timeout=WAIT_S) as http,
        Raw.connected(broker.mqtt_port, version=5) as client,
    ):
        yield http, client
