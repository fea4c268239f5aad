"""The first impression, beside the quickest brokers there are.

ready     from starting the process until it answers: /readyz of ours, the first accepted connection of the others
memory    resident, two seconds after
version   `mainstem --version`, beside a bare Python
state     with a million sessions or retained messages, and 10 GB of log, after a clean stop and after kill -9
          (`startup_load.py`); `more` is what it takes beyond an empty directory, `bytes` the memory of each
peers     the same data in ours and in a peer, both killed, until a client has an answer that needs it (`startup_peers.py`)
pages     the console's server time with 10,000 topics

Targets: ready in 0.5 s on an idle core, 100 MB, 1.5 s with a million of anything, 200 bytes a retained message, 1 s more for
10 GB, 300 ms a page.
Figures are shown, never asserted. `--part PART` runs one of ready, state, peers, pages; `--scale 0.01`
makes the data smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

PORTS = 10_000, 30_000
RETAINED_BYTES = 200  # of memory, each
ROUNDS = 5
TOPICS = 10_000
STATE_ROUNDS = 3
ROOMY = "/var/tmp"  # data of ten gigabytes: /tmp may lie in memory
READY_MS, MEMORY_MB, PAGE_MS = 500, 100, 300
MORE = (  # beside every page of the console as it opens
    "/topics?mode=table",
    "/topics?search=9999",
    "/topics?mode=table&filter=t/%2B/7",
    "/messages?filter=t/%23&from=-50",
    "/messages?topic=t/1/1&from=earliest",
    "/metrics",
    "/metrics/per-object",
)


def free_port() -> int:
    """Below those that the system gives out: other listeners of the broker, or a neighbour, may get one of these."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            port = random.randrange(*PORTS)
            one.bind(("127.0.0.1", port))
            return port


def ready_and_memory(command: Callable[[int, Path], list[str]], answers: Callable[[int], bool]) -> tuple[float, float]:
    """(milliseconds until it answers, MB two seconds after)."""
    times, sizes = [], []
    for _ in range(ROUNDS):
        port, folder = free_port(), Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
        began = time.perf_counter()
        process = subprocess.Popen(command(port, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                with contextlib.suppress(OSError):
                    if answers(port):
                        break
                time.sleep(0.002)
            times.append((time.perf_counter() - began) * 1000)
            time.sleep(2)
            sizes.append(psutil.Process(process.pid).memory_info().rss / 1e6)
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
    return statistics.median(times), statistics.median(sizes)


def knock(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 0.2):
        return True


def ask(port: int) -> bool:
    """Ours takes its ports before it recovers, so a connection alone says little."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
        return bool(answer.status == 200)


def ours(port: int, folder: Path) -> list[str]:
    # the HTTP port answers last: everything else is ready by then
    others = [part for name in ("mqtt", "ws", "kafka", "amqp", "nats") for part in (f"--{name}-port", "0")]
    return [sys.executable, "-m", "mainstem", "serve", "--data", str(folder / "d"), *others, "--http-port", str(port)]


def mosquitto(port: int, folder: Path) -> list[str]:
    return ["mosquitto", "-p", str(port)]


def nats(port: int, folder: Path) -> list[str]:
    return ["nats-server", "-js", "-p", str(port), "-sd", str(folder)]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def pages() -> list[str]:
    from mainstem.admin.console.pages import PAGES

    queries = {"/topic": "/topic?name=t/1/1", "/messages": "/messages?topic=t/1/1"}
    alone = [one.path for one in PAGES if one.path in queries or not one.under]  # the others are of one object each
    return [*(queries.get(path, path) for path in alone), *MORE]


@contextlib.contextmanager
def full_broker() -> Iterator[str]:
    from mainstem.server.clients import open_client
    from mainstem.server.clients.client import Address, Message
    from mainstem.testing import Broker

    with Broker() as broker:
        client = open_client(Address("mqtt", broker.host, broker.mqtt_port, "", "", "", {"qos": "1"}))
        for number in range(TOPICS):
            client.publish(Message(b"x", f"t/{number // 100}/{number % 100}"))
        client.flush()
        client.close()
        yield broker.http_url


def started(process: subprocess.Popen[bytes], port: int, began: float, output: Path) -> tuple[float, float]:
    """(seconds until ready, MB then)."""
    while True:
        assert process.poll() is None, f"it ended with {process.poll()} while it started: {output.read_text()}"
        with contextlib.suppress(OSError):
            if ask(port):
                break
        time.sleep(0.002)
    ready_s = time.perf_counter() - began
    time.sleep(1)
    return ready_s, psutil.Process(process.pid).memory_info().rss / 1e6


def start_on(folder: Path) -> tuple[float, float]:
    """Median of the rounds; what it loads is killed again, so that every round finds the same."""
    found = []
    for _ in range(STATE_ROUNDS):
        port, output = free_port(), folder / "output"
        with output.open("wb") as file:
            began = time.perf_counter()
            process = subprocess.Popen(ours(port, folder), stdout=file, stderr=file)
        try:
            found.append(started(process, port, began, output))
        finally:
            process.kill()
            process.wait()
    return statistics.median(ready for ready, _ in found), statistics.median(memory for _, memory in found)


STATE = (  # kind, how many, how it ended, seconds at most: to ready, or (log) more than an empty one
    ("sessions", 1_000_000, "stop", 1.5),
    ("sessions", 1_000_000, "kill", 1.5),
    ("retained", 1_000_000, "stop", 1.5),
    ("retained", 1_000_000, "kill", 1.5),
    ("log", 10_000_000, "kill", 1.0),
)


def show_state(scale: float) -> None:
    print(f"\n{'a data directory with':44}{'ready s':>9}{'more s':>9}{'MB':>8}{'bytes':>8}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mainstem-bench-") as place:
        empty_s, empty_mb = start_on(Path(place))
    print(f"{'nothing':44}{empty_s:>9.2f}{0:>9.2f}{empty_mb:>8.0f}", flush=True)
    for kind, full, end, limit_s in STATE:
        count = int(full * scale)
        with tempfile.TemporaryDirectory(prefix="mainstem-bench-", dir=ROOMY) as place:
            fill = [sys.executable, "-m", "bench.startup_load", kind, f"{place}/d", str(count), end]
            code = subprocess.run(fill, check=False).returncode
            assert code == (-9 if end == "kill" else 0), f"filling ended with {code}"
            ready_s, memory_mb = start_on(Path(place))
        each = "" if kind == "log" else f"{(memory_mb - empty_mb) * 1e6 / count:.0f}"
        in_time = (ready_s - empty_s if kind == "log" else ready_s) <= limit_s
        small = kind != "retained" or (memory_mb - empty_mb) * 1e6 <= RETAINED_BYTES * count
        reached = "reached" if in_time and small else "MISSED"
        name = (
            f"{count:,} {'records of 1 KiB' if kind == 'log' else kind}, {'kill -9' if end == 'kill' else 'clean stop'}"
        )
        print(
            f"{name:44}{ready_s:>9.2f}{ready_s - empty_s:>9.2f}{memory_mb:>8.0f}{each:>8}"
            f"   target {limit_s} s{' more' if kind == 'log' else ''}"
            f"{f' and {RETAINED_BYTES} bytes' if kind == 'retained' else ''} at most: {reached}",
            flush=True,
        )


def show_peers(scale: float) -> None:
    from bench.startup_peers import (
        Kafka,
        Mosquitto,
        Peer,
        RabbitMq,
        fill_amqp,
        fill_kafka,
        fill_mqtt,
        has_amqp,
        has_kafka,
        has_mqtt,
        missing,
        running,
        seconds_until,
    )
    from mainstem.testing import BrokerProcess

    retained, sessions, messages, records = (int(scale * n) for n in (200_000, 10_000, 200_000, 2_000_000))
    works: tuple[tuple[type[Peer], str, str, Callable[[int], object], Callable[[int], bool]], ...] = (
        (
            Mosquitto,
            "mqtt_port",
            f"{retained:,} retained, {sessions:,} sessions",
            lambda port: fill_mqtt(port, retained, sessions),
            lambda port: has_mqtt(port, retained),
        ),
        (
            RabbitMq,
            "amqp_port",
            f"{messages:,} messages in a queue",
            lambda port: fill_amqp(port, messages),
            lambda port: has_amqp(port, messages),
        ),
        (
            Kafka,
            "kafka_port",
            f"{records:,} records of 1 KiB in a topic",
            lambda port: fill_kafka(port, records),
            lambda port: has_kafka(port, records),
        ),
    )
    print(
        f"\n{'after kill -9, until a client has its data':44}{'ours s':>9}{'peer s':>9}{'ours MB':>9}{'peer MB':>9}",
        flush=True,
    )
    for make, listener, title, fill, has in works:
        with tempfile.TemporaryDirectory(prefix="mainstem-bench-", dir=ROOMY) as place:
            broker = BrokerProcess(Path(place) / "d")
            with broker:
                port = getattr(broker, listener)
                fill(port)
                broker.kill()
                began = time.perf_counter()
                broker.start()
                ours_s = seconds_until(lambda has=has, port=port: has(port), began)  # type: ignore[misc]
                ours_mb = psutil.Process(broker.pid).memory_info().rss / 1e6
        reason, peer_s, peer_mb = missing(make), 0.0, 0.0
        if not reason:
            with running(make) as peer:
                seconds_until(lambda peer=peer: knock(peer.port), time.perf_counter())  # type: ignore[misc]
                if make is Kafka:
                    time.sleep(3)  # it accepts connections before it serves
                fill(peer.port)
                if isinstance(peer, Mosquitto):
                    peer.write_down()
                peer.kill()
                began = time.perf_counter()
                peer.start()
                peer_s = seconds_until(lambda has=has, peer=peer: has(peer.port), began)  # type: ignore[misc]
                peer_mb = peer.memory_mb()
        theirs = f"{peer_s:>9.2f}{ours_mb:>9.0f}{peer_mb:>9.0f}" if not reason else f"{'-':>9}{ours_mb:>9.0f}{'-':>9}"
        print(f"{make.__name__ + ': ' + title:44}{ours_s:>9.2f}{theirs}  {reason}", flush=True)


def show_ready() -> None:
    print(f"{'':24}{'ready ms':>10}{'memory MB':>12}")
    for name, command in (("mainstem", ours), ("mosquitto", mosquitto), ("nats-server -js", nats)):
        answers = ask if command is ours else knock
        if name != "mainstem" and shutil.which(name.split()[0]) is None:
            print(f"{name:24}{'not installed':>22}")
            continue
        ready_ms, memory_mb = ready_and_memory(command, answers)
        reached = "reached" if ready_ms < READY_MS and memory_mb < MEMORY_MB else "MISSED"
        target = f"   target {READY_MS} ms and {MEMORY_MB} MB at most: {reached}" if name == "mainstem" else ""
        print(f"{name:24}{ready_ms:>10.0f}{memory_mb:>12.1f}{target}", flush=True)
    bare = statistics.median(seconds([sys.executable, "-c", "pass"]) for _ in range(ROUNDS))
    version = statistics.median(seconds([sys.executable, "-m", "mainstem", "--version"]) for _ in range(ROUNDS))
    print(f"{'mainstem --version':24}{version * 1000:>10.0f} ms; a bare Python takes {bare * 1000:.0f}", flush=True)


def show_pages() -> None:
    with full_broker() as url:
        print(f"\n{'with ' + format(TOPICS, ',') + ' topics':40}{'median ms':>10}{'worst':>8}{'bytes':>10}")
        for path in pages():
            times, size = [], 0
            for _ in range(ROUNDS + 1):
                began = time.perf_counter()
                size = len(urllib.request.urlopen(url + path).read())
                times.append((time.perf_counter() - began) * 1000)
            worst = max(times[1:])  # the first compiles its template
            reached = "reached" if worst < PAGE_MS else "MISSED"
            median = statistics.median(times[1:])
            print(f"{path:40}{median:>10.1f}{worst:>8.1f}{size:>10}   target {PAGE_MS} ms at most: {reached}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("ready", "state", "peers", "pages"), help="only this one")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data of `state` and `peers`")
    options = parser.parse_args()
    parts = {
        "ready": show_ready,
        "state": lambda: show_state(options.scale),
        "peers": lambda: show_peers(options.scale),
        "pages": show_pages,
    }
    for name, show in parts.items():
        if options.part in (None, name):
            show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
