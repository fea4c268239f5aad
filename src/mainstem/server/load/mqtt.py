"""MQTT workloads against any broker.

Closed loop (no `rate`): a publisher has at most `window` messages that were not yet received by all their receivers (and
acknowledged); nothing is dropped by overload, so whatever is missing was lost. Open loop (`rate`): messages are sent when
they are due, whether or not the broker keeps up, and latency is counted from then.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mainstem.protocols.mqtt.wire.packets import encode_packet
from mainstem.protocols.mqtt.wire.properties import encode_text
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import Address, Stream
from mainstem.server.load.measure import PIPELINED, Result, Timing, drive, resident_bytes

SUBSCRIBE_FILTERS_MAX = 1000  # in one packet
REFUSALS = {  # of 3.1.1; those of 5 have names of their own
    1: "it does not speak MQTT 3.1.1",
    2: "the client id is refused",
    3: "it is not available",
    4: "the user name or password is wrong",
    5: "not authorized",
}


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
    prefix: str = "load"  # of topics and client ids

    def named(self, **changes: Any) -> Workload:
        return replace(self, **changes)


class Client:
    """A blocking MQTT connection, good for connecting and subscribing; then its socket goes to the generator."""

    def __init__(self, address: Address, client_id: str, *, version: int = 4, keep_alive: int = 0) -> None:
        self.stream = Stream(address)
        self.version = version
        flags = 2 | (0xC0 if address.user else 0)
        body = encode_text(b"MQTT") + bytes((version, flags)) + struct.pack(">H", keep_alive)
        body += (b"\0" if version == 5 else b"") + encode_text(client_id.encode())
        if address.user:
            body += encode_text(address.user.encode()) + encode_text(address.password.encode())
        self.stream.send(encode_packet(1, 0, body))
        kind, answer = self.read()
        if kind != 2 or len(answer) < 2:
            raise WrongPeer(f"{self.stream.where} does not answer like MQTT")
        if answer[1]:
            why = REFUSALS.get(answer[1], f"reason {answer[1]}")
            raise Refused(f"{self.stream.where} refuses the connection: {why}", fix="mqtt://USER:PASSWORD@HOST:PORT")

    def subscribe(self, filters: list[str], qos: int) -> None:
        for at in range(0, len(filters), SUBSCRIBE_FILTERS_MAX):
            chunk = filters[at : at + SUBSCRIBE_FILTERS_MAX]
            body = b"\0\1" + (b"\0" if self.version == 5 else b"")
            body += b"".join(encode_text(one.encode()) + bytes((qos,)) for one in chunk)
            self.stream.send(encode_packet(8, 2, body))
            kind, answer = self.read()
            if kind != 9 or any(code >= 0x80 for code in answer[-len(chunk) :]):
                raise Refused(f"{self.stream.where} refuses to subscribe to {chunk[0]}")

    def read(self) -> tuple[int, bytes]:
        first = self.stream.read(1)[0]
        size = shift = 0
        while shift <= 21:
            digit = self.stream.read(1)[0]
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                return first >> 4, self.stream.read(size)
        raise WrongPeer(f"{self.stream.where} does not answer like MQTT")


def run(workload: Workload, address: Address, timing: Timing) -> Result:
    """One run of one workload."""
    from mainstem.server.load._mqtt import Load

    topics = [f"{workload.prefix}/{p}/{t}" for p in range(workload.publishers) for t in range(workload.topics)]
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
            load.add_publisher(_connect(stack, address, f"p{n}", workload).stream.socket.fileno())
        for n in range(workload.subscribers):
            client = _connect(stack, address, f"s{n}", workload)
            client.subscribe(list(_filters(workload, n, topics)), workload.qos)
            load.add_subscriber(client.stream.socket.fileno(), n if workload.exact else 0)
        return drive(workload.name, load, timing)


def _connect(stack: contextlib.ExitStack, address: Address, name: str, workload: Workload) -> Client:
    client = Client(address, f"{workload.prefix}-{name}".replace("/", "-"), version=workload.version)
    stack.callback(client.stream.close)
    return client


def _filters(workload: Workload, subscriber: int, topics: list[str]) -> Iterator[str]:
    if workload.pairs:
        yield f"{workload.prefix}/{subscriber}/{'+' if workload.topics > 1 else '0'}"
    elif workload.exact:
        yield from topics[subscriber :: workload.subscribers]
    elif len(topics) == 1:
        yield topics[0]
    else:
        yield f"{workload.prefix}/#"


def idle_bytes(address: Address, pid: int, *, connections: int, version: int = 4) -> float:
    """Memory of the server for each connection that is there and does nothing."""
    with contextlib.ExitStack() as stack:
        for n in range(50):  # whatever is allocated once is not the connections'
            stack.callback(Client(address, f"idle-warm{n}", version=version).stream.close)
        time.sleep(0.5)
        before = resident_bytes(pid)
        for n in range(connections):
            stack.callback(Client(address, f"idle-{n}", version=version, keep_alive=600).stream.close)
        time.sleep(1.5)
        return (resident_bytes(pid) - before) / connections
