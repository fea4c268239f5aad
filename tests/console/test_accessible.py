"""Every page as axe-core judges it, in light and dark, wide and narrow; skipped where npm cannot install it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from mainstem.admin.console.pages import PAGES
from mainstem.testing import Broker
from tests.console.furnished import ADMIN, NAMES, furnished
from tests.console.login import log_in
from tests.protocol.kafka.java_clients import CACHE

VERSION = "4.10.3"
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


@pytest.fixture(scope="module", name="furnished")
def furnished_broker() -> Iterator[Broker]:
    with furnished() as broker:
        yield broker


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
