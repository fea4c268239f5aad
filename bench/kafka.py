"""Kafka load on Mainstem and on Apache Kafka 4.3, in turn: `python -m bench.kafka [--seconds N] [--rounds N] [--only WORD]`.

Kafka is started from its published jars (Maven; skipped with the reason where that cannot be reached): KRaft, one node, its
defaults. The servers take turns with each workload, pinned to one core, the generator to another; same batches, acks=all;
each measurement of producing has a topic of its own, deleted afterwards.

    os        Mainstem's durability=os beside Kafka's default: neither waits for the disk
    sync      Mainstem's durability=sync beside Kafka's flush.messages=1: both do

Each server is warmed up with every workload before it is measured; the median of the rounds is kept. A target that is not
reached is printed as MISSED. Results go to bench/results/kafka.md. A rate is one of bytes: a server's answers are all of one
size, but not of its peer's. A fetch is of two consumers at the same place, a scan of two at different ones, who read what
nobody has read just before. What sending alone costs is measured, too (`kafka_bare.py`). Half of Kafka's CPU is asked for
batches of 16 KiB and more; single records are fetched for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka_bare import bare_server
from bench.kafka_load import connect, produce_request
from bench.machine import BACKED_BYTES, settle_machine, write_result
from mainstem.testing import BrokerProcess
from tests.protocol.kafka.java_clients import BROKER_4, Unavailable, classpath

ROOT = Path(__file__).parents[1]
TITLE = "Kafka load beside Apache Kafka 4.3, Mainstem and generator on a core each"
SERVER_CORE, LOAD_CORE = 1, 0
START_S_MAX = 60
FILL_MB_MIN = 64.0  # of a topic that is fetched: more than a cache of the processor holds
FILL_S = 0.3  # which tells how fast it is
FORMAT_ID = "4L6g3nShT-eMCtK--X86sw"


@dataclass(frozen=True, slots=True)
class Work:
    """`times`: how many times Kafka's rate; `cpu`: how much of Kafka's CPU per MB at most; `p99`: at most Kafka's."""

    name: str
    kind: str  # produce | fetch | scan
    records: int
    record_bytes: int
    window: int
    connections: int
    times: float | None = 1
    cpu: float | None = 0.5
    p99: bool = True
    topic: str = ""


WORKS = (
    Work("produce, one record a request, 100 B", "produce", 1, 100, 16, 4, times=3),
    Work("produce, 16 KiB batches, 100 B", "produce", 140, 100, 8, 4),
    Work("produce, 64 KiB batches, 100 B", "produce", 570, 100, 8, 2),
    Work("produce, 1 MiB batches, 100 B", "produce", 9_000, 100, 4, 2),
    Work("produce, 16 KiB batches, 1 KiB", "produce", 15, 1_024, 8, 4),
    Work("produce, 1 MiB batches, 1 KiB", "produce", 950, 1_024, 4, 2),
    Work("fetch, 1 MiB of 16 KiB batches", "fetch", 0, 0, 4, 2, p99=False, topic="batches"),
    Work("fetch, 1 MiB of single records", "fetch", 0, 0, 4, 2, cpu=None, p99=False, topic="singles"),
    Work("scan, 1 MiB of 16 KiB batches", "scan", 0, 0, 4, 2, p99=False, topic="batches"),
    Work("scan, 1 MiB of single records", "scan", 0, 0, 4, 2, cpu=None, p99=False, topic="singles"),
)
FILLS = (
    Work("fill", "produce", 140, 100, 8, 2, topic="batches"),
    Work("fill", "produce", 1, 100, 64, 2, topic="singles"),
)
LATENCY = Work("produce, one record at a time", "produce", 1, 100, 1, 1, times=None, cpu=None)
SYNC_WORKS = (
    Work("synced, one record a request, 100 B", "produce", 1, 100, 16, 4, times=5),
    Work("synced, 16 KiB batches, 100 B", "produce", 140, 100, 8, 4, times=5),
)
RESIDENT_MB_MAX, START_S_TARGET = 150, 2.0
WARM_S = 1.2


@dataclass(slots=True)
class Server:
    port: int
    pid: int
    started_s: float  # until the first record was acked
    topic_config: dict[str, str]
    topics: int = 0

    def make_topic(self, name: str) -> None:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
        client.create_topics([NewTopic(name, 1, 1, config=self.topic_config)])[name].result(30)

    def delete_topic(self, name: str) -> None:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
        client.delete_topics([name])[name].result(30)


def pin(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {SERVER_CORE})


def first_ack(port: int, config: dict[str, str]) -> None:
    """Make a topic and produce to it; the broker may still be starting."""
    began = time.monotonic()
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    while True:
        try:
            client.create_topics([NewTopic("first", 1, 1, config=config)], request_timeout=5)["first"].result(10)
            break
        except Exception:
            if time.monotonic() > began + START_S_MAX:
                raise
    connect(port, produce_request("first", 1, 100)).socket.close()


@contextlib.contextmanager
def mainstem(durability: str, broker_of: type[BrokerProcess] = BrokerProcess) -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="bench-mainstem-"))
    began = time.monotonic()
    try:
        with broker_of(directory / "data", f"topics.durability={durability}") as broker:
            first_ack(broker.kafka_port, {})
            started_s = time.monotonic() - began
            pin(broker.pid)
            yield Server(broker.kafka_port, broker.pid, started_s, {})
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def kafka(**topic_config: str) -> Iterator[Server]:
    jars = classpath(*BROKER_4)
    directory = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
    port, controller = free_port(), free_port()
    settings = directory / "server.properties"
    settings.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory / "logs"}
offsets.topic.replication.factor=1
message.max.bytes=2000000
log.segment.delete.delay.ms=100
"""
    )
    java = ["java", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-cp", jars]
    format_command = [*java, "kafka.tools.StorageTool", "format", "-t", FORMAT_ID, "-c", str(settings)]
    subprocess.run(format_command, check=True, capture_output=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [*java, "kafka.Kafka", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        first_ack(port, topic_config)
        started_s = time.monotonic() - began
        pin(process.pid)
        yield Server(port, process.pid, started_s, topic_config)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def load(server: Server, work: Work, seconds: float) -> dict[str, float]:
    """One run. Without a topic named it has one of its own: what was written does not burden the next."""
    topic = work.topic
    if not topic:
        server.topics += 1
        topic = f"bench-{server.topics}"
        server.make_topic(topic)
    arguments = [work.records, work.record_bytes, work.window, work.connections]
    command = [
        *("taskset", "-c", str(LOAD_CORE), sys.executable, "-m", "bench.kafka_load"),
        *(work.kind, str(server.port), str(server.pid), topic, str(seconds), *map(str, arguments)),
    ]
    settle_machine(BACKED_BYTES if work.kind == "produce" else 0)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60, cwd=ROOT)
    if not work.topic:
        server.delete_topic(topic)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def fill(server: Server, work: Work) -> None:
    """Until there is enough to fetch, however slow the server is."""
    server.make_topic(work.topic)
    rate = load(server, work, FILL_S)["mb_per_s"]
    if rate * FILL_S < FILL_MB_MIN:
        load(server, work, FILL_MB_MIN / rate)


def bare_lines(server: Server, works: tuple[Work, ...], seconds: float, rounds: int) -> Iterator[str]:
    """What the kernel takes to send the same answers from a file."""
    for work in works:
        if work.kind == "fetch":
            with bare_server(server.port, work.topic) as (port, pid):
                bare = Server(port, pid, 0.0, {})
                cpu = statistics.median(load(bare, work, seconds)["cpu_ms_per_mb"] for _ in range(rounds))
            yield f"{work.name}: the same bytes by sendfile alone {cpu:.2f} ms/MB"


Measured = dict[str, dict[str, float]]


def measure(
    servers: list[Server], works: tuple[Work, ...], seconds: float, rounds: int, warm_s: float
) -> list[Measured]:
    """The servers take turns with each workload, so that whatever else the machine does hits them alike."""
    fills = FILLS if any(work.topic for work in works) else ()
    for server in servers:
        for work in fills:
            fill(server, work)
        for work in works:
            load(server, work, warm_s)
    found: list[dict[str, list[dict[str, float]]]] = [{work.name: [] for work in works} for _ in servers]
    for _ in range(rounds):
        for work in works:
            for server, runs in zip(servers, found, strict=True):
                runs[work.name].append(load(server, work, seconds))
    return [
        {name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in by_work.items()}
        for by_work in found
    ]


def judged(name: str, value: float, limit: float, *, at_most: bool = False) -> str:
    reached = value <= limit if at_most else value >= limit
    return f"{name} {'<=' if at_most else '>='} {limit:g}: {'reached' if reached else 'MISSED'}"


def lines(works: tuple[Work, ...], ours: Measured, theirs: Measured | None) -> Iterator[str]:
    yield f"{'':38}{'requests/s':^18}{'MB/s':^26}{'CPU ms/MB':^26}{'p99 ms':^20}"
    yield " " * 38 + "     ours    Kafka" + "     ours    Kafka   times" * 2 + "      ours     Kafka  targets"
    for work in works:
        mine, peer = ours[work.name], theirs[work.name] if theirs is not None else None
        line = f"{work.name:<38}"
        for key, width, digits in (
            ("requests_per_s", 9, 0),
            ("mb_per_s", 9, 1),
            ("cpu_ms_per_mb", 9, 2),
            ("p99_ms", 10, 2),
        ):
            line += f"{mine[key]:>{width},.{digits}f}" + (
                f"{peer[key]:>{width},.{digits}f}" if peer else f"{'-':>{width}}"
            )
            if key in ("mb_per_s", "cpu_ms_per_mb"):
                line += f"{mine[key] / peer[key]:>7.2f}x" if peer else f"{'-':>8}"
        yield line + "  " + verdict(work, mine, peer)


def verdict(work: Work, mine: dict[str, float], peer: dict[str, float] | None) -> str:
    if peer is None:
        return "nothing to compare with"
    said = []
    if work.times is not None:
        said.append(judged("rate", round(mine["mb_per_s"] / peer["mb_per_s"], 2), work.times))
    if work.cpu is not None:
        said.append(judged("CPU", round(mine["cpu_ms_per_mb"] / peer["cpu_ms_per_mb"], 2), work.cpu, at_most=True))
    if work.p99:
        said.append(judged("p99", round(mine["p99_ms"] / peer["p99_ms"], 2), 1, at_most=True))
    return ", ".join(said)


PLANS: tuple[tuple[str, str, tuple[Work, ...], dict[str, str]], ...] = (
    ("No sync on either side", "os", (*WORKS, LATENCY), {}),
    ("Synced on both sides", "sync", SYNC_WORKS, {"flush.messages": "1"}),
)


def compare(
    title: str, durability: str, works: tuple[Work, ...], config: dict[str, str], timing: tuple[float, int, float]
) -> Iterator[str]:
    yield f"{title}: Mainstem with durability={durability}, Kafka with {config or 'its defaults'}"
    yield ""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(mainstem(durability))]
        try:
            servers.append(stack.enter_context(kafka(**config)))
        except Unavailable as reason:
            yield f"Kafka was skipped: {reason}"
        measured = measure(servers, works, *timing)
        bare = list(bare_lines(servers[0], works, *timing[:2]))
    yield from lines(works, measured[0], measured[1] if len(measured) > 1 else None)
    yield ""
    yield from bare
    for name, server, results in zip(("Mainstem", "Kafka"), servers, measured, strict=False):
        memory_mb = max(one["rss_mb"] for one in results.values())
        line = f"{name}: first ack {server.started_s:.1f} s after its start, {memory_mb:.0f} MB resident"
        if name == "Mainstem":
            line += "  " + judged("start", round(server.started_s, 1), START_S_TARGET, at_most=True)
            line += ", " + judged("memory", round(memory_mb), RESIDENT_MB_MAX, at_most=True)
        yield line
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds of each workload before measuring")
    parser.add_argument("--only", default="", help="workloads whose name contains this word; nothing is written then")
    options = parser.parse_args()
    output = []
    for title, durability, works, config in PLANS:
        chosen = tuple(work for work in works if options.only in work.name)
        if not chosen:
            continue
        for line in compare(title, durability, chosen, config, (options.seconds, options.rounds, options.warm)):
            print(line, flush=True)
            output.append(line)
    if not options.only:
        write_result("kafka", TITLE, "\n".join(output))


if __name__ == "__main__":
    main()
