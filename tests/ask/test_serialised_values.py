"""Values that a serialiser of the registry wrote: query and search read their fields, and say what could not be read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mainstem.testing.process import BrokerProcess
from mainstem_ask.search.engine import Asked, Search, connection_of
from mainstem_ask.sql.engine import Answer, Engine, Place
from tests.ask.conftest import produce

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "celsius", "type": "double"}, {"name": "room", "type": "string"}],
}
JSON = {"title": "J", "type": "object", "properties": {"celsius": {"type": "number"}}}
UNKNOWN = b"\0\0\1\0\0somebody's own"
TIME_MS = 1_700_000_000_000


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    """Ten of Avro, ten of JSON Schema, ten of plain JSON, three with an id that nobody registered, one cut short."""
    client = SchemaRegistryClient({"url": broker.http_url})
    context = SerializationContext(topic, MessageField.VALUE)
    avro = AvroSerializer(client, json.dumps(AVRO))
    by_record = {"subject.name.strategy": lambda *_: f"{topic}-json"}
    schema = JSONSerializer(json.dumps(JSON), client, conf=by_record)
    values = [avro({"celsius": float(n), "room": f"room {n}"}, context) for n in range(10)]
    values += [schema({"celsius": n}, context) for n in range(10, 20)]
    values += [b'{"celsius": %d}' % n for n in range(20, 30)]
    values += [UNKNOWN] * 3 + [values[0][:7]]
    produce(broker, [(topic, None, value, TIME_MS + n) for n, value in enumerate(values)])
    return topic


def asked(broker: BrokerProcess, statement: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    rows: list[tuple[Any, ...]] = []

    def take(answer: Answer) -> None:
        rows.extend(tuple(row) for row in answer.toLocalIterator())

    with Engine(Place({"url": broker.http_url, "retrySeconds": "1"})) as engine:
        engine.answer(statement, take)
        return rows, engine.notices


def test_the_json_column_has_the_fields_of_serialised_values(broker: BrokerProcess, filled: str) -> None:
    rows, notices = asked(broker, f"select (json->>'$.celsius')::double from {filled} order by offset")
    assert [row[0] for row in rows] == [*map(float, range(30)), None, None, None, None]
    assert notices == [
        "3 values name a schema id that the registry does not have (ids 65536): their JSON is null",
        next(one for one in notices if one.startswith("1 values do not match the schema that they name")),
    ]
    rows, notices = asked(broker, f"select count(*) from {filled} where json->>'$.room' = 'room 3'")
    assert rows == [(1,)]
    rows, notices = asked(broker, f"select count(*), max(octet_length(value)) from {filled}")
    assert rows[0][0] == 34 and notices == [], "nothing is decoded that the statement does not ask for"


def test_a_search_compares_fields_of_serialised_values_and_counts_them(broker: BrokerProcess, filled: str) -> None:
    def found(query: str, **more: Any) -> list[dict[str, Any]]:
        return list(Search(Asked(query, filled, **more), connection_of(broker.http_url)).events())

    def hits(query: str) -> list[dict[str, Any]]:
        return [event["hit"] for event in found(query) if "hit" in event]

    assert len(hits("celsius>=8 AND celsius<22")) == 14
    (hit,) = hits('$.room = "room 3"')
    assert json.loads(hit["value"]) == {"celsius": 3.0, "room": "room 3"} and hit["schema_id"] > 0
    assert "encoding" not in hit
    assert len(hits('"room 4"')) == 1, "words are looked for in the bytes"
    assert len(hits("NOT celsius>=0")) == 4
    events = found("celsius>=0", top="$.room", limit=0)
    assert next(event["top"] for event in events if "top" in event)[0][1] == 1
    (notices,) = (event["notices"] for event in events if "notices" in event)
    assert notices[0].startswith("3 values name a schema id that the registry does not have (ids 65536)")


def test_commands_and_the_broker_tell_what_could_not_be_decoded(broker: BrokerProcess, filled: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mainstem", *arguments, "--url", broker.http_url]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)

    done = run("query", f"select count(json) as n from {filled}", "--format", "json")
    assert json.loads(done.stdout) == {"n": 30}
    assert "note: 3 values name a schema id" in done.stderr
    done = run("search", "celsius>=28", "--topic", filled)
    assert len(done.stdout.splitlines()) == 2 and "note: 3 values name a schema id" in done.stderr
    with httpx.Client(base_url=broker.http_url, timeout=60) as http:
        told = http.post("/v1/query", json={"sql": f"select count(json) as n from {filled}"}).json()
        assert told["items"] == [{"n": 30}] and told["notices"][0].startswith("3 values name")
        lines = http.post("/v1/search", json={"query": "celsius=5", "topic": filled}).text.splitlines()
        events = [json.loads(line) for line in lines]
        assert [json.loads(event["hit"]["value"])["room"] for event in events if "hit" in event] == ["room 5"]
        assert any("notices" in event for event in events)
