"""Schemas where people look: the command line, the message view, the console, and what data proposes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mainstem.server.cli import load_verb
from mainstem.testing import Broker
from tests.users import ANN, ROOT, add_users, allow

AVRO = {"type": "record", "name": "Reading", "fields": [{"name": "celsius", "type": "double"}]}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


def run(broker: Broker, *words: str, code: int = 0) -> Result:
    verb, *rest = words
    found = CliRunner().invoke(load_verb(verb), [*rest, "--url", broker.http_url])
    assert found.exit_code == code, (found.output, found.exception)
    return found


def produce(broker: Broker, topic: str) -> None:
    serialise = AvroSerializer(SchemaRegistryClient({"url": broker.http_url}), json.dumps(AVRO))
    value = serialise({"celsius": 21.5}, SerializationContext(topic, MessageField.VALUE))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def test_schemas_are_added_checked_described_and_removed(broker: Broker, tmp_path: Path) -> None:
    one, two = tmp_path / "one.avsc", tmp_path / "two.avsc"
    one.write_text(json.dumps(AVRO))
    fields = [*AVRO["fields"], {"name": "room", "type": "string"}]  # type: ignore[misc]
    two.write_text(json.dumps({**AVRO, "fields": fields}))
    assert "version 1 has id 1" in run(broker, "schema", "add", "plant-value", str(one)).output
    refused = run(broker, "schema", "check", "plant-value", str(two), code=1).output
    assert "may not follow" in refused and "room" in refused
    two.write_text(json.dumps({**AVRO, "fields": [*AVRO["fields"], {"name": "room", "type": "string", "default": ""}]}))  # type: ignore[misc]
    assert "may follow" in run(broker, "schema", "check", "plant-value", str(two)).output
    run(broker, "schema", "add", "plant-value", str(two))
    run(broker, "topic", "create", "plant", "--set", "schema=plant-value")
    (row,) = [json.loads(line) for line in run(broker, "schema", "ls", "--json").output.splitlines()]
    assert (row["name"], row["version"], row["topics"]) == ("plant-value", 2, ["plant"])
    assert "plant-value" in run(broker, "topic", "describe", "plant").output
    described = run(broker, "schema", "describe", "plant-value").output
    assert "version 1 to 2" in described and '+       "name": "room"' in described
    run(broker, "schema", "rm", "plant-value", "--version", "2", "--yes")
    assert json.loads(run(broker, "schema", "describe", "plant-value", "--json").output)["versions"] == [1]


def test_serialised_values_are_shown_decoded(broker: Broker) -> None:
    produce(broker, "decoded")
    (row,) = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "decoded"}).json()["items"]
    assert json.loads(row["value"]) == {"celsius": 21.5}
    assert row["schema"]["subject"] == "decoded-value" and row["value_base64"].startswith("AAAA")
    address = f"kafka://127.0.0.1:{broker.kafka_port}/decoded"
    shown = run(broker, "sub", address, "--from", "earliest", "-n", "1", "--decode", "--json").output
    found = json.loads(shown)
    assert json.loads(found["value"]) == {"celsius": 21.5} and found["schema"] == "decoded-value 1"
    lookalike = {"topic": "lookalike", "value_base64": "AAAAAAF7"}
    httpx.post(f"{broker.http_url}/v1/messages", json=lookalike).raise_for_status()
    (row,) = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "lookalike"}).json()["items"]
    assert "schema" not in row, "a leading zero proves nothing"


def test_a_value_that_names_a_schema_shows_nothing_of_it_to_who_may_not_see_it() -> None:
    """The number in a value is anybody's to write: it must not be the way to the fields of another's schema."""
    with Broker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        add_users(broker)
        secret = {"schema": json.dumps(AVRO)}
        found = http.post("/subjects/plant.kitchen-value/versions", json=secret, auth=ROOT).raise_for_status().json()
        allow(broker, "mine/#", "publish", "consume")
        value = base64.b64encode(b"\0" + found["id"].to_bytes(4, "big") + bytes(8)).decode()
        http.post("/v1/messages", json={"topic": "mine/a", "value_base64": value}, auth=ANN).raise_for_status()

        def shown(user: tuple[str, str]) -> str:
            return http.get("/v1/messages", params={"topic": "mine/a"}, auth=user).raise_for_status().text

        def asked(user: tuple[str, str]) -> str:
            """What SQL and search show of it, by any of its columns."""
            statement = {"sql": 'select text, json from "mine/a"'}
            rows = http.post("/v1/query", json=statement, auth=user).raise_for_status().text
            words = {"query": "celsius>=0", "topic": "mine/#"}
            return rows + http.post("/v1/search", json=words, auth=user).raise_for_status().text

        assert "celsius" in shown(ROOT) and "plant.kitchen-value" in shown(ROOT)
        assert "celsius" not in shown(ANN) and "plant.kitchen" not in shown(ANN)
        assert json.loads(shown(ANN))["items"][0]["size"] == 13, "the record itself is hers"
        assert "celsius" in asked(ROOT) and "celsius" not in asked(ANN)
        allow(broker, "plant/kitchen", "consume")
        assert "celsius" in shown(ANN) and "celsius" in asked(ANN)


def test_the_console_shows_versions_and_what_they_changed(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        for properties in ({"a": {}}, {"a": {}, "b": {}}):
            body = {"schema": json.dumps({"properties": properties}), "schemaType": "JSON"}
            http.post("/subjects/shown/versions", json=body).raise_for_status()
        assert 'href="/subject?name=shown"' in http.get("/registry").text
        page = http.get("/subject", params={"name": "shown"}).text
        assert "Version 1 to 2" in page and "<ins>+ " in page
        assert http.get("/subject", params={"name": "none"}).status_code == 404


def test_a_schema_is_proposed_from_the_data(broker: Broker) -> None:
    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        for n in range(12):
            value = {"celsius": n / 2 if n else 1, "room": "a", **({"note": "x"} if n % 2 else {})}
            http.post("/v1/messages", json={"topic": f"guess/{n % 3}", "value_json": value}).raise_for_status()
        http.post("/v1/messages", json={"topic": "guess/0", "value": "not json"}).raise_for_status()
    told = run(broker, "topic", "infer", "guess/#", "--add", "guessed").output
    assert "13 records looked at, 1 are not JSON" in told and "50.0" in told
    schema = json.loads(httpx.get(f"{broker.http_url}/subjects/guessed/versions/1/schema").text)
    assert schema["required"] == ["celsius", "room"]
    assert schema["properties"]["celsius"] == {"type": "number"} and schema["properties"]["note"] == {"type": "string"}


def test_what_would_break_is_told_with_a_proposed_schema(broker: Broker) -> None:
    def schema(**celsius: Any) -> dict[str, Any]:
        document = {"type": "object", "properties": {"celsius": celsius}, "required": ["celsius"]}
        return {"schema": json.dumps(document), "schemaType": "JSON"}

    with httpx.Client(base_url=broker.http_url, timeout=30) as http:
        http.post("/subjects/breaking/versions", json=schema(type="number", maximum=50)).raise_for_status()
        for n in range(200):
            value = {"celsius": n if n else "warm"}
            http.post("/v1/messages", json={"topic": "breaks/a", "value_json": value}).raise_for_status()
        http.post("/v1/messages", json={"topic": "breaks/a", "value": "x" * 100_000}).raise_for_status()
    run(broker, "topic", "alter", "breaks/a", "--set", "schema=breaking", "--set", "schema_mode=off")
    told = run(broker, "topic", "infer", "breaks/#").output
    assert "200 records looked at, 0 are not JSON, 1 too long to be looked at" in told
    assert 'the proposed schema would refuse 1 of these records\n       1  at /celsius: "warm" is not' in told
    assert "(first: breaks/a 0:" in told
    assert "breaking version 1 refuses 150 of these records" in told
    assert "the proposed schema may not follow breaking version 1" in told, "number became integer"
    facts = json.loads(run(broker, "topic", "infer", "breaks/#", "--json").output)
    assert [row["records"] for row in facts["refused"]] == [1]
    assert facts["registered"][0]["subject"] == "breaking" and facts["registered"][0]["records"] == 150
