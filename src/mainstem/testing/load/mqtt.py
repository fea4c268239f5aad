"""MQTT workloads against any broker.

Closed loop (no `rate`): a publisher has at most `window` messages that were not yet received by all their receivers (and
acknowledged); nothing is dropped by overload, so whatever is missing was lost. Open loop (`rate`): messages are sent when
they are due, whether or not the broker keeps up, and latency is counted from then.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mainstem.protocols.mqtt.packets import encode_packet
from mainstem.protocols.mqtt.properties import encode_text
from mainstem.testing.load.measure import CpuMeter, Result, resident_bytes

PIPELINED = 64 * 1024
SUBSCRIBE_FILTERS_MAX = 1000  # in one packet


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape of traffic. `pairs`: publisher n has its own subscriber; else all subscribers get everything of all."""

    name: str
    publishers: int = 1
    subscribers: int = 1
    qos: int = 0
    size: int = 64
    window: int = 10_000
    send_bytes: int = PIPELINED  # 0: one message for each send
    rate: float = 0.0  # messages a second in all; 0: closed loop
    pairs: bool = False
    topics: int = 1  # for each publisher
    exact: bool = False  # with many topics: subscribers share them out by name instead of by wildcard
    version: int = 4

    def named(self, **changes: object) -> Workload:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Workload(**{**values, **changes})


class Client:
    """A blocking MQTT connection, good for connecting and subscribing; then its socket goes to the generator."""

    def __init__(self, host: str, port: int, client_id: str, *, version: int = 4, keep_alive: int = 0) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.version = version
        body = encode_text(b"MQTT") + bytes((version, 2)) + struct.pack(">H", keep_alive)
        body += (b"\0" if version == 5 else b"") + encode_text(client_id.encode())
        self.socket.sendall(encode_packet(1, 0, body))
        kind, answer = self.read()
        if kind != 2 or answer[1] != 0:
            raise ConnectionError(f"CONNACK refused: {answer.hex()}")

    def subscribe(self, filters: list[str], qos: int) -> None:
        for at in range(0, len(filters), SUBSCRIBE_FILTERS_MAX):
            chunk = filters[at : at + SUBSCRIBE_FILTERS_MAX]
            body = b"\0\1" + (b"\0" if self.version == 5 else b"")
            body += b"".join(encode_text(one.encode()) + bytes((qos,)) for one in chunk)
            self.socket.sendall(encode_packet(8, 2, body))
            kind, answer = self.read()
            if kind != 9 or any(code >= 0x80 for code in answer[-len(chunk) :]):
                raise ConnectionError(f"SUBSCRIBE refused: {answer.hex()}")

    def read(self) -> tuple[int, bytes]:
        first = self._exactly(1)[0]
        size = shift = 0
        while True:
            digit = self._exactly(1)[0]
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                return first >> 4, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data


def run(
    workload: Workload, host: str, port: int, *, seconds: float, pid: int | None = None, warm_seconds: float = 0.5
) -> Result:
    """One run of one workload; the server's CPU is that of `pid`."""
    from mainstem.testing.load._mqtt import Load

    topics = [f"load/{p}/{t}" for p in range(workload.publishers) for t in range(workload.topics)]
    load = Load(
        qos=workload.qos,
        version=workload.version,
        size=workload.size,
        window=workload.window,
        receivers=1 if workload.pairs or workload.exact else workload.subscribers,
        step=workload.subscribers if workload.exact else 1,
        send_bytes=workload.send_bytes,
        rate=workload.rate,
        topics=[topic.encode() for topic in topics],
        topics_each=workload.topics,
    )
    with contextlib.ExitStack() as stack:
        for n in range(workload.publishers):
            load.add_publisher(_connect(stack, host, port, f"load-p{n}", workload).socket.fileno())
        for n in range(workload.subscribers):
            client = _connect(stack, host, port, f"load-s{n}", workload)
            client.subscribe(list(_filters(workload, n, topics)), workload.qos)
            client.socket.setblocking(False)
            load.add_subscriber(client.socket.fileno(), n if workload.exact else 0)
        meter = CpuMeter(pid)
        meter.start()
        done = load.run(seconds, warm_seconds=warm_seconds)
        server_seconds, own_share = meter.server_seconds(), meter.own_share()
    delivered = done["received_total"]
    return Result(
        workload.name,
        done["seconds"],
        done["received"] / done["seconds"],
        done["lost"],
        done["duplicated"],
        done["reordered"],
        None if server_seconds is None or not delivered else server_seconds * 1e6 / delivered,
        own_share,
        load.percentile_us(0.5),
        load.percentile_us(0.99),
        load.percentile_us(0.999),
    )


def _connect(stack: contextlib.ExitStack, host: str, port: int, client_id: str, workload: Workload) -> Client:
    client = Client(host, port, client_id, version=workload.version)
    stack.callback(client.socket.close)
    return client


def _filters(workload: Workload, subscriber: int, topics: list[str]) -> Iterator[str]:
    if workload.pairs:
        yield f"load/{subscriber}/+" if workload.topics > 1 else f"load/{subscriber}/0"
    elif workload.exact:
        yield from topics[subscriber :: workload.subscribers]
    elif len(topics) == 1:
        yield topics[0]
    else:
        yield "load/#"


def idle_bytes(host: str, port: int, pid: int, *, connections: int, version: int = 4) -> float:
    """Memory of the server for each connection that is there and does nothing."""
    with contextlib.ExitStack() as stack:
        for n in range(50):  # whatever is allocated once is not the connections'
            stack.callback(Client(host, port, f"idle-warm{n}", version=version).socket.close)
        time.sleep(0.5)
        before = resident_bytes(pid)
        for n in range(connections):
            stack.callback(Client(host, port, f"idle-{n}", version=version, keep_alive=600).socket.close)
        time.sleep(1.5)
        return (resident_bytes(pid) - before) / connections
