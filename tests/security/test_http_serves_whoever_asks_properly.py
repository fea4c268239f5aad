"""A crowd of idle, slow or greedy HTTP peers: health and metrics are answered throughout, and little is kept of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest

from mainstem.admin import server
from mainstem.testing import Broker, BrokerProcess
from tests.security.canary import ask_http

MIB = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("http") / "data", engine="memory") as started:
        ask_http(started)
        yield started


def dial(broker: BrokerProcess | Broker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection((broker.host, broker.http_port), timeout=20))


def test_eleven_hundred_idle_connections_hide_nobodys_health(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        for _ in range(1_200):
            dial(broker, stack)
        for path in ("/livez", "/readyz", "/metrics"):
            ask_http(broker, path)
        assert httpx.get(f"{broker.http_url}/v1/topics").status_code == 200


def test_a_thousand_requests_that_do_not_end_hide_nobodys_health(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        for _ in range(server.CONNECTIONS_MAX + 20):
            dial(broker, stack).sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: ")
        for path in ("/livez", "/readyz", "/metrics"):
            ask_http(broker, path)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2_000_000, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100_000, 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 2_000_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
    ids=["address", "one header", "many headers", "a header's name", "TLS"],
)
def test_a_head_is_refused_before_it_is_kept(broker: BrokerProcess, sent: bytes, status: int) -> None:
    before = psutil.Process(broker.pid).memory_info().rss
    with ExitStack() as stack:
        clients = [dial(broker, stack) for _ in range(20)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
        answers = [answer_of(client) for client in clients]
        assert set(answers) <= {b"HTTP/1.1 %d" % status, b""}  # a peer that still sends may be reset before it reads
        assert psutil.Process(broker.pid).memory_info().rss - before < 30 * MIB
    ask_http(broker)


def answer_of(client: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return client.recv(12)
    return b""


def test_a_head_and_a_body_that_drip_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S_MAX", 1)
    monkeypatch.setattr(server, "BODY_STEP_S", 1)
    with Broker() as broker, ExitStack() as stack:
        head = b"GET /livez HTTP/1.1\r\nX: "
        body = (
            b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        for words in (b"", head, body):
            client = dial(broker, stack)
            client.sendall(words)
            client.settimeout(0.3)
            deadline = time.monotonic() + 20
            with contextlib.suppress(ConnectionError):
                while True:
                    assert time.monotonic() < deadline, f"{words!r} is still waited for"
                    if words:
                        client.sendall(b"x")
                    with contextlib.suppress(TimeoutError):
                        if not client.recv(1_000):
                            break


@pytest.mark.parametrize("number", ["0", "-1", "x", "²", "9" * 30, "1e3", "9" * 3_900])
def test_a_bad_page_is_the_callers_mistake(broker: BrokerProcess, number: str) -> None:
    with httpx.Client(base_url=broker.http_url) as client:
        for path in (
            f"/api/queues?page={number}",
            f"/api/queues?page=1&page_size={number}",
            f"/v1/topics?limit={number}",
            f"/v1/topics?after=s/{number}/{number}",
            f"/v1/scan/frames?log={number}",
            f"/v1/connections?after=mqtt-{number}",
        ):
            assert client.get(path).status_code < 500, path


def test_deep_json_is_the_callers_mistake(broker: BrokerProcess) -> None:
    with httpx.Client(base_url=broker.http_url, headers={"content-type": "application/json"}) as client:
        deep = b"[" * 100_000
        for method, path in (
            ("PUT", "/api/queues/%2F/q"),
            ("POST", "/v1/topics"),
            ("POST", "/v1/scan/plan"),
            ("PUT", "/api/queues/%2F/q\xff"),
        ):
            for content in (deep, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"\xff\xfe"):
                assert client.request(method, path, content=content).status_code < 500, path


def test_bodies_are_bounded_over_all_connections(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("bodies") / "data"
    with (
        BrokerProcess(directory, "limits.input_bytes_total_max=32MiB", engine="memory") as broker,
        ExitStack() as stack,
    ):
        ask_http(broker)
        before = psutil.Process(broker.pid).memory_info().rss
        head = (
            b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 15000000\r\n\r\n"
        )
        for client in [dial(broker, stack) for _ in range(20)]:
            with contextlib.suppress(ConnectionError):
                client.sendall(head + b" " * 14_000_000)
        ask_http(broker)
        assert psutil.Process(broker.pid).memory_info().rss - before < 32 * MIB + 60 * MIB
        connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=10)
        connection.request("GET", "/v1/topics")
        assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    "path", ["/login", "/iceberg/v1/oauth/tokens", "/api/queues/%2F/q", "/v1/topics", "/v1/scan/plan"]
)
def test_a_client_that_hangs_up_in_its_body_leaves_no_stack_in_the_log(broker: BrokerProcess, path: str) -> None:
    kind = "application/x-www-form-urlencoded" if "oauth" in path else "application/json"
    method = "PUT" if path.startswith("/api") else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 100\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", broker.http_port)) as client:
        client.sendall(head.encode())
        ask_http(broker)  # what came before it has been read
    for _ in range(3):
        ask_http(broker)
    assert "Traceback" not in broker.log()
