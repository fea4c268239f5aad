"""One message in by one protocol, out by all of them, through real sockets: the demo and the console's "Try it"."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from mainstem.model.errors import InvalidArgument, MainstemError, NotFound
from mainstem.server.clients import open_client
from mainstem.server.clients.client import Address, Client, Message, Start
from mainstem.server.protocols import by_name

ARRIVAL_S = 8.0
READY_S = 8.0
POLL_S = 0.005


@dataclass(slots=True)
class Arrival:
    """How a message came out by one protocol; `error` if it did not."""

    protocol: str
    name: str  # the topic as the protocol spells it
    value: str = ""
    microseconds: int = 0  # since the append
    error: str | None = None
    arrived_ns: int = 0

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


def spelled(protocol: str, topic: str) -> str:
    return by_name()[protocol].spell(topic.encode())


def round_trip(
    ports: Mapping[str, int],
    host: str,
    protocol: str,
    topic: str,
    value: bytes,
    login: tuple[str, str] = ("", ""),
    namespace: str = "/",
) -> list[Arrival]:
    """Publish once; the arrivals in order of protocol. Blocks until all came or ARRIVAL_S is over."""
    readers = [name for name in by_name() if name in ports]
    if protocol not in readers:
        raise InvalidArgument(f"{protocol} is not one of {', '.join(readers)}")
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    addresses = {name: _address(name, host, ports[name], topic, login, namespace) for name in readers}
    receivers = [Receiver(name, addresses[name], value) for name in readers]
    for receiver in receivers:
        receiver.start()
    for receiver in receivers:
        receiver.ready.wait(READY_S)
    sent_ns = time.time_ns()
    address = addresses[protocol]
    with contextlib.closing(open_client(address)) as client:
        client.publish(Message(value, address.path))
        client.flush()
    for receiver in receivers:
        receiver.join(ARRIVAL_S)
    appended_ns = _append_time_ns(ports, host, topic, sent_ns, login) or sent_ns
    for receiver in receivers:
        arrival = receiver.arrival
        arrival.microseconds = max(0, arrival.arrived_ns - appended_ns) // 1000
    return [receiver.arrival for receiver in receivers]


def _address(protocol: str, host: str, port: int, topic: str, login: tuple[str, str], namespace: str) -> Address:
    """AMQP names the namespace when it connects; elsewhere it is the login's."""
    options = {"vhost": namespace} if protocol == "amqp" else {}
    return Address(protocol, host, port, *login, spelled(protocol, topic), options)


class Receiver(threading.Thread):
    """Subscribes, says it is ready, takes the first message with the wanted value."""

    def __init__(self, protocol: str, address: Address, wanted: bytes) -> None:
        super().__init__(daemon=True, name=f"try-{protocol}")
        self.arrival = Arrival(protocol, address.path, error="did not arrive")
        self.ready = threading.Event()
        self._address = address
        self._wanted = wanted

    def run(self) -> None:
        try:
            with contextlib.closing(open_client(self._address)) as client:
                self._subscribe(client)
                self.ready.set()
                self._take(client)
        except (MainstemError, OSError) as error:
            self.arrival.error = str(error)
        finally:
            self.ready.set()

    def _subscribe(self, client: Client) -> None:
        try:
            client.subscribe(self._address.path, Start("latest"))
        except NotFound:  # Kafka has no topic before something is in it; then all of it is news
            self.ready.set()
            deadline = time.monotonic() + ARRIVAL_S
            while True:
                try:
                    client.subscribe(self._address.path, Start("earliest"))
                    return
                except NotFound:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(POLL_S)

    def _take(self, client: Client) -> None:
        for message in client.messages(ARRIVAL_S):
            if message.value == self._wanted:
                self.arrival.arrived_ns = time.time_ns()
                self.arrival.value = self._wanted.decode(errors="replace")
                self.arrival.error = None
                return


def _append_time_ns(
    ports: Mapping[str, int], host: str, topic: str, sent_ns: int, login: tuple[str, str]
) -> int | None:
    """The newest record's stamp: when the broker appended it."""
    from mainstem.server.cli.api import Api

    if "http" not in ports:
        return None
    try:
        api = Api(f"http://{host}:{ports['http']}", login=login)
        found = api.get(f"/v1/messages?topic={quote(topic)}&from=-1")["items"]
    except MainstemError:
        return None
    stamps = [int(one["stamp"]) for one in found if int(one["stamp"]) >= sent_ns]
    return stamps[-1] if stamps else None
