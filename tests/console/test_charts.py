"""Charts over time: drawn from the history, as far back as is asked for, in local time or UTC."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstem.testing import Broker

Shoot = Callable[[Page, str], None]
HOURS_6 = 21_600


def fill(broker: Broker) -> None:
    """Six hours that never were."""
    assert broker.app is not None
    assert broker.loop is not None
    rings, now_s = broker.app.history._rings, time.time()
    for second in range(HOURS_6, 10, -10):
        at = now_s - second
        wave, noise = 1 + 0.6 * math.sin(at / 3_000), (second * 7919 % 101) / 101
        point = {
            **{
                f"in.{name}": size * wave + 90 * noise
                for name, size in (("mqtt", 5_200), ("kafka", 2_100), ("amqp", 700))
            },
            **{f"out.{name}": size * wave for name, size in (("mqtt", 9_100), ("kafka", 4_100), ("amqp", 690))},
            **{f"bytes_in.{name}": size * wave for name, size in (("mqtt", 2e6), ("kafka", 9e6))},
            **{f"bytes_out.{name}": size * wave for name, size in (("mqtt", 4e6), ("kafka", 1.8e7))},
            **{f"{name}_p50": 0.8 * wave for name in ("ack", "deliver", "fsync")},
            **{f"{name}_p99": 5 + 4 * noise for name in ("ack", "deliver", "fsync")},
            "loop_lag_max": 4 * noise,
            "lag_max": max(0.0, 9_000 * math.sin(at / 2_000)),
            "queue_ready": 40 * wave,
            "queue_unacked": 12.0,
            "connections.mqtt": 120.0,
            "connections.kafka": 9.0,
            "disk_free": 4e11 + second * 2e6,
            "memory": 2.1e8,
        }
        broker.loop.call_soon_threadsafe(rings.put, at, point)


@pytest.fixture
def berlin(browser: Browser, broker: Broker) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, base_url=broker.http_url, timezone_id="Europe/Berlin"
    )
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    context.close()
    assert not said


def test_the_overview_draws_six_hours_and_says_when_the_disk_is_full(
    berlin: Page, broker: Broker, shoot: Shoot
) -> None:
    fill(broker)
    page = berlin
    page.goto("/")
    charts = page.locator(".grid.charts .chart")
    expect(charts.locator("canvas")).to_have_count(11)
    expect(page.locator("h2", has_text="full about")).to_be_visible()
    page.locator("select[data-range]").select_option("6h")
    first = charts.first
    expect(first.locator(".u-legend")).to_contain_text("mqtt out")
    first.scroll_into_view_if_needed()
    first.locator(".u-over").hover()
    hovered = first.locator(".u-legend .u-value").first
    today = time.strftime("%Y-")
    expect(hovered).to_contain_text(today)
    expect(hovered).to_contain_text("+0")
    page.mouse.move(0, 0)
    page.get_by_role("button", name="Times: local").click()
    first.locator(".u-over").hover()
    expect(first.locator(".u-legend .u-value").first).to_contain_text("UTC")
    page.reload()
    expect(page.locator("select[data-range]")).to_have_value("6h")
    page.get_by_role("button", name="Times: UTC").click()
    page.locator("h2", has_text="Over time").evaluate("one => one.scrollIntoView()")
    shoot(page, "history")


def test_times_of_messages_are_local_with_their_date(berlin: Page, broker: Broker) -> None:
    berlin.goto("/messages?topic=sensors/kitchen/temp&from=-1")
    shown = berlin.locator("#messages time").first
    expect(shown).to_contain_text(time.strftime("%Y-"))
    local = shown.inner_text()
    assert shown.get_attribute("title") != local
    assert "UTC" in str(shown.get_attribute("title"))
    berlin.get_by_role("button", name="Times: local").click()
    expect(shown).not_to_have_text(local)
