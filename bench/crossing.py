"""Write amplification: bytes on disk ÷ bytes published, with 1, 5 and 20 views and queues on the same messages.

Persistent messages go to an exchange that every queue is bound to; on Mainstem there is also a view beside each queue.
RabbitMQ (fan-out to as many durable queues) is started from the installed package, and skipped with the reason where it
is not installed. What grows is the data directory: allocated blocks, at rest, nothing consumed. Mainstem is measured
between two clean stops; RabbitMQ as soon as its directory has stopped growing, running.

The target is that ours stays flat: with 20 at most 1.1 times what it is with 1.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika

from bench.amqp import rabbitmq
from bench.machine import ceiling
from mainstem.testing import BrokerProcess

COUNTS = (1, 5, 20)
SHAPES = ((4_000, 1_024), (400, 10_240))  # messages, bytes of each
QUIET_S, QUIET_S_MAX = 2.0, 30.0
START_S_MAX = 30.0
FLAT = 1.1
EXCHANGE = "amq.topic"
KEY = "bench.crossing.all"


def disk_bytes(folder: Path) -> int:
    """Allocated, not apparent: files that were made larger in advance count as what they occupy."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


@contextlib.contextmanager
def channel_to(host: str, port: int) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = connected(host, port)
    try:
        yield connection.channel()
    finally:
        connection.close()


def connected(host: str, port: int) -> pika.BlockingConnection:
    """RabbitMQ listens a moment before it answers."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            return pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
        except pika.exceptions.AMQPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def declare(channel: pika.adapters.blocking_connection.BlockingChannel, count: int) -> list[str]:
    names = [f"bench-{n}" for n in range(count)]
    for name in names:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, EXCHANGE, KEY)
    return names


def publish(
    channel: pika.adapters.blocking_connection.BlockingChannel, names: list[str], messages: int, size: int
) -> None:
    """Returns once every queue has them all."""
    persistent = pika.BasicProperties(delivery_mode=2)
    body = bytes(range(256)) * (size // 256)
    for _ in range(messages):
        channel.basic_publish(EXCHANGE, KEY, body, persistent)
    deadline = time.monotonic() + 60
    while any(channel.queue_declare(name, passive=True).method.message_count < messages for name in names):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {messages} messages arrived in each queue")
        time.sleep(0.05)


def ours(count: int, messages: int, size: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-crossing-") as place:
        broker = BrokerProcess(Path(place) / "data")
        with broker:
            with channel_to(broker.host, broker.amqp_port) as channel:
                names = declare(channel, count)
                publish(channel, names, 1, 256)  # so that what only a first message makes is there before
            for n in range(count):
                make_view(broker, f"view-{n}")
            broker.stop()
            before = disk_bytes(broker.data)
            broker.start()
            with channel_to(broker.host, broker.amqp_port) as channel:
                publish(channel, names, messages + 1, size)
            broker.stop()
            return (disk_bytes(broker.data) - before) / ((messages + 1) * size)


def make_view(broker: BrokerProcess, name: str) -> None:
    body = json.dumps({"name": name, "filter": "bench/#"}).encode()
    request = urllib.request.Request(f"{broker.http_url}/v1/views", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=20).close()


def theirs(count: int, messages: int, size: int) -> float:
    with rabbitmq() as server:
        folder = data_of(server.pid)
        with channel_to(server.address.host, server.address.port) as channel:
            names = declare(channel, count)
            before = settled_bytes(folder)
            publish(channel, names, messages, size)
        return (settled_bytes(folder) - before) / (messages * size)


def data_of(pid: int) -> Path:
    """The node's own directory, from the environment it was started with."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    entry = next(one for one in environment if one.startswith(b"RABBITMQ_MNESIA_BASE="))
    return Path(entry.partition(b"=")[2].decode())


def settled_bytes(folder: Path) -> int:
    """Once it has not changed for a while: RabbitMQ writes behind."""
    size, since, begun = disk_bytes(folder), time.monotonic(), time.monotonic()
    while time.monotonic() - since < QUIET_S and time.monotonic() - begun < QUIET_S_MAX:
        time.sleep(0.1)
        now = disk_bytes(folder)
        if now != size:
            size, since = now, time.monotonic()
    return size


def main() -> None:
    print("bytes on disk / bytes published; N queues (ours: and N views) on the same messages\n")
    print(f"{'':<30}" + "".join(f"{f'N = {count}':>10}" for count in COUNTS))
    for messages, size in SHAPES:
        shape = f"{messages:,} of {size:,} B"
        figures = [ours(count, messages, size) for count in COUNTS]
        print(f"{f'Mainstem, {shape}':<30}" + "".join(f"{figure:>10.2f}" for figure in figures), flush=True)
        try:
            peers = [theirs(count, messages, size) for count in COUNTS]
            print(f"{f'RabbitMQ, {shape}':<30}" + "".join(f"{figure:>10.2f}" for figure in peers), flush=True)
        except (FileNotFoundError, RuntimeError) as why:
            print(f"RabbitMQ: skipped, {why}")
        ceiling(f"growth from N = 1 to N = 20, {size:,} B", figures[-1] / figures[0], "times", target=FLAT)
        print()


if __name__ == "__main__":
    main()
