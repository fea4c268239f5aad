"""The page Search: hits newest first, bars over time, a click narrows, and new records come by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from mainstem.testing import Broker
from tests.ask.conftest import produce

pytest.importorskip("duckdb")
Shoot = Callable[[Page, str], None]


def log(broker: Broker, status: int, text: str) -> None:
    body = {"topic": "weblog/front", "value_json": {"status": status, "msg": text, "user": {"name": 'a "b"'}}}
    assert httpx.post(f"{broker.http_url}/v1/messages", json=body).status_code == 200


def test_a_search_shows_hits_and_bars_and_a_click_narrows_it(page: Page, broker: Broker, shoot: Shoot) -> None:
    for n in range(6):
        log(broker, 500 if n % 2 else 200, f"request {n} <b>done</b>")
    page.goto("/search")
    page.fill("input[name=query]", "done AND status>=500")
    page.fill("input[name=topic]", "weblog/#")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#hits tr")).to_have_count(3)
    expect(page.locator("#hits tr").first).to_contain_text("request 5 <b>done</b>")
    expect(page.locator("#search-bars rect").first).to_be_attached()
    assert "query=done" in page.url
    shoot(page, "search")
    page.locator("#hits details summary").first.click()
    page.locator("#hits dd", has_text="request 5").locator("button", has_text="+").click()
    expect(page.locator("#hits tr")).to_have_count(1)
    page.reload()  # all of it is in the URL
    expect(page.locator("#hits tr")).to_have_count(1)
    page.locator("#search-bars rect").first.click()
    expect(page.locator("#hits tr")).to_have_count(1)
    assert page.input_value("input[name=since]")


def test_a_stretch_of_the_bars_is_chosen_by_dragging_over_it(page: Page, broker: Broker) -> None:
    now_ms = time.time_ns() // 1_000_000
    produce(broker, [("brushed", None, b"brushed %d" % n, now_ms - (10 - n) * 60_000) for n in range(10)])
    page.goto("/search?query=brushed&topic=brushed&histogram=1m")
    expect(page.locator("#hits tr")).to_have_count(10)
    expect(page.locator("#search-bars rect")).to_have_count(10)
    box = page.locator("#search-bars").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.32, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.48, box["y"] + 40, steps=4)
    expect(page.locator("#search-bars rect.brush")).to_be_visible()
    page.mouse.up()
    expect(page.locator("#hits tr")).to_have_count(2)
    expect(page.locator("#hits tr").last).to_contain_text("brushed 3")
    assert page.input_value("input[name=since]") < page.input_value("input[name=before]")


def test_live_shows_what_arrives(page: Page, broker: Broker) -> None:
    log(broker, 200, "livesearch first")
    page.goto("/search?query=livesearch&topic=weblog/%23")
    expect(page.locator("#hits tr")).to_have_count(1)
    page.get_by_role("button", name="Live").click()
    log(broker, 200, "livesearch second")
    expect(page.locator("#hits tr")).to_have_count(2)
    expect(page.locator("#hits tr").first).to_contain_text("livesearch second")
