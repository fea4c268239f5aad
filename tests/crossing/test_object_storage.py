"""Sealed segments rest in an object store, and every protocol reads them as before."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer

from mainstem.protocols.mqtt.wire.properties import Property
from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.protocol.mqtt.raw import Raw
from tests.s3_server import s3_server

COUNT = 3_000
DEADLINE_S = 60.0
VALUES = [b"%06d" % n + b"." * 200 for n in range(COUNT)]


@dataclass
class StoreAt:
    settings: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module", params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAt]:
    folder = tmp_path_factory.mktemp("store")
    if request.param == "file":
        yield StoreAt((f"tier.store=file://{folder}",))
        return
    with s3_server(folder) as server:
        url = f"tier.store=s3://bucket/{uuid.uuid4().hex}"
        yield StoreAt((url, f"tier.endpoint={server.endpoint}"), server.environment)


POLICY = ("tier=s3", "layout=dedicated", "segment_bytes=65536", "local_retention_bytes=0")


def eventually(found: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def publish(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 50})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(DEADLINE_S) == 0


def local_bytes(broker: BrokerProcess) -> int:
    """Of sealed segments that are still here."""
    found = 0
    for directory in (broker.data / "logs").iterdir():
        for path in sorted(directory.glob("*.log"))[:-1]:
            with contextlib.suppress(FileNotFoundError):  # dropped between the two looks
                found += path.stat().st_size
    return found


def read_kafka(broker: BrokerProcess, topic: str, count: int = COUNT) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex}
    consumer, found = Consumer({**settings, "auto.offset.reset": "earliest"}), list[bytes]()
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() or b"" for message in consumer.consume(500, 0.2) if message.error() is None]
    consumer.close()
    return found


def read_stream(broker: BrokerProcess, topic: str) -> list[bytes]:
    with Raw.connected(broker.mqtt_port, version=5) as client:
        client.socket.settimeout(DEADLINE_S)
        earliest = {Property.USER_PROPERTY: [(b"stream-offset", b"earliest")]}
        client.subscribe((f"$stream/{topic}", 0), properties=earliest)
        return [client.message().payload for _ in range(COUNT)]


def read_http(broker: BrokerProcess, topic: str) -> list[bytes]:
    found, asked = list[bytes](), {"topic": topic, "from": "earliest", "limit": "500"}
    while len(found) < COUNT:
        answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
        answer.raise_for_status()
        rows = answer.json()["items"]
        found += [row["value"].encode() for row in rows]
        asked["from"] = str(rows[-1]["offset"] + 1)
    return found


def test_a_topic_whose_segments_lie_in_the_store_is_read_whole_also_after_kill_nine(
    store: StoreAt, tmp_path: Path
) -> None:
    topic = "t" + uuid.uuid4().hex
    settings = (*store.settings, *(f"policies.{topic}/#.{one}" for one in POLICY))
    with BrokerProcess(tmp_path / "data", *settings, environment=store.environment) as broker:
        publish(broker, f"{topic}.a")
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the store only")
        assert read_kafka(broker, f"{topic}.a") == VALUES
        assert read_stream(broker, f"{topic}/a") == VALUES
        broker.kill()
        broker.start()
        assert local_bytes(broker) == 0
        assert read_stream(broker, f"{topic}/a") == VALUES
        assert read_kafka(broker, f"{topic}.a") == VALUES
        assert read_http(broker, f"{topic}/a") == VALUES
        assert broker.stop() == 0
    registry = Registry(tmp_path / "data")
    totals = registry.totals()
    registry.close()
    assert set(totals) == {"live"}
    assert totals["live"][0] >= 2


def test_everything_that_was_uploaded_is_read_after_the_local_disk_was_lost(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = f"file://{tmp_path / 'bucket'}"
    settings = (f"tier.store={store}", "tier.manifest_ms=0s", *(f"policies.t/#.{one}" for one in POLICY))
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        publish(broker, "t.a")
        eventually(lambda: local_bytes(broker) == 0, "every sealed segment is in the store only")
        assert "in the object store" in httpx.get(f"{broker.http_url}/topic?name=t/a").text
        told = {"objects": 0}

        def complete() -> bool:
            """The manifest names all that was uploaded."""
            registry = Registry(broker.data, read_only=True)
            live = registry.totals()["live"][0]
            registry.close()
            target = tmp_path / uuid.uuid4().hex
            if not (tmp_path / "bucket" / "manifest").exists():
                return False
            with tarfile.open(tmp_path / "bucket" / "manifest") as tar:
                target.mkdir()
                tar.extract("tier.sqlite", target, filter="data")
            there = Registry(target, read_only=True)
            told["objects"] = there.totals().get("live", (0, 0))[0]
            there.close()
            return told["objects"] == live

        eventually(complete, "the manifest is stored")
        broker.kill()
    shutil.rmtree(tmp_path / "data")
    command = [sys.executable, "-m", "mainstem", "restore", store, str(tmp_path / "data")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"{told['objects']} objects" in said
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        registry = Registry(broker.data, read_only=True)
        count = max(one.footer.end_offset for log in registry.logs() for one in registry.parts_of(log))
        registry.close()
        assert 0 < count <= COUNT
        assert read_kafka(broker, "t.a", count) == VALUES[:count]
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        offsets = list[int]()
        producer.produce("t.a", b"after", on_delivery=lambda _, message: offsets.append(message.offset() or 0))
        assert producer.flush(DEADLINE_S) == 0
        assert offsets[0] > COUNT, "no offset is given out twice"
