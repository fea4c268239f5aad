"""Publishing by Kafka to a topic with a schema beside one without, and archives of its values decoded beside raw."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

from bench.schemas_archive import archive_rates
from mainstem.broker.schemas.records import Schema
from mainstem.broker.schemas.values import compiled
from mainstem.testing.process import BrokerProcess

RECORDS = 100_000
ROUNDS = 3  # each beside the other, so that what else the machine does meets both
SHARE_MIN = 0.5
SHAPE = {
    "type": "object",
    "properties": {
        "device": {"type": "string", "maxLength": 64},
        "celsius": {"type": "number"},
        "volts": {"type": "number", "minimum": 0},
        "at": {"type": "integer"},
    },
    "required": ["device", "celsius", "at"],
}
FIELDS = [
    {"name": "device", "type": "string"},
    {"name": "celsius", "type": "double"},
    {"name": "volts", "type": "double"},
    {"name": "at", "type": "long"},
]
AVRO = {"type": "record", "name": "Reading", "fields": FIELDS}
VALUE = {"device": "sensor-4711", "celsius": 21.5, "volts": 3.3, "at": 1_700_000_000_000}


def produced_per_s(broker: BrokerProcess, topic: str, value: bytes) -> float:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20, "batch.num.messages": 5_000})
    failures: list[Any] = []

    def note(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    began = time.perf_counter()
    for _ in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
    assert not failures, failures[0]
    return RECORDS / (time.perf_counter() - began)


def checks_per_s(kind: str, text: str, value: bytes, framed: bool) -> float:
    codec = compiled(Schema(kind, text), [])
    check = codec.framed if framed else codec.bare
    began = time.perf_counter()
    for _ in range(RECORDS):
        check(value)
    return RECORDS / (time.perf_counter() - began)


def _middle(rates: Iterable[float]) -> float:
    return sorted(rates)[ROUNDS // 2]


def avro_value(schema_id: int) -> bytes:
    import io

    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), VALUE)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def main() -> None:
    bare = json.dumps(VALUE).encode()
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data") as broker,
        httpx.Client(base_url=broker.http_url, timeout=60) as http,
    ):
        http.post(
            "/subjects/shape/versions", json={"schema": json.dumps(SHAPE), "schemaType": "JSON"}
        ).raise_for_status()
        made = http.post("/subjects/avro/versions", json={"schema": json.dumps(AVRO)}).json()
        framed = avro_value(made["id"])
        for name, subject in (("plain", ""), ("json", "shape"), ("avro", "avro")):
            settings = {"layout": "dedicated", "schema": subject}
            http.post("/v1/topics", json={"name": name, "settings": settings}).raise_for_status()
        print("| topic | records/s by Kafka | share |")
        print("|---|---|---|")
        produced_per_s(broker, "plain", bare)  # warm
        for name, value in (("json", bare), ("avro", framed)):
            rounds = [
                (produced_per_s(broker, "plain", value), produced_per_s(broker, name, value)) for _ in range(ROUNDS)
            ]
            shares = sorted(checked / without for without, checked in rounds)
            middle, spread = shares[ROUNDS // 2], f"{shares[0]:.0%} to {shares[-1]:.0%}"
            verdict = "" if middle >= SHARE_MIN else f" MISSED (target {SHARE_MIN:.0%})"
            print(f"| without a schema, values as {name} | {_middle(one for one, _ in rounds):,.0f} | |")
            print(f"| with, {name} | {_middle(one for _, one in rounds):,.0f} | {middle:.0%} ({spread}){verdict} |")
    by_json = checks_per_s("JSON", json.dumps(SHAPE), bare, False)
    print(f"\nthe libraries alone, without the quick look: JSON Schema {by_json:,.0f}/s, ", end="")
    print(f"Avro {checks_per_s('AVRO', json.dumps(AVRO), framed[5:], True):,.0f}/s")
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker:
        print("\n".join(archive_rates(broker, Path(folder))))


if __name__ == "__main__":
    main()
