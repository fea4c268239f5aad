"""The first impression, beside the quickest brokers there are.

ready     from starting the process until it answers: /readyz of ours, the first accepted connection of the others
memory    resident, two seconds after
version   `mainstem --version`, beside a bare Python
pages     the console's server time with 10,000 topics

Targets: ready in 0.5 s on an idle core, 100 MB, 300 ms a page. Figures are shown, never asserted.
"""

from __future__ import annotations

import contextlib
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

ROUNDS = 5
TOPICS = 10_000
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
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
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
    return [*(queries.get(one.path, one.path) for one in PAGES), *MORE]


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


def main() -> int:
    print(f"{'':24}{'ready ms':>10}{'memory MB':>12}")
    for name, command in (("mainstem", ours), ("mosquitto", mosquitto), ("nats-server -js", nats)):
        answers = ask if command is ours else knock
        if name != "mainstem" and shutil.which(name.split()[0]) is None:
            print(f"{name:24}{'not installed':>22}")
            continue
        ready_ms, memory_mb = ready_and_memory(command, answers)
        reached = "reached" if ready_ms < READY_MS and memory_mb < MEMORY_MB else "MISSED"
        target = f"   target {READY_MS} ms and {MEMORY_MB} MB at most: {reached}" if name == "mainstem" else ""
        print(f"{name:24}{ready_ms:>10.0f}{memory_mb:>12.1f}{target}")
    bare = statistics.median(seconds([sys.executable, "-c", "pass"]) for _ in range(ROUNDS))
    version = statistics.median(seconds([sys.executable, "-m", "mainstem", "--version"]) for _ in range(ROUNDS))
    print(f"{'mainstem --version':24}{version * 1000:>10.0f} ms; a bare Python takes {bare * 1000:.0f}")
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
