"""Object storage beside its targets, against a real S3 server on this machine.

Publishing with and without a tier; a cold fetch by a bare Kafka reader beside a bare loop of ranged GETs over the same
bytes; a live MQTT subscriber with ten cold readers beside it; the loop while GETs take two seconds; PUTs for a GiB. Of the
engine `object`: PUTs a second and acks at 32 MB/s over many topics. Store, clients and broker share the machine, so figures
are ratios first. What ten readers of a local log do to the same subscriber is told for comparison.

python -m bench tier, or python -m bench.tier [--mib 256]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from confluent_kafka import Producer

from bench.machine import ROOT, ceiling, come_first, figure, settle_machine
from bench.tier_load import BareReader
from mainstem.storage.tier.registry import Registry
from mainstem.storage.tier.store import ObjectStore, StoreSettings
from mainstem.testing.process import BrokerProcess
from tests.protocol.mqtt.raw import Raw
from tests.s3_faults import FaultProxy, fault_proxy
from tests.s3_server import S3Server, s3_server

VALUE = b"x" * 1_000
CHUNK = 4 << 20
DEADLINE_S = 300.0
POLICY = "policies.b/#."
LIVE = 500  # messages, one every 10 ms
MIB = 256
MIB_MIN = 192  # with less a cold fetch would find some of it in the cache, on its disk and in memory
ROUNDS = 3  # of what is compared: first one, then the other, and the medians count
READERS = 10
FAVOURED = (
    ["nice", "-n", "-15"] if os.geteuid() == 0 else []
)  # of who is timed: the loop, not who else uses the machine
PUTS = 'mainstem_tier_requests_total{verb="PUT"}'
OBJECT_TOPICS, OBJECT_S, OBJECT_MB_S = 200, 12.0, 32


def publish(broker: BrokerProcess, count: int, topic: str = "b.all") -> float:
    """Seconds for `count` acked records."""
    settle_machine()
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20, "batch.size": 1 << 20, "log_level": 0}
    )
    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1_000:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    return time.perf_counter() - began


def fetch(broker: BrokerProcess, count: int) -> float:
    """MiB a second, of a log that is read from its beginning."""
    reader = BareReader(broker.bootstrap_servers, "b.all")
    seconds, size = reader.read_to(count)
    reader.close()
    return size / seconds / (1 << 20)


def fetch_one(broker: BrokerProcess, offset: int) -> None:
    """What one fetch from there gives."""
    reader = BareReader(broker.bootstrap_servers, "b.all")
    while not reader.fetch(offset)[1]:
        pass
    reader.close()


def bare_gets(store: ObjectStore, data: Path) -> tuple[float, int]:
    """Every object in ranges of 4 MiB, one after the other: seconds, bytes."""
    registry, total = Registry(data, read_only=True), 0
    objects = [one for log in registry.logs() for one in registry.parts_of(log)]
    registry.close()
    began = time.perf_counter()
    for one in objects:
        for at in range(0, one.footer.size, CHUNK):
            total += len(store.get(one.key, at, min(CHUNK, one.footer.size - at)))
    return time.perf_counter() - began, total


def wait_until_cold(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while sum(max(len(list(log.glob("*.log"))) - 1, 0) for log in (broker.data / "logs").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def live_p99_ms(broker: BrokerProcess) -> float:
    """Of a subscriber at the head, from publish to arrival. What it waits for a core is not the broker's."""
    took: list[float] = []
    with (
        come_first(),
        Raw.connected(broker.mqtt_port, keep_alive=0) as subscriber,
        Raw.connected(broker.mqtt_port, keep_alive=0) as publisher,
    ):
        subscriber.subscribe(("live", 0))
        for _ in range(LIVE):
            publisher.publish("live", b"%d" % time.perf_counter_ns())
            took.append((time.perf_counter_ns() - int(subscriber.message().payload)) / 1e6)
            time.sleep(0.01)
    return statistics.quantiles(took, n=100)[98]


@contextmanager
def readers(broker: BrokerProcess) -> Iterator[None]:
    """In a process of their own, that gives way to the broker."""
    command = [sys.executable, "-m", "bench.tier_load", "read", broker.bootstrap_servers, str(READERS)]
    process = subprocess.Popen(["nice", "-n", "10", *command], cwd=ROOT)
    time.sleep(3)  # until they read
    try:
        yield
    finally:
        process.kill()
        process.wait()


def metric(broker: BrokerProcess, name: str) -> float:
    lines = httpx.get(f"{broker.http_url}/metrics", timeout=30).text.splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name)), default=0.0)


def row(what: str, found: str, target: str) -> None:
    print(f"{what:<58}{found:>16}   {target}", flush=True)


def tier(server: S3Server, proxy: FaultProxy, folder: Path, mib: int) -> None:
    count = mib * 1_048
    url = f"s3://bucket/{uuid.uuid4().hex}"
    place = (f"tier.store={url}", f"tier.endpoint={server.endpoint}")
    rules = (f"{POLICY}tier=s3", f"{POLICY}local_retention_bytes=0", f"{POLICY}layout=dedicated")
    settings = (*place, *rules, "tier.cache_bytes=64MiB")
    environment = server.environment
    with (
        BrokerProcess(folder / "plain", f"{POLICY}layout=dedicated") as plain,
        BrokerProcess(folder / "data", *settings, environment=environment) as broker,
    ):
        publishing(plain, broker, mib)
        local = fetch(plain, count)
        with readers(plain):
            local_beside = live_p99_ms(plain)
        plain.stop()
        fetching(broker, ObjectStore(StoreSettings(url, server.endpoint)), count)
        figure("local Kafka fetch", local, "MiB/s")
        living(broker, local_beside)
    slow = (*settings, f"tier.endpoint={proxy.endpoint}")
    favoured = BrokerProcess(folder / "data", *slow, environment=environment)
    favoured.prefix = FAVOURED
    with favoured as broker:
        pausing(broker, proxy, count)


def publishing(plain: BrokerProcess, tiered: BrokerProcess, mib: int) -> None:
    """The first round's topic is the one that is read later."""
    took: dict[BrokerProcess, list[float]] = {plain: [], tiered: []}
    before = metric(tiered, PUTS)
    for number in range(ROUNDS):
        for broker, seconds in list(took.items())[:: -1 if number % 2 else 1]:  # nobody is always the second
            seconds.append(publish(broker, mib * 1_048, f"b.{number or 'all'}"))
        wait_until_cold(tiered)
    without, with_it = (statistics.median(seconds) for seconds in took.values())
    row("publishing without the tier", f"{mib / without:.0f} MiB/s", "")
    figure("publishing with the tier, of without", without / with_it * 100, "%", target=90)
    ceiling("PUTs for a GiB", (metric(tiered, PUTS) - before) / (ROUNDS * mib) * 1024, "", target=20)


def fetching(broker: BrokerProcess, store: ObjectStore, count: int) -> None:
    """The cache is smaller than what is read, so each round begins cold."""
    cold, bare = list[float](), list[float]()
    for _ in range(ROUNDS):
        cold.append(fetch(broker, count))
        seconds, size = bare_gets(store, broker.data)
        bare.append(size / seconds / (1 << 20))
    at_once, loop = statistics.median(cold), statistics.median(bare)
    figure("cold Kafka fetch, and a bare loop of ranged GETs", at_once, "MiB/s", baseline=loop)
    figure("that is, of the bare loop", at_once / loop * 100, "%", target=50)


def living(broker: BrokerProcess, local_beside: float) -> None:
    """A subscriber at the head, alone and beside cold readers in turns."""
    alone, beside = list[float](), list[float]()
    for _ in range(ROUNDS):
        alone.append(live_p99_ms(broker))
        with readers(broker):
            beside.append(live_p99_ms(broker))
    row("p99 of a live subscriber alone", f"{statistics.median(alone):.2f} ms", "")
    row(f"the same with {READERS} readers of a local log", f"{local_beside:.2f} ms", "for comparison")
    row(f"the same with {READERS} cold readers", f"{statistics.median(beside):.2f} ms", "")
    ceiling("that is, of alone", statistics.median(beside) / statistics.median(alone), "times", target=1.5)


def pausing(broker: BrokerProcess, proxy: FaultProxy, count: int) -> None:
    """The loop, idle and while a reader waits for GETs that take two seconds, in turns. Each reads another place, for what
    was read before is in the cache."""
    idle, slow = list[float](), list[float]()
    for number in range(ROUNDS):
        idle.append(beat_while(broker, lambda: time.sleep(4)))
        proxy.faults["GET"] = "delay:2"
        slow.append(beat_while(broker, lambda at=number * count // ROUNDS: fetch_one(broker, at)))  # type: ignore[misc]
        proxy.faults.clear()
        time.sleep(3)  # what was asked for ahead comes
    row("the longest pause of an idle loop", f"{statistics.median(idle):.1f} ms", "for comparison")
    ceiling("the longest pause of the loop while GETs take 2 s", statistics.median(slow), "ms", target=5)


def beat_while(broker: BrokerProcess, work: Callable[[], object]) -> float:
    """The longest round trip of a ping, in ms, while something else runs: measured in a process of its own, because this
    one is busy with the proxy."""
    command = [*FAVOURED, sys.executable, "-m", "bench.tier_load", "beat", str(broker.mqtt_port)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "beating\n"
        work()
        process.stdin.close()
        return float(process.stdout.readline())


def object_engine(server: S3Server, folder: Path) -> None:
    place = (f"tier.store=s3://bucket/{uuid.uuid4().hex}", f"tier.endpoint={server.endpoint}")
    rules = (f"{POLICY}engine=object", f"{POLICY}layout=dedicated")
    with BrokerProcess(folder / "objects", *place, *rules, environment=server.environment) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "linger.ms": 100,
            "batch.size": 1 << 20,
            "log_level": 0,
        }
        producers = [Producer(settings) for _ in range(4)]  # 500 requests of one connection wait at most
        producer = producers[0]
        topics = [f"b.t{number}" for number in range(OBJECT_TOPICS)]
        for topic in topics:
            producer.produce(topic, b"first")
        assert producer.flush(DEADLINE_S) == 0
        alone: list[float] = []
        for number in range(20):
            began = time.perf_counter()
            producer.produce(topics[number], VALUE)
            assert producer.flush(DEADLINE_S) == 0
            alone.append(time.perf_counter() - began)
        row(
            "engine object: an ack of one record at a time, p50",
            f"{statistics.median(alone):.2f} s",
            "0.25 s are its wait",
        )
        before = metric(broker, PUTS)
        acked: list[float] = []
        began, sent = time.perf_counter(), 0
        while (now := time.perf_counter() - began) < OBJECT_S:
            while sent < now * OBJECT_MB_S * 1_000:
                at = time.perf_counter()
                timed = None if sent % 50 else lambda _, __, at=at: acked.append(time.perf_counter() - at)
                try:
                    producers[sent % 4].produce(topics[sent % OBJECT_TOPICS], VALUE, on_delivery=timed)
                except BufferError:
                    break
                sent += 1
            for producer in producers:
                producer.poll(0.002)
        assert all(producer.flush(DEADLINE_S) == 0 for producer in producers)
        took = time.perf_counter() - began
        puts = (metric(broker, PUTS) - before) / took
        row(
            f"engine object, {OBJECT_TOPICS} topics: published",
            f"{sent / 1000 / took:.1f} MB/s",
            f"of {OBJECT_MB_S} asked",
        )
        ceiling("PUTs a second, merging included", puts, "", target=5)
        cuts = statistics.quantiles(acked, n=100)
        row("an ack takes at that rate, p50 and p99", f"{cuts[49]:.2f} s, {cuts[98]:.2f} s", "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=MIB)
    mib = max(parser.parse_args().mib, MIB_MIN)
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-tier-") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        with s3_server(folder / "store") as server, fault_proxy(server.endpoint) as proxy:
            os.environ.update(server.environment)
            print(f"{mib} MiB of records of {len(VALUE)} bytes\n")
            tier(server, proxy, folder, mib)
            object_engine(server, folder)


if __name__ == "__main__":
    main()
