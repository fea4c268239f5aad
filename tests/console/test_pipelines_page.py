"""The page of pipelines: what runs tell is shown as it changes; what they never told is not believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from mainstem.broker.pipelines import FACTS, PIPELINES_MAX, QUIET_MS, Pipelines
from mainstem.model.clock import Clock
from mainstem.model.errors import InvalidArgument
from mainstem.testing import Broker

Shoot = Callable[[Page, str], None]
POISONED = """flow hourly: 40 of 120 records cannot be used, the limit is 10%
  sensors/north/d1/reading 0:80: the value is not json of this schema: poison 0
  sensors/north/d1/reading 0:81: the value is not json of this schema: poison 1
  sensors/north/d1/reading 0:82: rule plausible: celsius between -60 and 120: {"device": "d1", "celsius": 999}"""


def flow(name: str, state: str, **facts: Any) -> dict[str, Any]:
    told = {"flow": name, "state": state, "batch": 41, "batch_ms": 380, "batch_end_ms": int(time.time() * 1000)}
    return {**told, "rows": 5_000, "rows_total": 1_205_000, "rows_per_s": 13_157.9, **facts}


def tell(broker: Broker, name: str, *flows: dict[str, Any]) -> None:
    answer = httpx.post(f"{broker.http_url}/v1/pipelines/{name}", json={"flows": list(flows)})
    assert answer.status_code == 200, answer.text


def test_flows_are_shown_with_lag_and_last_error_as_they_change(page: Page, broker: Broker, shoot: Shoot) -> None:
    page.goto("/pipelines")
    expect(page.locator("main")).to_contain_text("mainstem pipeline run")
    away = "flow enriched: no broker answers at http://127.0.0.1:7070"
    tell(
        broker,
        "telemetry",
        flow("readings", "running", lag=1_200, bad_total=3),
        flow("hourly", "failed", error=POISONED, bad_total=40),
        flow("alerts", "waiting"),
    )
    tell(broker, "orders", flow("enriched", "restarting", restarts=2, error=away, lag=77))
    page.goto("/pipelines")
    expect(page.locator("tr", has_text="readings")).to_contain_text("1\u202f200")
    expect(page.locator("tr", has_text="hourly").first.locator("td.bad")).to_have_text("failed")
    expect(page.locator("pre.bad")).to_contain_text("rule plausible")
    expect(page.locator("tr", has_text="enriched").first).to_contain_text("2 restarts")
    shoot(page, "pipelines")
    items = httpx.get(f"{broker.http_url}/pipelines.json").json()["items"]
    assert [(one["pipeline"], one["flow"], one["state"], one["lag"]) for one in items] == [
        ("orders", "enriched", "restarting", 77),
        ("telemetry", "readings", "running", 1200),
        ("telemetry", "hourly", "failed", 0),
        ("telemetry", "alerts", "waiting", 0),
    ]
    tell(broker, "orders", flow("enriched", "running", lag=0))
    expect(page.locator("tr", has_text="enriched").first).to_contain_text("running")  # without a reload
    expect(page.locator("pre.warn")).to_have_count(0)


def test_a_pipeline_has_a_page_with_charts_of_its_flows(page: Page, broker: Broker) -> None:
    reads = "sensors/#\nalarms/#"
    tell(broker, "charted", flow("first", "running", lag=120, reads=reads), flow("second", "waiting", lag=7))
    assert broker.app is not None
    assert broker.loop is not None
    asyncio.run_coroutine_threadsafe(broker.app.history.sample(), broker.loop).result(30)
    page.goto("/pipelines")
    page.locator("a", has_text="charted").first.click()
    expect(page.locator("h1")).to_have_text("charted")
    expect(page.locator("#flows section").first).to_contain_text("alarms/#")
    expect(page.locator(".chart canvas")).to_have_count(2)
    found = httpx.get(f"{broker.http_url}/v1/history?pipeline=charted&figures=lag&range=15m").json()["series"]
    assert {name: values[-1] for name, values in found.items()} == {"first": 120, "second": 7}
    assert httpx.get(f"{broker.http_url}/pipeline.json?name=nobody").status_code == 404


def test_nothing_that_is_told_gets_out_of_its_place(page: Page, broker: Broker) -> None:
    tell(broker, "hostile", flow("<b>f</b>", "failed", error="<img src=x onerror=alert(1)>" + "x" * 9_000))
    page.goto("/pipelines")
    row = page.locator("tr", has_text="hostile").first
    expect(row).to_contain_text("<b>f</b>")
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


class StoppedClock(Clock):
    now_ms = 0

    def now_ns(self) -> int:
        return self.monotonic_ns()

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


@pytest.mark.parametrize("flows", [None, {}, "x", [1], [{"lag": "many"}], [{"lag": float("inf")}], [{}] * 101])
def test_what_is_no_pipeline_is_refused(flows: object) -> None:
    pipelines = Pipelines(StoppedClock())
    with pytest.raises(InvalidArgument):
        pipelines.tell("p", flows)
    with pytest.raises(InvalidArgument):
        pipelines.tell("", [])
    assert pipelines.listed() == []


def test_only_known_facts_of_a_thousand_pipelines_are_kept() -> None:
    clock = StoppedClock()
    pipelines = Pipelines(clock)
    for number in range(PIPELINES_MAX + 1):
        pipelines.tell(f"p{number:05d}", [{"flow": "f", "state": "running", "ends": {"t": {"0": 1}}}])
    listed = pipelines.listed()
    assert len(listed) == PIPELINES_MAX
    assert listed[0]["name"] == "p00001"
    assert set(listed[0]["flows"][0]) == set(FACTS)
    assert listed[0]["running"]
    clock.now_ms = QUIET_MS
    assert not pipelines.listed()[0]["running"]
