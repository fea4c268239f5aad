"""Wills: published when a client is lost, at once or after their delay, and once.

The journal forgets a will when the message it became is durable. A crash in between publishes it again: better twice than
never.

A will that waits is journaled, so that a restart does not forget it; so is the will of a connected client whose session
outlives us: if the broker is killed, that client is lost when the broker starts again, and the delay counts from there.

    kind "will": key = session key; value = due (ns; -1: its client is connected), namespace, topic, payload, QoS, retain,
                 properties, client id, delay (s)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mainstem.broker.delivery.ticket_waiters import Then
from mainstem.broker.namespaces.namespace import Namespace
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.state.journal import first_namespace
from mainstem.broker.state.shards import Shards
from mainstem.model.errors import MainstemError, NotAuthorized
from mainstem.model.topic_filter import check_topic

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.sessions.keeper import SessionKeeper

logger = logging.getLogger("mainstem.broker")

KIND = "will"
NS = 1_000_000_000
CONNECTED = -1  # not due before its client is lost
NO_TOPICS = (b"$SYS", b"$share", b"$queue", b"$stream", b"$delayed")


@dataclass(frozen=True, slots=True)
class Will:
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    delay_seconds: int = 0
    properties: bytes = b""  # as `ms-mqtt` stores them


@dataclass(slots=True)
class Waiting:
    due_ns: int
    namespace: str
    will: Will
    client_id: bytes
    delay_seconds: int = 0
    timer: asyncio.TimerHandle | None = None

    def encode(self) -> bytes:
        will = self.will
        return msgspec.msgpack.encode(
            (
                self.due_ns,
                self.namespace,
                will.topic,
                will.payload,
                will.qos,
                will.retain,
                will.properties,
                self.client_id,
                self.delay_seconds,
            )
        )

    @classmethod
    def decode(cls, value: bytes) -> Waiting:
        due_ns, namespace, topic, payload, qos, retain, properties, client_id, delay = msgspec.msgpack.decode(value)
        return cls(due_ns, namespace, Will(topic, payload, qos, retain, delay, properties), client_id, delay)


class Wills:
    def __init__(self, broker: Broker, keeper: SessionKeeper) -> None:
        self._broker = broker
        self._keeper = keeper
        self._waiting = Shards[bytes, Waiting]()
        self._sending = Shards[bytes, Waiting]()  # published, not yet durable; the journal still holds them
        broker.journal.register(KIND, self._apply, self._dump, first_namespace)

    def allows(self, principal: Principal, topic: bytes) -> bool:
        """A will is a publish like any other: it needs the right to its topic, and topics with a meaning take none."""
        if topic.partition(b"/")[0] in NO_TOPICS:
            return False
        return self._broker.access.allows(principal, Action.PUBLISH, topic)

    def check(self, principal: Principal, topic: bytes, *, bytes_max: int, levels_max: int) -> None:
        """When its client connects: a will that could not be published later is refused while somebody listens."""
        check_topic(topic, bytes_max=bytes_max, levels_max=levels_max)
        if not self.allows(principal, topic):
            raise NotAuthorized("its user may not publish to its topic")

    def arm(self, key: bytes, namespace: Namespace, will: Will, client_id: bytes, expiry_seconds: int) -> None:
        """A client with a session that outlives us is there. The caller's next journal ticket covers this too."""
        delay_seconds = min(will.delay_seconds, expiry_seconds)
        armed = self._waiting[key] = Waiting(CONNECTED, namespace.name, will, client_id, delay_seconds)
        self._broker.journal.put(KIND, key, armed.encode())

    def disarm(self, key: bytes) -> None:
        """That client is gone, however it went: what becomes of its will is known now (`plan`), or there is none."""
        armed = self._waiting.get(key)
        if armed is not None and armed.due_ns == CONNECTED:
            del self._waiting[key]
            self._forget(key)

    def lose(self, key: bytes) -> None:
        """That client is gone and its will counts: the journal keeps it until `plan` has made it durable elsewhere."""
        armed = self._waiting.get(key)
        if armed is not None and armed.due_ns == CONNECTED:
            del self._waiting[key]
            self._sending[key] = armed

    def drop(self, key: bytes) -> None:
        """Its client may not publish it."""
        if self._sending.pop(key, None) is not None:
            self._forget(key)

    def plan(self, key: bytes, namespace: Namespace, will: Will, client_id: bytes, delay_seconds: int) -> None:
        """Send it now, or when its delay ends; the session going on before then cancels it."""
        now_ns = self._broker.clock.now_ns()
        waiting = Waiting(now_ns + delay_seconds * NS, namespace.name, will, client_id, delay_seconds)
        journaled = self._sending.pop(key, None) is not None
        if not delay_seconds:
            if journaled:
                self._sending[key] = waiting
            self._send(key, waiting)
            return
        self._waiting[key] = waiting
        self._broker.journal.put(KIND, key, waiting.encode())
        self._arm(key, waiting, now_ns)

    def _arm(self, key: bytes, waiting: Waiting, now_ns: int) -> None:
        delay = max(0.0, (waiting.due_ns - now_ns) / NS)
        waiting.timer = asyncio.get_running_loop().call_later(delay, self.fire, key)

    def cancel(self, key: bytes) -> Waiting | None:
        """The session goes on."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._forget(key)
        return waiting

    def _forget(self, key: bytes) -> None:
        self._broker.journal.put(KIND, key, None)

    def keys_from(self, start: bytes) -> list[bytes]:
        return [key for key in {*self._waiting, *self._sending} if key.startswith(start)]

    def forget(self, key: bytes) -> None:
        """Its namespace is removed."""
        self.cancel(key)
        self.drop(key)

    def fire(self, key: bytes) -> None:
        """Its delay is over, or the session is: it waits no longer."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._sending[key] = waiting
            self._send(key, waiting)

    def _send(self, key: bytes, waiting: Waiting) -> None:
        """The journal forgets it once it is durable as a message: a crash in between sends it again."""
        will = waiting.will
        try:
            ticket = self._keeper.publish(
                self._broker.namespace(waiting.namespace),
                will.topic,
                will.payload,
                qos=will.qos,
                retain=will.retain,
                properties=will.properties,
                client_id=waiting.client_id,
            )
        except MainstemError as error:
            logger.warning("the will of %r was not published: %s", waiting.client_id, error)
            self._sent(key, waiting)
        else:
            ticket.wait(Then(lambda done: self._sent(key, waiting)))

    def _sent(self, key: bytes, waiting: Waiting) -> None:
        if self._sending.get(key) is waiting:  # else a newer one took its place
            del self._sending[key]
            if key not in self._waiting:
                self._forget(key)

    def close(self) -> None:
        for waiting in self._waiting.values():
            if waiting.timer is not None:
                waiting.timer.cancel()

    # -- recovery

    def start(self) -> None:
        now_ns = self._broker.clock.now_ns()
        for key, waiting in self._waiting.items():
            if waiting.due_ns == CONNECTED:  # the broker was killed: its client was lost with it
                waiting.due_ns = now_ns + waiting.delay_seconds * NS
                self._broker.journal.put(KIND, key, waiting.encode())
            self._arm(key, waiting, now_ns)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = Waiting.decode(value)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        """One that waits may be sent between two slices, and is then found with those; not the other way round."""
        for keys in (self._waiting.keys_in_slices(), self._sending.keys_in_slices()):
            for key in keys:
                waiting = self._waiting.get(key) or self._sending.get(key)  # the newer one counts
                if waiting is not None:
                    yield key, waiting.encode()
