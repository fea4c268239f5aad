"""What a hostile web page can try against a broker on loopback, tried."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from mainstem.admin.api import OPERATIONS
from mainstem.admin.guard import host_allowed
from mainstem.broker.identity import passwords
from mainstem.broker.rights.operations import Scope
from mainstem.testing import Broker

WRITE = {"topic": "hostile", "value": "x"}


def written(http: httpx.Client) -> bool:
    return http.get("/v1/topics/hostile").status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:7070", True),
        ("app.localhost", True),
        ("127.0.0.1:7070", True),
        ("[::1]:7070", True),
        ("[::1]", True),
        ("192.168.1.5:7070", True),
        ("broker.example:7070", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_a_host_is_an_address_or_a_known_name(host: str, allowed: bool) -> None:
    assert host_allowed(host, ("broker.example",)) is allowed


def test_a_rebound_name_reads_nothing(http: httpx.Client) -> None:
    for path in ("/", "/v1/topics", "/metrics", "/livez"):
        assert http.get(path, headers={"Host": "rebound.example"}).status_code == 421


def test_a_page_elsewhere_cannot_publish(http: httpx.Client) -> None:
    """With each trick that needs no preflight, and with those that do."""
    attempts = [
        {"headers": {"Content-Type": "text/plain"}, "content": b'{"topic":"hostile","value":"x"}'},
        {"headers": {"Content-Type": "application/x-www-form-urlencoded"}, "content": b"topic=hostile"},
        {"headers": {"Origin": "http://evil.example"}, "json": WRITE},
        {"headers": {"Origin": "null"}, "json": WRITE},
        {"headers": {"Origin": "http://localhost:1"}, "json": WRITE},
        {"headers": {"Sec-Fetch-Site": "cross-site"}, "json": WRITE},
        {"headers": {}, "content": b""},
    ]
    for attempt in attempts:
        assert http.post("/v1/messages", **attempt).status_code in (403, 415)  # type: ignore[arg-type]
    assert not written(http)


def test_a_page_elsewhere_cannot_delete(http: httpx.Client) -> None:
    answer = http.delete("/v1/topics/hostile", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


def test_no_answer_may_be_read_by_another_origin(http: httpx.Client) -> None:
    answer = http.get("/v1/topics", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    preflight = http.options("/v1/messages", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-methods" not in preflight.headers


def test_pages_may_load_only_our_own_files_and_be_framed_by_no_one(http: httpx.Client) -> None:
    headers = http.get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in headers["content-security-policy"]


def test_our_own_page_may_publish(broker: Broker, http: httpx.Client) -> None:
    origin = {"Origin": broker.http_url, "Sec-Fetch-Site": "same-origin"}
    assert http.post("/v1/messages", json={"topic": "own", "value": "x"}, headers=origin).status_code == 200


def test_what_clients_write_is_text_never_markup(http: httpx.Client) -> None:
    script = "<script>alert(1)</script>"
    http.post("/v1/messages", json={"topic": f"xss/{script}", "value": script, "headers": {script: script}})
    for path in (
        "/topics?mode=table",
        f"/topic?name=xss/{script}",
        f"/messages?topic=xss/{script}",
        "/topics?search=<b>",
    ):
        assert script not in http.get(path).text
        assert "<b>" not in http.get(path).text.split("<main>")[1].split("<form")[0]


def test_a_body_has_a_limit() -> None:
    with Broker("http.body_bytes_max=1000") as broker, httpx.Client(base_url=broker.http_url) as http:
        assert http.post("/v1/messages", json={"topic": "a", "value": "x" * 2000}).status_code == 413
        endless = (b"x" * 100 for _ in range(50))
        headers = {"Content-Type": "application/json"}
        assert http.post("/v1/messages", content=endless, headers=headers).status_code in (400, 413)


class TestWithUsers:
    """From the first user on nobody gets in without a login, and nobody does more than rules allow."""

    @pytest.fixture(scope="class")
    def broker(self) -> Iterator[Broker]:
        patch = pytest.MonkeyPatch()
        patch.setattr(passwords, "SCRAM_ITERATIONS", 16)
        with Broker("limits.login_failures_max=1000") as broker, httpx.Client(base_url=broker.http_url) as http:
            made = http.post("/v1/users", json={"name": "root", "password": "secret", "admin": True})
            assert made.status_code == 200
            root = ("root", "secret")
            http.post("/v1/users", json={"name": "ann", "password": "pw"}, auth=root)
            rule = {"actions": ["consume", "describe"], "filter": "open/#"}
            http.post("/v1/users/ann/rules", json=rule, auth=root)
            yield broker
        patch.undo()

    def test_nothing_but_health_and_metrics_is_open(self, broker: Broker) -> None:
        with httpx.Client(base_url=broker.http_url) as http:
            assert http.get("/livez").status_code == 200
            assert http.get("/metrics").status_code == 200
            for path in ("/", "/topics.json", "/v1/topics", "/v1/openapi.json", "/static/console.js"):
                answer = http.get(path)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Basic")
            assert http.get("/v1/topics", auth=("root", "wrong")).status_code == 401
            assert http.get("/v1/topics", auth=("root", "secret")).status_code == 200

    def test_a_user_without_rights_can_change_nothing(self, broker: Broker) -> None:
        with httpx.Client(base_url=broker.http_url, auth=("ann", "pw")) as http:
            bodies = {
                "create_topic": {"name": "open/x"},
                "alter_topic": {"settings": {}},
                "create_view": {"name": "open/v", "filter": "open/#"},
                "create_queue": {"name": "open/q", "filter": "open/#"},
                "create_group": {"name": "g", "topic": "open.x"},
                "reset_group": {"group": "g", "to": "earliest"},
                "publish": {"topic": "open/x", "value": "v"},
                "try_it": {"topic": "open/x", "value": "v", "protocol": "mqtt"},
                "create_stream": {"name": "s", "subjects": ["open.x"]},
                "alter_stream": {"durability": "os"},
            }
            for one in OPERATIONS:
                path = one.path.replace("{name:path}", "open/x").replace("{name}", "ann").replace("{id}", "mqtt-1")
                if one.streams:
                    continue
                answer = http.request(
                    one.method,
                    path,
                    json=bodies.get(one.handler.__name__, {}) if one.method in ("POST", "PATCH") else None,
                )
                changes = one.method != "GET" and one.needs not in ("query.run", "schema.list")  # those two only ask
                if one.need.scope in (Scope.BROKER, Scope.NAMESPACE, Scope.WHOLE) or changes:
                    assert answer.status_code in (403, 404), f"{one.method} {path}: {answer.text}"

    def test_a_user_sees_only_what_it_may(self, broker: Broker) -> None:
        with httpx.Client(base_url=broker.http_url) as http:
            for topic in ("open/a", "closed/a"):
                http.post("/v1/messages", json={"topic": topic, "value": "v"}, auth=("root", "secret"))
            names = [row["name"] for row in http.get("/v1/topics", auth=("ann", "pw")).json()["items"]]
            assert names == ["open/a"]
            assert http.get("/v1/messages?topic=open/a", auth=("ann", "pw")).status_code == 200
            assert http.get("/v1/messages?topic=closed/a", auth=("ann", "pw")).status_code == 403
            assert http.get("/v1/messages?filter=%23", auth=("ann", "pw")).status_code == 403
            assert http.get("/v1/tail?filter=%23", auth=("ann", "pw")).status_code == 403

    def test_secrets_are_never_shown(self, broker: Broker) -> None:
        with httpx.Client(base_url=broker.http_url, auth=("root", "secret")) as http:
            for path in ("/v1/users", "/v1/users/ann", "/v1/config", "/settings", "/metrics"):
                text = http.get(path).text
                assert "scrypt" not in text
                assert "SCRAM" not in text


def test_requests_without_a_login_are_answered_401_and_lock_nobody_out() -> None:
    """A probe or a browser that has not asked its user yet guesses no password."""
    with Broker("limits.login_failures_max=3") as broker, httpx.Client(base_url=broker.http_url) as http:
        assert http.post("/v1/users", json={"name": "root", "password": "secret", "admin": True}).status_code == 200
        for _ in range(6):
            answer = http.get("/v1/topics")
            assert (answer.status_code, answer.json()["status"]) == (401, 401)
            assert answer.headers["www-authenticate"].startswith("Basic")
        assert http.get("/v1/topics", auth=("root", "secret")).status_code == 200
        for _ in range(3):
            answer = http.get("/v1/topics", auth=("other", "guess"))
            assert (answer.status_code, answer.json()["status"]) == (401, 401)
        assert http.get("/v1/topics", auth=("other", "guess")).status_code == 503
