"""The pages of one thing: reached by its name, with its actions, at both widths."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import Consumer
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Page, expect

from mainstem.testing import Broker

Shoot = Callable[[Page, str], None]


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url) as client:
        yield client


def test_dead_letters_are_read_and_redriven_one_by_one_or_all(
    page: Page, broker: Broker, http: httpx.Client, shoot: Shoot
) -> None:
    http.post("/v1/queues", json={"name": "parcels", "filter": "parcels/#", "deliveries_max": 5}).raise_for_status()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for value in (b"first", b"second", b"third"):
            channel.basic_publish("amq.topic", "parcels.a", value)
        for _ in range(3):
            method, _, _ = channel.basic_get("parcels")
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_bind("parcels", "amq.direct", "by-key")
        channel.queue_declare("parcels", passive=True)  # answered once the rejects were taken
    page.goto("/views")
    page.locator("a", has_text="parcels").first.click()
    expect(page.locator("h1")).to_have_text("parcels")
    expect(page.locator("#dead tbody tr")).to_have_count(3)
    expect(page.locator("#dead tr", has_text="second")).to_contain_text("rejected")
    expect(page.locator("tr", has_text="amq.direct")).to_contain_text("by-key")
    shoot(page, "queue")
    page.locator("#dead tr", has_text="second").get_by_role("button", name="Redrive").click()
    expect(page.locator("#dead tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Redrive all").click()
    expect(page.locator("#dead")).to_have_count(0)
    assert http.get("/v1/queues/parcels").json()["ready"] == 3
    page.locator("input[name=length_max]").fill("10")
    page.get_by_role("button", name="Change").click()
    expect(page.locator("tr", has_text="length_max")).to_contain_text("10")
    page.on("dialog", lambda dialog: dialog.accept("parcels"))
    page.get_by_role("button", name="Delete this queue").click()
    page.wait_for_url("**/views")
    assert http.get("/v1/queues/parcels").status_code == 404


def test_consumers_of_a_queue_are_listed_with_their_protocols(page: Page, broker: Broker, http: httpx.Client) -> None:
    http.post("/v1/queues", json={"name": "shifts", "filter": "shifts/#"}).raise_for_status()
    worker = paho.Client(CallbackAPIVersion.VERSION2, client_id="worker-7", protocol=paho.MQTTv5, manual_ack=True)
    worker.connect(broker.host, broker.mqtt_port)
    worker.loop_start()
    worker.subscribe("$queue/shifts", 1)
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.basic_consume("shifts", lambda *_: None, auto_ack=True)
            deadline = time.monotonic() + 30
            while http.get("/v1/queues/shifts").json()["consumers"] < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            page.goto("/queue?name=shifts")
            expect(page.locator("#takers tbody tr")).to_have_count(2)
            expect(page.locator("#takers tr", has_text="worker-7")).to_contain_text("mqtt")
            expect(page.locator("#takers tr", has_text="amqp")).to_contain_text("no")
            expect(page.locator("tr", has_text="exclusive").last).to_contain_text("no")
            for _ in range(4):  # MQTT's share of them is held, AMQP's needs no ack
                http.post("/v1/messages", json={"topic": "shifts/a", "value": "1"}).raise_for_status()
            expect(page.locator("#takers tr", has_text="worker-7").locator("td.n").first).to_have_text("2")
            expect(page.locator("#takers tr", has_text="amqp").locator("td.n").first).to_have_text("0")
            page.locator("#takers a", has_text="worker-7").click()
            expect(page.locator("h1")).to_have_text("worker-7")
            page.goto("/views")
    finally:
        worker.loop_stop()
        worker.disconnect()
        http.delete("/v1/queues/shifts")


def test_an_exchange_shows_what_is_bound_to_it(page: Page, broker: Broker, http: httpx.Client) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("letters", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        channel.queue_declare("letterbox", durable=True)
        channel.queue_bind("letterbox", "letters", "north.#")
        channel.exchange_bind("letters", "amq.direct", "all")
    page.goto("/views")
    page.locator("#exchanges a", has_text="letters").click()
    expect(page.locator("h1")).to_have_text("letters")
    expect(page.locator("#bindings tr", has_text="letterbox")).to_contain_text("north.#")
    expect(page.locator("#bindings tr", has_text="amq.direct")).to_contain_text("all")
    expect(page.locator("dl.facts")).to_contain_text("amq.fanout")
    assert http.get("/exchange.json?name=letters").json()["bound"] == 2
    assert http.get("/exchange.json?name=nothing").status_code == 404
    page.locator("#bindings a", has_text="letterbox").click()
    page.get_by_role("link", name="letters", exact=True).click()  # names lead both ways
    expect(page.locator("h1")).to_have_text("letters")


def test_the_api_can_be_read_by_people(page: Page, broker: Broker, http: httpx.Client) -> None:
    page.goto("/")
    page.locator("footer a", has_text="API").click()
    expect(page.locator("h1")).to_have_text("HTTP API")
    page.locator("summary", has_text="/v1/history").click()
    expect(page.locator("details[open]")).to_contain_text("How far back")
    document = http.get("/v1/openapi.json").json()
    operations = sum(len(methods) for methods in document["paths"].values())
    expect(page.locator("summary")).to_have_count(operations + len(document["components"]["schemas"]))
    expect(page.locator("details[open]")).to_contain_text("403")
    page.locator("details[open] a", has_text="HistorySeries").click()  # what it answers unfolds
    expect(page.locator("#answer-HistorySeries")).to_contain_text("Seconds since 1970.")


def test_a_group_shows_its_members_and_is_reset_after_a_preview(page: Page, broker: Broker, shoot: Shoot) -> None:
    settings = {
        "bootstrap.servers": f"{broker.host}:{broker.kafka_port}",
        "group.id": "readers",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer({**settings, "client.id": "reader-1", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    deadline = time.monotonic() + 60
    while (message := consumer.poll(1)) is None:
        assert time.monotonic() < deadline
    consumer.commit(message=message, asynchronous=False)
    page.goto("/cursors")
    page.locator("a", has_text="readers").first.click()
    expect(page.locator("tr", has_text="reader-1")).to_contain_text("orders-0")
    expect(page.locator("tr", has_text="orders").first).to_contain_text("0")
    shoot(page, "group")
    consumer.close()
    page.goto("/group?name=readers")
    page.get_by_role("button", name="Try").click()
    expect(page.locator("output").first).to_contain_text("orders-0:")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("section").first.locator("tbody td").nth(4)).to_have_text("1")


def test_a_view_a_session_and_a_connection_have_their_pages(page: Page, broker: Broker) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="detailed", clean_session=False)
    client.connect(broker.host, broker.mqtt_port)
    client.subscribe("detail/#", 1)
    client.loop_start()
    try:
        page.goto("/connections")
        page.locator("a", has_text="detailed").click()
        expect(page.locator("h1")).to_have_text("detailed")
        page.goto("/cursors")
        page.locator("a", has_text="detailed").click()
        expect(page.locator("tr", has_text="detail/#")).to_be_visible()
        expect(page.locator("dl.facts")).to_contain_text("live: it is sent what comes")
        page.goto("/view?name=all-sensors")
        expect(page.locator("tbody tr").first).to_contain_text("120")
    finally:
        client.loop_stop()
        client.disconnect()
    page.goto("/namespace?name=/")
    expect(page.locator("dl.facts")).to_contain_text("topics")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_rules_of_a_user_are_added_and_explained() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url, auth=("root", "secret-1")) as http:
        for name, admin in (("root", True), ("ada", False)):
            http.post("/v1/users", json={"name": name, "password": "secret-1", "admin": admin}).raise_for_status()
        html = http.get("/user?name=ada").text
        assert "logged in as root" in html
        assert "None of its own" in html
        added = http.post("/v1/users/ada/rules", json={"allow": True, "actions": ["consume"], "filter": "a/#"})
        assert added.status_code == 200
        assert "a/#" in http.get("/user?name=ada").text
        offered = re.findall(r'<a href="(/\w*)"', httpx.get(f"{broker.http_url}/", auth=("ada", "secret-1")).text)
        assert "/topics" in offered
        assert "/settings" not in offered
        for path in offered:
            assert httpx.get(f"{broker.http_url}{path}", auth=("ada", "secret-1")).status_code == 200, path
        for path in ("/queue", "/group", "/view", "/session", "/connection", "/user", "/namespace"):
            answer = httpx.get(f"{broker.http_url}{path}?name=ada", auth=("ada", "secret-1"))
            assert answer.status_code in (403, 404), path


@pytest.mark.parametrize("path", ["/queue", "/group", "/view", "/session", "/connection", "/user"])
def test_what_does_not_exist_is_said_with_its_name(http: httpx.Client, path: str) -> None:
    answer = http.get(f"{path}?name=nowhere&id=nowhere")
    assert answer.status_code == 404
    assert "nowhere" in answer.text


def test_the_way_of_a_message_is_reached_from_the_message(page: Page, http: httpx.Client, shoot: Shoot) -> None:
    http.post("/v1/topics", json={"name": "parcel/traced", "settings": {"trace": "100%"}}).raise_for_status()
    http.post("/v1/queues", json={"name": "sorting", "filter": "parcel/#"}).raise_for_status()
    http.post("/v1/messages", json={"topic": "parcel/traced", "value": "fragile", "key": "p-1"}).raise_for_status()
    page.goto("/messages?topic=parcel/traced&from=-1")
    page.locator("#messages summary").first.click()
    page.get_by_role("link", name="where it went").click()
    expect(page.locator(".way li").first).to_contain_text("fragile")
    expect(page.locator(".way li", has_text="sorting")).to_contain_text("waiting")
    expect(page.locator("#steps tr", has_text="durable")).to_be_visible()
    shoot(page, "trace")
    page.goto("/trace?key=p-1")
    page.locator("#traces a").first.click()
    expect(page.locator(".way li").first).to_contain_text("fragile")
    assert http.get("/trace?topic=parcel/traced&at=soon").status_code == 400


def test_dead_letters_are_chosen_and_discarded(page: Page, broker: Broker, http: httpx.Client) -> None:
    http.post("/v1/queues", json={"name": "letters", "filter": "letters/#"}).raise_for_status()
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for value in (b"one", b"two", b"three"):
            channel.basic_publish("amq.topic", "letters.a", value)
            method, _, _ = channel.basic_get("letters")
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("letters", passive=True)
    page.goto("/queue?name=letters")
    page.get_by_role("button", name="Discard chosen").click()
    expect(page.locator(".toast")).to_contain_text("choose some first")
    page.locator("#dead tr", has_text="two").locator("input[type=checkbox]").check()
    page.get_by_role("button", name="Discard chosen").click()
    expect(page.locator("#dead tbody tr")).to_have_count(2)
    page.locator("#dead tr", has_text="three").locator("input[type=checkbox]").check()
    page.get_by_role("button", name="Redrive chosen").click()
    expect(page.locator("#dead tbody tr")).to_have_count(1)
    assert http.get("/v1/queues/letters").json()["ready"] == 1
    page.on("dialog", lambda dialog: dialog.accept("letters"))
    page.get_by_role("button", name="Discard all").click()
    expect(page.locator("#dead")).to_have_count(0)
    answer = http.post("/v1/queues/letters/discard", json={"positions": ["7"]})
    assert answer.status_code == 404


def test_messages_go_both_ways_as_columns_hex_and_again(page: Page, http: httpx.Client) -> None:
    for number in range(120):
        body = {"topic": "paged/a", "value_json": {"n": number, "who": "kim"}, "headers": {"h": "1"}}
        http.post("/v1/messages", json=body).raise_for_status()
    page.goto("/messages?topic=paged/a&from=-50")
    expect(page.locator("#messages tr").first).to_contain_text('"n": 70')
    page.get_by_role("link", name="Older").click()
    expect(page.locator("#messages tr").first).to_contain_text('"n": 20')
    expect(page.locator("#messages tr")).to_have_count(50)
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("#messages tr").first).to_contain_text('"n": 70')
    page.get_by_role("button", name="JSON as columns").click()
    expect(page.locator("th.column")).to_have_text(["n", "who"])
    expect(page.locator("#messages tr").first.locator("td.column").first).to_have_text("70")
    page.get_by_role("button", name="JSON as columns").click()
    page.locator("#messages summary").first.click()
    expect(page.locator("#messages .value").first).to_contain_text('{\n  "n": 70,')
    page.get_by_role("button", name="hex").first.click()
    expect(page.locator("#messages .value").first).to_contain_text("00000000  7b 22")
    with page.expect_download() as saved:
        page.get_by_role("button", name="download").first.click()
    assert saved.value.path().read_bytes() == b'{"n": 70, "who": "kim"}'
    page.get_by_role("button", name="publish again").first.click()
    page.locator("#publish [name=value]").fill('{"n": 1000}')
    page.locator("#publish").get_by_role("button", name="Publish").click()
    expect(page.locator(".toast")).to_contain_text("durable")
    newest = http.get("/v1/messages?topic=paged/a&from=-1").json()["items"][0]
    assert newest["value"] == '{"n": 1000}'
    assert ["h", "1"] in newest["headers"]
