"""kill -9, and an object is missing that is a bundle of the engine `object`, or a file of an Iceberg table: the next start
names it, its offsets answer with an error, and all others are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from mainstem.storage.object.pieces import Pieces
from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.crash.test_object_missing import Rows, command, kafka_error
from tests.crossing.test_faulty_object_storage import metric
from tests.crossing.test_object_storage import local_bytes, read_kafka
from tests.crossing.test_topics_in_objects import TOPICS, eventually, forget_indexes, objects_of, said_since
from tests.protocol.mqtt.raw import Raw, publish_packet

COUNT, LOT = 400, 20
VALUES = [b"%06d" % number + b"." * 500 for number in range(COUNT)]
DEDICATED = "d/a"
UNKNOWN = "nobody knows which topics they hold"


class Lost(NamedTuple):
    """An object that is moved away, and the offsets that it held of each log."""

    key: str
    path: Path
    aside: Path
    held: dict[int, tuple[int, int]]

    def move(self) -> None:
        self.path.rename(self.aside)

    def put_back(self) -> None:
        self.aside.rename(self.path)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    made = tmp_path / "bucket"
    made.mkdir()
    return made


def make_broker(folder: Path, *policy: str) -> BrokerProcess:
    store = [f"tier.store=file://{folder / 'bucket'}", "tier.manifest_ms=0s", "tier.bundle_ms=20ms"]
    return BrokerProcess(folder / "data", *store, *policy)


@pytest.fixture
def broker(tmp_path: Path, bucket: Path) -> BrokerProcess:
    """Not started. Topics below s/ share a log, d/a has its own; both lie in bundles."""
    words = ("engine=object", "segment_bytes=16384")
    policy = [f"policies.{topics}/#.{one}" for topics in "sd" for one in words]
    return make_broker(tmp_path, *policy, "policies.s/#.layout=shared", "policies.d/#.layout=dedicated")


def stretches(broker: BrokerProcess) -> dict[str, dict[int, tuple[int, int]]]:
    """By key, in order of the shared log's offsets: the offsets that a bundle holds of each log."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    registry = Registry(broker.data, read_only=True)
    try:
        pieces = Pieces(registry, read_only=True)
        for log in sorted(int(one.name) for one in (broker.data / "logs").glob("*") if one.name.isdigit()):
            for piece, bundle in pieces.of_log(log):
                assert bundle is not None
                first, end = found.setdefault(bundle.key, {}).get(log, (piece.base_offset, piece.base_offset))
                assert piece.base_offset == end, "pieces of a log lie one behind the other"
                found[bundle.key][log] = first, piece.end_offset
    finally:
        registry.close()
    return found


def bundle_in_the_middle(broker: BrokerProcess, bucket: Path, logs: set[int], folder: str) -> Lost:
    """One that holds some of both logs, and there is some of both before it and behind."""
    both = [(key, held) for key, held in stretches(broker).items() if held.keys() >= logs]
    middle = [one for one in both[1:-1] if one[0].startswith(folder)]
    assert middle, both
    key, held = middle[0]
    return Lost(key, bucket / key, bucket.parent / "aside", held)


def rows(broker: BrokerProcess, topic: str, start: str, limit: int = 500) -> list[tuple[int, str]]:
    asked = {"topic": topic, "from": start, "limit": str(limit)}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    return [(row["offset"], row["value"]) for row in answer.json()["items"]]


def log_of(broker: BrokerProcess, topic: str) -> int:
    told = httpx.get(f"{broker.http_url}/v1/topics/{topic.replace('/', '%2F')}", timeout=60).raise_for_status().json()
    return int(told["placement"][0]["spans"][0]["log"])


def publish_all(broker: BrokerProcess, lots: int) -> None:
    """Each lot is in a bundle or two: with fewer than 16 of them none is merged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    with Raw.connected(broker.mqtt_port) as client:
        for lot in range(lots):
            for number in range(LOT):
                producer.produce("d.a", VALUES[(lot * LOT + number) % COUNT])
                producer.produce("s.kafka.x", b"%d by Kafka" % number)
                topic = TOPICS[number % len(TOPICS)]
                client.send(publish_packet(topic, b"%d of lot %d" % (number, lot) + b"." * 200, qos=1))
            assert producer.flush(60) == 0
            client.acks(LOT)


def check_all_but(broker: BrokerProcess, lost: Lost, before: Rows) -> None:
    """Each topic ends with an error where the lost stretch of its log begins, and goes on behind it."""
    httpx.get(f"{broker.http_url}/v1/topics", timeout=60).raise_for_status()
    for topic, held in before.items():
        first, end = lost.held[log_of(broker, topic)]
        early, late = [row for row in held if row[0] < first], [row for row in held if row[0] >= end]
        assert early
        assert late
        assert rows(broker, topic, "earliest", len(early)) == early
        assert rows(broker, topic, f"@{end}", len(late)) == late
    for topic in {log_of(broker, topic): topic for topic in before}.values():
        first, end = lost.held[log_of(broker, topic)]
        asked = {"topic": topic, "from": f"@{first}", "limit": "10"}
        answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=60)
        assert answer.status_code == 500
        assert lost.key in answer.text or f"the offsets {first} to " in answer.text
        assert kafka_error(broker, topic.replace("/", "."), first) == KafkaError.INVALID_MSG
    assert metric(broker, "mainstem_tier_damaged_objects") == 1


def check_commands(broker: BrokerProcess, lost: Lost, tmp_path: Path) -> None:
    config = tmp_path / "doctor.toml"
    config.write_text(f'[tier]\nstore = "file://{tmp_path / "bucket"}"\n')
    words = ("--json", "--data", str(broker.data), "--config", str(config), "--url", broker.http_url)
    code, said = command("doctor", *words)
    assert code == 1
    assert lost.key in said
    for log_id, (first, _) in lost.held.items():
        assert re.search(rf"offsets {first}\.\.\d+ of log {log_id}\b", said), said
        code, verified = command("log", "verify", str(log_id), "--data", str(broker.data))
        assert code == 1
        assert lost.key in verified


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("folder", ["bundles", "merged"])
def test_logs_that_lie_in_bundles_serve_all_but_the_one_that_is_missing(
    broker: BrokerProcess, bucket: Path, tmp_path: Path, folder: str, index: str
) -> None:
    topics = [*TOPICS, "s/kafka/x", DEDICATED]
    with broker:
        publish_all(broker, 6 if folder == "bundles" else 40)
        if folder == "merged":
            eventually(lambda: len(list((bucket / folder).glob("*"))) > 1, "bundles are merged")
        before = {topic: rows(broker, topic, "earliest") for topic in topics}
        shared, dedicated = log_of(broker, TOPICS[0]), log_of(broker, DEDICATED)
        broker.kill()
        lost = bundle_in_the_middle(broker, bucket, {shared, dedicated}, folder)
        lost.move()
        if index == "lost":
            forget_indexes(broker)
        position = broker.log_path.stat().st_size
        broker.start()
        said = said_since(broker, position)
        if index == "lost":
            assert lost.key in said
            assert f"offsets {lost.held[shared][0]} to " in said
            assert UNKNOWN in said
        check_all_but(broker, lost, before)
        check_commands(broker, lost, tmp_path)
        publish_all(broker, 20)  # in bundles that are merged with others, as far as these are there
        assert broker.stop() == 0
        broker.start()
        check_all_but(broker, lost, before)
        broker.kill()
        lost.put_back()
        broker.start()
        assert {topic: rows(broker, topic, "earliest", len(held)) for topic, held in before.items()} == before
        assert metric(broker, "mainstem_tier_damaged_objects") == 0


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_a_log_that_lies_in_a_table_serves_all_but_the_file_that_is_missing_or_damaged(
    tmp_path: Path, bucket: Path, damage: str
) -> None:
    words = ("tier=iceberg", "layout=dedicated", "segment_bytes=32768", "local_retention_bytes=0")
    with make_broker(tmp_path, *(f"policies.d/#.{one}" for one in words)) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number, value in enumerate(VALUES):
            producer.produce("d.a", value)
            if number % LOT == LOT - 1:
                assert producer.flush(60) == 0
        eventually(lambda: local_bytes(broker) == 0 and len(objects_of(broker)) > 2, "parts are in the table only")
        before = {DEDICATED: rows(broker, DEDICATED, "earliest")}
        broker.kill()
        found = objects_of(broker)
        one = found[len(found) // 2]
        held = {one.footer.log_id: (one.footer.base_offset, one.footer.end_offset)}
        lost = Lost(one.key, bucket / one.key, tmp_path / "aside", held)
        assert lost.path.suffix == ".parquet"
        data = bytearray(lost.path.read_bytes())
        lost.move()
        if damage == "flipped":
            data[len(data) // 2] ^= 1
            data[len(data) // 3] ^= 1
            lost.path.write_bytes(data)
        elif damage == "cut":
            lost.path.write_bytes(data[: len(data) // 2])
        broker.start()
        check_all_but(broker, lost, before)
        code, said = command("log", "verify", str(one.footer.log_id), "--data", str(broker.data))
        assert code == 1
        assert lost.key in said
        if damage == "missing":
            check_commands(broker, lost, tmp_path)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("d.a", b"goes on")
        assert producer.flush(60) == 0
        broker.kill()
        lost.put_back()
        broker.start()
        assert read_kafka(broker, "d.a", COUNT + 1) == [*VALUES, b"goes on"]
