"""Every page as axe-core judges it, in light and dark, wide and narrow; skipped where npm cannot install it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from mainstem.admin.console.pages import PAGES
from mainstem.testing import Broker
from tests.protocol.kafka.java_clients import CACHE

VERSION = "4.10.3"
NAMES = {
    "/topic": "name=sensors/kitchen/temp",
    "/queue": "name=judged",
    "/exchange": "name=amq.topic",
    "/view": "name=all-sensors",
    "/namespace": "name=/",
    "/messages": "topic=sensors/kitchen/temp&field=celsius",
}
OTHERS = (
    "/group",
    "/session",
    "/connection",
    "/user",
    "/schema",
    "/subject",
    "/pipeline",
)  # of things that are not there
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


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark")])
def test_axe_finds_nothing_on_any_page_and_nothing_sticks_out(
    browser: Browser, broker: Broker, width: int, scheme: str
) -> None:
    script = axe()
    httpx.post(f"{broker.http_url}/v1/queues", json={"name": "judged", "filter": "sensors/#"})
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        base_url=broker.http_url,
        color_scheme=scheme,  # type: ignore[arg-type]
        bypass_csp=True,  # axe is no script of ours
    )
    page = context.new_page()
    found = []
    for one in PAGES:
        if one.path in OTHERS:
            continue
        page.goto(f"{one.path}?{NAMES.get(one.path, '')}")
        page.add_script_tag(content=script)
        answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [(one.path, rule["id"], rule["nodes"][0]["html"]) for rule in answer["violations"]]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append((one.path, "sticks out", ""))
    context.close()
    assert found == []
