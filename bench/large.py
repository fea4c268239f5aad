"""Small messages beside large ones: how long the small ones wait, and how much memory the broker takes.

A small MQTT message every 5 ms at QoS 1, from a client that subscribes to them itself; `ack` ends on the disk, `delivery` at
the subscriber. Beside it, by one protocol after the other, a publisher of 50 MB messages and a consumer of them: the next is
sent when the last one is acknowledged and has arrived. Latency counts from when a message was due. Each protocol meets a
fresh broker, whose largest message is raised, on a machine whose memory is in use. In earnest the clients run on other
machines: so here publisher and consumer of large ones run at idle priority, by system calls that are short, and the small
ones' client, where it may, has a core as soon as something comes. `late` is the p99 of how late that client was itself when
it sent one: it comes before all others, so no core was to be had then, by the broker neither. `still` is the share of the
time in which no core of the machine ran; that part of a wait is taken off it (`standstill.py`).

    python -m bench large                                  # 50 MB, 15 seconds each
    python -m bench.large --megabytes 14 --seconds 5 --only amqp

Target: p99 of the small ones below 10 ms; memory bounded by a few large messages. They are shown, never asserted.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pika

from bench.machine import come_first, data_directory, fill_page_cache, step_back
from bench.noise import longest_turn, metrics, percentile, stalls
from bench.noise_load import HOST, Kafka, mqtt, publish, subscribe
from bench.standstill import Standstill, Wait, watched
from mainstem.codec.batch import BatchBuilder
from mainstem.testing import BrokerProcess

PERIOD_S = 0.005
ANSWER_S_MAX = 60
READY_S_MAX = 60
P99_MS_MAX = 10.0
TOPIC = "large/objects"
PIECE_BYTES = 64 << 10  # that a client of large ones sends or reads by one system call


# -- the large ones: `python -m bench.large --load PROTOCOL PORT BYTES`, a process of its own; a line for each that arrived


class PieceSocket(socket.socket):
    """Few kernels take a core from a system call before its end, whatever its priority: one of megabytes keeps it."""

    def send(self, data: memoryview, flags: int = 0) -> int:  # type: ignore[override]
        return super().send(memoryview(data)[:PIECE_BYTES], flags)

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        for at in range(0, len(data), PIECE_BYTES):
            super().sendall(memoryview(data)[at : at + PIECE_BYTES], flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(min(size, PIECE_BYTES), flags)

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0) -> int:  # type: ignore[override]
        return super().recv_into(buffer, min(size or len(buffer), PIECE_BYTES), flags)


def _read_exactly(client: socket.socket, view: memoryview) -> None:
    while len(view):
        size = client.recv_into(view)
        if not size:
            raise ConnectionError("the broker hung up")
        view = view[size:]


def _load_mqtt(port: int, size: int, arrived: Callable[[], None]) -> None:
    packet = publish(TOPIC, os.urandom(size), qos=1)
    reader, writer = mqtt(port, "large-reader"), mqtt(port, "large-writer")
    subscribe(reader, TOPIC)  # QoS 0
    buffer = memoryview(bytearray(len(packet) - 2))
    while True:
        receiving = threading.Thread(target=_read_exactly, args=(reader, buffer))
        receiving.start()
        writer.sendall(packet)
        _read_exactly(writer, memoryview(bytearray(4)))
        receiving.join()
        assert buffer[-64:] == packet[-64:]
        arrived()


def _load_amqp(port: int, size: int, arrived: Callable[[], None]) -> None:
    body, wanted = os.urandom(size), pika.ConnectionParameters(HOST, port)
    writing = pika.BlockingConnection(wanted).channel()
    writing.queue_declare("large", durable=True)
    writing.confirm_delivery()
    reading = pika.BlockingConnection(wanted).channel()
    reading.basic_qos(prefetch_count=1)
    messages = reading.consume("large")
    threading.Thread(target=lambda: [0 for _ in iter(lambda: _publish_amqp(writing, body), None)], daemon=True).start()
    for method, _, content in messages:
        assert content[-64:] == body[-64:]
        reading.basic_ack(method.delivery_tag)
        arrived()
        _go_on.release()


_go_on = threading.Semaphore(1)


def _publish_amqp(channel: pika.adapters.blocking_connection.BlockingChannel, body: bytes) -> bool:
    _go_on.acquire()
    channel.basic_publish("", "large", body, pika.BasicProperties(delivery_mode=2))
    return True


def _load_kafka(port: int, size: int, arrived: Callable[[], None]) -> None:
    builder = BatchBuilder()
    builder.add(b"k", os.urandom(size), (), 1)
    batch = bytes(builder.seal_batch(0))
    client = Kafka(port)
    client.create("large.objects", max_message_bytes=str(size + 1024))
    offset = 0
    while True:
        client.produce("large.objects", batch)
        while True:
            after, _ = client.fetch("large.objects", offset)
            if after > offset:
                break
        offset = after
        arrived()


LOADS = {"mqtt": _load_mqtt, "amqp": _load_amqp, "kafka": _load_kafka}


@contextmanager
def large_ones(protocol: str, port: int, size: int) -> Iterator[Callable[[], int]]:
    """Yields how to ask how many arrived so far."""
    command = [sys.executable, "-m", "bench.large", "--load", protocol, str(port), str(size)]
    count = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stdout is not None
            out = process.stdout
            if not select.select([out], [], [], READY_S_MAX)[0] or not out.readline():
                raise RuntimeError(f"{protocol}: no large message arrived within {READY_S_MAX} s")
            os.set_blocking(out.fileno(), False)

            def arrived() -> int:
                nonlocal count
                count += (out.read() or b"").count(b"\n")
                return count

            yield arrived
            if process.poll() is not None:
                raise RuntimeError(f"{protocol}: the large ones ended by themselves")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


# -- the small ones


@dataclass(slots=True)
class Small:
    """Until each was acknowledged, until each was delivered, and by how much it was sent late."""

    acks: list[Wait] = field(default_factory=list)
    deliveries: list[Wait] = field(default_factory=list)
    late: list[Wait] = field(default_factory=list)


def small_ones(port: int, seconds: float) -> Small:
    small = Small()
    acks, deliveries = small.acks, small.deliveries
    with mqtt(port, "small") as client, come_first():
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        subscribe(client, "small/topic")
        began, sent, last, answers = time.monotonic(), 0, int(seconds / PERIOD_S), b""
        while len(acks) < last or len(deliveries) < last:
            left = max(0.0, began + sent * PERIOD_S - time.monotonic()) if sent < last else ANSWER_S_MAX
            if select.select([client], [], [], left)[0]:
                answers += client.recv(65_536)
            elif sent < last:
                due = began + sent * PERIOD_S
                small.late.append(Wait(due, (time.monotonic() - due) * 1000))
                client.sendall(publish("small/topic", struct.pack(">I", sent), qos=1, number=sent % 65_535 + 1))
                sent += 1
            else:
                raise TimeoutError(f"not all answers came within {ANSWER_S_MAX} s")
            while len(answers) >= 2 and len(answers) >= 2 + answers[1]:
                kept = acks if answers[0] >> 4 == 4 else deliveries
                due = began + len(kept) * PERIOD_S
                kept.append(Wait(due, (time.monotonic() - due) * 1000))
                answers = answers[2 + answers[1] :]
    return small


def memory_mib(pid: int) -> float:
    """The most that the process ever took."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def line(name: str, small: Small, standstill: Standstill, more: str) -> None:
    acks, deliveries, late = (standstill.counted(waits) for waits in (small.acks, small.deliveries, small.late))
    p99 = percentile(acks, 0.99), percentile(deliveries, 0.99)
    told = f"{name:<14}{percentile(acks, 0.5):>9.2f}{p99[0]:>9.2f}{max(acks):>9.1f}"
    told += f"{percentile(deliveries, 0.5):>13.2f}{p99[1]:>9.2f}{max(deliveries):>9.1f}{percentile(late, 0.99):>7.1f}"
    told += f"{standstill.share:>7.1%}"
    print(f"{told}  {'reached' if max(p99) < P99_MS_MAX else 'MISSED '} {more}", flush=True)


def measure(protocol: str, size: int, seconds: float) -> None:
    limit = f"topics.message_bytes_max={size + (1 << 20)}"
    with (
        data_directory("large") as folder,
        BrokerProcess(folder / "data", limit) as broker,
    ):
        fill_page_cache()
        small_ones(broker.mqtt_port, 0.5)
        if not protocol:
            with watched() as standstill:
                small = small_ones(broker.mqtt_port, seconds)
            line("nobody else", small, standstill, f"{memory_mib(broker.pid):7.0f} MiB")
            return
        with large_ones(protocol, broker.ports[protocol], size) as arrived:
            before, began = stalls(metrics(broker.http_port)), time.monotonic()
            first = arrived()
            with watched() as standstill:
                small = small_ones(broker.mqtt_port, seconds)
            rate = (arrived() - first) / (time.monotonic() - began)
            turn, where = longest_turn(before, stalls(metrics(broker.http_port)))
        more = f"{memory_mib(broker.pid):7.0f} MiB {rate:9.1f}/s {turn:9.0f} {where}"
        line(protocol, small, standstill, more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=50, help="of a large message")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each protocol")
    parser.add_argument("--only", default="", help="one protocol")
    parser.add_argument("--load", nargs=3, metavar=("PROTOCOL", "PORT", "BYTES"), help="be the large ones")
    asked = parser.parse_args()
    if asked.load:
        step_back()
        socket.socket = PieceSocket  # type: ignore[misc]
        protocol, port, size = asked.load
        LOADS[protocol](int(port), int(size), lambda: print("arrived", flush=True))
    print(f"messages of {asked.megabytes} MB; ms")
    print(
        f"{'beside':<14}{'ack p50':>9}{'p99':>9}{'max':>9}{'delivery p50':>13}{'p99':>9}{'max':>9}{'late':>7}{'still':>7}"
        f"{'':>10}{'memory':>11}{'large':>12}{'turn':>10}"
    )
    for protocol in ["", *(name for name in LOADS if asked.only in ("", name))]:
        measure(protocol, asked.megabytes * 1_000_000, asked.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
