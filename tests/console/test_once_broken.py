"""What operators once found wrong in the console, each held by a test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import nats
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Browser, Page, Route, expect

from mainstem.testing import Broker
from tests.crossing.commands import eventually

pytestmark = pytest.mark.timeout(180)
LARGE = 123_456_789.0
WIDEST = """() => {
  const plot = document.querySelector("[data-chart] .uplot").parentElement.plot;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = getComputedStyle(document.body).font;
  return plot.axes[1]._values.map((text) => [text, pen.measureText(text).width, plot.axes[1]._size]);
}"""


@pytest.fixture
def empty(browser: Browser) -> Iterator[tuple[Page, Broker]]:
    """A broker without anything, on ports of its own."""
    with Broker() as broker:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=broker.http_url)
        yield context.new_page(), broker
        context.close()


def test_large_numbers_are_whole_beside_a_chart_and_in_and_out_are_apart(page: Page) -> None:
    def large(route: Route) -> None:
        answer = route.fetch()
        told: dict[str, Any] = answer.json()
        told["time"] = [1_700_000_000 + 10 * at for at in range(30)]
        told["series"] = {"messages_in.mqtt": [LARGE] * 30, "messages_out.kafka": [LARGE / 2] * 30}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(told))

    page.route("**/v1/history*", large)
    page.goto("/")
    expect(page.locator("[data-chart] .uplot").first).to_be_visible()
    shown = page.evaluate(WIDEST)
    assert shown and all(width < size for _, width, size in shown), shown
    legend = page.locator("[data-chart] .u-legend").first.inner_text()
    assert "in" in legend and "out" in legend


def test_hints_name_the_ports_that_are_listened_on(empty: tuple[Page, Broker]) -> None:
    page, broker = empty
    for path, wanted in (
        ("/topics", f"mqtt://127.0.0.1:{broker.mqtt_port}/"),
        ("/connections", f"mqtt://127.0.0.1:{broker.mqtt_port}/"),
        ("/cursors", f"127.0.0.1:{broker.kafka_port}"),
    ):
        page.goto(path)
        expect(page.locator(".empty code").first).to_contain_text(wanted)


def test_a_list_that_was_empty_says_so_no_longer_once_something_is_there(empty: tuple[Page, Broker]) -> None:
    page, broker = empty
    page.goto("/connections")
    expect(page.locator("main")).to_contain_text("Nobody is connected")
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="newcomer")
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    try:
        expect(page.locator("tbody")).to_contain_text("newcomer")
        expect(page.locator("main")).not_to_contain_text("Nobody is connected")
        expect(page.locator(".head")).to_contain_text("1 open")
        page.goto("/topics")
        expect(page.locator(".empty")).to_be_visible()
        body = {"topic": "first/one", "value": "x"}
        httpx.post(f"{broker.http_url}/v1/messages", json=body).raise_for_status()
        expect(page.locator(".tree")).to_contain_text("first")
        expect(page.locator(".empty")).to_have_count(0)
    finally:
        client.loop_stop()
        client.disconnect()


def test_charts_of_an_idle_broker_are_drawn_soon_after_its_start(empty: tuple[Page, Broker]) -> None:
    page, _ = empty
    page.goto("/")
    drawn = page.locator(".grid.charts section", has_text="Messages a second").locator("canvas")
    expect(drawn).to_be_visible(timeout=60_000)  # of a busy machine; two points are there after ten seconds at most
    expect(page.locator(".grid.charts section", has_text="Publish until ack")).to_contain_text("nothing but zeros")


def test_the_overview_counts_clients_as_the_list_of_connections_does(empty: tuple[Page, Broker]) -> None:
    page, broker = empty
    page.goto("/")
    shown = page.locator(".number", has_text="connections").locator("b")
    expect(shown).to_have_text("0")  # the browser itself is none
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="one")
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    expect(shown).to_have_text("1")
    client.loop_stop()
    client.disconnect()


def test_commands_of_the_overview_have_a_login_once_users_exist() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url) as http:
        before = {one["protocol"]: one["snippet"] for one in http.get("/overview.json").json()["doors"]}
        assert "guest:guest@" in before["amqp"]
        assert "-u" not in before["mqtt"].split()
        http.post("/v1/users", json={"name": "root", "password": "secret-1", "admin": True}).raise_for_status()
        http.auth = ("root", "secret-1")
        after = [one["snippet"] for one in http.get("/overview.json").json()["doors"]]
        assert all("USER" in one for one in after if not one.startswith("ws")), after
        http.post("/v1/users", json={"name": "clerk", "password": "secret-1"}).raise_for_status()
        clerk = httpx.get(f"{broker.http_url}/topics.json", auth=("clerk", "secret-1")).json()
        assert clerk["total"] is None, "who sees few of the topics is not told how many there are"


def test_a_schema_is_shown_line_by_line(empty: tuple[Page, Broker]) -> None:
    page, broker = empty
    schema = json.dumps({"type": "record", "name": "o", "fields": [{"name": "id", "type": "int"}]})
    httpx.post(f"{broker.http_url}/subjects/o-value/versions", json={"schema": schema}).raise_for_status()
    page.goto("/subject?name=o-value")
    assert len(page.locator("pre").inner_text().splitlines()) > 5


def test_a_topic_is_declared_live_only_and_stored_again_by_its_form(empty: tuple[Page, Broker]) -> None:
    """NATS without a stream keeps nothing: a topic may be so for every protocol."""
    page, broker = empty
    page.goto("/topics")
    form = page.locator("form", has_text="Stored")
    form.locator("[name=name]").fill("chat/room")
    form.locator("[name='settings.store']").select_option("false")
    form.get_by_role("button", name="Create").click()
    expect(page.locator("h1")).to_have_text("chat/room")  # its own page
    setting = page.locator("tr", has=page.get_by_role("cell", name="store", exact=True))
    expect(setting).to_contain_text("no")
    expect(setting).to_contain_text("topic")
    say(broker, b"unheard")
    page.locator("[name='settings.store']").select_option("true")
    page.locator("form", has=page.locator("[name='settings.store']")).get_by_role("button").click()
    expect(setting).to_contain_text("yes")
    say(broker, b"kept")
    eventually(lambda: kept(broker) == ["kept"], "what is published now is stored, and what was before is not")


def say(broker: Broker, value: bytes) -> None:
    """A publish by NATS."""

    async def publish() -> None:
        client = await nats.connect(broker.nats_url)
        await client.publish("chat.room", value)
        await client.flush()
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(publish()))  # Playwright's own loop runs in this one
    thread.start()
    thread.join()


def kept(broker: Broker) -> list[str]:
    found = httpx.get(f"{broker.http_url}/v1/messages?topic=chat/room&from=earliest").json()["items"]
    return [one["value"] for one in found]
