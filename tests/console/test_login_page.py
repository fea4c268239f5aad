"""The login page in a browser, and sessions as a hostile page, a removed user and a second broker user meet them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from mainstem.admin.sessions import SESSIONS_OF_USER_MAX, own_page
from mainstem.testing import Broker
from tests.crossing.commands import eventually
from tests.users import ANN, ROOT, add_users

pytestmark = pytest.mark.timeout(180)
HTML = {"accept": "text/html"}
FOREIGN = ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "same-site"})
Shoot = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        add_users(broker)
        yield broker


@pytest.fixture
def context(browser: Browser, broker: Broker) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=broker.http_url)
    yield context
    context.close()


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    """As a browser: it keeps cookies and sends no `Authorization`."""
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        yield client


def fill(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def enter(http: httpx.Client, login: tuple[str, str], **more: Any) -> httpx.Response:
    return http.post("/login", json={"user": login[0], "password": login[1]}, **more)


@contextmanager
def visitor(broker: Broker, login: tuple[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        assert enter(client, login).status_code == 200
        assert client.get("/v1/overview").status_code == 200
        yield client


# -- in a browser


def test_a_login_leads_to_the_page_that_was_wanted_and_logout_leaves_nothing_behind(
    context: BrowserContext, shoot: Shoot
) -> None:
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto("/topics?mode=table&search=a%20b")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    expect(page.get_by_label("User")).to_be_focused()
    shoot(page, "login")
    fill(page, *ROOT)
    expect(page).to_have_url(re.compile(r"/topics\?mode=table&search=a%20b$"))
    expect(page.locator("footer")).to_contain_text("logged in as root")
    page.goto("/settings")
    expect(page.locator("h1")).to_have_text("Settings")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    assert said == []
    page.go_back()
    expect(page.locator("h1")).to_have_text("Log in")
    assert "root" not in page.content()


def test_a_wrong_password_is_reported_and_the_right_one_then_counts(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/")
    fill(page, ROOT[0], "guessed")
    expect(page.get_by_role("alert")).to_have_text("wrong user name or password")
    assert not context.cookies()
    fill(page, *ROOT)
    expect(page.locator("h1")).to_have_text("Overview")


def test_the_cookie_is_for_the_browser_alone(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/")
    fill(page, *ROOT)
    expect(page.locator("h1")).to_have_text("Overview")
    [cookie] = context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and cookie["path"] == "/"
    assert page.evaluate("document.cookie") == ""


def test_a_page_whose_session_ended_leads_to_the_login_and_back(context: BrowserContext, broker: Broker) -> None:
    page = context.new_page()
    page.goto("/connections")
    fill(page, *ROOT)
    expect(page.locator("h1")).to_have_text("Connections")
    page.wait_for_load_state()  # with its scripts, which need a session too
    context.request.post("/logout", data={})  # in another tab
    expect(page).to_have_url(re.compile(r"/login\?next=%2Fconnections$"))  # its next poll
    fill(page, *ROOT)
    expect(page.locator("h1")).to_have_text("Connections")


def test_a_page_of_another_site_logs_nobody_in_or_out(context: BrowserContext, broker: Broker) -> None:
    """A form of that page, which no answer is needed for, and its script."""
    evil = f"""<form method="post" enctype="text/plain" action="{broker.http_url}/PATH">
      <input name='{{"user":"ann","password":"pass word","x":"' value='"}}'></form>
      <script>const same = {{ method: "POST", mode: "no-cors", credentials: "include", body: "{{}}" }};
        fetch("{broker.http_url}/PATH", same).catch(() => 0).finally(() => document.forms[0].submit());</script>"""
    page = context.new_page()

    def answer(route: Route) -> None:
        body = evil.replace("PATH", route.request.url.rpartition("/")[2])
        route.fulfill(body=body, content_type="text/html")

    page.route("http://evil.localhost/*", answer)
    for path in ("login", "logout"):
        page.goto(f"http://evil.localhost/{path}")
        expect(page.locator("body")).to_contain_text("may not change anything here")
        if path == "login":
            assert not context.cookies(broker.http_url)
            page.goto(broker.http_url)
            fill(page, *ROOT)
            expect(page.locator("h1")).to_have_text("Overview")
    page.goto(broker.http_url)
    expect(page.locator("footer")).to_contain_text("logged in as root")


# -- what is asked for a login, and how


def test_only_pages_are_led_to_the_login(http: httpx.Client) -> None:
    led = http.get("/topic?name=a/b&x=1", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (302, "/login?next=/topic%3Fname%3Da/b%26x%3D1")
    assert http.get("/", headers=HTML).headers["location"] == "/login"
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("GET", "/", {}),
        ("GET", "/v1/topics", {"accept": "application/json"}),
        ("POST", "/v1/topics", {"content-type": "application/json", **HTML}),
        ("GET", "/", {**HTML, "sec-fetch-mode": "cors"}),
        ("GET", "/", {**HTML, "hx-request": "true"}),
    ]
    for method, path, headers in asked:
        answer = http.request(method, path, headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic"), (method, headers)
    scripts = http.get("/v1/topics", headers={"sec-fetch-site": "same-origin"})  # of a page whose session ended
    assert scripts.status_code == 401 and scripts.headers["www-authenticate"].startswith("Cookie")


def test_basic_goes_on_everywhere(http: httpx.Client) -> None:
    assert http.get("/", headers=HTML, auth=ROOT).status_code == 200
    wrong = http.get("/", headers=HTML, auth=("root", "guessed"))
    assert wrong.status_code == 401 and wrong.headers["www-authenticate"].startswith("Basic")
    assert http.get("/static/console.css").status_code == 200, "the login page needs it"
    assert http.get("/static/console.js").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "https://evil.example/",
        "javascript:alert(1)",
        "evil",
        "",
        "/ü",
        "/login?next=/",
        "/logout",
        "/api/aliveness-test/%2F",
        "/" + "x" * 3_000,
    ],
)
def test_a_login_leads_nowhere_else(http: httpx.Client, path: str) -> None:
    assert own_page(path) == "/"
    answer = http.post("/login", json={"user": ROOT[0], "password": ROOT[1], "next": path})
    assert answer.json() == {"next": "/"}
    assert http.get("/login", params={"next": path}).headers["location"] == "/"


def test_a_foreign_page_logs_nobody_in_or_out(http: httpx.Client) -> None:
    for headers in FOREIGN:
        answer = enter(http, ROOT, headers=headers)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = http.post("/login", content='{"user":"root","password":"secret"}', headers={"content-type": kind})
        assert answer.status_code == 415 and "set-cookie" not in answer.headers
    enter(http, ROOT)
    for headers in FOREIGN:
        assert http.post("/logout", json={}, headers=headers).status_code == 403
    assert http.get("/logout").status_code == 405
    assert http.get("/v1/users").status_code == 200
    assert http.post("/logout", json={}).status_code == 204
    assert http.get("/v1/users").status_code == 401


def test_what_is_no_login_is_refused(http: httpx.Client) -> None:
    for body in ({}, {"user": "root"}, {"user": "", "password": "x"}, {"user": 1, "password": "x"}, [], {"x": "y"}):
        assert http.post("/login", json=body).status_code == 400
    assert http.post("/login", json={"user": "root", "password": "x" * 20_000}).status_code == 400


def test_guesses_are_throttled_and_audited_as_everywhere(tmp_path: Path) -> None:
    lines = tmp_path / "audit"
    with (
        Broker("limits.login_failures_max=3", f"audit.file={lines}") as broker,
        httpx.Client(base_url=broker.http_url, timeout=30) as http,
    ):
        add_users(broker)
        for _ in range(3):
            answer = enter(http, ("root", "guessed"))
            assert (answer.status_code, answer.json()["detail"]) == (403, "wrong user name or password")
        late = enter(http, ROOT)
        assert late.status_code == 503 and "wait" in late.json()["detail"]
        assert http.get("/v1/users", auth=("root", "guessed")).status_code == 503, "one throttle for all doors"
        eventually(lambda: lines.exists() and '"login"' in lines.read_text(), "a failed login is audited")
        assert "guessed" not in lines.read_text()


# -- how a session ends


def test_a_session_ends_with_its_user_its_password_and_its_rights(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=30) as root:
        changes: dict[str, Callable[[], httpx.Response]] = {
            "password": lambda: root.patch("/v1/users/eve", json={"password": "another"}),
            "namespace": lambda: root.patch("/v1/users/eve", json={"namespace": "yard"}),
            "removed": lambda: root.delete("/v1/users/eve"),
        }
        root.put("/v1/namespaces/yard").raise_for_status()
        for why, change in changes.items():
            root.delete("/v1/users/eve")
            root.post("/v1/users", json={"name": "eve", "password": "of eve"}).raise_for_status()
            with visitor(broker, ("eve", "of eve")) as eve:
                rule = {"actions": ["consume"], "filter": "a"}
                root.post("/v1/users/eve/rules", json=rule).raise_for_status()
                assert eve.get("/v1/overview").status_code == 200, "other rules leave a session as it is"
                change().raise_for_status()
                assert eve.get("/v1/overview").status_code == 401, why


def test_a_session_ends_by_its_time() -> None:
    with Broker("http.session_ms=2s") as broker:
        add_users(broker)
        with visitor(broker, ROOT) as http:
            [cookie] = http.cookies.jar

            def ended() -> bool:
                headers = {"cookie": f"{cookie.name}={cookie.value}"}  # httpx itself sends no cookie that is over
                return httpx.get(f"{broker.http_url}/v1/overview", headers=headers).status_code == 401

            eventually(ended, "two seconds are over")


def test_a_user_has_so_many_sessions_and_ends_only_its_own(broker: Broker) -> None:
    with visitor(broker, ROOT) as root, visitor(broker, ANN) as first, httpx.Client(base_url=broker.http_url) as more:
        for _ in range(SESSIONS_OF_USER_MAX):
            more.cookies.clear()
            assert enter(more, ANN).status_code == 200
        assert first.get("/v1/overview").status_code == 401
        assert more.get("/v1/overview").status_code == 200
        assert root.get("/v1/overview").status_code == 200


def test_a_login_ends_the_session_that_the_browser_had(broker: Broker) -> None:
    with visitor(broker, ROOT) as http:
        [before] = http.cookies.jar
        assert enter(http, ANN).status_code == 200
        stolen = httpx.get(f"{broker.http_url}/v1/overview", headers={"cookie": f"{before.name}={before.value}"})
        assert stolen.status_code == 401
        assert http.get("/v1/users").status_code == 403, "it is ann now"


# -- the cookie


def test_cookies_of_other_programs_on_this_host_do_no_harm(broker: Broker) -> None:
    with visitor(broker, ROOT) as http:
        [session] = http.cookies.jar
    odd = f'theirs={{"a": "b;c"}}; {session.name}={session.value}; x'
    assert httpx.get(f"{broker.http_url}/v1/users", headers={"cookie": odd}).status_code == 200


def test_two_brokers_on_one_host_end_no_session_of_each_other(broker: Broker) -> None:
    """A browser sends the cookies of one to the other, too: they know no port."""
    with Broker() as other, httpx.Client(timeout=30) as browser:
        add_users(other)
        for one in (broker, other):
            login = {"user": ROOT[0], "password": ROOT[1]}
            assert browser.post(f"{one.http_url}/login", json=login).status_code == 200
        assert len({cookie.name for cookie in browser.cookies.jar}) == 2
        for one in (broker, other):
            assert browser.get(f"{one.http_url}/v1/users").status_code == 200
        assert browser.post(f"{other.http_url}/logout", json={}).status_code == 204
        assert browser.get(f"{broker.http_url}/v1/users").status_code == 200


def test_by_tls_the_cookie_leaves_by_tls_only(http: httpx.Client) -> None:
    assert "secure" not in enter(http, ROOT).headers["set-cookie"].lower()
    with Broker("oidc.console_url=https://broker.acme.net") as behind, httpx.Client(base_url=behind.http_url) as client:
        add_users(behind)
        cookie = enter(client, ROOT).headers["set-cookie"].lower()
        assert all(flag in cookie for flag in ("; secure", "; httponly", "; samesite=lax", "; max-age=43200"))


# -- who needs none, and who chooses a namespace


def test_nothing_changes_while_there_are_no_users() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url) as http:
        assert http.get("/", headers=HTML).status_code == 200
        assert http.get("/login?next=/topics").headers["location"] == "/topics"
        answer = enter(http, ROOT)
        assert answer.json() == {"next": "/"} and "set-cookie" not in answer.headers


def test_without_the_console_there_is_no_login_page() -> None:
    with Broker("http.console=false") as broker, httpx.Client(base_url=broker.http_url) as http:
        add_users(broker)
        answer = http.get("/", headers=HTML)
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic")
        assert http.get("/login", headers=HTML).status_code == 401


def test_who_belongs_to_several_namespaces_chooses_and_tries_in_that(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, auth=ROOT, timeout=30) as root:
        for space in ("shop", "lab"):
            root.put(f"/v1/namespaces/{space}").raise_for_status()
        root.post("/v1/users", json={"name": "bob", "password": "of bob", "namespace": "shop"}).raise_for_status()
        root.patch("/v1/users/bob", json={"also": ["lab"]}).raise_for_status()
        rule = {"actions": ["publish", "consume", "create", "describe", "delete"], "filter": "#"}
        root.post("/v1/users/bob/rules", json=rule).raise_for_status()
    for name, space in (("bob", "shop"), ("lab:bob", "lab")):
        with visitor(broker, (name, "of bob")) as bob:
            body = {"protocol": "amqp", "topic": f"tried/{space}", "value": "x"}
            arrivals = bob.post("/v1/try", json=body).json()["arrivals"]
            assert len(arrivals) == 4 and all(one["error"] is None for one in arrivals), arrivals
            assert [row["name"] for row in bob.get("/v1/topics").json()["items"]] == [f"tried/{space}"]
