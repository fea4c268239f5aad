"""The console in a real Chromium. Anything on the browser's console fails the test."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mainstem.testing import Broker

CHROMIUM = Path("/usr/bin/chromium")
IMAGES = Path(__file__).parents[2] / "docs/img"
WIDTHS = {1280: "light", 390: "dark"}
Shoot = Callable[[Page, str], None]
WAIT_MS = 20_000  # a loaded machine is no failure
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("no Chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker with something in it."""
    with Broker() as broker, httpx.Client(base_url=broker.http_url) as http:
        chance = random.Random(7)
        for _ in range(40):
            for room in ("kitchen", "hall", "garden"):
                reading = {"celsius": round(20 + 4 * chance.random(), 2), "device": f"{room}-1"}
                body = {"topic": f"sensors/{room}/temp", "value_json": reading, "headers": {"region": "eu"}}
                assert http.post("/v1/messages", json=body).status_code == 200
        http.post("/v1/messages", json={"topic": "orders", "value": "an order", "key": "42"})
        http.post("/v1/topics", json={"name": "payments", "settings": {"partitions": 3}})
        http.post("/v1/views", json={"name": "all-sensors", "filter": "sensors/#"})
        yield broker


@pytest.fixture
def page(browser: Browser, broker: Broker) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=broker.http_url)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    foreign: list[str] = []
    page.on("request", lambda one: foreign.append(one.url) if not one.url.startswith(broker.http_url) else None)
    yield page
    context.close()
    assert not said
    assert not foreign


@pytest.fixture
def shoot(tmp_path: Path) -> Shoot:
    """A picture at both widths, one of them in the dark; nothing may stick out at the side.

    With MAINSTEM_SCREENSHOTS=1 the pictures of the documentation are replaced.
    """
    folder = IMAGES if os.environ.get("MAINSTEM_SCREENSHOTS") else tmp_path
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        for width, scheme in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.wait_for_timeout(150)  # charts follow the size
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.screenshot(path=folder / f"console-{name}-{width}.png")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="light")

    return take
