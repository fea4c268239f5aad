"""What retention, erasure and a lost disk mean for records that lie in a store: they go there, too, or are found there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mainstem.storage.tier.registry import Registry
from mainstem.testing.process import BrokerProcess
from tests.crossing.test_faulty_object_storage import metric
from tests.crossing.test_object_storage import VALUES, eventually, publish, read_http, read_kafka, read_stream
from tests.crossing.test_topics_in_objects import wait_until_dropped
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_server import s3_server

ROUND_S = 2  # of the broker's maintenance; one that came too early is followed by another
SECRET = b"Mrs Dalloway, born 1923"
KINDS = {
    "tier": ("tier=s3", "segment_bytes=16384", "local_retention_bytes=0"),
    "engine": ("engine=object", "segment_bytes=16384"),
}


def make_broker(folder: Path, *policy: str) -> BrokerProcess:
    (folder / "bucket").mkdir()
    settings = (
        f"tier.store=file://{folder / 'bucket'}",
        "tier.grace_ms=0s",
        "tier.manifest_ms=0s",
        "tier.bundle_ms=20ms",
        f"data.retention_check_ms={ROUND_S}s",
    )
    return BrokerProcess(folder / "data", *settings, *policy)


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "mainstem", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def holders(*folders: Path) -> list[str]:
    """Files that hold the secret."""
    found = list[str]()
    for folder in folders:
        for path in folder.glob("**/*"):
            try:
                found += [str(path)] if path.is_file() and SECRET in path.read_bytes() else []
            except FileNotFoundError:  # went meanwhile
                continue
    return found


def rows(broker: BrokerProcess, topic: str) -> list[object]:
    asked = {"topic": topic, "from": "earliest", "limit": "500"}
    answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=60).raise_for_status()
    return list(answer.json()["items"])


def earliest(broker: BrokerProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return int(low)


def test_what_lies_where_is_shown_with_what_it_costs(tmp_path: Path) -> None:
    rules = [f"policies.t/#.{one}" for one in ("layout=dedicated", *KINDS["tier"])]
    with make_broker(tmp_path, *rules) as broker:
        publish(broker, "t.a")
        wait_until_dropped(broker)
        assert read_kafka(broker, "t.a") == VALUES
        assert read_kafka(broker, "t.a") == VALUES
        registry = Registry(broker.data, read_only=True)
        objects = [one for log in registry.logs() for one in registry.parts_of(log)]
        registry.close()
        size = sum(one.footer.size for one in objects)
        eventually(lambda: metric(broker, "mainstem_tier_lag_seconds") == 0, "nothing waits for its upload")
        wanted = {
            'objects{state="live"}': len(objects),
            'object_bytes{state="live"}': size,
            'requests_total{verb="PUT"}': len(objects),
            'requests_total{verb="GET"}': len(objects),
            'request_seconds_count{verb="PUT"}': len(objects),
            'request_seconds_sum{verb="GET"}': 0,
            'bytes_total{direction="out"}': size,
            'bytes_total{direction="in"}': size,
            "cache_bytes": size,
        }
        for name, least in wanted.items():
            assert metric(broker, f"mainstem_tier_{name}") >= least, name
        assert metric(broker, "mainstem_tier_cost_month") > 0
        assert metric(broker, 'mainstem_cache_requests_total{cache="tier",result="hit"}') > 0
        described = json.loads(command("topic", "describe", "t/a", "--json", "--url", broker.http_url))
        (span,) = described["placement"][0]["spans"]
        assert span["remote_bytes"] == size
        assert 0 < span["local_bytes"] < size
        listed = list(map(json.loads, command("log", "ls", "--json", "--data", str(broker.data)).splitlines()))
        assert [one["remote_bytes"] for one in listed if one["log"] == span["log"]] == [size]


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[pytest.mark.slow] if one == "tier" else []) for one in KINDS]
)
def test_what_is_erased_is_in_no_object_and_on_no_disk_any_more(tmp_path: Path, kind: str) -> None:
    """Also not in bundles that others need, as the topic's other log does."""
    rules = [f"policies.{topics}/#.{one}" for topics in "os" for one in KINDS[kind]]
    with make_broker(tmp_path, *rules, "policies.s/#.layout=shared", "policies.o/#.layout=dedicated") as broker:
        with Raw.connected(broker.mqtt_port) as client:
            for number in range(200):
                client.send(publish_packet("o/other", b"%d" % number + b"." * 300, qos=1))
                client.send(publish_packet("s/kept", b"%d" % number + b"." * 300, qos=1))
                client.send(publish_packet("s/person", SECRET + b" %d" % number, qos=1))
                client.acks(3)
        if kind == "tier":
            wait_until_dropped(broker)
        before = {topic: rows(broker, topic) for topic in ("s/kept", "o/other")}
        assert holders(tmp_path / "bucket")
        assert "erased 200 records" in command("topic", "erase", "s/person", "--yes", "--url", broker.http_url)
        eventually(lambda: not holders(tmp_path / "bucket"), "no object holds it")
        assert not holders(broker.data)
        assert {topic: rows(broker, topic) for topic in before} == before
        gone = httpx.get(f"{broker.http_url}/v1/messages", params={"topic": "s/person", "from": "earliest"}, timeout=60)
        assert gone.status_code == 404, "nothing is left of the topic"


@pytest.mark.parametrize("kind", KINDS)
def test_retention_by_size_counts_both_places_and_frees_the_store(tmp_path: Path, kind: str) -> None:
    limit = 200_000
    rules = [f"policies.t/#.{one}" for one in ("layout=dedicated", f"retention_bytes={limit}", *KINDS[kind])]
    with make_broker(tmp_path, *rules) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number, value in enumerate(VALUES):
            producer.produce("t.a", value)
            if number % 100 == 99:  # in many batches, and bundles
                assert producer.flush(60) == 0
        total = sum(map(len, VALUES))
        assert total > 2 * limit

        def stored() -> int:
            return sum(path.stat().st_size for path in (tmp_path / "bucket").glob("parts/**/*") if path.is_file())

        eventually(lambda: earliest(broker, "t.a") > len(VALUES) // 4, "what is too much goes")
        eventually(lambda: stored() < total - limit, "and leaves the store, as bundles do once little of them is used")
        first = earliest(broker, "t.a")
        kept = VALUES[first:]
        assert sum(map(len, kept)) >= limit - 5 * 16_384, "no more than that"
        assert read_kafka(broker, "t.a", len(kept)) == kept


def test_all_that_was_uploaded_is_restored_from_s3_in_both_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    with s3_server(tmp_path / "store") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://bucket/{uuid.uuid4().hex}"
        rules = [f"policies.{topic}/#.{one}" for topic, kind in (("t", "tier"), ("o", "engine")) for one in KINDS[kind]]
        layouts = [f"policies.{topic}/#.layout=dedicated" for topic in "to"]
        settings = (f"tier.store={url}", f"tier.endpoint={server.endpoint}", "tier.manifest_ms=0s", *rules, *layouts)
        with BrokerProcess(tmp_path / "data", *settings, environment=server.environment) as broker:
            publish(broker, "t.a")
            publish(broker, "o.a")
            wait_until_dropped(broker)
            time.sleep(12)  # a sweep: all that was uploaded is in the manifest
            broker.kill()
        registry = Registry(tmp_path / "data", read_only=True)
        count = max(one.footer.end_offset for log in registry.logs() for one in registry.parts_of(log))
        registry.close()
        shutil.rmtree(tmp_path / "data")
        command = [
            sys.executable,
            "-m",
            "mainstem",
            "restore",
            url,
            str(tmp_path / "data"),
            "--endpoint",
            server.endpoint,
        ]
        subprocess.run(command, check=True, timeout=120)
        with BrokerProcess(tmp_path / "data", *settings, environment=server.environment) as broker:
            assert read_kafka(broker, "o.a") == VALUES, "all that was acked"
            assert read_stream(broker, "o/a") == VALUES
            assert read_http(broker, "o/a") == VALUES
            assert count >= len(VALUES) // 2
            assert read_kafka(broker, "t.a", count) == VALUES[:count]
            offsets = list[int]()
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            producer.produce("t.a", b"after", on_delivery=lambda _, message: offsets.append(message.offset() or 0))
            assert producer.flush(60) == 0
            assert offsets[0] > len(VALUES), "no offset is given out twice"
