"""Every operation of the API, asked of a broker with one of everything, answers what the OpenAPI document says.

No field more, and none less. Problems too.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from mainstem.broker.rights.access import Rule
from mainstem.testing import Broker
from tests.console.furnished import ADMIN, furnished
from tests.crossing.commands import eventually

pytestmark = pytest.mark.timeout(300)
CLERK = ("clerk", ADMIN[1])
METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with furnished() as broker:
        yield broker


@pytest.fixture(scope="module")
def root(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, auth=ADMIN, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def document(root: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = root.get("/v1/openapi.json").json()
    return found


class Checked:
    """Calls that are compared with the document as they are made."""

    def __init__(self, client: httpx.Client, document: dict[str, Any]) -> None:
        self.asked: set[tuple[str, str]] = set()
        self._client, self._document = client, document
        self._schemas = copy.deepcopy(document["components"]["schemas"])
        for schema in self._schemas.values():
            schema["additionalProperties"] = False  # later versions may have more; this one says all it has

    def __call__(self, method: str, path: str, body: Any = None, /, **named: str) -> Any:
        """`path` as the document has it, then what its braces stand for; what is left is the query."""
        operation = self._operation(method, path)
        answer = self._client.request(method, self._url(path, named), json=body, params=named or None)
        assert answer.status_code == 200, (method, path, answer.text)
        content = operation["responses"]["200"]["content"]
        found = answer.json()
        self.check(found, content["application/json"]["schema"], (method, path))
        return found

    def stream(self, method: str, path: str, body: Any = None, /, until: str = "", **query: str) -> list[Any]:
        """The events up to one whose text has this in it."""
        operation, found = self._operation(method, path), list[Any]()
        with self._client.stream(method, path, json=body, params=query or None) as answer:
            kind = answer.headers["content-type"].partition(";")[0]
            told = operation["responses"]["200"]["content"][kind]
            for line in answer.iter_lines():
                if line == ": following":
                    self._client.post("/v1/messages", json={"topic": "sensors/live", "value": "now"})
                    self._client.post("/v1/topics", json={"name": f"made-{len(self.asked)}"})
                data = line.removeprefix("data: ")
                if data.startswith("{"):
                    found.append(json.loads(data))
                    self.check(found[-1], told["x-itemSchema"], (method, path))
                    if until and until in data:
                        break
        assert found, path
        return found

    def check(self, found: Any, schema: Any, what: Any) -> None:
        whole = {"components": {"schemas": self._schemas}, **schema}
        faults = [
            f"{'/'.join(map(str, one.instance_path))}: {one.message[:300]}"
            for one in jsonschema_rs.validator_for(whole).iter_errors(found)
        ]
        assert faults == [], what

    def _operation(self, method: str, path: str) -> dict[str, Any]:
        self.asked.add((method.lower(), path))
        described: dict[str, Any] = self._document["paths"][path][method.lower()]
        return described

    def _url(self, path: str, named: dict[str, str]) -> str:
        for name in list(named):
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", quote(named.pop(name), safe=""))
        return path


@pytest.fixture
def checked(root: httpx.Client, document: dict[str, Any]) -> Checked:
    return Checked(root, document)


def test_every_answer_is_what_the_document_says(
    checked: Checked, broker: Broker, root: httpx.Client, tmp_path: Any
) -> None:
    for part in (_system, _topics, _messages, _questions, _consumers, _figures, _tenants):
        part(checked, broker)
    checked("POST", "/v1/backup", {"directory": str(tmp_path / "backup")})
    described = {(method, path) for path, one in checked._document["paths"].items() for method in one}
    assert described - checked.asked == set(), "each operation is asked"


def _system(ask: Checked, broker: Broker) -> None:
    assert broker.app is not None
    assert ask("GET", "/v1/overview")["health"]
    assert len(ask("GET", "/v1/config")["items"]) > 50
    assert ask("GET", "/v1/logs")["items"]
    with broker.app.broker.works.begin("erase", "a/b", "root") as work:
        ask("GET", "/v1/work")
        work.set(10, 100)
        assert ask("GET", "/v1/work")["items"]
    ask.stream("GET", "/v1/events", until="created")


def _topics(ask: Checked, broker: Broker) -> None:
    ask("POST", "/v1/topics", {"name": "ledger", "settings": {"partitions": 3, "trace": "100%"}})
    ask("PATCH", "/v1/topics/{name}", {"settings": {"retention_ms": 60_000}}, name="ledger")
    assert ask("GET", "/v1/topics")["total"] > 1
    for name in ("ledger", "sensors/kitchen/temp", "orders"):
        ask("GET", "/v1/topics/{name}", name=name)
    assert ask("GET", "/v1/tree", prefix="sensors")["items"]
    ask("POST", "/v1/views", {"name": "warm", "filter": "sensors/#", "where": "header.region = 'eu'"})
    ask("POST", "/v1/views", {"name": "latest", "filter": "sensors/#", "last_by": "topic"})
    assert len(ask("GET", "/v1/views")["items"]) == 3
    for name in ("warm", "all-sensors"):
        ask("GET", "/v1/views/{name}", name=name)
    rows = ask("GET", "/v1/tables/{name}", name="latest")["items"]
    assert ask("GET", "/v1/tables/{name}", name="latest", key=rows[0]["topic"])["value"] == rows[0]["value"]
    ask("DELETE", "/v1/views/{name}", name="warm")
    ask("POST", "/v1/streams", {"name": "kept", "subjects": ["kept.>"]})
    ask("PATCH", "/v1/streams/{name}", {"durability": "os"}, name="kept")
    assert ask("GET", "/v1/streams")["items"]
    ask("GET", "/v1/streams/{name}", name="kept")


def _messages(ask: Checked, broker: Broker) -> None:
    for value in ({"value": "text"}, {"value_json": {"a": 1}}, {"value_base64": "AP8="}, {}, {"value": "x" * 70_000}):
        ask("POST", "/v1/messages", {"topic": "ledger", "key": "k", "headers": {"a": "b"}, **value})
    found = ask("GET", "/v1/messages", topic="ledger")["items"]
    assert {one["format"] for one in found} == {"text", "json", "hex", "null"}
    assert ask("GET", "/v1/messages", view="all-sensors")["items"]
    assert ask("POST", "/v1/try", {"protocol": "mqtt", "topic": "sensors/try", "value": "1"})["arrivals"]
    ask.stream("GET", "/v1/tail", until="now", filter="sensors/#")
    way = ask("GET", "/v1/trace", topic="ledger", partition=str(found[0]["partition"]), offset=str(found[0]["offset"]))
    assert way["trace"] is not None
    assert ask("GET", "/v1/traces")["items"]
    [subject] = ask("GET", "/v1/schemas")["items"]
    value = base64.b64encode(b"\0" + subject["id"].to_bytes(4, "big") + b"\x08").decode()
    decoded = ask("POST", "/v1/decode", {"values": [value, "AAAA"]})["items"]
    assert json.loads(decoded[0]["json"]) == {"id": 4} and decoded[1] is None
    ask("POST", "/v1/messages", {"topic": "orders", "value_base64": value})
    assert any("schema" in one for one in ask("GET", "/v1/messages", topic="orders")["items"])
    assert ask("GET", "/v1/schemas/{name}/differences", name="orders-value")["lines"]


def _questions(ask: Checked, broker: Broker) -> None:
    assert ask("POST", "/v1/query", {"sql": 'SELECT count(*) AS n FROM "sensors/#"'})["items"]
    asked = {"query": "21.5", "topic": "sensors/#", "histogram": "1m", "top": "$.celsius"}
    told = ask.stream("POST", "/v1/search", asked)
    assert {"hit", "progress", "buckets", "top", "done"} <= {name for one in told for name in one}
    ask("GET", "/grafana")
    sql = 'SELECT time_bucket($__interval, timestamp) AS t, count(*) AS n FROM "sensors/#" GROUP BY 1 ORDER BY 1'
    panel = {
        "targets": [{"refId": "A", "target": sql}, {"refId": "B", "target": 'SELECT topic FROM "sensors/#" LIMIT 1'}]
    }
    series, table = ask("POST", "/grafana/query", panel)
    assert series["datapoints"] and table["rows"]
    assert ask("POST", "/grafana/variable", {"payload": {"target": 'SELECT DISTINCT topic FROM "sensors/#"'}})
    for name in ("metrics", "search", "annotations", "tag-keys", "tag-values"):
        ask("POST", f"/grafana/{name}", {})


def _consumers(ask: Checked, broker: Broker) -> None:
    away = paho.Client(CallbackAPIVersion.VERSION2, client_id="away", clean_session=False)
    away.username_pw_set(*ADMIN)
    away.connect(broker.host, broker.mqtt_port)
    away.loop_start()
    eventually(away.is_connected, "a session to delete")
    away.disconnect()
    away.loop_stop()
    assert {one["kind"] for one in ask("GET", "/v1/cursors")["items"]} == {"classic group", "queue", "session"}
    assert ask("GET", "/v1/groups")["items"]
    assert ask("GET", "/v1/groups/{name}", name="billing")["clients"]
    ask("POST", "/v1/groups", {"name": "late", "topic": "orders", "from": "latest"})
    assert ask("POST", "/v1/groups-reset", {"group": "late", "to": "earliest"})["changes"]
    ask("DELETE", "/v1/groups/{name}", name="late")
    assert len(ask("GET", "/v1/sessions")["items"]) == 2
    for name in ("historian", "away"):
        ask("GET", "/v1/sessions/{name}", name=name)
    ask("DELETE", "/v1/sessions/{name}", name="away")
    ask("POST", "/v1/queues", {"name": "jobs", "filter": "jobs/#"})
    ask("PATCH", "/v1/queues/{name}", {"length_max": 10}, name="jobs")
    assert len(ask("GET", "/v1/queues")["items"]) == 2
    assert ask("GET", "/v1/queues/{name}", name="letterbox")["clients"]
    assert len(ask("GET", "/v1/queues/{name}/dead", name="letterbox")["items"]) == 3
    ask("POST", "/v1/queues/{name}/discard", {}, name="letterbox")
    ask("POST", "/v1/queues/{name}/redrive", {}, name="letterbox")
    ask("POST", "/v1/queues/{name}/purge", {}, name="jobs")
    ask("DELETE", "/v1/queues/{name}", name="jobs")
    open_now = ask("GET", "/v1/connections")["items"]
    one = next(row for row in open_now if row["client"] == "historian")
    ask("GET", "/v1/connections/{id}", id=one["id"])
    ask("DELETE", "/v1/connections/{id}", id=one["id"])
    ask("DELETE", "/v1/topics/{name}", name="ledger")
    ask("DELETE", "/v1/stored/{name}", name="sensors/live")


def _figures(ask: Checked, broker: Broker) -> None:
    eventually(lambda: ask("GET", "/v1/rates")["time"], "a sample each second")
    eventually(lambda: ask("GET", "/v1/history", figures="in,connections")["time"], "a point each ten seconds")
    ask("GET", "/v1/history", topic="orders", range="7d")
    assert ask("GET", "/v1/series", topic="sensors/kitchen/temp", field="celsius")["time"]


def _tenants(ask: Checked, broker: Broker) -> None:
    ask("POST", "/v1/namespaces", {"name": "yard"})
    ask("PUT", "/v1/namespaces/{name}", {"quota": {"topics_max": 10}}, name="yard")
    ask("PATCH", "/v1/namespaces/{name}", {"policy": {"durability": "os"}}, name="yard")
    assert len(ask("GET", "/v1/namespaces")["items"]) == 2
    for name in ("/", "yard"):
        ask("GET", "/v1/namespaces/{name}", name=name)
    ask("POST", "/v1/users", {"name": "eve", "password": "of eve"})
    ask("PATCH", "/v1/users/{name}", {"quota": {"connections_max": 3}}, name="eve")
    ask("POST", "/v1/users/{name}/rules", {"actions": ["consume"], "filter": "a", "kind": "queue"}, name="eve")
    ask("POST", "/v1/roles", {"name": "readers", "rules": [{"actions": ["consume"], "filter": "a/#"}]})
    ask("PATCH", "/v1/users/{name}/roles", {"roles": ["readers"]}, name="eve")
    assert ask("GET", "/v1/roles")["items"]
    assert ask("GET", "/v1/users")["items"]
    assert ask("GET", "/v1/users/{name}", name="eve")["use"]
    ask("GET", "/v1/users/{name}/may", name="eve", action="consume", filter="a/b")
    hashed = "$7$101$AAAAAAAAAAAAAAAA$" + "A" * 86 + "=="
    assert ask("POST", "/v1/users/import", {"text": f"mia:{hashed}\neve:{hashed}\n"})["skipped"]
    ask("DELETE", "/v1/users/{name}/rules", name="eve", filter="a", kind="queue")
    ask("DELETE", "/v1/users/{name}", name="eve")
    assert broker.app is not None and broker.loop is not None
    keep, rule = broker.app.broker.access.keep_rules, Rule.make(allow=True, actions=["consume"], pattern="a/#")
    broker.loop.call_soon_threadsafe(lambda: keep("nobody", "/", [rule]))
    assert ask("GET", "/v1/kept-rules")["items"]
    ask("DELETE", "/v1/roles/{name}", name="readers")
    ask("DELETE", "/v1/namespaces/{name}", name="yard")


def test_every_problem_is_what_the_document_says(checked: Checked, document: dict[str, Any], broker: Broker) -> None:
    """Nobody, somebody without rights, something that is not there, and something nobody understands."""
    seen = set[int]()
    with httpx.Client(base_url=broker.http_url, timeout=60) as http:
        for path, operations in document["paths"].items():
            for method, one in operations.items():
                url = path.replace("{name}", "not-there").replace("{id}", "mqtt-1")
                body = None if method in ("get", "delete") else {}
                told = one["responses"]
                tries = [
                    (None, url, (401,)),
                    (ADMIN, f"{url}?nonsense=1", (400,)),
                    (CLERK, url, (403, 400, 404, 200) if "403" in told else (400, 404, 200)),
                    *([(ADMIN, url, (404, 400))] if "404" in told else []),
                ]
                for auth, asked, expected in tries:
                    if auth is CLERK and expected[-1] == 200 and "x-itemSchema" in str(told["200"]):
                        continue  # it may, and would follow for ever
                    answer = http.request(method, asked, json=body, auth=auth)
                    assert answer.status_code in expected, (method, asked, answer.text)
                    if answer.status_code != 200:
                        assert str(answer.status_code) in told or "default" in told
                        assert answer.headers["content-type"] == "application/problem+json"
                        schema = told["default"]["content"]["application/problem+json"]["schema"]
                        checked.check(answer.json(), schema, (method, asked))
                        seen.add(answer.status_code)
    assert {400, 401, 403, 404} <= seen


def test_no_operation_answers_just_anything(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            assert method in METHODS
            [content] = one["responses"]["200"]["content"].values()
            schema = content.get("x-itemSchema", content["schema"])
            empty = path.startswith("/grafana/") and schema == {"type": "array"}  # of them Grafana wants no rows
            assert "$ref" in json.dumps(schema) or empty, (method, path)
