"""OpenID Connect for the console: code with PKCE, at a small provider of our own; every step of it attacked."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from mainstem.testing import Broker
from tests.security.issuer import Issuer
from tests.users import ROOT, add_users

CLIENT = "mainstem-console"
HTML = {"accept": "text/html"}


class Provider:
    """Logs everybody in as `claims` say, without asking."""

    def __init__(self) -> None:
        self.issuer = Issuer()
        self.claims: dict[str, Any] = {"sub": "tom"}
        self.codes: dict[str, dict[str, str]] = {}
        self.exchanged: list[dict[str, str]] = []
        self.address = ""

    def page(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, str], Any]:
        if path == "/.well-known/openid-configuration":
            ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
            told = {name: f"{self.address}/{end}" for name, end in ends.items()}
            return 200, {}, {"issuer": self.address, **told}
        if path == "/jwks":
            return 200, {}, self.issuer.jwks()
        assert path == "/authorize"
        code = secrets.token_hex(8)
        self.codes[code] = query
        return 302, {"Location": f"{query['redirect_uri']}?code={code}&state={query['state']}"}, {}

    def token(self, form: dict[str, str]) -> tuple[int, Any]:
        asked = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if (
            asked is None
            or asked["code_challenge_method"] != "S256"
            or asked["code_challenge"] != challenge.decode()
            or form["redirect_uri"] != asked["redirect_uri"]
            or form["client_id"] != asked["client_id"]
        ):
            return 400, {"error": "invalid_grant"}
        self.exchanged.append(form)
        claims = {"iss": self.address, "aud": CLIENT, "nonce": asked["nonce"], **self.claims}
        return 200, {"id_token": self.issuer.token(**claims), "access_token": "x", "token_type": "Bearer"}


@contextmanager
def served(provider: Provider) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.answer(*provider.page(parts.path, query))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, document = provider.token({name: values[0] for name, values in parse_qs(body).items()})
            self.answer(status, {}, document)

        def answer(self, status: int, headers: dict[str, str], document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    with served(provider):
        yield provider


@pytest.fixture(autouse=True)
def nobody_special(provider: Provider) -> None:
    provider.claims = {"sub": "tom"}


@pytest.fixture(scope="module")
def broker(provider: Provider) -> Iterator[Broker]:
    settings = (f"oidc.issuer={provider.address}", f"oidc.client_id={CLIENT}", "jwt.admin_role=boss")
    with Broker(*settings) as broker:
        add_users(broker)
        yield broker


@pytest.fixture
def browser(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, follow_redirects=True, timeout=20) as client:
        yield client


def begun(browser: httpx.Client) -> httpx.URL:
    """The address that the provider sends the browser back to."""
    answer = browser.get("/login/provider", follow_redirects=False)
    sent_back = httpx.get(answer.headers["location"], follow_redirects=False)
    return httpx.URL(sent_back.headers["location"])


def log_in(browser: httpx.Client) -> httpx.Response:
    """By the button of the login page."""
    page = browser.get("/topics?mode=table", headers=HTML)
    [link] = re.findall(r'href="(/login/provider[^"]*)"', page.text)
    return browser.get(link, headers=HTML)


def test_a_browser_is_led_through_the_provider_to_the_page_it_wanted(browser: httpx.Client, provider: Provider) -> None:
    provider.claims = {"sub": "tom", "roles": ["boss"]}
    page = log_in(browser)
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    assert page.url.path == "/topics" and page.url.params["mode"] == "table"
    assert browser.get("/v1/users").status_code == 200  # the provider says that he is an admin
    assert browser.post("/v1/topics", json={"name": "made"}).status_code == 200
    cookie = next(one for one in browser.cookies.jar if one.name.startswith("ms-session-"))
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "lax"


def test_rights_are_those_of_the_claims(browser: httpx.Client, provider: Provider) -> None:
    provider.claims = {"sub": "tom", "rules": [{"actions": ["publish"], "filter": "of/tom"}]}
    log_in(browser)
    assert browser.post("/v1/messages", json={"topic": "of/tom", "value": "x"}).status_code == 200
    assert browser.post("/v1/messages", json={"topic": "of/ann", "value": "x"}).status_code == 403
    assert browser.get("/v1/users").status_code == 403


def test_passwords_and_commands_go_on(broker: Broker) -> None:
    assert httpx.get(f"{broker.http_url}/v1/users", auth=ROOT).status_code == 200
    assert httpx.get(f"{broker.http_url}/v1/users").status_code == 401  # asks for no page: told, not led away


def test_a_page_of_another_site_changes_nothing_with_the_cookie(browser: httpx.Client, provider: Provider) -> None:
    provider.claims = {"sub": "tom", "roles": ["boss"]}
    log_in(browser)
    foreign = {"origin": "https://evil.example"}
    assert browser.post("/v1/topics", json={"name": "evil"}, headers=foreign).status_code == 403
    assert browser.post("/v1/topics", content="{}", headers={"content-type": "text/plain"}).status_code == 415


def test_a_login_belongs_to_the_browser_that_began_it(browser: httpx.Client, broker: Broker) -> None:
    address = begun(browser)
    with httpx.Client(timeout=20) as victim:
        assert victim.get(address, follow_redirects=False).status_code == 403
        assert not any(name.startswith("ms-session") for name in victim.cookies)
    assert browser.get(address, follow_redirects=False).status_code == 403, "and it was good for one try"


def test_a_state_counts_once_and_only_if_we_gave_it(browser: httpx.Client) -> None:
    address = begun(browser)
    assert browser.get(address.copy_set_param("state", "made-up"), follow_redirects=False).status_code == 403
    address = begun(browser)
    assert browser.get(address, follow_redirects=False).status_code == 302
    assert browser.get(address, follow_redirects=False).status_code == 403


def test_a_code_that_the_provider_does_not_know_is_refused(browser: httpx.Client) -> None:
    address = begun(browser).copy_set_param("code", "stolen")
    assert browser.get(address, follow_redirects=False).status_code == 403
    refused = begun(browser).copy_remove_param("code").copy_set_param("error", "access_denied")
    assert browser.get(refused, follow_redirects=False).status_code == 403


WRONG = {
    "another nonce": {"nonce": "other"},
    "no nonce": {"nonce": None},
    "another audience": {"aud": "somebody"},
    "another issuer": {"iss": "https://other.example"},
    "expired": {"lives_s": -60},
    "no user name": {"sub": "a/b"},
}


@pytest.mark.parametrize("what", WRONG)
def test_an_id_token_with_something_wrong_is_refused(browser: httpx.Client, provider: Provider, what: str) -> None:
    provider.claims = {"sub": "root", **WRONG[what]}
    assert browser.get(begun(browser), follow_redirects=False).status_code == 403
    assert browser.get("/v1/users").status_code == 401


def test_a_session_ends_when_somebody_logs_out_and_a_made_up_one_is_none(browser: httpx.Client) -> None:
    log_in(browser)
    assert browser.get("/v1/overview").status_code == 200
    assert 'data-api="/logout"' in browser.get("/", headers=HTML).text
    assert browser.post("/logout", json={}).status_code == 204
    assert browser.get("/v1/overview").status_code == 401
    browser.cookies.set("ms-session", "made-up")
    assert browser.get("/v1/overview").status_code == 401


def test_no_provider_leads_to_a_page_of_another_site(browser: httpx.Client) -> None:
    started = browser.get("/login/provider?next=//evil.example/", follow_redirects=False)
    back = httpx.get(started.headers["location"], follow_redirects=False)
    assert browser.get(back.headers["location"], follow_redirects=False).headers["location"] == "/"


def test_try_it_works_for_who_has_no_password_here(browser: httpx.Client, provider: Provider) -> None:
    provider.claims = {"sub": "tom", "rules": [{"actions": ["publish", "consume", "describe"], "filter": "of/tom"}]}
    log_in(browser)
    answer = browser.post("/v1/try", json={"protocol": "mqtt", "topic": "of/tom", "value": "x"}).json()
    assert {one["protocol"]: one["error"] for one in answer["arrivals"] if one["protocol"] == "mqtt"} == {"mqtt": None}


def test_the_verifier_never_leaves_but_for_the_provider(provider: Provider, browser: httpx.Client) -> None:
    log_in(browser)
    assert all(len(form["code_verifier"]) >= 43 for form in provider.exchanged)
