"""MQTT load on Mainstem and on mosquitto, in turn: `python -m bench.mqtt [--seconds N] [--rounds N] [--only WORD]`.

mosquitto is started from the installed package, without persistence, once with each setting of `set_tcp_nodelay`; the
better of the two counts, workload by workload. The servers take turns within each round, each pinned to one core, the
generator to another; the median of the rounds is kept. Our log is on, and our acks leave after fdatasync.

Two more figures stand beside ours, to compare with: what this disk takes when nobody else writes, and how many messages
a program moves that only copies bytes from one socket to another, where no two can share a system call.

A target that is not reached is printed as MISSED. Results go to bench/results/mqtt.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from bench.compiling import compiled
from bench.machine import BACKED_BYTES, settle_machine, write_result
from mainstem.server.clients.client import Address
from mainstem.server.load.measure import Result, Timing, pin
from mainstem.server.load.mqtt import Workload, idle_bytes, run
from mainstem.testing import BrokerProcess

SERVER_CORE, LOAD_CORE = 1, 0
START_S_MAX = 10.0
LATENCY_TIMES = 4  # as long as a rate is measured: a p99 of one second at 1,000/s would be the tenth worst message
WARM_TOPICS_SECONDS = 1.0  # each topic is seen once, by mosquitto too
IDLE_CONNECTIONS = 10_000
IDLE_BYTES_MAX = 6_000
DISK_WRITES = ((4096, 1 << 20), (1 << 20, 256 << 20), (16 << 20, 512 << 20))  # bytes of a write, and of all
PROGRAM = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
CONFIGURATION = """listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay {nodelay}
log_dest none
"""


@dataclass(frozen=True, slots=True)
class Work:
    """`target`: how many times mosquitto's rate; of a latency: how much of mosquitto's p99 at most."""

    shape: Workload
    target: float


PAIRS = Workload("", publishers=50, subscribers=50, pairs=True, window=1, send_bytes=0)
WORKS = (
    Work(Workload("QoS 0, 1→1, 64 B"), 20),
    Work(Workload("QoS 0, 1→1, 1 KiB", size=1024, window=900), 20),
    Work(Workload("QoS 1, 1→1, 64 B", qos=1), 5),
    Work(Workload("QoS 1, 1→1, 1 KiB", qos=1, size=1024, window=900), 5),
    Work(Workload("QoS 1, 1→1, window 20, 64 B", qos=1, window=20), 1),
    Work(Workload("QoS 0, fan-out 1→100, 64 B", subscribers=100, window=1_000), 20),
    Work(Workload("QoS 0, fan-in 100→1, 64 B", publishers=100, window=100), 20),
    Work(PAIRS.named(name="QoS 0, 50 pairs, window 1, 64 B"), 1.5),
    Work(PAIRS.named(name="QoS 1, 50 pairs, window 1, 64 B", qos=1), 1),
    Work(Workload("QoS 0, 100,000 topics, wildcard", topics=100_000), 20),
    Work(Workload("QoS 0, 100,000 topics, exact", topics=100_000, subscribers=100, exact=True), 20),
    Work(Workload("latency at 1,000/s, 64 B", rate=1_000, send_bytes=0), 1),
    Work(Workload("latency at 5,000/s, 64 B", rate=5_000, send_bytes=0), 1),
)


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int
    writes: bool = False


@contextlib.contextmanager
def mainstem(broker_of: type[BrokerProcess] = BrokerProcess) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="mainstem-bench-") as directory,
        broker_of(Path(directory) / "data", "mqtt.subscriptions_max=200000") as broker,
    ):
        yield Server(broker.mqtt_port, broker.pid, writes=True)


@contextlib.contextmanager
def mosquitto(nodelay: str) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="mosquitto-bench-") as directory:
        path = Path(directory) / "mosquitto.conf"
        path.write_text(CONFIGURATION.format(port=port, nodelay=nodelay))
        process = subprocess.Popen([PROGRAM, "-c", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def copier() -> Iterator[Server]:
    """The bare copy: see `_copier.pyx`."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        process = get_context("fork").Process(target=compiled("_copier").copy_forever, args=(listener,), daemon=True)
        process.start()
        assert process.pid is not None
        try:
            yield Server(listener.getsockname()[1], process.pid)
        finally:
            process.kill()
            process.join()


@contextlib.contextmanager
def all_servers() -> Iterator[dict[str, Server]]:
    """Fresh ones for each workload: gigabytes of another's log are not to be felt."""
    with mainstem() as ours, mosquitto("false") as plain, mosquitto("true") as nodelay:
        yield {"mainstem": ours, "nodelay false": plain, "nodelay true": nodelay}


def disk() -> str:
    """What the disk under the log takes in the log's own way: write a piece behind the last, sync, and again."""
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-") as directory:
        fd = os.open(Path(directory) / "file", os.O_WRONLY | os.O_CREAT)
        try:
            small, middle, large = (_synced_writes(fd, size, total) for size, total in DISK_WRITES)
        finally:
            os.close(fd)
    return (
        f"this disk alone, each write synced: {1e6 / small:,.0f} µs for 4 KiB, {middle * 1.048576:,.0f} MB/s in pieces of "
        f"1 MiB, {large * 16.777216:,.0f} MB/s in pieces of 16 MiB"
    )


def _synced_writes(fd: int, size: int, total: int) -> float:
    """How many a second."""
    piece, began = os.urandom(size), time.monotonic()
    for at in range(0, total, size):
        os.pwrite(fd, piece, at)
        os.fdatasync(fd)
    return total / size / (time.monotonic() - began)


def bare_copy(seconds: float, rounds: int) -> str:
    shape = PAIRS.named(name="QoS 0, 50 pairs, window 1, 64 B")
    with copier() as server:
        results = [measure(shape, server, seconds) for _ in range(rounds)]
    rate, cpu = _median(results, "rate"), _median(results, "server_cpu_us")
    return f"{'  the same by a bare copy of bytes':<34}{rate:>12,.0f}/s{cpu:>9.2f} µs"


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def measure(shape: Workload, server: Server, seconds: float) -> Result:
    pin(SERVER_CORE, server.pid)
    settle_machine(BACKED_BYTES if server.writes and not shape.rate else 0)
    warm_seconds = 0.3 if shape.topics == 1 else WARM_TOPICS_SECONDS
    seconds *= LATENCY_TIMES if shape.rate else 1
    return run(shape, _address(server), Timing(seconds, warm_seconds, pid=server.pid))


def _address(server: Server) -> Address:
    return Address("mqtt", "127.0.0.1", server.port)


def compare(work: Work, servers: dict[str, Server], seconds: float, rounds: int) -> str:
    """Ours and each mosquitto, in turn, round after round: one line of the table."""
    results: dict[str, list[Result]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            results[name].append(measure(work.shape, server, seconds))
    ours = results.pop("mainstem")
    return _latency_line(work, ours, results) if work.shape.rate else _rate_line(work, ours, results)


def _rate_line(work: Work, ours: list[Result], theirs: dict[str, list[Result]]) -> str:
    rate, cpu = _median(ours, "rate"), _median(ours, "server_cpu_us")
    best = max(theirs.values(), key=lambda results: _median(results, "rate"))
    times = rate / _median(best, "rate")
    return (
        f"{work.shape.name:<34}{rate:>12,.0f}/s{cpu:>9.2f} µs{_median(best, 'rate'):>12,.0f}/s"
        f"{_median(best, 'server_cpu_us'):>9.2f} µs{times:>8.1f}x  target {work.target:g}x: "
        f"{'reached' if times >= work.target else 'MISSED'}{_faults(ours)}"
    )


def _latency_line(work: Work, ours: list[Result], theirs: dict[str, list[Result]]) -> str:
    best = min(theirs.values(), key=lambda results: _median(results, "p99_us"))
    columns = " ".join(
        f"{_median(results, name):>8.0f}" for results in (ours, best) for name in ("p50_us", "p99_us", "p999_us")
    )
    reached = _median(ours, "p99_us") <= _median(best, "p99_us") * work.target
    return f"{work.shape.name:<34}p50 p99 p99.9 µs: {columns}  p99: {'reached' if reached else 'MISSED'}{_faults(ours)}"


def _median(results: list[Result], name: str) -> float:
    return statistics.median(getattr(result, name) or 0.0 for result in results)


def _faults(results: list[Result]) -> str:
    lost, doubled, mixed = (sum(getattr(r, n) for r in results) for n in ("lost", "duplicated", "reordered"))
    return f"  lost {lost}, duplicated {doubled}, reordered {mixed}" if lost or doubled or mixed else ""


def idle(servers: dict[str, Server], connections: int) -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = min(connections, most - 200)
    ours = idle_bytes(_address(servers["mainstem"]), servers["mainstem"].pid, connections=connections)
    reached = "reached" if ours <= IDLE_BYTES_MAX else "MISSED"
    return f"{connections:,} idle connections: {ours:,.0f} bytes each  target {IDLE_BYTES_MAX:,} at most: {reached}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    pin(LOAD_CORE)
    version = subprocess.run([PROGRAM, "-h"], capture_output=True, text=True, check=False).stdout.splitlines()[0]
    lines = [f"{version}, without persistence, the better of set_tcp_nodelay true and false", ""]
    lines.append(f"{'':<34}{'mainstem':>14}{'CPU':>12}{'mosquitto':>14}{'CPU':>12}{'times':>9}")
    print("\n".join(lines), flush=True)
    for work in WORKS:
        if options.only in work.shape.name:
            with all_servers() as servers:
                lines.append(compare(work, servers, options.seconds, options.rounds))
            print(lines[-1], flush=True)
            if work.shape.name == "QoS 0, 50 pairs, window 1, 64 B":
                lines.append(bare_copy(options.seconds, options.rounds))
                print(lines[-1], flush=True)
    if not options.only:
        with all_servers() as servers:
            lines += (idle(servers, IDLE_CONNECTIONS), disk())
        print("\n".join(lines[-2:]), flush=True)
    if not options.only:
        write_result("mqtt", "MQTT beside mosquitto", "\n".join(lines))


if __name__ == "__main__":
    main()
