"""Who publishes by HTTP keeps to the limits that MQTT clients keep to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mainstem.testing import Broker


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"topic": "a", "headers": dict.fromkeys("abc", "1")}, 400, "3 headers; limits.headers_max is 2"),
        ({"topic": "a", "headers": [["a", "1"]] * 3}, 400, "limits.headers_max is 2"),
        ({"topic": "a/" + "b" * 40}, 400, "topic of 42 bytes"),
        ({"topic": "a/b/c/d/e"}, 400, "topic of 5 levels"),
        ({"topic": "a", "value": "x" * 2000}, 413, "message of 2000 bytes"),
        ({"topic": "a", "value": "x" * 500, "key": "k" * 600}, 413, "key and headers of 600 bytes"),
        ({"topic": "a", "headers": {"h": "x" * 2000}}, 413, "key and headers of 2001 bytes"),
        ({"topic": "a", "headers": [[1, "x"]]}, 400, "headers must be"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_are_told_by_name(body: dict[str, Any], status: int, words: str, http_limited: httpx.Client) -> None:
    problem = http_limited.post("/v1/messages", json=body)
    assert problem.status_code == status
    assert words in problem.json()["detail"]


def test_what_keeps_to_them_is_stored(http_limited: httpx.Client) -> None:
    headers = {"flag": True, "nested": {"b": [1]}}
    body = {"topic": "a/b/c/d", "value": "x" * 900, "key": "k" * 20, "headers": headers}
    assert http_limited.post("/v1/messages", json=body).status_code == 200
    item = http_limited.get("/v1/messages", params={"topic": "a/b/c/d"}).json()["items"][0]
    assert ["flag", "true"] in item["headers"]
    assert ["nested", '{"b": [1]}'] in item["headers"]


@pytest.fixture(scope="module")
def http_limited() -> Iterator[httpx.Client]:
    limits = ("limits.headers_max=2", "limits.topic_bytes_max=40", "limits.topic_levels_max=4")
    with (
        Broker(*limits, "topics.message_bytes_max=1000") as broker,
        httpx.Client(base_url=broker.http_url) as client,
    ):
        yield client
