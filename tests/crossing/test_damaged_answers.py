"""Answers of the store that were cut off, are too short or differ by a bit: each reader gets all records, unchanged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from nats.js.api import StorageType, StreamConfig

from mainstem.testing import Broker
from tests.crossing.test_object_storage_readers import move_all_to_the_store
from tests.pipeline.test_ten_times_the_disk import declare_queue
from tests.pipeline.whole_readers import PAGE, READERS, declare_session
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_faults import FaultProxy, fault_proxy
from tests.s3_server import S3Server, s3_server

COUNT, LOT = 300, 60
VALUES = [b"%06d:" % number + uuid.uuid4().hex.encode() * 30 for number in range(COUNT)]
DEADLINE_S = 90.0
AWAY_S = 4.0  # longer than the tries of one download take
TIER = ("segment_bytes=64KiB", "local_retention_bytes=0")
KINDS = {
    "tier": ("tier=s3", *TIER),
    "engine": ("segment_bytes=64KiB",),
    "iceberg": ("layout=dedicated", "tier=iceberg", *TIER),
}
FAULTS = ["cut*2", "short*2", "flipped*2", "503*2", "cut"]
# One fault of each place, and each fault in one; the others, each of which takes ten seconds, are for the long run.
PAIRS = [
    pytest.param(kind, fault, id=f"{kind}-{fault}", marks=[] if (n - m) % len(KINDS) == 0 else [pytest.mark.slow])
    for m, kind in enumerate(KINDS)
    for n, fault in enumerate(FAULTS)
]
BUNDLES = "tier.bundle_ms=20ms"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


def readers(kind: str) -> dict[str, Callable[[Any, int], Iterator[bytes]]]:
    """Of the topic `t/a`. A table holds topics, not streams."""
    return {name: read for name, read in READERS.items() if name not in {"HTTP", "NATS" if kind == "iceberg" else ""}}


def whole(read: Callable[[Any, int], Iterator[bytes]], broker: Broker) -> list[bytes]:
    return list(read(broker, COUNT))


def publish(broker: Any, names: Iterable[str]) -> None:
    if "NATS" in names:
        asyncio.run(declare_stream(broker))
    declare_queue(broker)
    declare_session(broker)
    with Raw.connected(broker.mqtt_port) as client:
        for first in range(0, COUNT, LOT):  # each in a bundle or two
            client.send(b"".join(publish_packet("t/a", value, qos=1) for value in VALUES[first : first + LOT]))
            client.acks(LOT)


def forget_what_is_here(broker: Broker) -> None:
    """The next read of each object meets the store."""
    assert broker.app is not None
    tier = broker.app.broker.logs.tier
    assert tier is not None
    for key in list(tier.cache._sizes):
        tier.cache._drop(key)


async def declare_stream(broker: Broker) -> None:
    client = await nats.connect(broker.nats_url)
    await client.jetstream().add_stream(StreamConfig(name="ALL", subjects=["t.a"], storage=StorageType.FILE))
    await client.close()


def read_http(broker: Broker) -> list[bytes]:
    """As a client does that is asked to come again."""
    found, at, deadline = list[bytes](), "earliest", time.monotonic() + DEADLINE_S
    while len(found) < COUNT:
        asked = {"topic": "t/a", "from": at, "limit": str(PAGE)}
        answer = httpx.get(f"{broker.http_url}/v1/messages", params=asked, timeout=DEADLINE_S)
        if answer.status_code == 503 and time.monotonic() < deadline:
            time.sleep(0.2)
            continue
        answer.raise_for_status()
        rows = answer.json()["items"]
        assert rows, f"nothing from {at} on"
        found += [row["value"].encode() for row in rows]
        at = f"@{rows[-1]['offset'] + 1}"
    return found


def first_by_time(broker: Broker) -> int:
    """Asked again while it may be, as clients do."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": uuid.uuid4().hex})
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            (found,) = consumer.offsets_for_times([TopicPartition("t.a", 0, 1_000)], timeout=DEADLINE_S)
            break
        except KafkaException as error:
            if error.args[0].code() != KafkaError.KAFKA_STORAGE_ERROR or time.monotonic() > deadline:
                raise
    consumer.close()
    return int(found.offset)


@pytest.mark.parametrize(("kind", "fault"), PAIRS)
def test_every_reader_gets_every_record_unchanged(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    store = (f"tier.store=s3://bucket/{uuid.uuid4().hex}", "tier.timeout_ms=5s")
    settings = (*store, BUNDLES, *(f"topics.{one}" for one in KINDS[kind]))
    direct, through_the_proxy = (f"tier.endpoint={one.endpoint}" for one in (server, proxy))
    wanted = readers(kind)
    engine = "object" if kind == "engine" else "segment"
    with Broker(*settings, direct, engine=engine, data=tmp_path / "data") as broker:
        publish(broker, wanted)
        if kind != "engine":
            move_all_to_the_store(broker)
    proxy.faults["GET"] = "" if fault == "cut" else fault  # a start meets them, too
    with Broker(*settings, through_the_proxy, engine=engine, data=tmp_path / "data") as broker:
        forget_what_is_here(broker)
        gets, proxy.faults["GET"] = proxy.requests["GET"], fault
        proxy.forget()
        with ThreadPoolExecutor(len(wanted) + 2) as threads:
            reading = {who: threads.submit(whole, read, broker) for who, read in wanted.items()}
            reading["HTTP"] = threads.submit(read_http, broker)
            by_time = threads.submit(first_by_time, broker)
            if fault == "cut":
                time.sleep(AWAY_S)
                assert not any(future.done() for future in reading.values()), "all is in the store, which is away"
                proxy.faults.clear()
            found = {who: future.result(DEADLINE_S) for who, future in reading.items()}
            assert by_time.result(DEADLINE_S) == 0
        assert proxy.requests["GET"] > gets
        for who, values in found.items():
            assert values == VALUES, who
        assert broker.app is not None
        tier = broker.app.broker.logs.tier
        assert tier is not None
        assert tier.cache.damaged_objects == 0
