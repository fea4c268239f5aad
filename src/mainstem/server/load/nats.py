"""NATS workloads against any broker: core, or JetStream with PubAcks and pull consumers.

Closed and open loops are as in `mqtt.py`. With `stream` the subjects belong to a stream: each publish is acknowledged, and
subscribers are one pull consumer's clients, which ack every message.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import Any

from mainstem.server.cli.failures import Refused
from mainstem.server.clients.client import Address, Start
from mainstem.server.clients.nats import NatsClient
from mainstem.server.load.measure import PIPELINED, Result, Timing, drive, idle_bytes_of

API = "$JS.API"
PULL = 1_000  # messages asked for at once
PULL_NS = 60_000_000_000
CONSUMER = "load"


@dataclass(frozen=True, slots=True)
class Workload:
    """A shape of traffic. `pairs`: publisher n has its own subscriber; else all subscribers get everything of all."""

    name: str
    publishers: int = 1
    subscribers: int = 1
    size: int = 64
    window: int = 10_000
    send_bytes: int = PIPELINED  # 0: one message for each send
    rate: float = 0.0  # messages a second in all; 0: closed loop
    pairs: bool = False
    topics: int = 1  # for each publisher
    stream: bool = False
    storage: str = "file"
    prefix: str = "load"  # of subjects

    def named(self, **changes: Any) -> Workload:
        return replace(self, **changes)

    @property
    def stream_name(self) -> str:
        return self.prefix.replace(".", "-")


class Client(NatsClient):
    """Good for connecting, asking and subscribing; then its socket goes to the generator."""

    @property
    def fd(self) -> int:
        return self._stream.socket.fileno()

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        inbox = f"_INBOX.load.{id(self)}"
        self._stream.send(b"SUB %b 9\r\n" % inbox.encode())
        text = json.dumps(body).encode()
        self._stream.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(text), text))
        answer = next(self.messages(idle_s=10.0), None)
        self._stream.send(b"UNSUB 9\r\n")
        found: dict[str, Any] = json.loads(answer.value or b"{}") if answer is not None else {}
        if not found or "error" in found:
            why = found.get("error", {}).get("description", "no answer")
            raise Refused(
                f"{self._stream.where} refuses {subject}: {why}", fix="is JetStream on, and this user an admin?"
            )
        return found

    def ask(self, line: bytes) -> None:
        self._stream.send(line)

    def leave(self) -> None:
        """What the generator left unread is nobody's."""
        self._stream.close()


def run(workload: Workload, address: Address, timing: Timing) -> Result:
    """One run of one workload."""
    from mainstem.server.load._nats import Load

    with contextlib.ExitStack() as stack:
        if workload.stream:
            _declare(_connect(stack, address), workload)
        load = Load(
            size=workload.size,
            window=workload.window,
            receivers=1 if workload.pairs or (workload.stream and workload.subscribers) else workload.subscribers,
            send_bytes=workload.send_bytes,
            rate=workload.rate,
            fronts=[_front(workload, p, t) for p in range(workload.publishers) for t in range(workload.topics)],
            topics_each=workload.topics,
            acks=workload.stream,
            batch=PULL if workload.stream else 0,
            in_order=not workload.stream or workload.subscribers < 2,
        )
        for n in range(workload.publishers):
            client = _connect(stack, address)
            if workload.stream:
                client.subscribe(f"_INBOX.{workload.prefix}.{n}", Start("latest"))
            load.add_publisher(client.fd, b"")
        for n in range(workload.subscribers):
            client = _connect(stack, address)
            if workload.stream:
                inbox = f"_INBOX.{workload.prefix}.c{n}"
                client.subscribe(inbox, Start("latest"))
                pull = _pull(workload, inbox)
                client.ask(pull)
                load.add_consumer(client.fd, pull)
            else:
                client.subscribe(_filter(workload, n), Start("latest"))
                load.add_subscriber(client.fd)
        return drive(workload.name, load, timing)


def _connect(stack: contextlib.ExitStack, address: Address) -> Client:
    client = Client(address)
    stack.callback(client.leave)
    return client


def _front(workload: Workload, publisher: int, topic: int) -> bytes:
    reply = f"_INBOX.{workload.prefix}.{publisher} " if workload.stream else ""
    return f"PUB {workload.prefix}.{publisher}.{topic} {reply}{workload.size}\r\n".encode()


def _filter(workload: Workload, subscriber: int) -> str:
    if workload.pairs:
        return f"{workload.prefix}.{subscriber}.{'*' if workload.topics > 1 else '0'}"
    one = workload.publishers == workload.topics == 1
    return f"{workload.prefix}.0.0" if one else f"{workload.prefix}.>"


def _declare(client: Client, workload: Workload) -> None:
    name = workload.stream_name
    with contextlib.suppress(Refused):
        client.request(f"{API}.STREAM.DELETE.{name}", {})
    stream = {"name": name, "subjects": [f"{workload.prefix}.>"], "storage": workload.storage, "num_replicas": 1}
    client.request(f"{API}.STREAM.CREATE.{name}", stream)
    if workload.subscribers:
        config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 100_000}
        body = {"stream_name": name, "config": config}
        client.request(f"{API}.CONSUMER.DURABLE.CREATE.{name}.{CONSUMER}", body)


def _pull(workload: Workload, inbox: str) -> bytes:
    body = json.dumps({"batch": PULL, "expires": PULL_NS}).encode()
    subject = f"{API}.CONSUMER.MSG.NEXT.{workload.stream_name}.{CONSUMER}"
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(body), body)


def remove(workload: Workload, address: Address) -> None:
    """Take away what `run` declared."""
    with contextlib.ExitStack() as stack:
        if workload.stream:
            _connect(stack, address).request(f"{API}.STREAM.DELETE.{workload.stream_name}", {})


def idle_bytes(address: Address, pid: int, *, connections: int) -> float:
    return idle_bytes_of(lambda stack: _connect(stack, address), pid, connections)
