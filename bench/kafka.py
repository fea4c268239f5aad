"""Raw produce and fetch load on Mainstem and on Apache Kafka 4.3, in turn: `python -m bench.kafka [--seconds N]`.

Kafka is started from its published jars (Maven; skipped with the reason where that cannot be reached): KRaft, one node, its
defaults. The servers take turns with each workload, pinned to one core, the generator to another; same batches, acks=all.

    os        Mainstem's durability=os beside Kafka's default: neither waits for the disk
    sync      Mainstem's durability=sync beside Kafka's flush.messages=1: both do

Each server is warmed up with every workload before it is measured. The median of the rounds is kept; results go to
bench/results/kafka.md. Answers are the same size for every request, so the generator counts bytes, not records.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
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

from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.testing import BrokerProcess
from tests.protocol.kafka.java_clients import BROKER_4, Unavailable, classpath

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "kafka.md"
SERVER_CORE, LOAD_CORE = 1, 0
START_S_MAX = 60
FILL_MB_MIN = 4.0
FORMAT_ID = "4L6g3nShT-eMCtK--X86sw"


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    kind: str  # produce | fetch
    records: int
    record_bytes: int
    window: int
    connections: int
    topic: str = "bench"


WORKS = (
    Work("produce, one record a request, 100 B", "produce", 1, 100, 16, 4),
    Work("produce, 16 KiB batches, 100 B", "produce", 140, 100, 8, 4),
    Work("produce, 64 KiB batches, 100 B", "produce", 570, 100, 8, 2),
    Work("produce, 1 MiB batches, 100 B", "produce", 9_000, 100, 4, 2),
    Work("produce, 16 KiB batches, 1 KiB", "produce", 15, 1_024, 8, 4),
    Work("produce, 1 MiB batches, 1 KiB", "produce", 950, 1_024, 4, 2),
    Work("fetch, 1 MiB of 16 KiB batches", "fetch", 0, 0, 4, 2, "batches"),
    Work("fetch, 1 MiB of single records", "fetch", 0, 0, 4, 2, "singles"),
)
FILLS = (
    Work("fill", "produce", 140, 100, 8, 2, "batches"),
    Work("fill", "produce", 1, 100, 64, 2, "singles"),
)
LATENCY = Work("produce latency, one record at a time", "produce", 1, 100, 1, 1)
SYNC_WORKS = (
    Work("synced, one record a request, 100 B", "produce", 1, 100, 16, 4),
    Work("synced, 16 KiB batches, 100 B", "produce", 140, 100, 8, 4),
)


@dataclass(slots=True)
class Server:
    port: int
    pid: int
    started_s: float


def pin(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {SERVER_CORE})


def make_topic(port: int, name: str, **config: str) -> float:
    """Returns the seconds until it was there; the broker may still be starting."""
    began = time.monotonic()
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    while True:
        try:
            client.create_topics([NewTopic(name, 1, 1, config=config)], request_timeout=5)[name].result(10)
            return time.monotonic() - began
        except Exception:
            if time.monotonic() > began + START_S_MAX:
                raise


@contextlib.contextmanager
def mainstem(durability: str) -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="bench-mainstem-"))
    began = time.monotonic()
    try:
        with BrokerProcess(directory / "data", f"topics.durability={durability}") as broker:
            make_topic(broker.kafka_port, "bench")
            started_s = time.monotonic() - began
            for work in FILLS:
                make_topic(broker.kafka_port, work.topic)
            pin(broker.pid)
            yield Server(broker.kafka_port, broker.pid, started_s)
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
        make_topic(port, "bench", **topic_config)
        started_s = time.monotonic() - began
        for work in FILLS:
            make_topic(port, work.topic)
        pin(process.pid)
        yield Server(port, process.pid, started_s)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def load(server: Server, work: Work, seconds: float) -> dict[str, float]:
    arguments = [work.records, work.record_bytes, work.window, work.connections]
    command = [
        *("taskset", "-c", str(LOAD_CORE), sys.executable, str(ROOT / "bench" / "kafka_load.py")),
        *(work.kind, str(server.port), str(server.pid), work.topic, str(seconds), *map(str, arguments)),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def fill(server: Server, work: Work, seconds: float) -> None:
    """Until there is enough to fetch, however slow the machine is today."""
    filled_mb = 0.0
    while filled_mb < FILL_MB_MIN:
        filled_mb += load(server, work, seconds)["mb_per_s"] * seconds


Measured = dict[str, dict[str, float]]


def measure(
    servers: list[Server], works: tuple[Work, ...], seconds: float, rounds: int, warm_s: float
) -> list[Measured]:
    """The servers take turns with each workload, so that whatever else the machine does hits them alike."""
    fills = FILLS if any(work.kind == "fetch" for work in works) else ()
    for server in servers:
        for work in fills:
            fill(server, work, warm_s)
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


def lines(title: str, ours: Measured, theirs: Measured | None) -> list[str]:
    out = [
        f"## {title}",
        "",
        "| workload | ours req/s | Kafka req/s | rate | ours MB/s | Kafka MB/s | ours CPU ms/MB | Kafka CPU ms/MB | CPU |"
        " ours p99 ms | Kafka p99 ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, mine in ours.items():
        peer = theirs[name] if theirs is not None else None

        def both(key: str, digits: int, mine: dict[str, float] = mine, peer: dict[str, float] | None = peer) -> str:
            return f"{mine[key]:,.{digits}f} | {f'{peer[key]:,.{digits}f}' if peer else '-'}"

        rate = f"{mine['requests_per_s'] / peer['requests_per_s']:.1f}x" if peer else "-"
        cpu = f"{mine['cpu_ms_per_mb'] / peer['cpu_ms_per_mb']:.2f}x" if peer else "-"
        out.append(
            f"| {name} | {both('requests_per_s', 0)} | {rate} | {both('mb_per_s', 1)} | {both('cpu_ms_per_mb', 2)} |"
            f" {cpu} | {both('p99_ms', 2)} |"
        )
    return [*out, ""]


def report(sections: list[str], notes: list[str]) -> str:
    head = [
        "# Kafka load: Mainstem beside Apache Kafka 4.3",
        "",
        f"Made by `python -m bench.kafka` on {os.cpu_count()} cores, Python {platform.python_version()};",
        f"load average {os.getloadavg()[0]:.1f} at the end. Server and generator have a core each; acks=all.",
        "Only ratios inside one run mean something. `rate`: more is better for us; `CPU`: less is.",
        "On a machine that does other work (a load average well above 1) rates favour the server with more threads,",
        "which is given more turns on the shared core; CPU per MB and per request is then the figure to compare.",
        "",
    ]
    return "\n".join([*head, *notes, "", *sections])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds of each workload before measuring")
    options = parser.parse_args()
    timing = (options.seconds, options.rounds, options.warm)
    notes, sections = [], []
    plans = (
        ("No sync on either side", "os", (*WORKS, LATENCY), {}),
        ("Synced on both sides", "sync", SYNC_WORKS, {"flush.messages": "1"}),
    )
    for title, durability, works, config in plans:
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(mainstem(durability))]
            try:
                servers.append(stack.enter_context(kafka(**config)))
            except Unavailable as reason:
                notes.append(f"- Kafka was skipped: {reason}")
            measured = measure(servers, works, *timing)
        for name, server, results in zip(("Mainstem", "Kafka"), servers, measured, strict=False):
            memory_mb = max(one["rss_mb"] for one in results.values())
            notes.append(
                f"- {title}: {name} had its topic {server.started_s:.1f} s after its start; {memory_mb:.0f} MB."
            )
        sections += lines(title, measured[0], measured[1] if len(measured) > 1 else None)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(report(sections, notes))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
