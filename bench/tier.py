"""`python bench/tier.py [MIB]`: publishing with and without a tier; cold reads beside local ones and bare ranged GETs.

A directory stands for the store, so the figures are of the broker and its client, not of a network: the bare loop reads
the same directory through the same library, at the speed of the page cache. Printed as JSON, one line.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

from confluent_kafka import Consumer, Producer

from mainstem.storage.tier.registry import Registry
from mainstem.storage.tier.store import ObjectStore, StoreSettings
from mainstem.testing.process import BrokerProcess

VALUE = b"x" * 1_000
CHUNK = 4 << 20
DEADLINE_S = 300.0


def publish(broker: BrokerProcess, count: int) -> float:
    """Seconds for `count` acked records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20, "batch.size": 1 << 20})
    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce("b.all", VALUE)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1_000:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    return time.perf_counter() - began


def fetch(broker: BrokerProcess, count: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 4 << 20,
            "check.crcs": False,
        }
    )
    consumer.subscribe(["b.all"])
    found, began = 0, 0.0
    while found < count:
        found += len(consumer.consume(10_000, 0.5))
        began = began or (time.perf_counter() if found else 0.0)
    took = time.perf_counter() - began
    consumer.close()
    return took


def bare_gets(url: str, data: Path) -> tuple[float, int]:
    """Every object in ranges of 4 MiB, one after the other: seconds, bytes."""
    registry, store, total = Registry(data, read_only=True), ObjectStore(StoreSettings(url)), 0
    objects = [one for log in registry.logs() for one in registry.parts_of(log)]
    registry.close()
    began = time.perf_counter()
    for one in objects:
        for at in range(0, one.footer.size, CHUNK):
            total += len(store.get(one.key, at, min(CHUNK, one.footer.size - at)))
    return time.perf_counter() - began, total


def local_segments(data: Path) -> int:
    return sum(max(len(list(log.glob("*.log"))) - 1, 0) for log in (data / "logs").iterdir())


def main(mib: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mainstem-bench-tier-"))
    count, policy = mib * 1_048, "policies.b/#."
    dedicated = f"{policy}layout=dedicated"
    try:
        with BrokerProcess(folder / "plain", dedicated) as broker:
            plain_s = publish(broker, count)
            local_s = fetch(broker, count)
        (folder / "bucket").mkdir()
        url = f"file://{folder / 'bucket'}"
        tiered = (f"tier.store={url}", f"{policy}tier=s3", f"{policy}local_retention_bytes=0", dedicated)
        with BrokerProcess(folder / "data", *tiered) as broker:
            tiered_s = publish(broker, count)
            deadline = time.monotonic() + DEADLINE_S
            while local_segments(broker.data) and time.monotonic() < deadline:
                time.sleep(0.2)
            cold_s = fetch(broker, count)
        bare_s, size = bare_gets(url, folder / "data")
        objects = len([path for path in (folder / "bucket" / "parts").rglob("*") if path.is_file()])
        found = {
            "mib": mib,
            "publish_with_tier_share": round(plain_s / tiered_s, 3),
            "local_fetch_mib_s": round(mib / local_s, 1),
            "cold_fetch_mib_s": round(mib / cold_s, 1),
            "bare_get_mib_s": round(size / bare_s / (1 << 20), 1),
            "puts_per_gib": round(objects / mib * 1024, 1),
        }
        found["cold_share_of_local"] = round(local_s / cold_s, 3)
        print(json.dumps(found))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
