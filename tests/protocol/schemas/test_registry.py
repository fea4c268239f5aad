"""The registry as its HTTP API tells it: the original's codes and texts, what survives, who may do what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstem.testing import Broker
from mainstem.testing.process import BrokerProcess
from tests.protocol.kafka.raw import RawClient, batch_of
from tests.users import ANN, ROOT, add_users, allow

INT, LONG, TEXT = ({"schema": json.dumps(kind)} for kind in ("int", "long", "string"))
KIND = "application/vnd.schemaregistry.v1+json"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, headers={"content-type": KIND}, timeout=60) as client:
        yield client


def ask(http: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    """The document, or the error's code."""
    content = None if body is None else json.dumps(body).encode()
    answer = http.request(method, path, content=content)
    assert answer.headers["content-type"] == KIND
    found = answer.json()
    if answer.is_success:
        return found
    assert set(found) == {"error_code", "message"} and str(found["error_code"]).startswith(str(answer.status_code))
    return found["error_code"]


def test_versions_ids_and_deletions_follow_the_original(http: httpx.Client) -> None:
    one = ask(http, "POST", "/subjects/a/versions", INT)
    assert (one["id"], one["version"]) == (ask(http, "POST", "/subjects/b/versions", INT)["id"], 1)
    two = ask(http, "POST", "/subjects/a/versions", LONG)
    assert two["version"] == 2 and two["id"] == one["id"] + 1
    assert ask(http, "GET", "/subjects/a/versions") == [1, 2]
    assert ask(http, "GET", "/subjects/a/versions/latest")["schema"] == '"long"'
    assert ask(http, "GET", "/subjects/a/versions/latest/schema") == "long"
    assert ask(http, "POST", "/subjects/a", INT)["version"] == 1
    assert ask(http, "GET", f"/schemas/ids/{one['id']}")["schema"] == '"int"'
    assert ask(http, "GET", f"/schemas/guids/{one['guid']}")["id"] == one["id"]
    assert ask(http, "GET", f"/schemas/ids/{one['id']}/subjects") == ["a", "b"]
    assert ask(http, "GET", f"/schemas/ids/{one['id']}/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b", "version": 1},
    ]
    assert ask(http, "DELETE", "/subjects/a/versions/2?permanent=true") == 40407
    assert ask(http, "DELETE", "/subjects/a/versions/2") == 2
    assert ask(http, "DELETE", "/subjects/a/versions/2") == 40406
    assert ask(http, "GET", "/subjects/a/versions/2") == 40402
    assert ask(http, "GET", "/subjects/a/versions/2?deleted=true")["id"] == two["id"]
    assert ask(http, "GET", f"/schemas/ids/{two['id']}")["schema"] == '"long"', "records were written with it"
    again = ask(http, "POST", "/subjects/a/versions", LONG)
    assert (again["id"], again["version"]) == (two["id"], 3)
    assert ask(http, "DELETE", "/subjects/a?permanent=true") == 40405
    assert ask(http, "DELETE", "/subjects/a") == [1, 3]
    assert ask(http, "DELETE", "/subjects/a") == 40404
    assert "a" not in ask(http, "GET", "/subjects") and "a" in ask(http, "GET", "/subjects?deleted=true")
    assert ask(http, "DELETE", "/subjects/a?permanent=true") == [1, 2, 3]
    assert ask(http, "GET", f"/schemas/ids/{two['id']}") == 40403
    assert ask(http, "POST", "/subjects/c/versions", TEXT)["id"] > two["id"], "an id never means another schema"


def test_what_is_wrong_has_the_originals_code(http: httpx.Client) -> None:
    ask(http, "POST", "/subjects/codes/versions", INT)
    expected = [
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/codes/versions/9", None, 40402),
        ("GET", "/subjects/codes/versions/0", None, 42202),
        ("GET", "/subjects/codes/versions/x", None, 42202),
        ("POST", "/subjects/codes", TEXT, 40403),
        ("POST", "/subjects/none", TEXT, 40401),
        ("POST", "/subjects/codes/versions", TEXT, 409),
        ("POST", "/subjects/codes/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/codes/versions", {"schema": "{}", "schemaType": "XML"}, 42201),
        ("POST", "/subjects/codes/versions", {}, 42201),
        ("GET", "/schemas/ids/4711", None, 40403),
        ("GET", "/schemas/ids/x", None, 40403),
        ("PUT", "/config", {"compatibility": "SIDEWARD"}, 42203),
        ("GET", "/config/codes", None, 40408),
        ("PUT", "/mode", {"mode": "WRITE"}, 42204),
        ("GET", "/mode/codes", None, 40409),
        ("GET", "/associations/resources/-/codes?resourceType=topic", None, 404),
    ]
    found = [(method, path, body, ask(http, method, path, body)) for method, path, body, _ in expected]
    assert found == expected
    assert ask(http, "GET", "/config/codes?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert ask(http, "GET", "/schemas/types") == ["PROTOBUF", "JSON", "AVRO"]


def test_levels_modes_and_checks(http: httpx.Client) -> None:
    ask(http, "POST", "/subjects/levels/versions", LONG)
    path = "/compatibility/subjects/levels/versions"
    assert ask(http, "POST", f"{path}/latest", INT) == {"is_compatible": False}
    assert "TYPE_MISMATCH" in ask(http, "POST", f"{path}?verbose=true", INT)["messages"][0]
    assert ask(http, "PUT", "/config/levels", {"compatibility": "forward"}) == {"compatibility": "FORWARD"}
    assert ask(http, "POST", f"{path}/1", INT) == {"is_compatible": True}
    assert ask(http, "POST", "/subjects/levels/versions", INT)["version"] == 2
    assert ask(http, "PUT", "/config/levels", {"compatibility": "NONE"})
    assert ask(http, "POST", "/subjects/levels/versions", TEXT)["version"] == 3
    assert ask(http, "PUT", "/config/levels", {"compatibility": "FULL_TRANSITIVE"})
    assert ask(http, "POST", "/subjects/levels/versions", {"schema": '["long","string"]'}) == 409
    assert ask(http, "DELETE", "/config/levels") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert ask(http, "PUT", "/mode/levels", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert ask(http, "POST", "/subjects/levels/versions", {"schema": '"bytes"'}) == 42205
    assert ask(http, "DELETE", "/mode/levels") == {"mode": "READONLY"}


def test_an_import_keeps_ids_and_versions(http: httpx.Client) -> None:
    assert ask(http, "PUT", "/mode/moved", {"mode": "IMPORT"})
    moved = {"schema": '"double"', "id": 9000, "version": 7}
    assert ask(http, "POST", "/subjects/moved/versions", moved)["id"] == 9000
    assert ask(http, "POST", "/subjects/moved/versions", {**TEXT, "id": 9000, "version": 8}) == 42205
    assert ask(http, "GET", "/subjects/moved/versions") == [7]


def test_a_huge_a_deep_and_a_circular_schema_are_refused(http: httpx.Client) -> None:
    huge = {"schema": json.dumps({"type": "string", "doc": "x" * (10 << 20)})}
    assert ask(http, "POST", "/subjects/bad/versions", huge) == 42201
    deep = {"schema": '{"type":"array","items":' * 20_000 + '"int"' + "}" * 20_000}
    assert ask(http, "POST", "/subjects/bad/versions", deep) == 42201
    itself = {**INT, "references": [{"name": "r", "subject": "bad", "version": 1}]}
    assert ask(http, "POST", "/subjects/bad/versions", itself) == 42201
    assert ask(http, "GET", "/subjects/bad/versions") == 40401, "nothing is stored half"


def test_protobuf_imports_what_it_refers_to_and_no_file(http: httpx.Client) -> None:
    def message(imported: str, kind: str, **more: Any) -> dict[str, Any]:
        text = f'syntax = "proto3"; package p; import "{imported}"; message M {{ {kind} x = 1; }}'
        return {"schema": text, "schemaType": "PROTOBUF", **more}

    for path in ("other.proto", "/etc/passwd", "../../other.proto", "file:///etc/passwd"):
        answer = http.post("/subjects/proto/versions", json=message(path, "Other"))
        assert answer.status_code == 422 and answer.json()["error_code"] == 42201, path
        assert "root:" not in answer.text
    assert ask(http, "GET", "/subjects/proto/versions") == 40401, "nothing is stored half"
    assert ask(
        http, "POST", "/subjects/time/versions", message("google/protobuf/timestamp.proto", "google.protobuf.Timestamp")
    )
    other = {"schema": 'syntax = "proto3"; package p; message Other { string s = 1; }', "schemaType": "PROTOBUF"}
    ask(http, "POST", "/subjects/other/versions", other)
    reference = {"name": "other.proto", "subject": "other", "version": 1}
    assert (
        ask(http, "POST", "/subjects/proto/versions", message("other.proto", "Other", references=[reference]))[
            "version"
        ]
        == 1
    )
    assert ask(http, "DELETE", "/subjects/other/versions/1") == 42206, "it is referred to"
    incompatible = {"schema": 'syntax = "proto3"; package p; message N { string s = 1; }', "schemaType": "PROTOBUF"}
    answer = http.post("/subjects/proto/versions", json=incompatible)
    assert (answer.status_code, answer.json()["error_code"]) == (409, 409)
    assert "incompatible with an earlier schema" in answer.json()["message"]


def test_nobody_else_writes_the_registrys_topic(broker: Broker, http: httpx.Client) -> None:
    ask(http, "POST", "/subjects/own/versions", INT)
    assert http.post("/v1/messages", json={"topic": "_schemas", "value": "x"}).status_code == 403
    assert http.delete("/v1/topics/_schemas").status_code == 403
    with RawClient(broker) as client:
        assert client.produce("_schemas", batch_of([b"x"])).error_code == 29
    rows = http.get("/v1/messages", params={"topic": "_schemas", "limit": 1000}).json()["items"]
    assert any('"subject":"own"' in (row["value"] or "") for row in rows), "everybody may read it"


def test_rights_are_those_on_the_topic() -> None:
    with Broker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as client:
        add_users(broker)
        headers = {"content-type": KIND}
        root = {"headers": headers, "auth": ROOT}
        ann = {"headers": headers, "auth": ANN}
        path = "/subjects/plant.kitchen-value/versions"
        assert client.get("/subjects").status_code == 401
        first = client.post(path, json=INT, **root).json()["id"]
        assert client.get("/subjects", **ann).json() == []
        assert client.get(f"/schemas/ids/{first}", **ann).json()["error_code"] == 40403
        assert client.get(path, **ann).status_code == 403
        allow(broker, "plant/#", "publish")
        assert client.get("/subjects", **ann).json() == ["plant.kitchen-value"]
        assert client.post(path, json=INT, **ann).json()["id"] == first, "what is registered is only looked up"
        assert client.post(path, json=LONG, **ann).status_code == 403
        assert client.put("/config", json={"compatibility": "NONE"}, **ann).status_code == 403
        assert client.delete(path.removesuffix("/versions"), **ann).status_code == 403
        allow(broker, "plant/#", "configure")
        assert client.post(path, json=LONG, **ann).json()["version"] == 2
        assert client.get("/subjects?namespace=other", **ann).status_code == 403


def test_another_namespace_has_a_registry_of_its_own(http: httpx.Client) -> None:
    http.post("/v1/namespaces", json={"name": "tenant"}).raise_for_status()
    mine = ask(http, "POST", "/subjects/tenancy/versions", INT)["id"]
    assert ask(http, "GET", "/subjects?namespace=tenant") == []
    assert ask(http, "POST", "/subjects/theirs/versions?namespace=tenant", TEXT)["id"] == 1
    assert ask(http, "GET", "/schemas/ids/1?namespace=tenant")["schema"] == '"string"'
    assert mine and "theirs" not in ask(http, "GET", "/subjects")


def test_what_was_answered_survives_two_kills_in_a_row(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with httpx.Client(base_url=broker.http_url, headers={"content-type": KIND}, timeout=60) as http:
            first = ask(http, "POST", "/subjects/kept/versions", INT)
            ask(http, "PUT", "/config/kept", {"compatibility": "NONE"})
        broker.kill()
        broker.start()
        with httpx.Client(base_url=broker.http_url, headers={"content-type": KIND}, timeout=60) as http:
            assert ask(http, "GET", f"/schemas/ids/{first['id']}")["schema"] == '"int"'
            second = ask(http, "POST", "/subjects/kept/versions", TEXT)
            ask(http, "DELETE", "/subjects/kept/versions/1")
        broker.kill()
        broker.start()
        with httpx.Client(base_url=broker.http_url, headers={"content-type": KIND}, timeout=60) as http:
            assert ask(http, "GET", "/subjects/kept/versions") == [2]
            assert ask(http, "GET", "/config/kept") == {"compatibilityLevel": "NONE"}
            assert ask(http, "POST", "/subjects/kept/versions", {"schema": '"bytes"'})["id"] == second["id"] + 1
