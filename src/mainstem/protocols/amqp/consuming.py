"""Consumers that are not a queue's sink: one pull, a stream, the answers of direct reply-to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.delivery.live import RecordRef, Sink
from mainstem.broker.queues.declaring import age_seconds
from mainstem.broker.queues.properties import expires_at_ms
from mainstem.broker.queues.queue import Outcome, Queue
from mainstem.broker.queues.queue_sink import Entry, QueueSink, Taker, may_expire
from mainstem.codec.batch import frame_heads
from mainstem.model.amqp_content import Content
from mainstem.protocols.amqp.faults import Fault
from mainstem.protocols.amqp.methods import encode
from mainstem.protocols.amqp.wire import ChannelWire, Consumer

if TYPE_CHECKING:
    from mainstem.broker.topics.views import View
    from mainstem.protocols.amqp.channel import Channel

NS = 1_000_000_000


def with_header(properties: bytes, name: str, value: int) -> bytes:
    content = Content.parse(properties)
    content.set_header(name, value)
    return content.encode()


def delivery_count(record: RecordRef, attempts: int, properties: bytes) -> bytes:
    """A quorum queue tells how often it was delivered in vain."""
    return with_header(properties, "x-delivery-count", attempts)


class Getter(Taker):
    """Takes the one record of a basic.get; as the holder of its delivery it settles through the queue."""

    def __init__(self, channel: ChannelWire, queue: Queue, *, no_ack: bool, decorator: Any) -> None:
        super().__init__(credit=1, no_ack=no_ack)
        self.queue = queue
        self.holder = channel  # of keys: the channel may get more of what it holds
        self.count_left = 0
        self._channel = channel
        self._decorator = decorator

    def take(self, record: RecordRef, redelivered: bool, attempts: int) -> bool:
        tail = self.count_left.to_bytes(4, "big")
        decorator = self._decorator if attempts else None
        holder = None if self.no_ack else self
        self._channel.write_get_ok(record, redelivered, attempts, tail, holder, decorator)
        return True

    def acked(self, position: int) -> None:
        if self.queue.sink.ack(position):
            self.queue.queues.touch(self.queue)


class PatternStream(Queue):
    """What a pattern such as `sensors.*.temp` means, read as a stream; the reader's rights are checked record by record."""


class ViewStream(Queue):
    """A view under its own name, read as a stream."""

    view: View


class StreamConsumer(Sink):
    """Reads a stream queue (or a view) from its own position; acks only give back credit, nothing is taken."""

    def __init__(self, channel: Channel, source: Queue, tag: str, position: int, credit: int) -> None:
        super().__init__(source.namespace, position)
        self.channel = channel
        self.queue = source
        self.tag = tag
        self.no_ack = False
        self.credit = credit
        self.live = False
        self.closed = False
        self.priority = 0
        # A declared stream counts its own records; a view, a pattern or a topic has the log's offsets.
        self._number = source.numbers.number_at(position) if source.numbers is not None else None
        self._view = source.view if isinstance(source, ViewStream) else None
        self._is_for_reader: Callable[[bytes], bool] | None = channel.is_not_denied  # asked for each record
        if isinstance(source, PatternStream):
            self._is_for_reader = channel.may_consume
        elif (self._view is not None and self._view.grants) or channel.connection.principal.admin:
            self._is_for_reader = None
        name = tag.encode("utf-8", "surrogateescape")
        self._head = b"\0\x3c\0\x3c" + bytes((len(name),)) + name
        self._entries: dict[bytes, Entry | None] = {}
        for reach in source.reaches.open_ones():
            self.namespace.subscribe(reach.filter, self, reach.entry())
        source.queues.deleted_listeners.append(self._on_deleted)

    def _on_deleted(self, queue: Queue) -> None:
        if queue is self.queue:
            self.close()
            self.channel.consumer_lost(self)

    def merge(self, entries: list[Entry]) -> Entry:
        return self.queue.sink.merge(entries)

    def choose(self, record: RecordRef) -> Entry | None:
        return Entry(anything=True) if self.queue.takes(record) else None

    def push(self, record: RecordRef, options: Any) -> bool:
        sink: QueueSink = self.queue.sink
        if self.closed or (not options.anything and not (sink.accepts(record, options) and self.queue.holds(record))):
            return True
        taken = self._offer(record)
        if taken and self._number is not None:
            self._number += 1
        return taken

    def _offer(self, record: RecordRef) -> bool:
        """One of the stream's records. False: there is no room for it now."""
        if may_expire(record) and self._expired(record):
            return True
        if self._is_for_reader is not None and not self._is_for_reader(record.topic):
            return True
        if self._view is not None and not self._view.shows(record):
            return True
        out = self.channel.out
        if self.credit <= 0 or out.blocked or out.out_bytes > out.bytes_max:
            return False
        self.credit -= 1
        self.channel.wire.write_deliver(self._head, record, self, self._with_offset)
        return True

    def _with_offset(self, record: RecordRef, attempts: int, properties: bytes) -> bytes:
        return with_header(properties, "x-stream-offset", record.offset if self._number is None else self._number)

    def _expired(self, record: RecordRef) -> bool:
        due_ms = expires_at_ms(record.outline(), record.stamp // 1_000_000)
        return due_ms is not None and due_ms <= self.queue.queues.now_ms()

    def resume(self) -> None:
        if not self.live and not self.closed and self.credit > 0:
            self.channel.connection.server.broker.pump.resume(self, self.queue.filters)

    def acked(self, position: int) -> None:
        self.credit += 1
        self.channel.connection.to_resume.add(self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.queue.queues.deleted_listeners.remove(self._on_deleted)
        for reach in self.queue.reaches.open_ones():
            self.namespace.unsubscribe(reach.filter, self)
        self.channel.connection.server.broker.pump.stop(self)


class ReplyConsumer:
    """Direct reply-to: answers go from the publisher's channel straight to this one; nothing is stored."""

    def __init__(self, channel: Channel, tag: str, address: str) -> None:
        self.channel = channel
        self.tag = tag
        self.address = address
        self.queue = None
        self.no_ack = True
        self.priority = 0

    def deliver(self, key: str, properties: bytes, body: bytes) -> None:
        method = encode(
            "basic.deliver",
            consumer_tag=self.tag,
            delivery_tag=self.channel.wire.skip_tag(),
            exchange="",
            routing_key=key,
        )
        self.channel.out.write_content(self.channel.number, method, properties, body)


AnyConsumer = Consumer | StreamConsumer | ReplyConsumer


def stream_position(queue: Queue, offset: Any, *, is_time: bool) -> int:
    """Where `x-stream-offset` begins: first, last, next, an offset, a timestamp (seconds) or an interval (`1h`)."""
    head = queue.head_stamp
    first = min((reach.start for reach in queue.reaches.all), default=0)
    if queue.numbers is not None:
        first = max(first, queue.level(0).cursor.next)  # what its limits dropped is behind it
    if offset is None or offset == "next":
        return head
    if offset == "first":
        return first
    if offset == "last":
        return max(first, queue.level(0).cursor.head - 1)
    if isinstance(offset, str):
        seconds = age_seconds(offset)
        if seconds is not None:
            return max(first, queue.queues.now_ms() * 1_000_000 - seconds * NS)
    elif isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
        return max(first, offset * NS if is_time else _stamp_of_offset(queue, offset, first))
    raise Fault(406, f"invalid arg 'x-stream-offset' for queue '{queue.name}': {offset!r}")


def _stamp_of_offset(queue: Queue, offset: int, first: int) -> int:
    """A declared stream's are its own; others are the log's, and the first one's where there are several."""
    if queue.numbers is not None:
        return queue.numbers.stamp_of(offset, first)
    logs = list(dict(pair for f in queue.filters for pair in queue.namespace.logs_of(f)))
    if not logs:
        return 0
    piece = logs[0].read_now(offset, 1)
    if piece is None:
        return queue.head_stamp
    head = frame_heads(piece.data, logs[0].id)[0]
    return head.stamp + max(0, offset - head.base_offset)


def settle_all(taken: list[tuple[int, Any, int]], outcome: Outcome) -> None:
    """End deliveries (tag, holder, position) that were not acked, queue by queue, in order."""
    by_queue: dict[Queue, list[int]] = {}
    for _, holder, position in taken:
        if isinstance(holder, StreamConsumer):
            holder.acked(position)
            continue
        if isinstance(holder, Consumer):
            holder.credit += 1
        by_queue.setdefault(holder.queue, []).append(position)
    for queue, positions in by_queue.items():
        if not queue.deleted:
            queue.settle(positions, outcome)
