"""The topics of a shared log's records travel with its objects: who lost the index reads them, and not the records."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from mainstem.storage.tier.objects import Object
from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.protocol.mqtt.raw import Raw, publish_packet

DEADLINE_S = 60.0
TOPICS = [f"s/{number}/x" for number in range(20)]
ROUNDS = 40
SAID = "objects said which topics they hold"
FROM_FRAMES = "are read from their frames"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """Not started."""
    (tmp_path / "bucket").mkdir()
    settings = (
        f"tier.store=file://{tmp_path / 'bucket'}",
        "tier.manifest_ms=0s",
        "policies.s/#.tier=s3",
        "policies.s/#.layout=shared",
        "policies.s/#.local_retention_bytes=0",
        "policies.s/#.segment_bytes=65536",
    )
    return BrokerProcess(tmp_path / "data", *settings)


def eventually(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def publish(broker: BrokerProcess) -> dict[str, list[str]]:
    """What each topic holds. By MQTT a record names its topic, by Kafka its frame does."""
    held: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
    with Raw.connected(broker.mqtt_port) as client:
        for number in range(ROUNDS):
            for topic in TOPICS:
                held[topic].append(f"{number} {topic} " + "." * 150)
                client.send(publish_packet(topic, held[topic][-1].encode(), qos=1))
            client.acks(len(TOPICS))
            value = f"{number} by Kafka " + "." * 150
            producer.produce("s.kafka.x", value.encode())
            held.setdefault("s/kafka/x", []).append(value)
            assert producer.flush(DEADLINE_S) == 0
    return held


def objects_of(broker: BrokerProcess) -> list[Object]:
    registry = Registry(broker.data, read_only=True)
    found = [one for log in registry.logs() for one in registry.parts_of(log)]
    registry.close()
    return found


def wait_until_dropped(broker: BrokerProcess) -> None:
    def dropped() -> bool:
        logs = [log for log in (broker.data / "logs").iterdir() if log.name.isdigit()]
        return bool(objects_of(broker)) and all(len(list(log.glob("*.log"))) <= 1 for log in logs)

    eventually(dropped, "sealed segments are in the store only")


def read(broker: BrokerProcess, topic: str) -> list[str]:
    asked = {"topic": topic, "from": "earliest", "limit": "500"}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
    answer.raise_for_status()
    return [row["value"] for row in answer.json()["items"]]


def forget_indexes(broker: BrokerProcess) -> None:
    for index in (broker.data / "logs").glob("*/topics"):
        shutil.rmtree(index)


def said_since(broker: BrokerProcess, position: int) -> str:
    return broker.log_path.read_text()[position:]


def test_a_lost_index_is_made_of_what_the_objects_say_and_no_record_is_fetched_for_it(broker: BrokerProcess) -> None:
    with broker:
        held = publish(broker)
        wait_until_dropped(broker)
        broker.kill()
        forget_indexes(broker)
        position = broker.log_path.stat().st_size
        broker.start()
        assert f": {len(objects_of(broker))} {SAID}" in said_since(broker, position), (
            "all of them, and no record was read"
        )
        assert {topic: read(broker, topic) for topic in held} == held


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_topics_that_are_damaged_are_not_believed_and_the_records_are_read_instead(
    broker: BrokerProcess, tmp_path: Path, damage: str
) -> None:
    with broker:
        held = publish(broker)
        wait_until_dropped(broker)
        broker.kill()
        forget_indexes(broker)
        for one in objects_of(broker):
            path = tmp_path / "bucket" / one.key
            data = bytearray(path.read_bytes())
            assert one.footer.topics_size
            if damage == "flipped":
                data[one.footer.body_size + one.footer.topics_size // 2] ^= 1
            else:
                del data[one.footer.body_size + one.footer.topics_size // 2 :]
            path.write_bytes(data)
        position = broker.log_path.stat().st_size
        broker.start()
        assert FROM_FRAMES in said_since(broker, position)
        assert SAID not in said_since(broker, position)
        assert {topic: read(broker, topic) for topic in held} == held


def test_a_restored_directory_needs_no_record_to_know_its_topics(broker: BrokerProcess, tmp_path: Path) -> None:
    with broker:
        held = publish(broker)
        wait_until_dropped(broker)
        registered = {one.id for one in objects_of(broker)}
        manifest = tmp_path / "bucket" / "manifest"

        def complete() -> bool:
            """The manifest names all of them."""
            if not manifest.exists():
                return False
            shutil.rmtree(tmp_path / "seen", ignore_errors=True)
            shutil.unpack_archive(manifest, tmp_path / "seen", "gztar", filter="data")
            seen = Registry(tmp_path / "seen", read_only=True)
            named = {one.id for log in seen.logs() for one in seen.parts_of(log)}
            seen.close()
            return named >= registered

        eventually(complete, "the manifest is stored")
        broker.kill()
        shutil.rmtree(broker.data)
        command = [sys.executable, "-m", "mainstem", "restore", f"file://{tmp_path / 'bucket'}", str(broker.data)]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        position = broker.log_path.stat().st_size
        broker.start()
        assert SAID in said_since(broker, position)
        assert FROM_FRAMES not in said_since(broker, position)
        for topic in held:
            found = read(broker, topic)
            assert found == held[topic][: len(found)], "what was uploaded, from its beginning"
        assert read(broker, TOPICS[0]), "something was uploaded"
