"""The first impression, beside the quickest brokers there are: `python bench/startup.py`.

ready     from starting the process until it answers: /readyz of ours, the first accepted connection of the others
memory    resident, two seconds after
version   `mainstem --version`, beside a bare Python
pages     the console's server time with 10,000 topics

Targets: ready in 1.5 s, 100 MB, 300 ms a page. Figures are shown, never asserted.
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
PAGES = ("/", "/topics", "/topics?mode=table", "/topics?search=9999", "/topic?name=t/1/1", "/cursors", "/connections")


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
    others = [part for name in ("mqtt", "ws", "kafka", "amqp") for part in (f"--{name}-port", "0")]
    return [sys.executable, "-m", "mainstem", "serve", "--data", str(folder / "d"), *others, "--http-port", str(port)]


def mosquitto(port: int, folder: Path) -> list[str]:
    return ["mosquitto", "-p", str(port)]


def nats(port: int, folder: Path) -> list[str]:
    return ["nats-server", "-js", "-p", str(port), "-sd", str(folder)]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


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
        missed = "" if name != "mainstem" or (ready_ms < 1500 and memory_mb < 100) else "   target missed"
        print(f"{name:24}{ready_ms:>10.0f}{memory_mb:>12.1f}{missed}")
    bare = statistics.median(seconds([sys.executable, "-c", "pass"]) for _ in range(ROUNDS))
    version = statistics.median(seconds([sys.executable, "-m", "mainstem", "--version"]) for _ in range(ROUNDS))
    print(f"{'mainstem --version':24}{version * 1000:>10.0f} ms; a bare Python takes {bare * 1000:.0f}")
    with full_broker() as url:
        for path in PAGES:
            urllib.request.urlopen(url + path).read()
            began = time.perf_counter()
            size = len(urllib.request.urlopen(url + path).read())
            taken_ms = (time.perf_counter() - began) * 1000
            missed = "" if taken_ms < 300 else "   target missed"
            print(f"console {path:16}{taken_ms:>10.1f} ms {size:>8} bytes with {TOPICS} topics{missed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
