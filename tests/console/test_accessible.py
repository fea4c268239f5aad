"""Every page as axe-core judges it, in light and dark, wide and narrow; skipped where npm cannot install it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer, Producer
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Browser

from mainstem.admin.console.pages import PAGES
from mainstem.testing import Broker
from tests.console.login import log_in
from tests.protocol.kafka.java_clients import CACHE

VERSION = "4.10.3"
ADMIN = ("root", "secret-of-root")
NAMES = {
    "/topic": "name=orders",
    "/queue": "name=letterbox",
    "/exchange": "name=letters",
    "/view": "name=all-sensors",
    "/group": "name=billing",
    "/session": "name=historian",
    "/user": "name=clerk",
    "/subject": "name=orders-value",
    "/pipeline": "name=telemetry",
    "/namespace": "name=/",
    "/messages": "topic=sensors/kitchen/temp&field=celsius",
}
CUT = """() => [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.querySelector("table").outerHTML.slice(0, 200))"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def axe() -> str:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    directory = CACHE / f"axe-core-{VERSION}"
    script = directory / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), f"axe-core@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"npm could not install axe-core: {done.stderr.strip()[-300:]}")
    return Path(script).read_text()


@pytest.fixture(scope="module")
def furnished() -> Iterator[Broker]:
    """A broker with users and one of everything that has a page, its clients connected."""
    with Broker() as broker, httpx.Client(base_url=broker.http_url, auth=ADMIN) as http:
        for name, admin in ((ADMIN[0], True), ("clerk", False)):
            http.post("/v1/users", json={"name": name, "password": ADMIN[1], "admin": admin}).raise_for_status()
        rule = {"allow": True, "actions": ["consume", "describe"], "filter": "sensors/#"}
        http.post("/v1/users/clerk/rules", json=rule).raise_for_status()
        reading = {"topic": "sensors/kitchen/temp", "value_json": {"celsius": 21.5}, "headers": {"region": "eu"}}
        for _ in range(20):
            http.post("/v1/messages", json=reading).raise_for_status()
        http.post("/v1/views", json={"name": "all-sensors", "filter": "sensors/#"}).raise_for_status()
        schema = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]})
        http.post("/subjects/orders-value/versions", json={"schema": schema}).raise_for_status()
        flows = [{"flow": "archive", "state": "running", "lag": 1_200, "rows": 5_000, "error": "no broker answers"}]
        http.post("/v1/pipelines/telemetry", json={"flows": flows}).raise_for_status()
        with clients(broker):
            yield broker


@contextmanager
def clients(broker: Broker) -> Iterator[None]:
    session = paho.Client(CallbackAPIVersion.VERSION2, client_id="historian", clean_session=False)
    session.username_pw_set(*ADMIN)
    session.connect(broker.host, broker.mqtt_port)
    session.subscribe("sensors/#", 1)
    session.loop_start()
    login = pika.PlainCredentials(*ADMIN)
    with pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.amqp_port, credentials=login, heartbeat=0)
    ) as amqp:
        channel = amqp.channel()
        channel.exchange_declare("letters", "topic", durable=True)
        channel.queue_declare("letterbox", durable=True)
        channel.queue_bind("letterbox", "letters", "north.#")
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("letters", f"north.{number}", b"a letter")
            method, _, _ = channel.basic_get("letterbox")
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.basic_consume("letterbox", lambda *_: None)
        kafka = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": ADMIN[0],
            "sasl.password": ADMIN[1],
        }
        producer = Producer(kafka)
        producer.produce("orders", b"an order")
        assert producer.flush(30) == 0
        consumer = Consumer({**kafka, "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while consumer.poll(1) is None:  # the test's own timeout ends it
            pass
        yield
        consumer.close()
    session.loop_stop()
    session.disconnect()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_axe_finds_nothing_on_any_page_and_nothing_sticks_out(
    browser: Browser, furnished: Broker, width: int, scheme: str
) -> None:
    script, broker = axe(), furnished
    [connected, *_] = httpx.get(f"{broker.http_url}/v1/connections", auth=ADMIN).json()["items"]
    asked = {**NAMES, "/connection": f"id={connected['id']}"}
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        base_url=broker.http_url,
        color_scheme=scheme,  # type: ignore[arg-type]
        bypass_csp=True,  # axe is no script of ours
    )
    page = context.new_page()
    found = []
    for path in ("/login", *(one.path for one in PAGES)):
        answered = page.goto(f"{path}?{asked.get(path, '')}")
        assert answered is not None and answered.status == 200, path
        page.add_script_tag(content=script)
        answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [(path, rule["id"], rule["nodes"][0]["html"]) for rule in answer["violations"]]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append((path, "sticks out", ""))
        found += [(path, "is cut", table) for table in page.evaluate(CUT)]
        if path == "/login":
            log_in(context, *ADMIN)
    context.close()
    assert found == []
