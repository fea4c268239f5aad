"""The HTTP API against a real broker in memory."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.admin.api import OPERATIONS
from mainstem.admin.api_reference import reference_page
from mainstem.admin.cursors import read_assignment
from mainstem.broker.rights.operations import Scope
from mainstem.testing import Broker


def publish(http: httpx.Client, topic: str, *values: str, **more: Any) -> None:
    for value in values:
        assert http.post("/v1/messages", json={"topic": topic, "value": value, **more}).status_code == 200


def values(answer: httpx.Response) -> list[str]:
    return [one["value"] for one in answer.json()["items"]]


def test_what_is_published_can_be_browsed(http: httpx.Client) -> None:
    publish(http, "browse/a", "1", "2", "3", headers={"region": "eu"}, key="k")
    answer = http.get("/v1/messages", params={"topic": "browse/a"})
    assert values(answer) == ["1", "2", "3"]
    first = answer.json()["items"][0]
    assert (first["key"], first["origin"], ["region", "eu"] in first["headers"]) == ("k", "http", True)
    assert values(http.get("/v1/messages", params={"topic": "browse/a", "from": "-2"})) == ["2", "3"]
    assert values(http.get("/v1/messages", params={"topic": "browse/a", "from": f"@{first['offset'] + 1}"})) == [
        "2",
        "3",
    ]
    assert values(http.get("/v1/messages", params={"topic": "browse/a", "from": "latest"})) == []
    assert values(http.get("/v1/messages", params={"topic": "browse/a", "from": f"ts:{first['time_ms']}"}))[0] == "1"
    assert values(http.get("/v1/messages", params={"topic": "browse/a", "contains": "2"})) == ["2"]


def test_pages_go_on_where_the_one_before_ended(http: httpx.Client) -> None:
    publish(http, "pages/a", *(str(n) for n in range(7)))
    publish(http, "pages/b", *(str(n) for n in range(7, 10)))
    seen: list[str] = []
    start = "earliest"
    while start:
        answer = http.get("/v1/messages", params={"filter": "pages/#", "from": start, "limit": 3})
        seen += values(answer)
        start = answer.json()["next"]
    assert seen == [str(n) for n in range(10)]


@pytest.mark.parametrize(
    ("body", "shown", "form"),
    [
        ({"value_json": {"a": 1}}, '{"a": 1}', "json"),
        ({"value_base64": "//8A"}, "ff ff 00", "hex"),
        ({"value": "plain"}, "plain", "text"),
        ({}, None, "null"),
    ],
)
def test_values_are_shown_as_people_read_them(http: httpx.Client, body: dict[str, Any], shown: str, form: str) -> None:
    topic = f"forms/{form}"
    assert http.post("/v1/messages", json={"topic": topic, **body}).status_code == 200
    one = http.get("/v1/messages", params={"topic": topic}).json()["items"][0]
    assert (one["value"], one["format"]) == (shown, form)


def test_topics_are_listed_by_filter_and_search_and_page(http: httpx.Client) -> None:
    for number in range(5):
        publish(http, f"list/{number}/x", "v")
    names = [row["name"] for row in http.get("/v1/topics", params={"filter": "list/+/x"}).json()["items"]]
    assert names == [f"list/{number}/x" for number in range(5)]
    assert len(http.get("/v1/topics", params={"search": "LIST/3"}).json()["items"]) == 1
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = http.get("/v1/topics", params={"filter": "list/#", "limit": 2, "after": after}).json()
        seen += [row["name"] for row in page["items"]]
        after = page["next"]
    assert seen == names


def test_the_tree_counts_what_is_below_each_level(http: httpx.Client) -> None:
    publish(http, "tree/a/x", "v")
    publish(http, "tree/a/y", "v")
    publish(http, "tree/b", "v")
    rows = http.get("/v1/tree", params={"prefix": "tree"}).json()["items"]
    assert [(row["level"], row["topics"], row["is_topic"]) for row in rows] == [("a", 2, False), ("b", 1, True)]


def test_a_topic_is_declared_described_changed_and_removed(http: httpx.Client) -> None:
    made = http.post("/v1/topics", json={"name": "life/of", "settings": {"partitions": 3}})
    assert made.status_code == 200
    assert made.json()["partitions"] == 3
    facts = http.patch("/v1/topics/life/of", json={"settings": {"retention_ms": 60_000}}).json()
    assert facts["settings"]["retention_ms"] == {"value": 60_000, "source": "topic"}
    assert facts["settings"]["durability"]["source"] == "default"
    assert facts["spellings"] == {"mqtt": "life/of", "kafka": "life.of", "amqp": "life.of", "nats": "life.of"}
    assert http.delete("/v1/topics/life%2Fof").status_code == 200
    assert http.get("/v1/topics/life/of").status_code == 404


def test_a_live_topic_moves_to_a_log_of_its_own_and_keeps_its_records(http: httpx.Client) -> None:
    publish(http, "move/me", "1", "2")
    facts = http.patch("/v1/topics/move/me", json={"settings": {"layout": "dedicated"}}).json()
    assert facts["layout"] == "dedicated"
    publish(http, "move/me", "3")
    assert values(http.get("/v1/messages", params={"topic": "move/me"})) == ["1", "2", "3"]


def test_a_view_shows_what_was_stored_before_it_was_made(http: httpx.Client) -> None:
    publish(http, "seen/1", "a")
    publish(http, "seen/2", "b")
    made = http.post("/v1/views", json={"name": "all-seen", "filter": "seen/#"}).json()
    assert sum(part["records"] for part in made["partitions"]) == 2
    publish(http, "seen/3", "c")
    assert values(http.get("/v1/messages", params={"view": "all-seen"})) == ["a", "b", "c"]
    assert http.post("/v1/views", json={"name": "all-seen", "filter": "x"}).status_code == 409
    assert http.delete("/v1/views/all-seen").status_code == 200
    assert http.get("/v1/views/all-seen").status_code == 404


def test_a_tail_shows_what_is_published_from_now_on(broker: Broker, http: httpx.Client) -> None:
    with httpx.stream("GET", f"{broker.http_url}/v1/tail", params={"filter": "tail/#"}) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        publish(http, "other", "no")
        publish(http, "tail/a", "yes")
        data = next(line for line in lines if line.startswith("data:"))
    assert json.loads(data[5:])["value"] == "yes"


def test_a_numeric_field_becomes_a_series(http: httpx.Client) -> None:
    for celsius in (20.5, 21.0):
        http.post("/v1/messages", json={"topic": "series", "value_json": {"in": {"celsius": celsius}}})
    publish(http, "series", "not a number")
    answer = http.get("/v1/series", params={"topic": "series", "field": "in.celsius"}).json()
    assert answer["series"] == {"in.celsius": [20.5, 21.0]}
    assert len(answer["time"]) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/v1/topics/nowhere", None, 404, "there is no topic nowhere"),
        ("GET", "/nowhere", None, 404, "there is nothing at"),
        ("PUT", "/v1/topics", {}, 405, "PUT is not possible"),
        ("POST", "/v1/messages", {"topic": "a", "valeu": "x"}, 400, "did you mean 'value'?"),
        ("POST", "/v1/messages", {"value": "x"}, 400, "missing: topic"),
        ("POST", "/v1/messages", {"topic": 3}, 400, "must be of type string"),
        ("POST", "/v1/messages", {"topic": "a/#", "value": "x"}, 400, "wildcard"),
        ("POST", "/v1/messages", {"topic": "$SYS/x", "value": "x"}, 400, "the broker's own"),
        ("POST", "/v1/topics", {"name": "t", "settings": {"enigne": "x"}}, 400, "did you mean engine?"),
        ("GET", "/v1/messages?topic=browse/a&from=never", None, 400, "is not understood"),
        ("GET", "/v1/messages", None, 400, "say what to read"),
        ("GET", "/v1/topics?limit=many", None, 400, "must be a whole number"),
    ],
)
def test_problems_say_what_is_wrong(
    http: httpx.Client, method: str, path: str, body: dict[str, Any] | None, status: int, words: str
) -> None:
    publish(http, "browse/a", "x")
    answer = http.request(method, path, json=body) if body is not None else http.request(method, path)
    problem = answer.json()
    assert answer.status_code == problem["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in problem["detail"]
    assert re.fullmatch(r"MS-\d{4}", problem["code"])


def test_the_openapi_document_describes_every_operation(http: httpx.Client) -> None:
    document = http.get("/v1/openapi.json").json()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(one.method, re.sub(r":path", "", one.path)) for one in OPERATIONS}
    ids = [method["operationId"] for methods in document["paths"].values() for method in methods.values()]
    assert len(ids) == len(set(ids))


def test_the_overview_and_the_configuration_are_told(http: httpx.Client) -> None:
    overview = http.get("/v1/overview").json()
    assert overview["ready"]
    assert all(check["reason"] for check in overview["health"])
    rows = {row["key"]: row for row in http.get("/v1/config").json()["items"]}
    assert rows["topics.engine"]["value"] == "memory"
    assert rows["topics.engine"]["source"] == "--set"


def test_every_operation_says_what_it_needs() -> None:
    for one in OPERATIONS:
        assert str(one.need)
        assert one.summary.endswith(".")
        assert not one.names or one.need.scope is Scope.OBJECT


def test_the_documentation_is_what_the_code_says() -> None:
    page = (Path(__file__).parents[3] / "docs/http-api.md").read_text()
    assert page == reference_page(), "run: python -m mainstem.admin.api_reference > docs/http-api.md"


def test_whoever_tries_it_does_so_with_the_rights_of_its_login() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url) as http:
        http.post("/v1/users", json={"name": "root", "password": "secret-of-root", "admin": True})
        root, ann = ("root", "secret-of-root"), ("ann", "secret-of-ann")
        http.post("/v1/users", json={"name": "ann", "password": "secret-of-ann"}, auth=root)
        rule = {"allow": True, "actions": ["publish", "consume", "create", "describe"], "filter": "home/#"}
        assert http.post("/v1/users/ann/rules", json=rule, auth=root).status_code == 200

        def tried(login: tuple[str, str], topic: str = "home/door") -> dict[str, str | None]:
            body = {"protocol": "kafka", "topic": topic, "value": "open"}
            answer = http.post("/v1/try", json=body, auth=login)
            assert answer.status_code == 200, answer.text
            return {one["protocol"]: one["error"] for one in answer.json()["arrivals"]}

        assert tried(root) == dict.fromkeys(("mqtt", "kafka", "amqp", "nats"))
        errors = tried(ann)  # AMQP would make a queue for it, which she may not
        assert (errors["mqtt"], errors["kafka"]) == (None, None)
        assert "refused for user 'ann'" in str(errors["amqp"])
        body = {"protocol": "mqtt", "topic": "elsewhere", "value": "x"}
        assert http.post("/v1/try", json=body, auth=ann).status_code == 403
        assert http.post("/v1/try", json=body).status_code == 401


def test_a_page_that_is_not_there_is_a_page_for_people_and_a_problem_for_programs(http: httpx.Client) -> None:
    page = http.get("/nowhere", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no page /nowhere" in page.text
    assert http.get("/nowhere").headers["content-type"] == "application/problem+json"


def test_the_assignment_of_a_member_is_read_and_anything_else_is_nothing() -> None:
    data = struct.pack(">hi", 1, 1) + struct.pack(">h", 3) + b"a.b" + struct.pack(">i2i", 2, 0, 5) + b"\xff\xff\xff\xff"
    assert read_assignment(data) == ["a.b-0", "a.b-5"]
    for end in range(len(data)):
        read_assignment(data[:end])
    assert read_assignment(b"") == []
    assert read_assignment(b"\x7f" * 40) == []
