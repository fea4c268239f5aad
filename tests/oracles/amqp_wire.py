"""AMQP bytes in plain Python: the oracle of the compiled wire. `protocols/amqp/wire.py` draws them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mainstem.broker.delivery.live import RecordRef, Route
from mainstem.codec.batch import decode_headers
from mainstem.log.gather import Ticket
from mainstem.model.amqp_content import Content
from mainstem.model.errors import PeerViolation
from mainstem.model.origin import Origin, RecordFlag
from mainstem.protocols.amqp.events import Event, MethodEvent, PublishEvent
from mainstem.protocols.amqp.faults import EXPECTED, Fault, bad_frame, undecodable
from mainstem.protocols.connection import OUT_BYTES_MAX

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT, FRAME_END = 1, 2, 3, 8, 0xCE
FRAME_OVERHEAD = 8
DURABLE, REFUSED = -1, -2  # in place of the tick that a confirm waits for
BASIC_PUBLISH, BASIC_ACK, BASIC_NACK = 0x003C0028, 0x003C0050, 0x003C0078
GET_OK = b"\0\x3c\0\x47"
EXPECT_METHOD, EXPECT_HEADER, EXPECT_BODY = range(3)
MANDATORY, IMMEDIATE = 1, 2
TARGETS_MAX = 10_000
TIME_S_MAX = 1 << 43
SPECIAL_HEADERS = frozenset(("CC", "BCC", "x-delay"))
REPLY_TO = "amq.rabbitmq.reply-to"
_FRAME = struct.Struct(">BHI")


def check_properties(properties: bytes) -> tuple[bool, bool, bool, int]:
    """(well formed, persistent, needs a look, time in ms or 0): for tests and for the slow path."""
    if len(properties) < 2 or properties[1] & 3:
        return False, False, False, 0
    try:
        content = Content.parse(properties)
        if len(content.encode() or b"\0\0") != len(properties):
            return False, False, False, 0
    except (PeerViolation, IndexError):
        return False, False, False, 0
    special = any(name in SPECIAL_HEADERS or (name.startswith("ms-") and name != "ms-") for name, _ in content.headers)
    slow = special or "expiration" in content.fields or "user_id" in content.fields
    slow = slow or (content.text("reply_to") or "").startswith(REPLY_TO)
    time_s = content.number("timestamp") or 0
    return True, content.number("delivery_mode") == 2, slow, time_s * 1000 if time_s < TIME_S_MAX else 0


class Target:
    """Where publishes to one exchange and routing key go. `plain`: nobody need look at them."""

    def __init__(
        self,
        route: Route,
        exchange: str,
        key: str,
        *,
        flags: int,
        head: bytes,
        head_count: int,
        plain: bool,
        live: bool = False,
    ) -> None:
        self.route = route
        self.exchange = exchange
        self.key = key
        self.flags = flags
        self.head = head
        self.head_count = head_count
        self.headers = decode_headers(head, head_count) if head_count else []
        self.plain = plain
        self.live = live


class TargetTable:
    """(exchange, routing key) → Target, asked of `resolve` once."""

    def __init__(self, resolve: Callable[[bytes, bytes], Target]) -> None:
        self.resolve = resolve
        self.epoch = 1
        self._targets: dict[tuple[bytes, bytes], Target] = {}

    def clear(self) -> None:
        self.epoch += 1
        self._targets.clear()

    def find(self, exchange: bytes, key: bytes) -> Target:
        target = self._targets.get((exchange, key))
        if target is None:
            target = self.resolve(exchange, key)
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[exchange, key] = target
        return target


class Outbound:
    """A connection's bytes on their way out, one write per tick."""

    def __init__(
        self, ticker: Any, describe: Callable[[RecordRef], bytes], translate: Callable[[RecordRef], bytes]
    ) -> None:
        self.connection: Any = None
        self.ticker = ticker
        self.describe = describe
        self.translate = translate
        self.blocked = False
        self.dirty = False
        self.frame_max = 4096
        self.bytes_max = OUT_BYTES_MAX  # collected in a turn: then consumers wait for the next
        self.messages = 0
        self.stalled: list[Any] = []
        self._counted = 0  # of the messages, in the server's counters
        self._out = bytearray()

    @property
    def out_bytes(self) -> int:
        return len(self._out)

    def touch(self) -> None:
        """Be flushed by this turn's tick."""
        if not self.dirty:
            self.dirty = True
            self.ticker.mark_dirty(self)

    def flush(self) -> None:
        """One write of all that was written since the last; the ticker calls it."""
        connection = self.connection
        connection.before_flush()
        data = self.take()
        if data and connection.transport is not None:
            server = connection.server
            connection.written_second = server.deadlines.second
            server.counters.bytes_out += len(data)
            server.counters.messages_out += self.messages - self._counted
            self._counted = self.messages
            connection.write(data)
        if self.stalled and not self.blocked:
            self.ticker.after_tick(connection.retry_stalled)

    def take(self) -> bytes:
        """All that was written since the last call."""
        self.dirty = False
        data, self._out = bytes(self._out), bytearray()
        return data

    def write(self, data: bytes) -> None:
        self.touch()
        self._out += data

    def write_frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.write(_FRAME.pack(kind, channel, len(payload)) + payload + b"\xce")

    def write_ack(self, channel: int, tag: int, multiple: bool, positive: bool = True) -> None:
        number = BASIC_ACK if positive else BASIC_NACK
        self.write_frame(FRAME_METHOD, channel, struct.pack(">IQB", number, tag, multiple))

    def write_content(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """A method with its content: basic.return, get-ok, replies."""
        self.write_frame(FRAME_METHOD, channel, method)
        head = struct.pack(">HHQ", 60, 0, len(body)) + (properties or b"\0\0")
        self.write_frame(FRAME_HEADER, channel, head)
        size = self.frame_max - FRAME_OVERHEAD if self.frame_max else len(body) or 1
        for at in range(0, len(body), size):
            self.write_frame(FRAME_BODY, channel, body[at : at + size])

    def put_record(
        self,
        channel: int,
        head: bytes,
        tag: int,
        redelivered: bool,
        tail: bytes,
        record: RecordRef,
        attempts: int,
        decorator: Any,
    ) -> None:
        if record.origin == Origin.AMQP:
            properties = record.header(b"ms-amqp") or b""
        else:
            properties = self.translate(record)
        if decorator is not None:
            properties = decorator(record, attempts, properties)
        method = head + struct.pack(">QB", tag, redelivered) + self.describe(record) + tail
        self.write_content(channel, method, properties, record.value or b"")
        self.messages += 1


class ChannelWire:
    """A channel's unsettled deliveries by tag, its unconfirmed publishes by ticket, its half-read publish."""

    def __init__(self, number: int, out: Outbound, owner: Any) -> None:
        self.number = number
        self.out = out
        self.owner = owner
        self.confirming = False
        self.buffering = False
        self.closed = False
        self.published = 0
        self.unacked_max = 0
        self.settled = False
        self.next_tag = 1
        self.expect = EXPECT_METHOD
        self.touched = False
        self.target: Target | None = None
        self.publish_flags = 0
        self.properties = b""
        self.body_size = 0
        self.body = bytearray()
        self._held: dict[int, tuple[Any, int]] = {}
        self._ticket: Ticket | None = None
        self._persistent = False
        self._waiting: list[tuple[int, Ticket | None, int]] = []  # and the tick that writes it, DURABLE or REFUSED

    @property
    def unacked(self) -> int:
        return len(self._held)

    # -- deliveries

    def hold(self, consumer: Any, position: int) -> int:
        tag = self.skip_tag()
        self._held[tag] = (consumer, position)
        return tag

    def skip_tag(self) -> int:
        """A delivery that nobody acks has a tag all the same."""
        self.next_tag += 1
        return self.next_tag - 1

    def acknowledge(self, tag: int, multiple: bool) -> None:
        for _, consumer, position in self.take_held(tag, multiple):
            consumer.acked(position)

    def holds(self, tag: int) -> bool:
        """Whether the delivery waits for an ack."""
        return tag in self._held

    def take_held(self, tag: int, multiple: bool) -> list[tuple[int, Any, int]]:
        """End deliveries in another way than by an ack: [(tag, consumer, position)], oldest first."""
        if not (multiple and tag == 0) and tag not in self._held:
            raise Fault(406, f"unknown delivery tag {tag}")
        if not multiple:
            return [(tag, *self._held.pop(tag))]
        tags = [held for held in self._held if tag == 0 or held <= tag]
        return [(held, *self._held.pop(held)) for held in tags]

    def write_deliver(self, head: bytes, record: RecordRef, holder: Any, decorator: Any) -> None:
        """A delivery by a consumer that is not a queue's (`head` = class, method, consumer tag)."""
        self.out.put_record(self.number, head, self._tag_for(holder, record), False, b"", record, 0, decorator)

    def write_get_ok(
        self, record: RecordRef, redelivered: bool, attempts: int, tail: bytes, holder: Any, decorator: Any
    ) -> None:
        """The answer to basic.get; `holder` None: no ack is expected."""
        tag = self._tag_for(holder, record)
        self.out.put_record(self.number, GET_OK, tag, redelivered, tail, record, attempts, decorator)

    def _tag_for(self, holder: Any, record: RecordRef) -> int:
        return self.skip_tag() if holder is None else self.hold(holder, record.stamp)

    # -- confirms

    def note_published(self, ticket: Ticket | None, persistent: bool) -> None:
        """One more publish on a confirming channel, stored under `ticket` (None: nothing to wait for)."""
        self.published += 1
        if ticket is None:
            return
        if ticket is not self._ticket:
            self._close_ticket(self.published - 1)
            self._ticket, self._persistent = ticket, False
        self._persistent = self._persistent or persistent

    def _close_ticket(self, until: int) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._waiting.append((until, ticket, DURABLE if self._persistent else self.out.ticker.ticks))
            if self._persistent:
                ticket.wait(self)

    def close(self) -> None:
        """What is not confirmed by now never is, as in RabbitMQ: the next channel of this number counts from 1 again."""
        self.closed = True
        self._waiting.clear()
        self._ticket = None

    def after_read(self) -> None:
        """The read is done: what was published in it is confirmed together."""
        self.touched = False
        if self.closed:
            return
        if self._ticket is not None:
            self._close_ticket(self.published)
        else:  # nothing to wait for but this tick's write
            self._waiting.append((self.published, None, self.out.ticker.ticks))

    def refuse_next(self) -> None:
        """One more publish, which was not stored."""
        self.after_read()
        self.published += 1
        self._waiting.append((self.published, None, REFUSED))

    def released(self, ticket: Ticket | None) -> None:
        """A ticket is due, or a tick is over; answers leave in publish order."""
        until = 0
        while self._waiting:
            end, held, tick = self._waiting[0]
            refused = tick == REFUSED or (held is not None and held.error is not None)
            due = (held is not None and held.stable) if tick == DURABLE else tick < self.out.ticker.ticks
            if not refused and not due:
                break
            del self._waiting[0]
            if not refused:
                until = end
                continue
            if until:
                self.owner.confirmed(until)
                until = 0
            self.owner.refused(end)
        if until:
            self.owner.confirmed(until)


class Inbound:
    """Bytes in: plain publishes to the log, acks to their sinks, the rest as events."""

    def __init__(self, connection: Any = None, out: Outbound | None = None) -> None:
        self.targets: TargetTable = None  # type: ignore[assignment]  # known once the namespace is
        self.frame_max = 4096
        self.body_bytes_max = 16 << 20
        self.messages = 0
        self.channel_number = 0
        self.method_number = 0
        self._channels: dict[int, ChannelWire] = {}
        self._touched: list[ChannelWire] = []
        self._data = b""
        self._at = 0
        self._is_out_of_step = False

    def receive(self, data: bytes) -> None:
        if self._is_out_of_step:
            return
        self._data = self._data[self._at :] + data
        self._at = 0

    def kept_bytes(self) -> int:
        """Of frames and contents that are not whole yet."""
        return len(self._data) - self._at + sum(len(channel.body) for channel in self._channels.values())

    def forget(self) -> None:
        """The peer is gone: what it left unfinished is not waited for."""
        self._data, self._at = b"", 0

    def open(self, channel: ChannelWire) -> None:
        self._channels[channel.number] = channel

    def close(self, number: int) -> None:
        self._channels.pop(number, None)

    def touch(self, channel: ChannelWire) -> None:
        """A publish of the slow path is to be confirmed with this read's."""
        if not channel.touched:
            channel.touched = True
            self._touched.append(channel)

    def take_touched(self) -> list[ChannelWire]:
        """Confirming channels that published since the last call."""
        touched, self._touched = self._touched, []
        return touched

    def next(self, time_ms: int) -> Event | None:
        """Handle what can be handled here; the next event, or None when no whole frame is left."""
        while (frame := self._frame()) is not None:
            kind, number, payload = frame
            event = self._handle(kind, number, payload, time_ms)
            if event is not None:
                return event
        return None

    def _frame(self) -> tuple[int, int, bytes] | None:
        data, at = self._data, self._at
        if len(data) - at < _FRAME.size:
            return None
        kind, channel, size = _FRAME.unpack_from(data, at)
        self.method_number = 0
        if self.frame_max and size > self.frame_max - FRAME_OVERHEAD:
            self._lose_step()
            raise bad_frame(kind, b"", f"{{frame_too_large,{size},{self.frame_max - FRAME_OVERHEAD}}}")
        end = at + _FRAME.size + size
        if len(data) <= end:
            return None
        if data[end] != FRAME_END:
            self._lose_step()
            raise bad_frame(kind, data[at + _FRAME.size : end], f"{{invalid_frame_end_marker,{data[end]}}}")
        self._at = end + 1
        self.channel_number = channel
        return kind, channel, data[at + _FRAME.size : end]

    def _lose_step(self) -> None:
        """Where the next frame begins is not known: nothing that came or comes can be read, so nothing of it is kept."""
        self._is_out_of_step = True
        self._data, self._at = b"", 0

    def _handle(self, kind: int, number: int, payload: bytes, time_ms: int) -> Event | None:
        channel = self._channels.get(number)
        if channel is not None and channel.expect != EXPECT_METHOD:
            self.method_number = BASIC_PUBLISH
        if kind == FRAME_METHOD:
            return self._method(channel, number, payload)
        if kind == FRAME_HEARTBEAT:
            if number or payload:
                raise bad_frame(kind, payload, "" if number else "unknown_frame")
            return None
        if kind not in (FRAME_HEADER, FRAME_BODY):
            raise bad_frame(kind, payload, "unknown_frame")
        if channel is None:
            return MethodEvent(number, kind, b"")
        if channel.expect != (EXPECT_HEADER if kind == FRAME_HEADER else EXPECT_BODY):
            raise Fault(505, EXPECTED[channel.expect])
        if kind == FRAME_HEADER:
            self._header(channel, payload)
        else:
            if len(channel.body) + len(payload) > channel.body_size:
                raise Fault(505, "a content body longer than its header said")
            channel.body += payload
        return self._finish(channel, time_ms) if len(channel.body) == channel.body_size else None

    def _method(self, channel: ChannelWire | None, number: int, payload: bytes) -> Event | None:
        if len(payload) < 4:
            raise bad_frame(FRAME_METHOD, payload, "unknown_frame")
        if channel is not None and channel.expect != EXPECT_METHOD:
            raise Fault(505, EXPECTED[channel.expect])
        self.method_number = method = int.from_bytes(payload[:4], "big")
        if channel is not None:
            if method == BASIC_PUBLISH:
                self._begin(channel, payload)
                return None
            if method == BASIC_ACK and not channel.buffering and len(payload) == 13:
                channel.acknowledge(int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1))
                return None
        return MethodEvent(number, method, payload[4:])

    def _begin(self, channel: ChannelWire, payload: bytes) -> None:
        exchange_end = 7 + payload[6] if len(payload) > 6 else len(payload)
        key_end = exchange_end + 1 + payload[exchange_end] if len(payload) > exchange_end else len(payload)
        if len(payload) != key_end + 1:
            raise undecodable(payload[4:])
        channel.target = self.targets.find(payload[7:exchange_end], payload[exchange_end + 1 : key_end])
        channel.publish_flags = payload[key_end] & 3
        channel.expect = EXPECT_HEADER

    def _header(self, channel: ChannelWire, payload: bytes) -> None:
        if len(payload) < 14:
            self.method_number = 0
            raise bad_frame(FRAME_HEADER, payload, "unknown_frame")
        class_id, weight, size = struct.unpack_from(">HHQ", payload)
        if class_id != 60:
            raise Fault(505, f"expected content header for class 60, got one for class {class_id} instead")
        if weight:
            raise Fault(505, EXPECTED[EXPECT_HEADER])
        if not check_properties(payload[12:])[0]:
            raise Fault(502, "malformed properties in a content header")
        if size > self.body_bytes_max:
            channel.expect = EXPECT_METHOD
            raise Fault(406, f"message size {size} is larger than configured max size {self.body_bytes_max}")
        channel.properties = payload[12:]
        channel.body_size, channel.body = size, bytearray()
        channel.expect = EXPECT_BODY

    def _finish(self, channel: ChannelWire, time_ms: int) -> Event | None:
        target = channel.target
        assert target is not None
        _, persistent, slow, own_ms = check_properties(channel.properties)
        properties = channel.properties if len(channel.properties) > 2 else b""
        body, flags = bytes(channel.body), channel.publish_flags
        channel.expect, channel.target, channel.body = EXPECT_METHOD, None, bytearray()
        self.messages += 1
        time_ms = own_ms or time_ms
        if flags or channel.buffering or slow or not target.plain or (persistent and target.live):
            mandatory, immediate = bool(flags & MANDATORY), bool(flags & IMMEDIATE)
            return PublishEvent(channel.number, target, mandatory, immediate, properties, body, persistent, time_ms)
        route = target.route
        gather = route.open_gather(Origin.AMQP)
        headers = target.headers + ([(b"ms-amqp", properties)] if properties else [])
        record_flags = target.flags | (RecordFlag.QOS_1 if persistent else 0)
        gather.add_routed(route, route.topic, body, headers, time_ms, int(record_flags))
        if channel.confirming:
            channel.note_published(gather.ticket, persistent)
            self.touch(channel)
        return None
