"""Frames for tasks on other machines: packed where that is accepted, and only so many at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
import zstandard

from mainstem.admin.frame_answers import ANSWERS_MAX
from mainstem.testing.process import BrokerProcess

VALUE_BYTES, VALUES = 900_000, 18  # more than one answer may have


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With files: an answer from them is as large as it is asked for."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def log(broker: BrokerProcess) -> Iterator[int]:
    """With values that do not compress, so that an answer is larger than what the kernel keeps of it."""
    with httpx.Client(base_url=broker.http_url) as http:
        for _ in range(VALUES):
            value = os.urandom(VALUE_BYTES // 2).hex()
            assert http.post("/v1/messages", json={"topic": "large", "value": value}).status_code == 200
        select = {"select": {"kind": "topics", "topics": ["large"]}, "ranges": [["large", 0, 0, 1 << 40]]}
        found = http.post("/v1/scan/plan", json=select).json()
        yield int(found["slices"][0]["log"])


def ask(http: httpx.Client, log: int, accepted: str, **more: int) -> httpx.Response:
    asked = {"log": log, "start": 0, "end": 1 << 40, **more}
    return http.get("/v1/scan/frames", params=asked, headers={"Accept-Encoding": accepted})


def test_who_accepts_zstd_has_the_same_frames_in_fewer_bytes(http: httpx.Client, log: int) -> None:
    plain = ask(http, log, "identity", bytes_max=4 << 20)
    assert "content-encoding" not in plain.headers
    assert int(plain.headers["content-length"]) == len(plain.content) > VALUE_BYTES
    with http.stream(
        "GET",
        "/v1/scan/frames",
        params={"log": log, "start": 0, "end": 1 << 40, "bytes_max": 4 << 20},
        headers={"Accept-Encoding": "gzip, zstd"},
    ) as answer:
        packed = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "zstd"
        assert answer.headers["mainstem-next-offset"] == plain.headers["mainstem-next-offset"]
    assert len(packed) < 0.7 * len(plain.content), "hexadecimal digits are four bits each"
    assert zstandard.ZstdDecompressor().decompress(packed, 8 << 20) == plain.content


def test_who_takes_nothing_holds_no_more_than_its_namespaces_answers(
    broker: BrokerProcess, http: httpx.Client, log: int
) -> None:
    path = f"/v1/scan/frames?log={log}&start=0&end=999999"
    request = f"GET {path} HTTP/1.1\r\nhost: {broker.host}\r\n\r\n".encode()
    other = http.post("/v1/namespaces", json={"name": "elsewhere"})
    assert other.status_code in (200, 201)
    with ExitStack() as stack:
        stalled = []
        for _ in range(ANSWERS_MAX):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((broker.host, broker.http_port))
            client.sendall(request)
            stalled.append(client)
        for client in stalled:
            client.settimeout(30)
            assert client.recv(12) == b"HTTP/1.1 200"
        late = stack.enter_context(socket.create_connection((broker.host, broker.http_port)))
        late.sendall(request)
        late.settimeout(1)
        with pytest.raises(TimeoutError):
            late.recv(1)
        missing = http.get("/v1/scan/frames", params={"log": 1 << 30, "start": 0, "end": 9, "namespace": "elsewhere"})
        assert missing.status_code == 404, "another namespace does not wait"
        stalled[0].close()
        late.settimeout(30)
        assert late.recv(12) == b"HTTP/1.1 200"
    for _ in range(2 * ANSWERS_MAX):  # all have gone: nobody's place is lost
        assert ask(http, log, "identity", bytes_max=1000).status_code == 200
