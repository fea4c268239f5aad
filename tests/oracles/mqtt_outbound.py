"""The outgoing half of an MQTT connection in plain Python. See `protocols/mqtt/outgoing/outbound.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.model.origin import Origin, RecordFlag
from mainstem.protocols.mqtt.wire.packets import Packet, encode_refusal
from mainstem.protocols.mqtt.wire.properties import Property, Reader, encode_property, encode_varint
from mainstem.protocols.mqtt.wire.reasons import Reason, Violation

if TYPE_CHECKING:
    from mainstem.broker.namespaces.namespace import Namespace
    from mainstem.protocols.connection import Ticker

OUT_BYTES_MAX = 1 << 20
CROWDED_BYTES, CROWDED_BYTES_TIGHT = 64 << 20, 16 << 20
EARLY_BYTES = 32 << 10  # so much
ALIAS_TOPIC_MIN = 4  # an alias costs three bytes
IDS_END = 65_536
AWAIT_PUBACK, AWAIT_PUBREC, AWAIT_PUBCOMP = 1, 2, 3
PACKET_ID_NOT_FOUND = 0x92
NS = 1_000_000_000


class Source(Protocol):
    """Where a delivery came from that no route brought."""

    def settle(self, reason: int) -> None: ...

    def give_back(self) -> None: ...


class Grant:
    """What one subscription, or several that overlap, asks of a delivery. Never changed once made."""

    __slots__ = ("identifiers", "meta", "no_local", "own", "packet_id", "qos", "retain_as_published")

    def __init__(
        self,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifiers: bytes = b"",
        meta: bool = False,
        packet_id: int = 0,
        own: Grant | None = None,
    ) -> None:
        self.qos = qos
        self.no_local = no_local
        self.own = own  # with No Local: what the client's own messages are delivered under, None for not at all
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.meta = meta
        self.packet_id = packet_id

    @staticmethod
    def merged(grants: list[Grant]) -> Grant:
        """Overlapping subscriptions are served by one copy: the highest QoS, all identifiers. Those with No Local have no
        part in the client's own messages."""
        others = [one for one in grants if not one.no_local]
        no_local = len(others) < len(grants)
        return Grant(
            max(one.qos for one in grants),
            no_local=no_local,
            retain_as_published=any(one.retain_as_published for one in grants),
            identifiers=b"".join(one.identifiers for one in grants),
            meta=any(one.meta for one in grants),
            own=Grant.merged(others) if no_local and others else None,
        )


class Encoder:
    """What is worked out once per record, however many subscribers it has. One for all connections of a server."""

    def __init__(self, translate: Callable[[Any, int], bytes | None], describe: Callable[[Any], bytes]) -> None:
        self.translate = translate
        self.describe = describe
        self.now_ns = 0
        self.properties = b""
        self.expired = False
        self._record: RecordRef | None = None
        self._serial = -1

    def load(self, record: RecordRef) -> None:
        if record is self._record and record.serial == self._serial:
            return
        self._record, self._serial = record, record.serial
        self.properties, self.expired = b"", False
        if record.origin == Origin.MQTT:
            self.properties = record.header(b"ms-mqtt") or b""
            if self.properties:
                self._expire(record)
        else:
            translated = self.translate(record, self.now_ns)
            self.properties, self.expired = translated or b"", translated is None

    def _expire(self, record: RecordRef) -> None:
        """Count the message expiry down from when it was appended."""
        at = _expiry_at(self.properties)
        if at is None:
            return
        interval = int.from_bytes(self.properties[at + 1 : at + 5], "big")
        passed = self.now_ns - record.stamp
        if passed > interval * NS:
            self.expired = True
        elif passed >= NS:
            left = encode_property(Property.MESSAGE_EXPIRY, interval - passed // NS)
            self.properties = self.properties[:at] + left + self.properties[at + 5 :]


@dataclass(slots=True)
class Slot:
    stamp: int
    state: int
    source: Source | None = None
    unsent: bool = False  # in flight from an earlier connection, and not sent on this one yet


class _Output:
    """Of all connections."""

    gathered_bytes = 0
    tight = False


def set_tight(tight: bool) -> None:
    """Clients left so much unread that no connection may gather a whole tick's packets before it finds out whether its
    peer takes them."""
    _Output.tight = tight


class Outbound(Sink):
    """Records out as PUBLISH packets, with the state of those that are not acknowledged yet."""

    def __init__(self, namespace: Namespace | None, encoder: Encoder, ticker: Ticker) -> None:
        super().__init__(namespace)  # type: ignore[arg-type]
        self.encoder = encoder
        self.ticker = ticker
        self.version = 4
        self.packet_bytes_max = 268_435_460
        self.window = IDS_END - 1
        self.alias_max = 0
        self.durable = False
        self.blocked = False
        self.explains = False
        self.client_id = b""
        self.allows: Callable[[bytes], bool] | None = None
        self.session: Any = None
        self.connection: Any = None
        self.transport: Any = None
        self.bytes_sent = 0
        self.messages = 0
        self.dropped = 0
        self.progress = False
        self._dirty = False
        self._out = bytearray()
        self._slots: dict[int, Slot] = {}
        self._last_id = 0
        self._unsent = 0  # slots that are
        self._aliases: dict[bytes, int] = {}
        self._held = bytearray()
        self._holding = 0
        self._assigned: list[tuple[int, int]] = []
        self._recorded: list[int] = []

    @property
    def inflight(self) -> int:
        return len(self._slots)

    @property
    def out_size(self) -> int:
        return len(self._out)

    # -- the output buffer

    def take(self) -> bytes:
        """All that was collected, as bytes; the buffer is empty again."""
        self._dirty = False
        data, self._out = bytes(self._out), bytearray()
        _Output.gathered_bytes -= len(data)
        return data

    def write(self, data: bytes) -> None:
        """A packet made elsewhere."""
        if data:
            self._out += data
            _Output.gathered_bytes += len(data)
            if not self._dirty:
                self._dirty = True
                self.ticker.mark_dirty(self)

    def flush(self) -> None:
        """One write of all that was collected; the ticker calls it."""
        data = self.take()
        if data and self.transport is not None:
            self.bytes_sent += len(data)
            self.transport.write(data)
            self.connection.note_unsent()

    def write_ack(self, first: int, packet_id: int, reason: int) -> None:
        if reason >= 0x80 and self.explains and first < Packet.PUBREL << 4:
            self.write(encode_refusal(first >> 4, packet_id, reason, self.packet_bytes_max))
        elif reason and self.version == 5:
            self.write(bytes((first, 3, packet_id >> 8, packet_id & 0xFF, reason)))
        else:
            self.write(bytes((first, 2, packet_id >> 8, packet_id & 0xFF)))

    def fail(self, error: Exception) -> None:
        self.connection.fail(error)

    # -- deliveries

    def push(self, record: RecordRef, options: Grant) -> bool:
        if options.no_local and self._is_own(record):
            if options.own is None:
                return True
            options = options.own
        if self.allows is not None and not self.allows(record.topic):
            if options.packet_id and self._waits(options.packet_id, record.stamp):
                self._give_up(options.packet_id)
            return True
        kept = 1 if record.origin == Origin.KAFKA else record.flags & 3
        retained = bool(record.origin != Origin.KAFKA and record.flags & RecordFlag.RETAIN)
        return self._send(record, options, min(kept, options.qos), options.retain_as_published and retained, None)

    def offer(self, record: RecordRef, grant: Grant, retain: bool = False, source: Source | None = None) -> bool:
        """A record that no route brings: a retained one, or one of a queue (`source.settle` is told its end)."""
        if grant.no_local and source is None and self._is_own(record):
            return True
        kept = 1 if record.origin == Origin.KAFKA else record.flags & 3
        qos = grant.qos if source is not None else min(kept, grant.qos)
        return self._send(record, grant, qos, retain, source)

    def choose(self, record: RecordRef) -> Any:
        return self.session.choose(record)

    def merge(self, options: list[Grant]) -> Grant:
        return Grant.merged(options)

    def _is_own(self, record: RecordRef) -> bool:
        return record.origin == Origin.MQTT and record.header(b"ms-client") == self.client_id

    def _has_no_room(self, qos: int) -> bool:
        return self.blocked or len(self._out) >= OUT_BYTES_MAX or (qos > 0 and len(self._slots) >= self.window)

    @property
    def room(self) -> bool:
        """Whether a delivery that must not be lost can be taken now."""
        return not self._has_no_room(1)

    def _send(self, record: RecordRef, grant: Grant, qos: int, retain: bool, source: Source | None) -> bool:
        packet_id, flags = grant.packet_id, qos << 1 | retain
        if packet_id and not self._waits(packet_id, record.stamp):
            return True
        self.encoder.load(record)
        if self.encoder.expired:
            if packet_id:
                self._give_up(packet_id)
            return True
        crowded_bytes = CROWDED_BYTES_TIGHT if _Output.tight else CROWDED_BYTES
        if len(self._out) >= EARLY_BYTES and _Output.gathered_bytes > 2 * crowded_bytes:
            self.flush()
        if packet_id:  # sent before, on a connection that is gone
            return self._send_again(record, grant, flags | 8)
        if self._has_no_room(qos):
            if qos == 0 and self.live:
                self.dropped += 1
                return True
            return False
        held = self._is_holding or (qos == 2 and self.durable)
        packet_id = self._next_id() if qos else 0
        packet = self._packet(record, grant, flags, packet_id, aliased=not held)
        if not packet:  # larger than the client takes: it counts as delivered
            return True
        self.messages += 1
        if qos:
            self._last_id = packet_id
            self._slots[packet_id] = Slot(record.stamp, AWAIT_PUBACK if qos == 1 else AWAIT_PUBREC, source)
        self._leave(packet, held)
        if qos == 2 and self.durable:
            self._assigned.append((packet_id, record.stamp))
        return True

    def _send_again(self, record: RecordRef, grant: Grant, flags: int) -> bool:
        packet_id = grant.packet_id
        if self._has_no_room(0) or len(self._slots) - self._unsent >= self.window:
            return False
        packet = self._packet(record, grant, flags, packet_id, aliased=False)
        if not packet:  # the client takes less than it did
            self._give_up(packet_id)
            return True
        self._note_sent(self._slots[packet_id])
        self._leave(packet, self._is_holding)
        self.messages += 1
        return True

    def _waits(self, packet_id: int, stamp: int) -> bool:
        """Whether this is still to be sent again: some clients acknowledge what they got before the connection broke."""
        slot = self._slots.get(packet_id)
        return slot is not None and slot.stamp == stamp and slot.state != AWAIT_PUBCOMP

    def _note_sent(self, slot: Slot) -> None:
        self._unsent -= slot.unsent
        slot.unsent = False

    @property
    def _is_holding(self) -> bool:
        return bool(self._held) or self._holding > 0

    def _leave(self, packet: bytes, held: bool) -> None:
        """A QoS 2 publish to a session that outlives us leaves when its identifier is journaled; what follows, after it."""
        if not held:
            self.write(packet)
            return
        if not self._held:
            self.session.note_held()
        self._held += packet

    def take_held(self) -> tuple[list[tuple[int, int]], bytes]:
        """(new packet identifiers with their stamps, packets) since the last call; `write_held` once that is durable."""
        if not self._held:
            return [], b""
        assigned, self._assigned = self._assigned, []
        held, self._held = bytes(self._held), bytearray()
        self._holding += 1
        return assigned, held

    def write_held(self, packets: bytes) -> None:
        self._holding -= 1
        self.write(packets)

    def _next_id(self) -> int:
        packet_id = self._last_id
        while True:  # ends: fewer are in flight than there are identifiers
            packet_id = packet_id % (IDS_END - 1) + 1
            if packet_id not in self._slots:
                return packet_id

    def _packet(self, record: RecordRef, grant: Grant, flags: int, packet_id: int, *, aliased: bool) -> bytes:
        """One PUBLISH; empty if the client would not take a packet so large."""
        topic, payload = record.topic, record.value or b""
        alias, known = 0, False
        properties = b""
        if self.version == 5:
            properties = self.encoder.properties
            if aliased and len(topic) >= ALIAS_TOPIC_MIN:
                alias, known = self._alias(topic)
            if alias:
                properties += encode_property(Property.TOPIC_ALIAS, alias)
            properties += grant.identifiers
            if grant.meta:
                properties += self.encoder.describe(record)
            properties = encode_varint(len(properties)) + properties
        shown = b"" if known else topic
        identifier = packet_id.to_bytes(2, "big") if packet_id else b""
        body = len(shown).to_bytes(2, "big") + shown + identifier + properties + payload
        packet = bytes((0x30 | flags,)) + encode_varint(len(body)) + body
        if len(packet) > self.packet_bytes_max:
            self.dropped += 1
            return b""
        if alias and not known:
            self._aliases[topic] = alias
        return packet

    def _alias(self, topic: bytes) -> tuple[int, bool]:
        """The topic's alias and whether the client knows it; 0: all are taken."""
        found = self._aliases.get(topic)
        if found is not None:
            return found, True
        return (len(self._aliases) + 1, False) if len(self._aliases) < self.alias_max else (0, False)

    # -- acknowledgements from the client

    def acknowledge(self, kind: int, packet_id: int, reason: int) -> None:
        slot = self._slots.get(packet_id)
        state = slot.state if slot is not None else 0
        if kind == Packet.PUBACK:
            if state == AWAIT_PUBACK:
                self._free(packet_id, reason)
            elif state:
                raise Violation(Reason.PROTOCOL_ERROR, f"PUBACK for packet identifier {packet_id}")
        elif kind == Packet.PUBCOMP:
            if state == AWAIT_PUBCOMP:
                self._free(packet_id, 0)
            elif state:
                raise Violation(Reason.PROTOCOL_ERROR, f"PUBCOMP for packet identifier {packet_id}")
        elif state == AWAIT_PUBACK:
            raise Violation(Reason.PROTOCOL_ERROR, f"PUBREC for packet identifier {packet_id}")
        elif slot is None:
            self.write_ack(Packet.PUBREL << 4 | 2, packet_id, PACKET_ID_NOT_FOUND)
        elif state == AWAIT_PUBREC and reason >= 0x80:
            self._free(packet_id, reason)
        elif state == AWAIT_PUBREC and self.durable:
            slot.state = AWAIT_PUBCOMP
            if not self._recorded:
                self.session.note_recorded()
            self._recorded.append(packet_id)
        else:
            slot.state = AWAIT_PUBCOMP
            self.write_ack(Packet.PUBREL << 4 | 2, packet_id, 0)

    def take_recorded(self) -> list[int]:
        """Packet identifiers whose PUBREC came since the last call: `release` them once that is durable."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def release(self, packet_ids: Iterable[int]) -> None:
        for packet_id in packet_ids:
            self.write_ack(Packet.PUBREL << 4 | 2, packet_id, 0)

    def _free(self, packet_id: int, reason: int) -> None:
        slot = self._slots.pop(packet_id)
        self._note_sent(slot)
        self.progress = True
        if slot.source is not None:
            slot.source.settle(reason)

    def _give_up(self, packet_id: int) -> None:
        """It cannot be sent again; see the compiled one."""
        slot = self._slots[packet_id]
        if slot.state == AWAIT_PUBREC:
            self._note_sent(slot)
            slot.state = AWAIT_PUBCOMP
            self.write_ack(Packet.PUBREL << 4 | 2, packet_id, 0)
        elif slot.state == AWAIT_PUBACK:
            self._free(packet_id, 0)

    def forget(self, packet_id: int) -> None:
        """What was in flight under this identifier cannot be sent again: it is gone from the log."""
        if packet_id in self._slots:
            self._give_up(packet_id)

    # -- what a session keeps of this

    def flight(self) -> list[tuple[int, int, int]]:
        """(packet identifier, state, stamp) of what is in flight and came through no source, oldest first."""
        found = [(slot.stamp, n, slot.state) for n, slot in self._slots.items() if slot.source is None]
        return [(n, state, stamp) for stamp, n, state in sorted(found)]

    def restore(self, flight: Iterable[tuple[int, int, int]]) -> None:
        for packet_id, state, stamp in flight:
            slot = self._slots[packet_id] = Slot(stamp, state, unsent=state != AWAIT_PUBCOMP)
            self._unsent += slot.unsent

    def take_sources(self) -> list[Source]:
        """What was delivered from queues and is not settled; the caller gives it back."""
        sourced = {n: slot.source for n, slot in self._slots.items() if slot.source is not None}
        for packet_id in sourced:
            del self._slots[packet_id]
        return list(sourced.values())


def _expiry_at(properties: bytes) -> int | None:
    """Where the message expiry stands in a list that was checked, if it does."""
    reader = Reader(properties)
    while not reader.done():
        at, identifier = reader.at, reader.byte()
        if identifier == Property.MESSAGE_EXPIRY:
            return at
        if identifier == Property.PAYLOAD_FORMAT:
            reader.byte()
        else:
            reader.binary()
            if identifier == Property.USER_PROPERTY:
                reader.binary()
    return None
