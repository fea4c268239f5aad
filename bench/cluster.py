"""A cluster: three brokers, PostgreSQL and S3 on this machine, beside bare commits and bare PUTs.

`python -m bench cluster` takes four to six minutes. PostgreSQL syncs its commits here, and has no standby; the store is
SeaweedFS; clients are in this process. `MAINSTEM_BENCH_STORED_MB` (default 256) is what lies in the store for the failovers
with data, a gigabyte of it at most in tiered segments, the rest in bundles.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import asyncpg
import httpx
import psutil
from confluent_kafka import Producer

from bench.machine import ceiling, figure
from mainstem.storage.tier.store import ObjectStore, StoreSettings
from mainstem.testing.process import BrokerProcess
from tests.cluster.kit import Cluster
from tests.contract.postgres_server import PostgresServer
from tests.protocol.mqtt.raw import Raw, publish_packet
from tests.s3_server import S3Server, s3_server

VALUE, SMALL = b"x" * 1_000, b"x" * 64
PUBACK_BYTES = 4
ROUNDS, OF_EACH = 10, 40  # commits and acks by turns, so that both meet the same machine
WINDOW, WINDOW_S = 1_000, 8.0
WINDOW_BYTES = 96 << 10  # as it is stored
BULK_S, PUT_BYTES, PUTS_AT_ONCE = 10.0, 8 << 20, 4
BATCH, BATCHES_AT_ONCE = 1_000, 48  # records of a batch; batches that are not answered yet
KILLS, PAUSES, MOVES = 5, 2, 6
PACE_S, SETTLE_S = 0.005, 3.0  # of clients during planned hand-overs; after each
LOCAL_BYTES = 100_000_000
STORED_MB = int(os.environ.get("MAINSTEM_BENCH_STORED_MB", "256"))
TIERED_MB = 1_000  # of it at most through PostgreSQL
LARGE_BYTES, QUEUED_KB = 500_000, 64 << 10  # a record of the rest; what the client keeps of what is not answered
VOLUMES = 40  # of the store, which may have 50
COMMITS, PUTS = "mainstem_cluster_commits_total", 'mainstem_tier_requests_total{verb="PUT"}'


def p(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def metric(broker: BrokerProcess, name: str) -> float:
    lines = httpx.get(f"{broker.http_url}/metrics", timeout=30).text.splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name)), default=0.0)


class Shares:
    """`with Shares(cluster): ...` prints how many cores each part used: all of them share this machine's."""

    def __init__(self, cluster: Cluster) -> None:
        self._owners = {broker.pid: f"broker {name}" for name, broker in cluster.brokers.items()}

    def __enter__(self) -> None:
        self._began_s, self._before = time.perf_counter(), self._now()

    def __exit__(self, *_: object) -> None:
        took = time.perf_counter() - self._began_s
        used = {name: (now - self._before.get(name, 0.0)) / took for name, now in self._now().items()}
        told = sorted(((share, name) for name, share in used.items() if share > 0.02), reverse=True)
        print("  cores used:", ", ".join(f"{name} {share:.2f}" for share, name in told))

    def _now(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in psutil.process_iter(["pid", "name", "cpu_times"]):
            name = self._owners.get(one.pid, "clients" if one.pid == os.getpid() else "")
            name = name or {"postgres": "PostgreSQL", "weed": "SeaweedFS"}.get(one.info["name"], "")
            times = one.info["cpu_times"]
            if name and times is not None:
                found[name] = found.get(name, 0.0) + times.user + times.system
        return found


class BareCommits:
    """One row of VALUE and one transaction after the other, on one connection."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._run(asyncpg.connect(dsn))
        self._run(self._connection.execute("CREATE TABLE bare (value BYTEA)"))

    def _run(self, awaited: object) -> asyncpg.Connection:
        return self._loop.run_until_complete(awaited)  # type: ignore[arg-type]

    def once(self, value: bytes = VALUE) -> float:
        """Milliseconds."""
        began = time.perf_counter()
        self._run(self._connection.execute("INSERT INTO bare VALUES ($1)", value))
        return (time.perf_counter() - began) * 1e3


def ack_once(client: Raw) -> float:
    began = time.perf_counter()
    client.publish("bench/one", VALUE, qos=1)
    return (time.perf_counter() - began) * 1e3


def acks_beside_commits(cluster: Cluster, owner: BrokerProcess, other: BrokerProcess) -> float:
    """The bare commit's p50 in ms."""
    bare, commits, acks, relayed = BareCommits(cluster.dsn), list[float](), list[float](), list[float]()
    with Raw.connected(owner.mqtt_port) as direct, Raw.connected(other.mqtt_port) as relay:
        ack_once(direct), ack_once(relay)
        for _ in range(ROUNDS):
            commits += [bare.once() for _ in range(OF_EACH)]
            acks += [ack_once(direct) for _ in range(OF_EACH)]
            relayed += [ack_once(relay) for _ in range(OF_EACH)]
    print(f"bare commit of 1 kB: p50 {p(commits, 50):.2f} ms, p99 {p(commits, 99):.2f} ms")
    print(f"MQTT QoS 1 ack at the owner: p50 {p(acks, 50):.2f} ms; through a relay: p50 {p(relayed, 50):.2f} ms")
    ceiling("QoS 1 ack at the owner, p99", p(acks, 99), "ms", target=round(p(commits, 99) + 3, 2))
    ceiling("QoS 1 ack through a relay, p99", p(relayed, 99), "ms", target=round(p(commits, 99) + 3, 2))
    larger = [bare.once(bytes(WINDOW_BYTES)) for _ in range(ROUNDS * OF_EACH)]
    print(f"bare commit of {WINDOW_BYTES >> 10} KiB, as much as the window below: p50 {p(larger, 50):.2f} ms")
    return p(commits, 50)


def window(owner: BrokerProcess, commit_p50_ms: float) -> None:
    """A window of QoS 1 messages from one client, always full."""
    before, sent, got = metric(owner, COMMITS), WINDOW, 0
    packets = [publish_packet("bench/window", SMALL, qos=1, packet_id=1 + number) for number in range(WINDOW)]
    again = b"".join(packets)
    size = len(again) // WINDOW
    with Raw.connected(owner.mqtt_port) as client:
        client.socket.settimeout(30)
        began = time.perf_counter()
        client.socket.sendall(again)
        while got < sent * PUBACK_BYTES:
            got += len(client.socket.recv(1 << 16))
            room = WINDOW - (sent - got // PUBACK_BYTES)
            if room >= WINDOW // 10 and time.perf_counter() - began < WINDOW_S:
                first = sent % WINDOW
                room = min(room, WINDOW - first)
                client.socket.sendall(again[first * size : (first + room) * size])
                sent += room
        took = time.perf_counter() - began
    rate, allowed = sent / took, WINDOW / commit_p50_ms * 1e3
    print(f"window 1,000, 64 B: {rate:,.0f} messages/s, {(metric(owner, COMMITS) - before) / took:.0f} commits/s")
    figure("window 1,000, of window ÷ bare commit p50", rate / allowed * 100, "%", target=50)


def bare_puts(cluster: Cluster, store: ObjectStore) -> float:
    """MB/s of a loop of PUTs, several at once."""
    began, done, body = time.perf_counter(), 0, os.urandom(PUT_BYTES)  # SeaweedFS packs what looks like text
    with Shares(cluster), ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        while time.perf_counter() - began < BULK_S / 2:
            keys = [f"bare/{uuid.uuid4().hex}" for _ in range(PUTS_AT_ONCE)]
            list(pool.map(lambda key: store.put(key, body), keys))
            done += len(keys)
    return done * len(body) / (time.perf_counter() - began) / 1e6


def bulk(owner: BrokerProcess, bare: float) -> None:
    """The engine `object` beside bare PUTs of the same store. Batches are made before: the load costs next to nothing."""
    producer = Producer({"bootstrap.servers": owner.bootstrap_servers, "acks": "all"})
    producer.produce("bulk.b", VALUE)  # which makes the topic
    assert producer.flush(60) == 0
    told = owner.ports["kafka"], owner.pid, "bulk.b", BULK_S, BATCH, len(VALUE), BATCHES_AT_ONCE, 1
    commits, puts, began = metric(owner, COMMITS), metric(owner, PUTS), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bench.kafka_load", "produce", *map(str, told)], check=True, capture_output=True
    )
    took, found = time.perf_counter() - began, json.loads(done.stdout)
    rate = found["mb_per_s"]
    print(f"bulk lane: {rate:.1f} MB/s; bare PUTs of 8 MiB, {PUTS_AT_ONCE} at once: {bare:.1f} MB/s")
    print(
        f"  PUTs/s {(metric(owner, PUTS) - puts) / took:.1f}, commits/s {(metric(owner, COMMITS) - commits) / took:.1f}"
    )
    print(f"  an ack of a batch takes p50 {found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms")
    figure("bulk lane, of the bare PUT rate", rate / bare * 100, "%", target=70)


def until_acked(cluster: Cluster, name: str) -> float:
    """Seconds until a message sent to that broker is acknowledged, tried again and again."""
    began = time.perf_counter()
    while time.perf_counter() - began < 60:
        try:
            with Raw.connected(cluster[name].mqtt_port) as client:
                client.publish("bench/after", b"1", qos=1)
                return time.perf_counter() - began
        except (OSError, AssertionError):
            time.sleep(0.02)
    raise AssertionError("nobody took over")


def has_started_over(broker: BrokerProcess) -> bool:
    return "It starts over" in broker.log()


def failovers(cluster: Cluster, fault: signal.Signals, times: int) -> list[float]:
    """Seconds from killing or pausing the owner to an ack by a broker that goes on."""
    found = []
    for _ in range(times):
        owner = cluster.wait_owner()
        other = next(name for name in cluster.brokers if name != owner)
        if fault == signal.SIGKILL:
            cluster[owner].kill()
        else:
            cluster[owner].signal(fault)
        found.append(until_acked(cluster, other))
        if fault == signal.SIGKILL:
            cluster[owner].start()
        else:
            cluster[owner].signal(signal.SIGCONT)
            cluster.until(partial(has_started_over, cluster[owner]))
        cluster.wait_owner(other_than=owner)
    return found


class Publisher(threading.Thread):
    """A client of one broker that connects again at once, and notes when it was acknowledged."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self._port, self._topic = cluster[name].mqtt_port, f"bench/planned/{name}"
        self._acks = [time.perf_counter()]
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            try:
                with Raw.connected(self._port) as client:
                    client.socket.settimeout(15)
                    while not self.stopped:
                        client.publish(self._topic, SMALL, qos=1)
                        self._acks.append(time.perf_counter())
                        time.sleep(PACE_S)
            except (OSError, AssertionError):
                time.sleep(PACE_S)

    def longest_s(self, since: float) -> float:
        """Between two acks, the last one before then included."""
        acks = list(self._acks)
        first = max(number for number, at in enumerate(acks) if at <= since or number == 0)
        return max(later - earlier for earlier, later in itertools.pairwise(acks[first:]))


def hand_overs(cluster: Cluster) -> list[float]:
    """`cluster move main`, again and again: for each the longest that a client of any broker waited."""
    clients, found = [Publisher(cluster, name) for name in cluster.brokers], []
    for one in clients:
        one.start()
    for _ in range(MOVES):
        owner = cluster.wait_owner()
        names = list(cluster.brokers)
        target = names[(names.index(owner) + 1) % len(names)]
        time.sleep(SETTLE_S)
        began = time.perf_counter()
        cluster.run_cluster("move", "main", target)
        cluster.wait_owner(other_than=owner)
        time.sleep(SETTLE_S)
        found.append(max(one.longest_s(began) for one in clients))
    for one in clients:
        one.stopped = True
        one.join()
    return found


def store_much(cluster: Cluster) -> None:
    """Some of it through PostgreSQL into segments that are moved to the store, the rest by the bulk lane."""
    broker = cluster[cluster.wait_owner()]
    before = local_bytes(broker)
    tiered_mb = min(STORED_MB, TIERED_MB)
    produce(broker, "cold.a", VALUE, tiered_mb * 1_000)
    produce(broker, "bulk.stored", os.urandom(LARGE_BYTES), (STORED_MB - tiered_mb) * 1_000_000 // LARGE_BYTES)
    cluster.until(
        lambda: local_bytes(broker) < before + LOCAL_BYTES
    )  # little more than the newest segments is left here


def produce(broker: BrokerProcess, topic: str, value: bytes, count: int) -> None:
    settings = {"linger.ms": 50, "batch.size": 1 << 20, "queue.buffering.max.kbytes": QUEUED_KB}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1_000:
            producer.poll(0)
    assert producer.flush(300) == 0
    assert failed == []


def local_bytes(broker: BrokerProcess) -> int:
    return sum(file.stat().st_size for file in (broker.data / "cell-1" / "logs").rglob("*.log"))


def run(server: S3Server, folder: Path, stack: ExitStack) -> None:
    postgres = PostgresServer(options="-c fsync=on")
    stack.callback(postgres.remove)
    place = f"tier.endpoint={server.endpoint}", "policies.bulk/#.engine=object", "policies.bulk/#.layout=dedicated"
    rules = "tier=s3", "layout=dedicated", "local_retention_bytes=16MiB", "segment_bytes=16MiB"
    cold = [f"policies.cold/#.{rule}" for rule in rules]
    os.environ.update(server.environment)
    url = "s3://bucket/cluster"
    cluster = Cluster(folder, postgres, "a", "b", "c", settings=(f"tier.store={url}", *place, *cold))
    stack.enter_context(cluster)
    owner, other = cluster["a"], cluster["b"]
    commit_ms = acks_beside_commits(cluster, owner, other)
    with Shares(cluster):
        window(owner, commit_ms)
    store = ObjectStore(StoreSettings("s3://bucket/bare", server.endpoint, "us-east-1"))
    bare_mb_s = bare_puts(cluster, store)
    with Shares(cluster):
        bulk(owner, bare_mb_s)
    empty = failovers(cluster, signal.SIGKILL, KILLS)
    ceiling(f"kill -9 to the first ack, longest of {KILLS}", max(empty), "s", target=5)
    planned = hand_overs(cluster)
    print(f"cluster move main, longest wait of a client at any broker: p50 {statistics.median(planned):.2f} s")
    ceiling(f"the same, longest of {MOVES}", max(planned), "s", target=1)
    longest = max(failovers(cluster, signal.SIGSTOP, PAUSES))
    ceiling(f"pause to the first ack, longest of {PAUSES}", longest, "s", target=9)
    store_much(cluster)
    stored = failovers(cluster, signal.SIGKILL, KILLS)
    usual, then = statistics.median(empty), statistics.median(stored)
    print(f"kill -9 to the first ack: p50 {usual:.2f} s, with {STORED_MB} MB more {then:.2f} s")
    ceiling(f"the same with {STORED_MB} MB more stored, longer by", then - usual, "s", target=1)


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "s3").mkdir()
        volume_mib = max(64, STORED_MB // VOLUMES)
        run(stack.enter_context(s3_server(folder / "s3", volume_mib=volume_mib)), folder, stack)


if __name__ == "__main__":
    main()
