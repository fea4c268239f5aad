"""A small load: one sender and one receiver of a protocol, each in a thread, with the time each message took."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from typing import Any

from mainstem.server.clients import open_client
from mainstem.server.clients.client import Address, Message, Start

STAMP = struct.Struct(">Q")  # at the head of each value: when it was sent, in ns
SETTLE_S = 2.0  # without news after the last publish: the rest is not coming
TOPICS = {"mqtt": "bench/{}/m", "kafka": "bench.{}.k", "amqp": "bench.{}.a"}


def measure(protocol: str, host: str, port: int, *, size: int, seconds: float, rate: int) -> dict[str, Any]:
    """Publish for so many seconds; how many went, how many came, and how late."""
    topic = TOPICS[protocol].format(os.urandom(3).hex())
    address = Address(protocol, host, port, "", "", topic, {})
    with contextlib.closing(open_client(address)) as sender:
        sender.publish(Message(STAMP.pack(0), topic))  # the topic exists before anyone subscribes
        sender.flush()
        latencies: list[int] = []
        ready = threading.Event()
        receiver = threading.Thread(target=_receive, args=(address, latencies, ready), daemon=True)
        receiver.start()
        ready.wait(10)
        sent, busy_s, elapsed_s = _send(sender, topic, size, seconds, rate)
        receiver.join(SETTLE_S + 15)
    latencies.sort()
    return {
        "protocol": protocol,
        "published": sent,
        "per_second": round(sent / elapsed_s),
        "received": len(latencies),
        "p50_ms": _percentile(latencies, 0.50),
        "p99_ms": _percentile(latencies, 0.99),
        "max_ms": _percentile(latencies, 1.0),
        "sender_busy": round(busy_s / elapsed_s, 2),
    }


def _send(sender: Any, topic: str, size: int, seconds: float, rate: int) -> tuple[int, float, float]:
    """Open loop where a rate is given: a late message is counted from when it was due."""
    padding = b"x" * max(0, size - STAMP.size)
    started = time.monotonic()
    sent, idle_s = 0, 0.0
    while (now := time.monotonic()) - started < seconds:
        if rate:
            due = started + sent / rate
            if due > now:
                sender.flush()
                time.sleep(due - now)
                idle_s += due - now
        sender.publish(Message(STAMP.pack(time.time_ns()) + padding, topic))
        sent += 1
    sender.flush()
    elapsed_s = time.monotonic() - started
    return sent, elapsed_s - idle_s, elapsed_s


def _receive(address: Address, latencies: list[int], ready: threading.Event) -> None:
    with contextlib.closing(open_client(address)) as client:
        client.subscribe(address.path, Start("latest"))
        ready.set()
        for message in client.messages(SETTLE_S):
            (sent_ns,) = STAMP.unpack_from(message.value or b"")
            if sent_ns:
                latencies.append(time.time_ns() - sent_ns)


def _percentile(ordered: list[int], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 2)
