"""Atomic batches: messages of one stream that are stored together or not at all.

    Nats-Batch-Id: b, Nats-Batch-Sequence: 1, 2, …   kept, answered empty
    …, Nats-Batch-Commit: 1                          checked one after the other, appended as one, one PubAck
    …, Nats-Batch-Commit: eob                        the same, and this last one is not stored

All of a batch lie in one batch of the log, which is written and recovered whole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainstem.model.errors import MainstemError
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.messages import Message, stored_topic
from mainstem.protocols.nats.jetstream.words import header_value, with_lines

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.protocols.nats.jetstream.api import JetStream
    from mainstem.protocols.nats.jetstream.publishing import Publisher

ID_MAX = 64
MESSAGES_MAX = 1000  # nats-server's, of one batch
BYTES_MAX = 900 << 10  # of one batch: it is one batch of the log
OPEN_MAX = 50  # batches of one stream
IDLE_S = 10.0


class Batch:
    __slots__ = ("bytes", "messages", "timer")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bytes = 0
        self.timer: asyncio.TimerHandle | None = None


class Batches:
    """Those that are open, of all streams of a namespace."""

    def __init__(self, jetstream: JetStream, publisher: Publisher) -> None:
        self._jetstream, self._publisher = jetstream, publisher
        self._open: dict[tuple[Stream, str], Batch] = {}
        self._count: dict[Stream, int] = {}

    def take(self, stream: Stream, reply: bytes, message: Message) -> None:
        """One message of a batch. JsError where it is refused: the batch is gone then."""
        name, seq, commit = self._read(stream, message)
        batch = self._open.get((stream, name))
        if batch is None:
            batch = self._begin(stream, name, seq - (commit == b"eob"), seq)
        if commit not in (b"", b"1", b"eob"):
            self._end(stream, name)
            raise errors.BATCH_COMMIT
        if seq != len(batch.messages) + 1 or (seq == 1 and commit == b"eob"):
            self._abandon(stream, name, "incomplete")
            raise errors.BATCH_INCOMPLETE
        if commit != b"eob":
            self._add(stream, name, batch, message)
        if not commit:
            self._watch(stream, name, batch)
            if reply:
                self._jetstream.send(reply, b"")
            return
        if commit == b"eob":
            last = batch.messages[-1]
            last.give_headers(with_lines(last.headers, [("Nats-Batch-Commit", "1")]))
        self._end(stream, name)
        self._commit(stream, name, reply, batch.messages)

    def _read(self, stream: Stream, message: Message) -> tuple[str, int, bytes]:
        if stream.config["sealed"]:
            raise errors.SEALED
        if not stream.config.get("allow_atomic"):
            raise errors.BATCH_DISABLED
        name = (message.value(b"Nats-Batch-Id") or b"").decode(errors="replace")
        if not name or len(name) > ID_MAX:
            raise errors.BATCH_ID
        seq = message.value(b"Nats-Batch-Sequence")
        if seq is None or not seq.isdigit() or len(seq) > 18:
            raise errors.BATCH_SEQUENCE
        commit = message.value(b"Nats-Batch-Commit")
        return name, int(seq), commit if commit is not None else b""

    def _begin(self, stream: Stream, name: str, size: int, seq: int) -> Batch:
        if seq != 1:
            raise errors.batch_too_large(MESSAGES_MAX) if size > MESSAGES_MAX else errors.BATCH_INCOMPLETE
        if self._count.get(stream, 0) >= OPEN_MAX:
            raise errors.BATCHES_OPEN
        self._count[stream] = self._count.get(stream, 0) + 1
        batch = self._open[stream, name] = Batch()
        return batch

    def _add(self, stream: Stream, name: str, batch: Batch, message: Message) -> None:
        batch.messages.append(message)
        batch.bytes += message.size
        if len(batch.messages) > MESSAGES_MAX or batch.bytes > BYTES_MAX:
            self._abandon(stream, name, "large")
            raise errors.batch_too_large(MESSAGES_MAX)

    def _watch(self, stream: Stream, name: str, batch: Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        loop = asyncio.get_running_loop()
        batch.timer = loop.call_later(IDLE_S, self._abandon, stream, name, "timeout")

    def _abandon(self, stream: Stream, name: str, reason: str) -> None:
        self._end(stream, name)
        self._jetstream.advise_abandoned(stream, name, reason)

    def _end(self, stream: Stream, name: str) -> None:
        batch = self._open.pop((stream, name), None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        self._count[stream] -= 1
        if not self._count[stream]:
            del self._count[stream]

    def _commit(self, stream: Stream, name: str, reply: bytes, messages: list[Message]) -> None:
        broker = stream.service.broker
        broker.ticker.write_now()  # so that the batch begins a batch of the log, and sequences are known
        checked = stream.counters.copy()
        try:
            self._check(stream, messages)
            for message in messages:
                stream.namespace.route(message.topic)  # refuses what cannot be a topic
        except (JsError, MainstemError):
            stream.counters = checked
            raise
        ticket, index = self._publisher.append(stream, messages[0])
        for message in messages[1:]:
            other, index = self._publisher.append(stream, message)
            assert other is ticket, "a batch of messages lies in two batches of the log"
        more = b',"batch":"%b","count":%d' % (name.encode(), len(messages))
        self._publisher.ack(stream, reply, ticket, index, more)

    def _check(self, stream: Stream, messages: list[Message]) -> None:
        """Each as if those before it were stored."""
        ids: set[bytes] = set()
        fresh = _Fresh(stream)
        for message in messages:
            if message.value(b"Nats-Expected-Last-Msg-Id"):
                raise errors.batch_header("Nats-Expected-Last-Msg-Id")
            if stream.settings.copying:
                message.topic = stored_topic(stream, message.topic)
            fresh.check(message)
            self._check_record(stream, message)
            duplicate, _ = self._publisher.check(stream, message)
            message_id = message.value(b"Nats-Msg-Id")
            if duplicate is not None or (message_id and message_id in ids):
                raise errors.BATCH_DUPLICATE
            if message_id:
                ids.add(message_id)
            fresh.add(message)

    def _check_record(self, stream: Stream, message: Message) -> None:
        """Whatever an append would refuse or set aside: behind the first one nothing may be refused any more."""
        namespace = stream.namespace
        namespace.record_rules.check(message.topic, message.payload)
        if not namespace.record_rules.allows(message.topic, message.payload):
            raise errors.invalid_record("a message of an atomic batch does not match its topic's schema")


class _Fresh:
    """Messages of a batch that are as good as stored; whose checks they would change is refused, as by nats-server."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._topics: set[bytes] = set()
        self._count = 0

    def check(self, message: Message) -> None:
        headers, stream = message.headers, self._stream
        if self._count and header_value(headers, b"Nats-Expected-Last-Sequence") is not None:
            raise errors.wrong_last_sequence(stream.last_seq)  # only the first may ask for it
        if message.topic in self._topics and header_value(headers, b"Nats-Expected-Last-Subject-Sequence") is not None:
            raise errors.wrong_last_sequence(stream.last_seq + self._count)
        config = stream.config
        if config["discard"] == "new" and 0 < config["max_msgs"] <= stream.messages + self._count:
            raise errors.MAX_MSGS

    def add(self, message: Message) -> None:
        self._topics.add(message.topic)
        self._count += 1
