"""kill -9, and power cuts, at random moments of uploads, drops, compaction and deletions: nothing acked is lost, no object
is forgotten."""

from __future__ import annotations

import os
import random
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from mainstem.storage.object.pieces import Pieces
from mainstem.storage.tier.registry import Registry
from mainstem.testing.power_cut import PowerCutMount, why_not
from mainstem.testing.process import BrokerProcess

CUTS = int(os.environ.get("MAINSTEM_TIER_CUTS", "4"))
KILLS = int(os.environ.get("MAINSTEM_TIER_KILLS", "100"))
DEADLINE_S = 120.0
SETTINGS = (
    "tier.grace_ms=0s",
    "tier.manifest_ms=1s",
    "tier.bundle_ms=10ms",
)
SEGMENTS = "policies.k/#.segment_bytes="
COMPACTED = ("policies.k/#.layout=dedicated", "policies.k/latest.cleanup=compact")
DROPPED = f"{SEGMENTS}16KiB", "policies.k/#.local_retention_bytes=0"
TIERED = (*DROPPED, "policies.k/#.tier=s3")
KINDS = {
    "tier": (*COMPACTED, *TIERED),
    "engine": (*COMPACTED, f"{SEGMENTS}16KiB", "policies.k/#.engine=object"),
    "shared": ("policies.k/#.layout=shared", *TIERED),
    "iceberg": (
        *COMPACTED,
        *DROPPED,
        f"{SEGMENTS}128KiB",
        "policies.k/#.tier=iceberg",
    ),  # each is a commit of its table
}
LIVES_S = {"iceberg": (2.0, 6.0)}  # between two kills; its libraries take seconds to load


def publish(broker: BrokerProcess, acked: list[bytes], seconds: float, end: Callable[[], None]) -> None:
    """Until the broker is ended so; what was acked is noted."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 5_000, "linger.ms": 2})

    def note(error: KafkaError | None, message: Message) -> None:
        if error is None and message.topic() == "k.all":
            acked.append(message.value() or b"")

    number, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = b"%d:%b" % (number, uuid.uuid4().hex.encode() * 8)
        producer.produce("k.all", value, on_delivery=note)
        producer.produce("k.latest", value, key=b"%d" % (number % 5))
        producer.poll(0.002)
        number += 1
    producer.poll(0.2)
    end()
    producer.flush(0.3)  # acks that were on their way
    producer.purge()  # the rest gets none any more
    producer.flush(6)


def read_all(broker: BrokerProcess, wanted: set[bytes]) -> set[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex}
    consumer, found = Consumer({**settings, "auto.offset.reset": "earliest"}), set[bytes]()
    consumer.subscribe(["k.all"])
    deadline = time.monotonic() + DEADLINE_S
    while not wanted <= found and time.monotonic() < deadline:
        found |= {message.value() or b"" for message in consumer.consume(1_000, 0.2) if message.error() is None}
    consumer.close()
    return found


def named_and_stored(broker: BrokerProcess, bucket: Path) -> tuple[set[str], set[str], set[str]]:
    """Keys of objects that hold something, keys that are in the store, and the states of what the registry knows."""
    registry = Registry(broker.data, read_only=True)
    named = {one.key for log in registry.logs() for one in registry.parts_of(log)}
    named |= {one.key for one in Pieces(registry, read_only=True).bundles()}
    states = set(registry.totals())
    registry.close()
    folders = ("parts", "bundles", "merged", "iceberg/*/data")
    found = [path for folder in folders for path in bucket.glob(f"{folder}/**/*")]
    return named, {str(path.relative_to(bucket)) for path in found if path.is_file()}, states


def live_and_end(broker: BrokerProcess, bucket: Path, kind: str, times: int, end: Callable[[], None]) -> None:
    seeded, acked = random.Random(24), list[bytes]()
    for number in range(times):
        publish(broker, acked, seeded.uniform(*LIVES_S.get(kind, (0.3, 2.5))), end)
        if kind == "shared" and number % 10 == 5:  # its topics are read back from the objects, as after a restore
            for index in (broker.data / "logs").glob("*/topics"):
                shutil.rmtree(index)
        broker.start()
        if number % 10 == 9:
            httpx.delete(f"{broker.http_url}/v1/topics/k%2Flatest", timeout=30)
    wanted = set(acked)
    assert wanted, "nothing was acked, so nothing was shown"
    assert wanted <= read_all(broker, wanted)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        named, stored, states = named_and_stored(broker, bucket)
        if named and stored == named and states <= {"live"}:
            break
        assert time.monotonic() < deadline, f"{len(stored - named)} orphans, {len(named - stored)} missing: {states}"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acked_is_lost_and_no_object_is_forgotten_by_kill_nine(tmp_path: Path, kind: str) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with BrokerProcess(tmp_path / "data", f"tier.store=file://{bucket}", *SETTINGS, *KINDS[kind]) as broker:
        live_and_end(broker, bucket, kind, KILLS, broker.kill)


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "kind", ["tier", "engine", *(pytest.param(one, marks=pytest.mark.slow) for one in list(KINDS)[2:])]
)
def test_nothing_acked_is_lost_and_no_object_is_forgotten_by_power_cuts(tmp_path: Path, kind: str) -> None:
    """The store is another machine's: what it has taken stays."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with PowerCutMount(tmp_path, size_mib=512) as mount:
        data = tmp_path / "data"
        data.symlink_to(mount.path / "data")
        (mount.path / "data").mkdir(mode=0o700)
        with BrokerProcess(data, f"tier.store=file://{bucket}", *SETTINGS, *KINDS[kind]) as broker:

            def cut() -> None:
                mount.cut(broker.pid)
                broker.kill()

            live_and_end(broker, bucket, kind, CUTS, cut)
