"""The incoming half of an MQTT connection in plain Python. See `protocols/mqtt/wire/wire.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import Route
from mainstem.log.gather import Ticket
from mainstem.model.origin import Origin, RecordFlag
from mainstem.model.record import Header
from mainstem.protocols.mqtt.limits import Limits
from mainstem.protocols.mqtt.wire.packets import V5, Event, Packet, Publish, check_ack, decode
from mainstem.protocols.mqtt.wire.properties import Property, Reader
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation
from tests.oracles.mqtt_outbound import Outbound

if TYPE_CHECKING:
    from mainstem.broker.sessions.retained import Retained

ROUTES_MAX = 1 << 18
CLIENT_WANTED = 1
MARK_LIVE = 4
ALIAS_BYTES = 3

Resolve = Callable[[bytes], tuple[Route | None, int, int, int]]


class RouteTable:
    """Topic bytes to Route; an unknown topic is resolved, which may raise."""

    def __init__(self, resolve: Resolve, count_max: int = ROUTES_MAX) -> None:
        self._resolve = resolve
        self.count_max = count_max
        self.generation = 0
        self._found: dict[bytes, tuple[Route | None, int, int, int]] = {}

    @property
    def count(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        """Forget all: rights, filters or routes changed."""
        self.generation += 1
        self._found.clear()

    def find(self, topic: bytes) -> tuple[Route | None, int, int, int]:
        found = self._found.get(topic)
        if found is None:
            found = self._resolve(topic)
            if len(self._found) >= self.count_max:
                self.clear()
            self._found[topic] = found
        return found


@dataclass(slots=True)
class AckRun:
    """Acks that wait for one ticket: (kind, packet identifier, reason)."""

    ticket: Ticket | None
    acks: list[tuple[int, int, int]] = field(default_factory=list)
    repeated: list[int] = field(
        default_factory=list
    )  # of those: answers to repetitions, which wait for their turn only


@dataclass(slots=True)
class Fields:
    """One PUBLISH."""

    qos: int
    retain: bool
    topic: bytes
    packet_id: int
    properties: bytes
    payload: bytes
    alias: int | None = None
    is_text: bool = False
    is_special: bool = False


class Inbound:
    """Bytes in; records into the log, acks into the outbound half, and an event for each packet of the other kinds."""

    def __init__(self, outbound: Outbound, limits: Limits) -> None:
        self.outbound = outbound
        self.limits = limits
        self.version = 0
        self.authenticating = False
        self.packet_bytes_max = limits.connect_bytes_max
        self.receive_max = limits.receive_maximum
        self.alias_max = limits.topic_alias_maximum
        self.client_id = b""
        self.durable = False
        self.retained: Retained | None = None
        self.routes: RouteTable | None = None
        self.connection: Any = None  # whose bytes these are, and what it and its server share
        self.server: Any = None
        self.publisher: Any = None
        self.now_ns: Callable[[], int] = lambda: 0
        self.messages = 0
        self.unacked = 0
        self.waiting = False
        self._tail = b""
        self._at = 0
        self._received: set[int] = set()
        self._aliases: dict[int, bytes] = {}
        self._runs: deque[AckRun] = deque()
        self._completions = AckRun(None)
        self._time_ms = 0

    @property
    def received_count(self) -> int:
        return len(self._received)

    # -- bytes to packets

    def receive(self, data: bytes) -> None:
        """Bytes from the peer; then call `next` until it returns None."""
        self._tail = self._tail[self._at :] + data
        self._at = 0

    def feed(self, data: bytes, time_ms: int) -> Event | None:
        """`receive` and the first `next` in one."""
        self.receive(data)
        return self.next(time_ms)

    def data_received(self, data: bytes) -> None:
        """The connection's: what needs no decision is done here, the rest is handed to it."""
        connection, server, before = self.connection, self.server, self.messages
        if connection is None or connection.closing:
            return
        connection.heard_second = server.deadlines.second
        server.counters.bytes_in += len(data)
        if self.publisher is None or connection.held or connection.draining:
            connection.on_data(data)
            return
        connection.draining = True
        event, error = None, None
        try:
            self.publisher.check()
            event = self.feed(data, self.now_ns() // 1_000_000)
        except Exception as caught:
            error = caught
        connection.draining = False
        if event is not None or error is not None or self.waiting:
            connection.on_event(event, before, error)
            return
        if self.messages != before:
            server.counters.messages_in += self.messages - before
            if server.ticker.pressed:
                server.ticker.press(connection)
        if self.outbound.progress:
            connection.on_progress()

    def next(self, time_ms: int) -> Event | None:
        """The next packet that needs a decision; publishes and acks on the way there are done when this returns."""
        self._time_ms = time_ms
        while (packet := self._next_packet()) is not None:
            event = self._packet(*packet)
            if event is not None:
                return event
        return None

    def _next_packet(self) -> tuple[int, bytes] | None:
        data, at = self._tail, self._at
        size = shift = 0
        while True:
            at += 1
            if at >= len(data):
                return None
            size |= (data[at] & 0x7F) << shift
            if data[at] < 0x80:
                break
            shift += 7
            if shift > 21:
                raise _not_a_length()
        if shift and data[at] == 0:
            raise _not_a_length()
        start, end = at + 1, at + 1 + size
        if end - self._at > self.packet_bytes_max:
            raise Violation(Reason.PACKET_TOO_LARGE, f"packet of {end - self._at} bytes, limit {self.packet_bytes_max}")
        if end > len(data):
            return None
        first, self._at = data[self._at], end
        return first, data[start:end]

    def _packet(self, first: int, body: bytes) -> Event | None:
        kind, flags = first >> 4, first & 15
        if self.authenticating:
            if kind not in (Packet.AUTH, Packet.DISCONNECT):
                raise Violation(Reason.PROTOCOL_ERROR, "neither AUTH nor DISCONNECT before CONNACK")
        elif self.version == 0:
            if kind != Packet.CONNECT:
                raise Violation(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")
        elif kind == Packet.PUBLISH:
            return self._publish(self._fields(flags, body))
        elif Packet.PUBACK <= kind <= Packet.PUBCOMP:
            self._ack(kind, flags, body)
            return None
        elif kind == Packet.CONNECT:
            raise Violation(Reason.PROTOCOL_ERROR, "a second CONNECT")
        return decode(kind, flags, body, V5 if self.authenticating else self.version, self.limits)

    # -- PUBLISH

    def _publish(self, fields: Fields) -> Event | None:
        self.messages += 1
        if fields.qos == 2 and fields.packet_id in self._received:  # a repetition: it is in the log, or on its way
            self._answer(None, 2, fields.packet_id, 0)
            return None
        if fields.qos:
            if self.version == 5 and self.unacked >= self.receive_max:
                raise Violation(
                    Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {self.receive_max} publishes unacknowledged"
                )
            self.unacked += 1
        if fields.is_text and not _is_utf8(fields.payload):
            if fields.qos == 0:
                raise Violation(Reason.PAYLOAD_FORMAT_INVALID, "the payload is not the UTF-8 that it claims to be")
            self._answer(None, fields.qos, fields.packet_id, Reason.PAYLOAD_FORMAT_INVALID)
            return None
        if fields.is_special or fields.topic.startswith(b"$"):
            return Publish(fields.topic, fields.payload, fields.qos, fields.retain, fields.packet_id, fields.properties)
        assert self.routes is not None
        route, reason, marks, bytes_max = self.routes.find(fields.topic)
        if route is not None and len(fields.payload) > bytes_max:
            route, reason = None, Reason.QUOTA_EXCEEDED
        if route is not None and marks & MARK_LIVE and (fields.qos or fields.retain):
            return Publish(fields.topic, fields.payload, fields.qos, fields.retain, fields.packet_id, fields.properties)
        if route is not None:
            self._append(route, marks, fields)
        elif fields.qos and (self.version == 5 or reason == Reason.NOT_AUTHORIZED):
            self._answer(None, fields.qos, fields.packet_id, reason)
        elif reason != Reason.NOT_AUTHORIZED:  # it cannot be told: better a closed connection than a silent loss
            raise Violation(reason, "a publish was refused")
        return None

    def _fields(self, flags: int, body: bytes) -> Fields:
        qos = flags >> 1 & 3
        if qos == 3 or (flags & 8 and qos == 0):
            raise Violation(Reason.MALFORMED_PACKET, f"PUBLISH with flags {flags:#06b}")
        reader = Reader(body)
        topic = reader.binary()
        packet_id = reader.two() if qos else 0
        if qos and packet_id == 0:
            raise Violation(Reason.MALFORMED_PACKET, "packet identifier 0")
        fields = Fields(qos, bool(flags & 1), topic, packet_id, b"", b"")
        if self.version == 5:
            self._properties(reader, fields)
        fields.payload = body[reader.at :]
        if fields.alias is not None or not topic:
            self._alias(fields)
        return fields

    def _properties(self, reader: Reader, fields: Fields) -> None:
        """Check a publish's properties where they stand; they are stored as they are, without the alias."""
        size = reader.varint()
        start, end = reader.at, reader.at + size
        if end > reader.end:
            raise Violation(Reason.MALFORMED_PACKET, "the property list does not fit its packet")
        inner = Reader(reader.data, start, end)
        seen: set[int] = set()
        alias_at, pairs = -1, 0
        while not inner.done():
            at, identifier = inner.at, inner.byte()
            if identifier in seen:
                raise Violation(Reason.PROTOCOL_ERROR, f"property {identifier} stands twice")
            if identifier == Property.USER_PROPERTY:
                pairs += 1
                fields.is_special |= _is_special(inner.text())
                inner.text()
                continue
            seen.add(identifier)
            if identifier == Property.TOPIC_ALIAS:
                alias_at, fields.alias = at - start, inner.two()
            elif identifier == Property.PAYLOAD_FORMAT:
                fields.is_text = _flag(inner.byte())
            else:
                _check_property(identifier, inner)
        if pairs > self.limits.user_properties_max:
            raise Violation(Reason.QUOTA_EXCEEDED, f"{pairs} user properties, limit {self.limits.user_properties_max}")
        fields.properties = reader.data[start:end]
        if alias_at >= 0:
            fields.properties = fields.properties[:alias_at] + fields.properties[alias_at + ALIAS_BYTES :]
        reader.at = end

    def _alias(self, fields: Fields) -> None:
        if fields.alias is None:
            raise Violation(Reason.PROTOCOL_ERROR, "PUBLISH with neither topic nor alias")
        if not 0 < fields.alias <= self.alias_max:
            raise Violation(Reason.TOPIC_ALIAS_INVALID, f"topic alias {fields.alias}, maximum {self.alias_max}")
        if fields.topic:
            self._aliases[fields.alias] = fields.topic
        elif fields.alias in self._aliases:
            fields.topic = self._aliases[fields.alias]
        else:
            raise Violation(Reason.PROTOCOL_ERROR, f"topic alias {fields.alias} was never set")

    def _append(self, route: Route, marks: int, fields: Fields) -> None:
        gather = route.open_gather(Origin.MQTT)
        flags = fields.qos | RecordFlag.KEY_IS_TOPIC
        value: bytes | None = fields.payload
        if fields.retain:
            flags |= RecordFlag.RETAIN
            value = fields.payload or None  # nothing is retained any more, in every protocol's words
        headers: list[Header] = []
        if fields.properties:
            headers.append((b"ms-mqtt", fields.properties))
        if fields.qos == 2 and self.durable:
            headers.append((b"ms-qos2", fields.packet_id.to_bytes(2, "big") + self.client_id))
        if marks & CLIENT_WANTED or fields.retain:
            headers.append((b"ms-client", self.client_id))
        at = gather.add_routed(route, fields.topic, value, headers, self._time_ms, flags)
        if fields.retain:
            assert self.retained is not None
            self.retained.note(route, gather.ticket, at, value is not None, len(fields.payload))
        if fields.qos:
            self._answer(gather.ticket, fields.qos, fields.packet_id, 0)

    # -- acks

    def _ack(self, kind: int, flags: int, body: bytes) -> None:
        if flags != (2 if kind == Packet.PUBREL else 0) and (self.version, kind, flags) != (3, Packet.PUBREL, 10):
            raise Violation(Reason.MALFORMED_PACKET, f"flags {flags:#06b} on an acknowledgement")
        if len(body) < 2 or (self.version != 5 and len(body) != 2):
            raise Violation(Reason.MALFORMED_PACKET, f"an acknowledgement of {len(body)} bytes")
        packet_id = int.from_bytes(body[:2], "big")
        if packet_id == 0:
            raise Violation(Reason.MALFORMED_PACKET, "packet identifier 0")
        reason = body[2] if len(body) > 2 else 0
        if len(body) > 2:
            check_ack(kind, body, self.limits)
        if kind != Packet.PUBREL:
            self.outbound.acknowledge(kind, packet_id, reason)
        else:
            self._release(packet_id)

    def _release(self, packet_id: int) -> None:
        if packet_id not in self._received:
            self._complete_again(packet_id)
            return
        self._received.discard(packet_id)
        if self.durable:
            self._completions.acks.append((Packet.PUBCOMP, packet_id, 0))
            self.waiting = True
        else:
            self.unacked -= 1
            self.outbound.write_ack(Packet.PUBCOMP << 4, packet_id, 0)

    def _complete_again(self, packet_id: int) -> None:
        """Nothing is known of it, or it is being released: then the first answer must not be overtaken."""
        reason = Reason.PACKET_ID_NOT_FOUND if self.version == 5 else 0
        if not self.waiting and not self._runs:
            self.outbound.write_ack(Packet.PUBCOMP << 4, packet_id, reason)
            return
        run = self._completions if self.waiting else self._runs[-1]
        run.repeated.append(len(run.acks))
        run.acks.append((Packet.PUBCOMP, packet_id, reason))
        self.unacked += 1  # which sending it takes back

    def complete(self, ticket: Ticket) -> None:
        """The PUBCOMPs of the releases since the last call leave when `ticket` is stable."""
        completions, self._completions = self._completions, AckRun(None)
        self.waiting = False
        if completions.acks:
            completions.ticket = ticket
            self._queue(completions)

    def answer(self, ticket: Ticket | None, qos: int, packet_id: int, reason: int = 0) -> None:
        """Acknowledge a publish that came as an event, after `ticket` if there is one, in its turn."""
        if qos:
            self._answer(ticket, qos, packet_id, reason)

    def _answer(self, ticket: Ticket | None, qos: int, packet_id: int, reason: int) -> None:
        kind = Packet.PUBACK if qos == 1 else Packet.PUBREC
        if qos == 2 and reason < 0x80:
            self._received.add(packet_id)
        if ticket is None and not self._runs:
            if qos == 1 or reason >= 0x80:
                self.unacked -= 1
            self.outbound.write_ack(kind << 4, packet_id, reason)
        elif ticket is None or (self._runs and self._runs[-1].ticket is ticket):
            self._runs[-1].acks.append((kind, packet_id, reason))
            if ticket is None and qos == 2 and reason < 0x80:
                self._runs[-1].repeated.append(len(self._runs[-1].acks) - 1)
        else:
            self._queue(AckRun(ticket, [(kind, packet_id, reason)]))

    def _queue(self, run: AckRun) -> None:
        self._runs.append(run)
        assert run.ticket is not None
        run.ticket.wait(self)

    def released(self, ticket: Ticket, /) -> None:
        """A ticket was released: send the acks at the front whose tickets are, in publish order."""
        while self._runs:
            front = self._runs[0].ticket
            assert front is not None
            if not front.stable and front.error is None:
                return
            self._send(self._runs.popleft(), front.error)

    def _send(self, run: AckRun, error: Exception | None) -> None:
        if error is not None and self._undo(run):
            self.outbound.fail(error)
            return
        for kind, packet_id, reason in run.acks:
            if kind != Packet.PUBREC or reason >= 0x80:
                self.unacked -= 1
            self.outbound.write_ack(kind << 4, packet_id, reason if self.version == 5 else 0)

    def _undo(self, run: AckRun) -> bool:
        """What the run answers was not written: nothing of it counts. True: no answer can say so."""
        untold = self.version != 5
        for n, (kind, packet_id, reason) in enumerate(run.acks):
            if kind == Packet.PUBCOMP:
                if n not in run.repeated:
                    untold = True
                    self._received.add(packet_id)
                continue
            if n not in run.repeated or packet_id not in self._received:
                reason = Reason.QUOTA_EXCEEDED
                if kind == Packet.PUBREC:
                    self._received.discard(packet_id)
            run.acks[n] = kind, packet_id, reason
        return untold

    # -- QoS 2 identifiers, for the session that keeps them

    def received_ids(self, stable: bool = False) -> list[int]:
        """Packet identifiers between PUBLISH and PUBREL, ascending; `stable`: only those whose records are."""
        unstable = {n for _, ids in self.unstable() for n in ids} if stable else set()
        return sorted(self._received - unstable)

    def unstable(self) -> list[tuple[Ticket, list[int]]]:
        """(ticket, packet identifiers) of QoS 2 publishes whose records are not durable yet."""
        found = []
        for run in self._runs:
            acks = [ack for at, ack in enumerate(run.acks) if at not in run.repeated]
            ids = [n for kind, n, reason in acks if kind == Packet.PUBREC and reason < 0x80]
            if ids and run.ticket is not None:
                found.append((run.ticket, ids))
        return found

    def released_ids(self) -> list[int]:
        """Packet identifiers whose PUBREL came since the last `complete`."""
        return [packet_id for _, packet_id, _ in self._completions.acks]

    def restore_received(self, ids: Iterable[int]) -> None:
        """A session goes on: these were received and not yet released."""
        for packet_id in ids:
            if packet_id not in self._received:
                self._received.add(packet_id)
                self.unacked += 1


def _not_a_length() -> Violation:
    return Violation(Reason.MALFORMED_PACKET, "remaining length is not a variable byte integer in its shortest form")


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_special(name: bytes) -> bool:
    return len(name) > 3 and name.startswith(b"ms-")


def _flag(value: int) -> bool:
    if value > 1:
        raise Violation(Reason.PROTOCOL_ERROR, "Payload Format Indicator is neither 0 nor 1")
    return bool(value)


def _check_property(identifier: int, reader: Reader) -> None:
    if identifier == Property.MESSAGE_EXPIRY:
        reader.four()
    elif identifier == Property.CONTENT_TYPE:
        reader.text()
    elif identifier == Property.CORRELATION_DATA:
        reader.binary()
    elif identifier == Property.RESPONSE_TOPIC:
        response = reader.text()
        if not response or b"#" in response or b"+" in response:
            raise Violation(Reason.PROTOCOL_ERROR, "Response Topic is empty or holds wildcards")
    elif identifier == Property.SUBSCRIPTION_ID:
        raise Violation(Reason.PROTOCOL_ERROR, "a client's PUBLISH with a Subscription Identifier")
    else:
        raise Violation(Reason.MALFORMED_PACKET, f"property {identifier} in PUBLISH")
