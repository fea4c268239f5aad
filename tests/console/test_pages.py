"""One test per page: it shows what it should, its actions work, it fits a phone, and its JSON twin says the same."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Browser, Page, expect

from mainstem.admin.console.pages import PAGES
from mainstem.server.clients import open_client
from mainstem.server.clients.client import Address, Message, Start
from mainstem.testing import Broker
from tests.console.login import log_in

Shoot = Callable[[Page, str], None]


def twin(broker: Broker, page: Page) -> Any:
    address = page.locator("footer a[rel=alternate]").get_attribute("href")
    return httpx.get(broker.http_url + str(address)).json()


def publish(broker: Broker, topic: str, value: str) -> None:
    assert httpx.post(f"{broker.http_url}/v1/messages", json={"topic": topic, "value": value}).status_code == 200


def test_overview(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Overview")
    for name in ("mqtt", "kafka", "amqp", "nats", "http"):
        expect(page.locator("dl.facts .tag", has_text=name).first).to_be_visible()
    expect(page.locator(".chart canvas").first).to_be_visible()
    topics = page.locator(".number", has_text="topics").locator("b")
    before = topics.inner_text()
    publish(broker, f"fresh/{time.time_ns()}", "x")
    expect(topics).not_to_have_text(before)  # the numbers are live
    assert twin(broker, page)["ready"] is True
    if os.environ.get("MAINSTEM_SCREENSHOTS"):
        make_traffic(broker, page)
    shoot(page, "overview")


def make_traffic(broker: Broker, page: Page) -> None:
    """Some seconds of it by every protocol, for the picture."""
    names = {"mqtt": "traffic/m", "kafka": "traffic.k", "amqp": "traffic.a"}
    clients = {
        name: open_client(Address(name, broker.host, broker.ports[name], "", "", topic, {}))
        for name, topic in names.items()
    }
    listener = open_client(Address("mqtt", broker.host, broker.mqtt_port, "", "", "traffic/#", {"qos": "0"}))
    listener.subscribe("traffic/#", Start("latest"))
    for second in range(14):
        for at, (name, client) in enumerate(clients.items()):
            for _ in range(120 + 40 * ((second + at) % 4)):
                client.publish(Message(b"21.5", names[name]))
            client.flush()
        page.wait_for_timeout(900)
    for client in (*clients.values(), listener):
        client.close()


def test_topics_as_tree_and_table(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/topics")
    page.locator(".tree a", has_text="sensors").first.click()
    expect(page.locator(".tree li")).to_have_count(3)
    shoot(page, "topics")
    page.locator(".tree a", has_text="kitchen").click()
    page.locator(".tree a.tag").click()
    expect(page.locator("h1")).to_have_text("sensors/kitchen/temp")
    page.goto("/topics?mode=table&filter=sensors/%2B/temp")
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody tr", has_text="kitchen").locator(".last")).to_contain_text('"device": "kitchen-1"')
    shoot(page, "topics-table")
    assert len(twin(broker, page)["items"]) == 3
    page.keyboard.press("/")
    page.keyboard.type("payments")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_topic_is_declared_changed_and_deleted(page: Page, broker: Broker) -> None:
    page.goto("/topics")
    page.locator("input[name=name]").fill("made/here")
    page.locator("input[name='settings.partitions']").fill("2")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("h1")).to_have_text("made/here")
    page.locator("input[name='settings.retention_ms']").fill("60000")
    page.get_by_role("button", name="Change").click()
    expect(page.locator("tr", has_text="retention_ms").locator("td").nth(2)).to_have_text("topic")
    page.on("dialog", lambda dialog: dialog.accept("made/here"))
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/topics")
    assert httpx.get(f"{broker.http_url}/v1/topics/made/here").status_code == 404


def test_topic(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/topic?name=sensors/kitchen/temp")
    expect(page.locator("code", has_text="sensors.kitchen.temp").first).to_be_visible()
    expect(page.locator("tr", has_text="durability").locator("td").nth(2)).to_have_text("default")
    expect(page.get_by_text("Where its bytes are")).to_be_visible()
    assert twin(broker, page)["spellings"]["kafka"] == "sensors.kitchen.temp"
    shoot(page, "topic")


def test_messages(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/messages?topic=sensors/kitchen/temp&from=-10&field=celsius")
    expect(page.locator("#messages tr")).to_have_count(10)
    expect(page.locator(".chart canvas")).to_be_visible()
    page.locator("#messages summary").first.click()
    expect(page.locator("#messages dd", has_text="eu").first).to_be_visible()
    assert len(twin(broker, page)["items"]) == 10
    shoot(page, "messages")
    page.goto("/messages?topic=sensors/kitchen/temp&from=earliest&contains=kitchen-1")
    expect(page.locator("#messages tr")).to_have_count(40)


def test_live_tail_and_publish(page: Page, broker: Broker) -> None:
    page.goto("/messages?topic=live/topic/here&from=-10".replace("live/topic/here", "orders"))
    rows = page.locator("#messages tr")
    expect(rows).to_have_count(1)
    with page.expect_response(lambda response: "/v1/tail" in response.url):
        page.get_by_role("button", name="Live tail").click()
    form = page.locator("form[data-api='/v1/messages']")
    form.locator("[name=value]").fill('{"from": "the browser"}')
    form.locator("[name=headers]").fill("a=1\nb=2")
    form.get_by_role("button").click()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("the browser")
    newest = httpx.get(f"{broker.http_url}/v1/messages?topic=orders&from=-1").json()["items"][0]
    assert json.loads(newest["value"]) == {"from": "the browser"}
    assert [pair for pair in newest["headers"] if pair[0] in "ab"] == [["a", "1"], ["b", "2"]]


def test_views_and_queues(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/views")
    expect(page.locator("td.name", has_text="all-sensors")).to_be_visible()
    queue = page.locator("form[data-api='/v1/queues']")
    queue.locator("input[name=name]").fill("jobs")
    queue.locator("input[name=filter]").fill("jobs/#")
    queue.locator("input[name=deliveries_max]").fill("3")
    queue.get_by_role("button").click()
    expect(page.locator("td.name", has_text="jobs")).to_be_visible()
    publish(broker, "jobs/one", "to do")
    row = page.locator("tr", has_text="jobs").filter(has=page.get_by_role("button", name="Purge"))
    expect(row.locator("td.n").first).to_have_text("1")  # the table is live
    shoot(page, "views")
    view = page.locator("form[data-api='/v1/views']")
    view.locator("input[name=name]").fill("kitchen-only")
    view.locator("input[name=filter]").fill("sensors/kitchen/#")
    view.get_by_role("button").click()
    page.locator("td.name a", has_text="kitchen-only").click()
    page.get_by_role("link", name="Messages").last.click()
    expect(page.locator("#messages tr")).to_have_count(40)
    page.goto("/views")
    page.on("dialog", lambda dialog: dialog.accept("kitchen-only"))
    page.locator("tr", has_text="kitchen-only").get_by_role("button", name="Delete").click()
    expect(page.locator("td.name", has_text="kitchen-only")).to_have_count(0)


def test_settings(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/settings")
    row = page.locator("tr", has_text="topics.engine")
    expect(row.locator("td").nth(1)).to_have_text("memory")
    expect(row.locator("td").nth(2)).to_have_text("--set")
    assert any(one["key"] == "limits.connections_max" for one in twin(broker, page)["items"])
    shoot(page, "settings")


def test_a_page_that_does_not_work_says_why(page: Page) -> None:
    answer = page.request.get("/topic?name=nowhere")
    assert answer.status == 404
    assert "there is no topic nowhere" in answer.text()


@pytest.mark.parametrize("path", [one.path for one in PAGES])
def test_every_page_reads_well_without_javascript(broker: Broker, path: str) -> None:
    query = {"/topic": "?name=orders", "/view": "?name=all-sensors"}.get(path, "?name=/")
    html = httpx.get(f"{broker.http_url}{path}{query}").text
    assert "<h1>" in html
    twin_path = "/overview.json" if path == "/" else f"{path}.json"
    assert isinstance(httpx.get(f"{broker.http_url}{twin_path}{query}").json(), dict)


def test_connections(page: Page, broker: Broker, shoot: Shoot) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="console-guest")
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    try:
        page.goto("/connections")
        row = page.locator("tr", has_text="console-guest")
        expect(row).to_be_visible()
        assert any(one["client"] == "console-guest" for one in twin(broker, page)["items"])
        shoot(page, "connections")
        client.loop_stop()  # so that it does not come back
        row.get_by_role("button", name="Disconnect").click()
        expect(page.locator("tr", has_text="console-guest")).to_have_count(0)
    finally:
        client.loop_stop()
    page.reload()
    facts = twin(broker, page)
    assert facts["total"] == len(facts["items"]), "the browser's own connections are not counted either"


def test_cursors_of_all_protocols_and_a_reset(page: Page, broker: Broker, shoot: Shoot) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "console-group",
        "auto.offset.reset": "earliest",
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["sensors.hall.temp"])
    taken = 0
    deadline = time.monotonic() + 30
    while taken < 40 and time.monotonic() < deadline:
        taken += len(consumer.consume(40 - taken, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
    session = paho.Client(CallbackAPIVersion.VERSION2, client_id="console-session", clean_session=False)
    session.connect(broker.host, broker.mqtt_port)
    session.subscribe("sensors/#", qos=1)
    session.loop_start()
    expect_row(page, "/cursors", "console-session")
    session.disconnect()
    session.loop_stop()
    publish(broker, "sensors/hall/temp", "late")
    page.goto("/cursors")
    row = page.locator("tr", has_text="console-group")
    expect(row.locator("td.n").first).to_have_text("1")
    expect(page.locator("tr", has_text="console-session")).to_contain_text("away")
    shoot(page, "cursors")
    form = page.locator("form.reset")
    form.locator("select[name=group]").select_option("console-group")
    form.get_by_role("button", name="Try").click()
    expect(form.locator("output")).to_contain_text("sensors.hall.temp-0")
    form.get_by_role("button", name="Do it").click()
    expect(row.locator("td.n").first).to_have_text("41")


def expect_row(page: Page, path: str, text: str) -> None:
    page.goto(path)
    expect(page.locator("tr", has_text=text)).to_be_visible()


def test_try_it(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/try")
    for protocol in ("mqtt", "kafka", "amqp"):
        page.locator("select[name=protocol]").select_option(protocol)
        page.locator("textarea[name=value]").fill(f"sent by {protocol}")
        page.get_by_role("button", name="Publish").click()
        expect(page.locator(".arrival", has_text=f"sent by {protocol}")).to_have_count(4)
        expect(page.locator(".arrival.amqp")).to_contain_text("try.it.here")
    shoot(page, "try")


def test_try_it_as_the_user_who_is_logged_in(browser: Browser) -> None:
    with Broker() as broker:
        user = {"name": "root", "password": "secret-of-root", "admin": True}
        assert httpx.post(f"{broker.http_url}/v1/users", json=user).status_code == 200
        context = browser.new_context(base_url=broker.http_url)
        log_in(context, "root", "secret-of-root")
        page = context.new_page()
        page.goto("/try")
        page.get_by_role("button", name="Publish").click()
        expect(page.locator(".arrival", has_text="µs")).to_have_count(4)
        context.close()


def test_ten_thousand_topics_make_no_page_longer(broker: Broker) -> None:
    """A page holds so many rows and no more, and the tree as many lines as there are levels."""
    address = Address("mqtt", broker.host, broker.mqtt_port, "", "", "many", {"qos": "0"})
    client = open_client(address)
    for number in range(10_000):
        client.publish(Message(b"x", f"many/{number // 100}/{number % 100}"))
    client.close()
    deadline = time.monotonic() + 30
    while httpx.get(f"{broker.http_url}/v1/overview").json()["topics"] < 10_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    facts = httpx.get(f"{broker.http_url}/topics.json?mode=table").json()
    assert facts["total"] >= 10_000
    assert len(facts["items"]) == 100
    assert facts["next"]
    assert len(httpx.get(f"{broker.http_url}/topics.json?mode=tree&prefix=many").json()["items"]) == 100
    for one in PAGES:
        query = "?name=many/1/1" if one.path == "/topic" else ""
        assert len(httpx.get(f"{broker.http_url}{one.path}{query}").content) < 200_000
