"""Whoever has few rights meets nothing in the console that the broker then refuses: no link, no form, no chart.

Each user walks every link from the overview and from the page of each object, plainly and in a browser, and then sends every
form that it was shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from mainstem.admin.console import rendering
from mainstem.admin.console.pages import PAGES
from mainstem.testing import Broker
from tests.console.furnished import ADMIN, NAMES, furnished
from tests.console.login import log_in

pytestmark = pytest.mark.timeout(300)
PASSWORD = "of somebody"
ALL = ["publish", "consume", "create", "configure", "delete", "describe"]
RULES: dict[str, list[dict[str, Any]]] = {
    "nobody": [],
    "reader": [
        {"actions": ["consume", "describe"], "filter": "sensors/#"},
        {"actions": ["describe"], "filter": "all-sensors"},
    ],
    "onlooker": [
        {"actions": ["describe"], "filter": "#"},
        *({"actions": ["describe"], "filter": "*", "kind": kind} for kind in ("queue", "exchange", "group")),
    ],
    "warden": [{"actions": ["manage"], "filter": "/", "kind": "namespace"}],
    "worker": [
        {"actions": ALL, "filter": "#"},
        *({"actions": ALL, "filter": "*", "kind": kind} for kind in ("queue", "exchange", "group")),
        {"allow": False, "actions": ["delete"], "filter": "orders"},
    ],
    "neighbour": [{"actions": ALL, "filter": "#"}],
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/topics": {"name": "sensors/new"},
    "/v1/views": {"name": "sensors-view", "filter": "sensors/#"},
    "/v1/queues": {"name": "sensors-queue", "filter": "sensors/#"},
    "/v1/messages": {"topic": "sensors/new", "value": "1"},
    "/v1/try": {"protocol": "mqtt", "topic": "sensors/new", "value": "1"},
    "/v1/groups-reset": {"group": "billing", "to": "earliest", "dry_run": True},
}
OF_A_KIND_MAX = 6
NO_PAGES = ("/v1/openapi.json", "/metrics")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One for each test: it deletes what it may."""
    with furnished() as broker, httpx.Client(base_url=broker.http_url, auth=ADMIN, timeout=30) as http:
        http.put("/v1/namespaces/yard").raise_for_status()
        for name, rules in RULES.items():
            namespace = "yard" if name == "neighbour" else "/"
            user = {"name": name, "password": PASSWORD, "namespace": namespace}
            http.post("/v1/users", json=user).raise_for_status()
            for rule in rules:
                http.post(f"/v1/users/{name}/rules", json=rule).raise_for_status()
        yield broker


@pytest.fixture
def context(browser: Browser, broker: Broker) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=broker.http_url)
    yield context
    context.close()


class Walk:
    """All pages that links lead to, and the forms on them; `_answer` opens one."""

    def __init__(self) -> None:
        self.forms: set[tuple[str, str]] = set()
        self.opened: set[str] = set()
        self.faults: list[str] = []
        self.texts: list[str] = []
        self.kinds = Counter[str]()

    def from_pages(self, *starts: str) -> None:
        """Where a walk starts may be refused; a link may not."""
        waiting = list[str]()
        for start in starts:
            waiting += self._open(start, may_refuse=True)
        while waiting:
            waiting += self._open(waiting.pop(0), may_refuse=False)

    def _open(self, path: str, *, may_refuse: bool) -> list[str]:
        path = path.partition("#")[0]
        kind = path.partition("?")[0]
        if path in self.opened or kind in NO_PAGES or kind.endswith(".json") or self.kinds[kind] == OF_A_KIND_MAX:
            return []
        self.opened.add(path)
        before = len(self.faults)
        status, text = self._answer(path, first=not self.kinds[kind])
        self.kinds[kind] += 1
        if status in (403, 404) and may_refuse:  # 404: in another namespace
            del self.faults[before:]  # a browser reports the status itself
        elif status != 200:
            self.faults.append(f"{path} answers {status}")
        self.texts.append(text)
        for form in re.findall(r"<form[^>]*data-api=[^>]*>", text):
            self.forms.add((_attribute(form, "data-method") or "POST", _attribute(form, "data-api")))
        self.forms |= {("POST", unescape(one)) for one in re.findall(r'data-instead="([^"]*)"', text)}
        return [unescape(one) for one in re.findall(r'<a [^>]*href="(/[^"]*)"', text)]

    def _answer(self, path: str, *, first: bool) -> tuple[int, str]:
        raise NotImplementedError


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', tag)
    return unescape(found[1]) if found is not None else ""


class PlainWalk(Walk):
    def __init__(self, http: httpx.Client) -> None:
        super().__init__()
        self._http = http

    def _answer(self, path: str, *, first: bool) -> tuple[int, str]:
        answer = self._http.get(path, headers={"accept": "text/html"})
        return answer.status_code, answer.text


class BrowserWalk(Walk):
    """Whatever a script asks for and is refused is a fault, too."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page
        page.on("console", lambda one: self.faults.append(f"{page.url}: {one.text}") if one.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))

    def _answer(self, path: str, *, first: bool) -> tuple[int, str]:
        waits = first and path != "/"  # for its charts, once; the overview's numbers never end
        answer = self._page.goto(path, wait_until="networkidle" if waits else "load")
        assert answer is not None
        return answer.status, self._page.content()


def starts(broker: Broker) -> list[str]:
    connected = httpx.get(f"{broker.http_url}/v1/connections", auth=ADMIN).json()["items"][0]["id"]
    asked = {**NAMES, "/connection": f"id={connected}"}
    return [f"{one.path}?{asked[one.path]}" if one.path in asked else one.path for one in PAGES]


def send_all(forms: set[tuple[str, str]], send: Callable[[str, str, Any], int]) -> None:
    """What is deleted comes last."""
    refused = []
    for method, path in sorted(forms, key=lambda form: (form[0] == "DELETE", form)):
        if path != "/logout":
            body = None if method in ("GET", "DELETE") else BODIES.get(path, {})
            if send(method, path, body) in (401, 403):
                refused.append((method, path))
    assert refused == []


def check_offers(user: str, walk: Walk) -> None:
    if user in ("nobody", "onlooker", "warden"):  # they may consume nothing
        assert not any(said in text for text in walk.texts for said in ("a letter", "an order", "21.5}"))
    offered = {f"{method} {path}" for method, path in walk.forms if path != "/logout"}
    if user in ("nobody", "reader", "onlooker"):
        assert offered == set(), "they change nothing"
    if user == "warden":
        assert "DELETE /v1/sessions/historian" in offered and "DELETE /v1/groups/billing" not in offered
    if user == "worker":
        assert {"DELETE /v1/queues/letterbox", "POST /v1/queues/letterbox/discard", "POST /v1/messages"} <= offered
        assert "DELETE /v1/topics/orders" not in offered, "that is denied"
        assert "PATCH /v1/topics/orders" in offered


@pytest.mark.parametrize("user", RULES)
def test_nothing_that_is_offered_is_refused(user: str, broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, auth=(user, PASSWORD), timeout=60) as http:
        walk = PlainWalk(http)
        walk.from_pages(*starts(broker))
        assert walk.faults == []
        check_offers(user, walk)
        send_all(walk.forms, lambda method, path, body: http.request(method, path, json=body).status_code)


@pytest.mark.parametrize(
    "user", [pytest.param(one, marks=[] if one == "reader" else [pytest.mark.slow]) for one in RULES]
)
def test_nothing_is_refused_to_a_browser_with_its_scripts(user: str, context: BrowserContext, broker: Broker) -> None:
    log_in(context, user, PASSWORD)
    walk = BrowserWalk(context.new_page())
    walk.from_pages(*starts(broker))
    assert walk.faults == []
    check_offers(user, walk)
    send_all(walk.forms, lambda method, path, body: context.request.fetch(path, method=method, data=body).status)


def test_an_admin_is_offered_every_form_that_there_is(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=60) as http:
        http.post("/login", json={"user": ADMIN[0], "password": ADMIN[1]}).raise_for_status()  # so that it can log out
        walk = PlainWalk(http)
        walk.from_pages(*starts(broker))
    assert walk.faults == []
    written = set[str]()
    for template in (Path(rendering.FOLDER) / "templates").glob("*.html"):
        for path in re.findall(r'data-(?:api|instead)="([^"]*)"', template.read_text()):
            written.add(re.sub(r"\{\{.*?\}\}", "*", path))
    shown = {path for _, path in walk.forms}
    missing = [
        one for one in written if not any(re.fullmatch(re.escape(one).replace(r"\*", ".*"), path) for path in shown)
    ]
    assert missing == []


def test_pages_say_why_something_is_left_out(context: BrowserContext, broker: Broker) -> None:
    log_in(context, "onlooker", PASSWORD)
    page = context.new_page()
    page.goto("/topic?name=orders")
    expect(page.locator("main")).to_contain_text("Deleting this topic is left out: user onlooker may not delete orders")
    expect(page.locator("main")).to_contain_text("mainstem user allow onlooker delete 'orders'")
    expect(page.locator("main")).to_contain_text("What its messages say is left out")
    expect(page.locator("nav.main")).not_to_contain_text("Messages")
    page.goto("/topics")
    expect(page.locator("main")).to_contain_text("no rule allows user onlooker to create any topic")
    page.goto("/queue?name=letterbox")
    expect(page.locator("main")).to_contain_text("Purging is left out")
    expect(page.locator("main")).to_contain_text("There are 3; a right to consume this queue")
    expect(page.locator("main")).not_to_contain_text("a letter")
    page.goto("/group?name=billing")
    expect(page.locator("main")).to_contain_text("Resetting is left out")
    context.clear_cookies()
    log_in(context, "nobody", PASSWORD)
    page.goto("/topics")
    expect(page.locator("main")).to_contain_text("Nothing here that nobody may see")
