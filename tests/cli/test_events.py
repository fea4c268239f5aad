"""`mainstem events`: what happens while one watches; `pub` at a rate, from a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from confluent_kafka import Consumer
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.testing import Broker
from tests.cli.commands import run, said


@pytest.fixture
def watching(broker: Broker) -> Iterator[Any]:
    """The process, once it watches: a topic that is made is told."""
    command = [sys.executable, "-u", "-m", "mainstem", "events", "--json", "--url", broker.http_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    app = broker.app
    assert app is not None
    deadline = time.monotonic() + 30
    while not app.events.watchers:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield process
    process.kill()
    process.communicate()


def until(process: Any, kind: str, text: str) -> dict[str, Any]:
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["kind"] == kind and text in event["text"]:
            return event
    raise AssertionError(f"no {kind} with {text}")


def test_who_comes_and_goes_topics_and_rebalances_are_told(broker: Broker, watching: Any) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="seen-by-events")
    made = httpx.post(f"{broker.http_url}/v1/topics", json={"name": "told/here", "settings": {"partitions": 2}})
    made.raise_for_status()
    # What is there at the first look is not an event. It saw this client once it knows the connection.
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    deadline = time.monotonic() + 30
    app = broker.app
    assert app is not None
    while not app.events._connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client.loop_stop()
    client.disconnect()
    assert until(watching, "disconnected", "seen-by-events")["protocol"] == "mqtt"
    again = paho.Client(CallbackAPIVersion.VERSION2, client_id="seen-again")
    again.connect(broker.host, broker.mqtt_port)
    again.loop_start()
    until(watching, "connected", "from 127.0.0.1")
    again.loop_stop()
    again.disconnect()
    httpx.delete(f"{broker.http_url}/v1/topics/told/here").raise_for_status()
    until(watching, "deleted", "topic told/here")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "seen", "auto.offset.reset": "earliest"}
    httpx.post(f"{broker.http_url}/v1/messages", json={"topic": "grouped", "value": "x"}).raise_for_status()
    consumer = Consumer(settings)
    consumer.subscribe(["grouped"])
    deadline = time.monotonic() + 60
    while consumer.poll(1) is None:
        assert time.monotonic() < deadline
    until(watching, "rebalanced", "group seen")
    consumer.close()


def test_only_an_admin_watches() -> None:
    with Broker() as broker:
        for name, admin in (("root", True), ("ada", False)):
            body = {"name": name, "password": "secret-1", "admin": admin}
            httpx.post(f"{broker.http_url}/v1/users", json=body, auth=("root", "secret-1")).raise_for_status()
        assert httpx.get(f"{broker.http_url}/v1/events", auth=("ada", "secret-1")).status_code == 403


def test_a_file_is_published_line_by_line_at_a_rate(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(20)))
    url = f"mqtt://127.0.0.1:{broker.mqtt_port}/paced"
    began = time.monotonic()
    said("pub", url, "--file", str(tmp_path / "lines"), "--lines", "--rate", "40")
    assert time.monotonic() - began > 0.4, "twenty at forty a second"
    lines = said("sub", url, "--from", "earliest", "--count", "20").splitlines()
    assert lines == [f"line {number}" for number in range(20)]
    for wrong in (("x", "--file", "y"), ("x", "--every", "1s", "--rate", "3")):
        done = run("pub", url, *wrong)
        assert done.returncode == 1
        assert "fix: give one of them" in done.stderr
