"""What operators once found wrong in the console, each held by a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from playwright.sync_api import Browser, Page, Route, expect

from mainstem.testing import Broker

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
