"""AMQP workloads against any broker.

Closed loop (no `rate`): a publisher has at most `window` messages that were not yet received by all their receivers (and
confirmed); nothing is dropped by overload, so whatever is missing was lost. Open loop (`rate`): messages are sent when they
are due, whether or not the broker keeps up, and latency is counted from then. Consumers ack everything a read brought.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Any

from mainstem.protocols.amqp.methods import encode
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import Address, Stream
from mainstem.server.load.measure import PIPELINED, Result, Timing, drive, idle_bytes_of

FRAME_BYTES_MAX = 131_072
SIZE_MAX = FRAME_BYTES_MAX - 8  # of a message: it is one frame
REFUSED = {"connection.tune": "the login"}  # what was asked for, where the answer is named otherwise
CLOSES = {encode("connection.close")[:4], encode("channel.close")[:4]}


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
    prefix: str = "load"  # of queues and exchanges


class Client:
    """A blocking AMQP connection with one channel, good for declaring; then its socket goes to the generator."""

    def __init__(self, address: Address) -> None:
        self.stream = Stream(address)
        self.stream.send(b"AMQP\0\0\x09\x01")
        self.expect("connection.start")
        login = f"\0{address.user or 'guest'}\0{address.password or 'guest'}".encode()
        able = {"capabilities": {"authentication_failure_close": True}}
        self.send(0, "connection.start-ok", client_properties=able, mechanism="PLAIN", response=login, locale="en_US")
        channels_max, frame_max = struct.unpack_from(">HI", self.expect("connection.tune"), 4)
        frame_max = min(frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self.send(0, "connection.tune-ok", channel_max=channels_max, frame_max=frame_max, heartbeat=0)
        self.call(0, "connection.open", virtual_host=address.path or "/")
        self.call(1, "channel.open")

    def send(self, channel: int, name: str, **values: Any) -> None:
        payload = encode(name, **values)
        self.stream.send(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

    def call(self, channel: int, name: str, **values: Any) -> bytes:
        self.send(channel, name, **values)
        return self.expect(f"{name}-ok")

    def expect(self, name: str) -> bytes:
        wanted = encode(name)[:4]
        while True:
            head = self.stream.read(7)
            kind, _, size = struct.unpack(">BHI", head)
            if kind not in (1, 2, 3, 8) or size > FRAME_BYTES_MAX:
                raise WrongPeer(f"{self.stream.where} does not answer like AMQP 0-9-1")
            payload = self.stream.read(size + 1)[:-1]
            if payload[:4] in CLOSES:
                said = payload[7 : 7 + payload[6]].decode(errors="replace")
                raise Refused(
                    f"{self.stream.where} refuses {REFUSED.get(name, name.removesuffix('-ok'))}: {said}",
                    fix="amqp://USER:PASSWORD@HOST:PORT/VHOST",
                )
            if kind == 1:
                if payload[:4] != wanted:
                    raise WrongPeer(f"{self.stream.where} answers with {payload[:4].hex()} instead of {name}")
                return payload


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
    queues = [f"{workload.prefix}.{n}" for n in range(count)]
    for queue in queues:
        client.call(1, "queue.delete", queue=queue)
        client.call(1, "queue.declare", queue=queue, durable=durable)
    if workload.fanout:
        exchange = f"{workload.prefix}.fanout"
        client.call(1, "exchange.delete", exchange=exchange)
        client.call(1, "exchange.declare", exchange=exchange, type="fanout", durable=durable)
        for queue in queues:
            client.call(1, "queue.bind", queue=queue, exchange=exchange)
        return [(exchange, "")] * workload.publishers, queues
    targets = [("", queues[n] if workload.pairs else queues[0]) for n in range(workload.publishers)]
    return targets, queues if workload.pairs else queues * workload.consumers


def remove(workload: Workload, address: Address) -> None:
    """Take away what `run` declared."""
    with contextlib.ExitStack() as stack:
        client = _connect(stack, address)
        for n in range(workload.publishers if workload.pairs else workload.fanout or 1):
            client.call(1, "queue.delete", queue=f"{workload.prefix}.{n}")
        if workload.fanout:
            client.call(1, "exchange.delete", exchange=f"{workload.prefix}.fanout")


def run(workload: Workload, address: Address, timing: Timing) -> Result:
    """One run of one workload. Without consumers the backlog is left in the queues."""
    from mainstem.server.load._amqp import Load

    with contextlib.ExitStack() as stack:
        targets, taken = _topology(_connect(stack, address), workload)
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
            client = _connect(stack, address)
            if workload.persistent:
                client.call(1, "confirm.select")
            frames = publish_frames(exchange, key, workload.size, persistent=workload.persistent)
            load.add_publisher(client.stream.socket.fileno(), frames)
        for queue in taken:
            client = _connect(stack, address)
            client.call(1, "basic.consume", queue=queue, consumer_tag="c")
            load.add_consumer(client.stream.socket.fileno())
        return drive(workload.name, load, timing)


def _connect(stack: contextlib.ExitStack, address: Address) -> Client:
    client = Client(address)
    stack.callback(client.stream.close)
    return client


def idle_bytes(address: Address, pid: int, *, connections: int) -> float:
    return idle_bytes_of(lambda stack: _connect(stack, address), pid, connections)
