"""An MQTT client that keeps its side of the protocol, remembers everything across connections, and judges the broker.

It publishes a numbered series and expects each number to be acknowledged; it subscribes with a session that outlives
connections and crashes, and expects each acknowledged number of others: at least once with QoS 1, exactly once with
QoS 2, the first time in the order of its publisher.
"""

from __future__ import annotations

import random
from collections import deque

from mainstem.protocols.mqtt.wire.properties import Property
from tests.protocol.mqtt.raw import Message, ack_packet, connect_packet, publish_packet, subscribe_packet
from tests.simulation.machine import Machine
from tests.simulation.network import Wire

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
WINDOW = 6
FOR_EVER = 0xFFFFFFFF


class Series:
    """What one client publishes to one topic: payloads "topic number", acknowledged up to some of them."""

    def __init__(self, topic: str, qos: int, *, retain: bool = False) -> None:
        self.topic, self.qos, self.retain = topic, qos, retain
        self.sent = 0  # numbers below were sent at least once
        self.acked: set[int] = set()
        self.kept: set[int] = set()  # the broker said that it has them: acknowledged, or a PUBREC came
        self.removed: set[int] = set()  # of a retained series: these took the message away

    def payload(self, number: int) -> bytes:
        return b"" if number in self.removed else b"%s %d" % (self.topic.encode(), number)


class MqttClient:
    def __init__(self, machine: Machine, name: str, rng: random.Random, subscribe: list[tuple[str, int]]) -> None:
        self.machine, self.name, self.rng = machine, name, rng
        self.subscriptions = subscribe
        self.receive_maximum = 0  # else it speaks MQTT 5, and catching up waits for its acks
        self.series: list[Series] = []
        self.wire: Wire | None = None
        self.connected = self.subscribed = False
        self._ids = 0
        self._out: dict[int, tuple[Series, int, bool]] = {}  # packet id → series, number, PUBREC came; in order
        self._queue: deque[tuple[Series, int]] = deque()
        self._pending: set[int] = set()  # QoS 2 identifiers received, not yet released
        self._acks: deque[bytes] = deque()
        self.got: dict[str, list[int]] = {}  # topic → numbers in the order they came, repeats of QoS 1 left out
        self.repeats: list[str] = []  # QoS 2 messages that came again
        self.excused: set[tuple[str, int]] = set()  # delivered before they were durable, and a power cut took them

    # -- what the history asks for

    def publish(self, series: Series, *, removes: bool = False) -> None:
        number, series.sent = series.sent, series.sent + 1
        if removes:
            series.removed.add(number)
        self._queue.append((series, number))

    def connect(self) -> None:
        if self.wire is not None and not self.wire.closed:
            return
        self.connected = False
        self._acks.clear()
        self.wire = Wire(self.machine.mqtt.make_connection(), lambda: self.machine.is_cut)
        properties = {Property.SESSION_EXPIRY: FOR_EVER, Property.RECEIVE_MAXIMUM: self.receive_maximum}
        self._send(
            connect_packet(
                self.name,
                version=self._version,
                clean=False,
                keep_alive=0,
                properties=properties if self.receive_maximum else None,
            )
        )

    def drop(self) -> None:
        if self.wire is not None:
            self.wire.drop()
        self.connected = False

    def forget_wire(self) -> None:
        """The broker's process died; what it had written may have arrived, or not."""
        if self.wire is not None and self.rng.random() < 0.5:
            self.read()
        if self.wire is not None:
            self.wire.closed = True
        self.wire, self.connected = None, False

    @property
    def _version(self) -> int:
        return 5 if self.receive_maximum else 4

    @property
    def idle(self) -> bool:
        """Nothing is left to be read, sent or answered. What the broker still owes may come later."""
        unread = self.wire is not None and self.wire.inbox and self.receive_maximum
        busy = self._out or self._queue or self._acks or self._pending or unread
        return self.connected and self.subscribed and not busy

    # -- one turn of its own

    def act(self, *, eager: bool = False) -> None:
        """Read what came, send some acks, publish what the window takes."""
        self.read()
        if not self.connected or self.wire is None or self.wire.closed:
            return
        count = len(self._acks) if eager else self.rng.randint(0, len(self._acks))
        data = b"".join(self._acks.popleft() for _ in range(count))
        while self._queue and len(self._out) < WINDOW and (eager or self.rng.random() < 0.8):
            series, number = self._queue.popleft()
            data += self._publish(series, number)
        if data:
            self._send(data)

    def _publish(self, series: Series, number: int) -> bytes:
        while True:
            self._ids = self._ids % 20 + 1  # few: identifiers are used again soon
            if self._ids not in self._out:
                break
        if series.qos:
            self._out[self._ids] = series, number, False
        return publish_packet(
            series.topic,
            series.payload(number),
            qos=series.qos,
            packet_id=self._ids,
            retain=series.retain,
            version=self._version,
        )

    def read(self) -> None:
        if self.wire is None:
            return
        data, self.wire.inbox = bytes(self.wire.inbox), bytearray()
        at = 0
        while at < len(data):
            first, size, shift = data[at], 0, 0
            at += 1
            while True:
                size |= (data[at] & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 0x80:
                    break
            self._take(first, data[at : at + size])
            at += size

    def _take(self, first: int, body: bytes) -> None:
        kind, packet_id = first >> 4, int.from_bytes(body[:2], "big")
        if kind == 2:
            assert body[1] == 0, f"{self.name}: refused with {body[1]}"
            self._resume()
        elif kind == 3:
            self._receive(Message(first, body, self._version))
        elif kind == 9:
            self.subscribed = True
        elif kind == PUBACK and packet_id in self._out:
            self._acknowledged(packet_id)
        elif kind == PUBREC and packet_id in self._out:
            series, number, _ = self._out[packet_id]
            self._out[packet_id] = series, number, True
            series.kept.add(number)
            self._acks.append(ack_packet(PUBREL, packet_id))
        elif kind == PUBCOMP and packet_id in self._out:
            self._acknowledged(packet_id)
        elif kind == PUBREL:
            self._pending.discard(packet_id)
            self._acks.append(ack_packet(PUBCOMP, packet_id))

    def _acknowledged(self, packet_id: int) -> None:
        series, number, _ = self._out.pop(packet_id)
        series.acked.add(number)
        series.kept.add(number)

    def _resume(self) -> None:
        """What was not acknowledged goes again, first of all and in order."""
        self.connected = True
        data = b""
        if not self.subscribed:
            data += subscribe_packet(*self.subscriptions, version=self._version) if self.subscriptions else b""
            self.subscribed = not self.subscriptions
        for packet_id, (series, number, recorded) in self._out.items():
            if recorded:
                data += ack_packet(PUBREL, packet_id)
            else:
                data += publish_packet(
                    series.topic,
                    series.payload(number),
                    qos=series.qos,
                    packet_id=packet_id,
                    retain=series.retain,
                    dup=True,
                    version=self._version,
                )
        if data:
            self._send(data)

    def _receive(self, message: Message) -> None:
        if message.qos == 2:
            known = message.packet_id in self._pending
            self._pending.add(message.packet_id)
            self._acks.append(ack_packet(PUBREC, message.packet_id))
            if known:
                return
        elif message.qos == 1:
            self._acks.append(ack_packet(PUBACK, message.packet_id))
        if not message.payload:
            return
        topic, number = message.payload.decode().rsplit(" ", 1)
        numbers = self.got.setdefault(topic, [])
        if int(number) not in numbers:
            numbers.append(int(number))
        elif message.qos == 2 and (topic, int(number)) not in self.excused:
            self.repeats.append(f"{topic} {number} (identifier {message.packet_id}, dup {message.dup})")

    def _send(self, data: bytes) -> None:
        assert self.wire is not None
        if not self.machine.is_cut:
            self.wire.send(data)

    # -- what must hold in the end

    def check(self, expected: dict[str, int]) -> None:
        """`expected`: topic → how many were published, all of them acknowledged."""
        assert not self.repeats, f"{self.name} got QoS 2 messages again: {self.repeats[:5]}"
        for topic, count in expected.items():
            numbers = self.got.get(topic, [])
            lost = sorted(set(range(count)) - set(numbers))
            assert not lost, f"{self.name} never got {topic} {lost[:5]} of {count}"
            assert numbers == sorted(numbers), f"{self.name} got {topic} out of order: {numbers}"
