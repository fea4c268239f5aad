"""AMQP workloads against any broker.

Closed loop (no `rate`): a publisher has at most `window` messages that were not yet received by all their receivers (and
confirmed); nothing is dropped by overload, so whatever is missing was lost. Open loop (`rate`): messages are sent when they
are due, whether or not the broker keeps up, and latency is counted from then. Consumers ack everything a read brought.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from mainstem.protocols.amqp.methods import encode
from mainstem.testing.load.measure import CpuMeter, Result, resident_bytes

PIPELINED = 64 * 1024
DRAIN_SECONDS = 20.0  # until a backlog is consumed


@dataclass(frozen=True, slots=True)
class Workload:
    """Publishers to one queue with competing consumers, `pairs` with a queue each, or an exchange to `fanout` queues."""

    name: str
    publishers: int = 1
    consumers: int = 1
    persistent: bool = False  # durable queues, persistent messages, confirms
    size: int = 64
    window: int = 10_000
    send_bytes: int = PIPELINED  # 0: one message for each send
    rate: float = 0.0  # messages a second in all; 0: closed loop
    pairs: bool = False
    fanout: int = 0


class Client:
    """A blocking AMQP connection with one channel, good for declaring; then its socket goes to the generator."""

    def __init__(self, host: str, port: int, *, heartbeat: int = 0) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.expect("connection.start")
        self.send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
        self.expect("connection.tune")
        self.send(0, "connection.tune-ok", channel_max=2047, frame_max=131_072, heartbeat=heartbeat)
        self.call(0, "connection.open", virtual_host="/")
        self.call(1, "channel.open")

    def send(self, channel: int, name: str, **values: Any) -> None:
        payload = encode(name, **values)
        self.socket.sendall(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

    def call(self, channel: int, name: str, **values: Any) -> bytes:
        self.send(channel, name, **values)
        return self.expect(f"{name}-ok")

    def expect(self, name: str) -> bytes:
        wanted = encode(name)[:4]
        while True:
            head = self._exactly(7)
            kind, _, size = struct.unpack(">BHI", head)
            payload = self._exactly(size + 1)[:-1]
            if kind == 1:
                if payload[:4] != wanted:
                    raise ConnectionError(f"{payload!r} instead of {name}")
                return payload

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the broker closed the connection")
            self._buffer += piece
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


def publish_frames(exchange: str, key: str, size: int, *, persistent: bool) -> bytes:
    """basic.publish, content header and the head of the body frame."""
    method = encode("basic.publish", exchange=exchange, routing_key=key)
    properties = b"\x10\0\x02" if persistent else b"\x10\0\x01"
    header = struct.pack(">HHQ", 60, 0, size) + properties
    return b"".join(
        (
            struct.pack(">BHI", 1, 1, len(method)) + method + b"\xce",
            struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce",
            struct.pack(">BHI", 3, 1, size),
        )
    )


def _topology(client: Client, workload: Workload) -> tuple[list[tuple[str, str]], list[str]]:
    """Declare what the workload needs: where each publisher sends, what each consumer takes."""
    durable = workload.persistent
    count = workload.publishers if workload.pairs else workload.fanout or 1
    queues = [f"load.{n}" for n in range(count)]
    for queue in queues:
        client.call(1, "queue.delete", queue=queue)
        client.call(1, "queue.declare", queue=queue, durable=durable)
    if workload.fanout:
        client.call(1, "exchange.delete", exchange="load.fanout")
        client.call(1, "exchange.declare", exchange="load.fanout", type="fanout", durable=durable)
        for queue in queues:
            client.call(1, "queue.bind", queue=queue, exchange="load.fanout")
        return [("load.fanout", "")] * workload.publishers, queues
    targets = [("", queues[n] if workload.pairs else queues[0]) for n in range(workload.publishers)]
    return targets, queues if workload.pairs else queues * workload.consumers


def run(
    workload: Workload,
    host: str,
    port: int,
    *,
    seconds: float,
    pid: int | None = None,
    warm_seconds: float = 0.5,
    messages: int = 0,
) -> Result:
    """One run of one workload; the server's CPU is that of `pid`. Without consumers the backlog is left in the queues."""
    from mainstem.testing.load._amqp import Load

    with contextlib.ExitStack() as stack:
        maker = _connect(stack, host, port)
        targets, taken = _topology(maker, workload)
        if not workload.consumers:
            taken = []
        load = Load(
            size=workload.size,
            window=workload.window,
            receivers=(workload.fanout or 1) if taken else 0,
            send_bytes=workload.send_bytes,
            rate=workload.rate,
            confirms=workload.persistent,
            in_order=len(set(taken)) == len(taken),
        )
        for exchange, key in targets:
            client = _connect(stack, host, port)
            if workload.persistent:
                client.call(1, "confirm.select")
            frames = publish_frames(exchange, key, workload.size, persistent=workload.persistent)
            load.add_publisher(client.socket.fileno(), frames)
        for queue in taken:
            client = _connect(stack, host, port)
            client.call(1, "basic.consume", queue=queue, consumer_tag="c")
            client.socket.setblocking(False)
            load.add_consumer(client.socket.fileno())
        meter = CpuMeter(pid)
        meter.start()
        done = load.run(seconds, drain_seconds=DRAIN_SECONDS, warm_seconds=warm_seconds, messages=messages)
        server_seconds, own_share = meter.server_seconds(), meter.own_share()
    count = done["received_total"] or done["sent_total"]
    return Result(
        workload.name,
        done["seconds"],
        done["received"] / done["seconds"],
        done["lost"],
        done["duplicated"],
        done["reordered"],
        None if server_seconds is None or not count else server_seconds * 1e6 / count,
        own_share,
        load.percentile_us(0.5),
        load.percentile_us(0.99),
        load.percentile_us(0.999),
    )


def _connect(stack: contextlib.ExitStack, host: str, port: int) -> Client:
    client = Client(host, port)
    stack.callback(client.socket.close)
    return client


def idle_bytes(host: str, port: int, pid: int, *, connections: int) -> float:
    """Memory of the server for each connection that is there and does nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):  # whatever is allocated once is not the connections'
            _connect(stack, host, port)
        time.sleep(0.5)
        before = resident_bytes(pid)
        for _ in range(connections):
            _connect(stack, host, port)
        time.sleep(1.5)
        return (resident_bytes(pid) - before) / connections
