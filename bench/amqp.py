"""AMQP load on Mainstem and on RabbitMQ, in turn: `python -m bench.amqp [--seconds N] [--rounds N] [--only WORD]`.

RabbitMQ is started from the installed package with directories and a port of its own (skipped with the reason where it is
not installed). Both are started afresh for each workload and take turns in each of its rounds, pinned to one core, the
generator to another; the median of the rounds is kept.

    transient     messages and queues that no restart survives; the consumer acks
    persistent    durable queues, persistent messages, publisher confirms: both sync before they confirm
    window 1      50 pairs, each with one message under way: no batching is possible

The share of its core that each of the two used says what bounds a rate: the server, the generator, or (neither at 100 %)
the disk. A backlog and idle connections are measured on ours at full size, on RabbitMQ at what it reaches in the time.
All of it takes about eight minutes. A target that is not reached is printed as MISSED. Results go to bench/results/amqp.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.machine import BACKED_BYTES, settle_machine, write_result
from mainstem.server.clients.client import Address
from mainstem.server.load.amqp import Workload, idle_bytes, run
from mainstem.server.load.measure import Result, Timing, resident_bytes
from mainstem.testing import BrokerProcess

SERVER_CORE, LOAD_CORE = 1, 0
START_S_MAX = 60.0
LATENCY_TIMES = 6  # as long as a rate is measured: a p99 of one second at 1,000/s would be the tenth worst message
BACKLOG = 1_000_000
BACKLOG_S_MAX = {"Mainstem": 60.0, "RabbitMQ": 12.0}
IDLE_CONNECTIONS = {"Mainstem": 10_000, "RabbitMQ": 1_000}
TITLE = "AMQP: Mainstem beside RabbitMQ"
PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)


@dataclass(frozen=True, slots=True)
class Work:
    """`target`: how many times RabbitMQ's rate. A latency's p99 is to be below RabbitMQ's."""

    shape: Workload
    target: float = 0.0


WORKS = (
    Work(Workload("transient 1→1, 64 B"), 20),
    Work(Workload("transient 1→1, 1 KiB", size=1024), 20),
    Work(Workload("transient 10→10 on one queue, 64 B", publishers=10, consumers=10, window=1_000), 20),
    Work(Workload("transient to 10 queues, 64 B", fanout=10, window=1_000), 20),
    Work(Workload("persistent 1→1, 64 B", persistent=True), 10),
    Work(Workload("persistent 1→1, 1 KiB", persistent=True, size=1024), 10),
    Work(Workload("persistent to 10 queues, 64 B", persistent=True, fanout=10, window=1_000), 10),
    Work(Workload("window 1, 50 pairs, 64 B", publishers=50, pairs=True, window=1, send_bytes=0), 4),
    Work(Workload("latency at 1,000/s, 64 B", rate=1_000, send_bytes=0)),
)


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    address: Address
    pid: int


def pin(pid: int, core: int) -> None:
    """A process and all it has started; without a second core there is nothing to choose."""
    if (os.cpu_count() or 1) > 1:
        subprocess.run(["taskset", "-a", "-c", "-p", str(core), str(pid)], check=False, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def mainstem(broker_of: type[BrokerProcess] = BrokerProcess, name: str = "Mainstem") -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="bench-amqp-") as place:
        broker = broker_of(Path(place) / "data")
        with broker:
            pin(broker.pid, SERVER_CORE)
            yield Server(name, Address("amqp", broker.host, broker.amqp_port), broker.pid)


@contextlib.contextmanager
def rabbitmq() -> Iterator[Server]:
    """On a free port, with data, logs, configuration and node name of its own."""
    program = _rabbitmq_program()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="bench-rabbit-", ignore_cleanup_errors=True) as place:
        port, distribution = _free_port(), _free_port()
        folder = Path(place)
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\nlog.console = true\n"
        )
        environment = {
            **os.environ,
            "HOME": place,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{place}/feature_flags",
            "ERL_CRASH_DUMP": f"{place}/erl_crash.dump",
            "ERL_EPMD_PORT": str(_free_port()),
        }
        (folder / "plugins").write_text("[].\n")
        with (folder / "out").open("wb") as out:
            command = ["taskset", "-c", str(SERVER_CORE), program] if (os.cpu_count() or 1) > 1 else [program]
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            _wait_for(port, process, folder / "out")
            yield Server("RabbitMQ", Address("amqp", "127.0.0.1", port), process.pid)
        finally:
            _end(process)
            # Erlang's name server goes on by itself, in a session of its own; ours has a port of its own.
            subprocess.run(["epmd", "-kill"], env=environment, check=False, stdout=subprocess.DEVNULL)


def _rabbitmq_program() -> str | None:
    """Debian's wrapper changes the user, who could not write here; the program below it does not."""
    return next((path for path in PROGRAMS if Path(path).exists()), None) or shutil.which("rabbitmq-server")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], out: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    _end(process)
    raise RuntimeError(f"rabbitmq-server did not start: {out.read_text(errors='replace')[-500:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The session that we started, and only that."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 15)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def measure(
    servers: list[object], works: list[Work], seconds: float, rounds: int
) -> dict[tuple[str, str], list[Result]]:
    """Servers of their own for each workload: gigabytes of another's log are not to be felt."""
    found: dict[tuple[str, str], list[Result]] = {}
    for work in works:
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(start()) for start in servers]  # type: ignore[operator]
            for _ in range(rounds):
                for server in started:
                    fills = server.name != "RabbitMQ" and not work.shape.rate  # RabbitMQ writes a hundredth as much
                    settle_machine(BACKED_BYTES if fills else 0)
                    times = LATENCY_TIMES if work.shape.rate else 1
                    result = run(work.shape, server.address, Timing(seconds * times, pid=server.pid))
                    assert result.lost == result.reordered == 0, f"{server.name}: {result}"
                    found.setdefault((server.name, work.shape.name), []).append(result)
    return found


def median(results: list[Result], field: str) -> float:
    return statistics.median(getattr(result, field) or 0.0 for result in results)


def report(found: dict[tuple[str, str], list[Result]], works: list[Work]) -> Iterator[str]:
    yield "| workload | Mainstem msgs/s (CPU µs) | RabbitMQ msgs/s (CPU µs) | rate | CPU | our core, generator's |"
    yield "|---|---|---|---|---|---|"
    notes = []
    for work in works:
        name = work.shape.name
        ours, theirs = found.get(("Mainstem", name)), found.get(("RabbitMQ", name))
        if not ours:
            continue
        if work.shape.rate:
            yield from _latency(name, ours, theirs)
            if theirs and median(ours, "p99_us") > median(theirs, "p99_us"):
                notes.append(f"MISSED: {name}: p99 is above RabbitMQ's")
            continue
        mine = f"{median(ours, 'rate'):,.0f} ({median(ours, 'server_cpu_us'):.2f})"
        busy = f"{_server_share(ours):.0%}, {median(ours, 'generator_cpu_share'):.0%}"
        if not theirs:
            yield f"| {name} | {mine} | – | – | – | {busy} |"
            continue
        times = median(ours, "rate") / median(theirs, "rate")
        cheaper = median(theirs, "server_cpu_us") / median(ours, "server_cpu_us")
        peer = f"{median(theirs, 'rate'):,.0f} ({median(theirs, 'server_cpu_us'):.1f})"
        yield f"| {name} | {mine} | {peer} | {times:.1f}× | {cheaper:.1f}× | {busy} |"
        if times < work.target:
            notes.append(f"MISSED: {name}: {times:.1f}×, the target is {work.target:.0f}×")
    yield ""
    yield from notes


def _latency(name: str, ours: list[Result], theirs: list[Result] | None) -> Iterator[str]:
    def told(results: list[Result]) -> str:
        return f"p50 {median(results, 'p50_us'):.0f} µs, p99 {median(results, 'p99_us'):.0f} µs"

    yield f"| {name} | {told(ours)} | {told(theirs) if theirs else '–'} | | | |"


def _server_share(results: list[Result]) -> float:
    """Of its one core."""
    return statistics.median(result.rate * (result.server_cpu_us or 0.0) / 1e6 for result in results)


def report_memory(servers: list[object], backlog: int, idle: dict[str, int]) -> Iterator[str]:
    """Memory of a backlog nobody consumes, and of connections that do nothing."""
    yield "| memory | of a backlog of 1 KiB messages | of idle connections with a channel |"
    yield "|---|---|---|"
    for start in servers:
        with start() as server:  # type: ignore[operator]
            before = resident_bytes(server.pid)
            shape = Workload("backlog", consumers=0, size=1024, persistent=True, window=2_000)
            limit_s = BACKLOG_S_MAX[server.name]
            done = run(shape, server.address, Timing(limit_s, 0, messages=backlog, pid=server.pid))
            grown = resident_bytes(server.pid) - before
            stored = round(done.rate * done.seconds)
            why = "" if stored >= backlog * 0.99 else f" (all it took in {limit_s:.0f} s)"
            kept = f"+{grown / (1 << 20):.0f} MiB for {stored:,}{why}"
        with start() as server:  # type: ignore[operator]
            count = idle[server.name]
            each = idle_bytes(server.address, server.pid, connections=count)
            yield f"| {server.name} | {kept} | {each / 1024:.1f} KiB each of {count:,} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--backlog", type=int, default=BACKLOG)
    options = parser.parse_args()
    pin(os.getpid(), LOAD_CORE)
    servers: list[object] = [mainstem]
    lines: list[str] = []
    if _rabbitmq_program() is None:
        lines.append("RabbitMQ was not measured: rabbitmq-server is not installed\n")
    else:
        servers.append(rabbitmq)
    works = [work for work in WORKS if options.only in work.shape.name]
    lines += report(measure(servers, works, options.seconds, options.rounds), works)
    print("\n".join(lines), flush=True)
    if options.only:
        return 0
    write_result("amqp", TITLE, "\n".join(lines) + "\n")
    if options.backlog:
        memory = list(report_memory(servers, options.backlog, IDLE_CONNECTIONS))
        print("\n".join(memory))
        write_result("amqp", TITLE, "\n".join([*lines, "", *memory]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
