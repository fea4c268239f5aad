"""A publish that a stream captures: checked in nats-server's order, appended, and acked once it is durable.

PubAcks of one batch leave together when its ticket is released (`pubacks.py`); no task or future per message. What asks for
nothing but to be stored does not come here at all: the wire puts it into the stream's batch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.expiry import EXPIRING_MAX, ttl_ns
from mainstem.broker.streams.stream import Stream
from mainstem.broker.streams.tap import OVERHEAD_BYTES
from mainstem.log.away import bring
from mainstem.log.gather import Ticket
from mainstem.model.errors import InvalidRecord, MainstemError, Overloaded
from mainstem.model.origin import Origin
from mainstem.model.topic import topic_of_nats
from mainstem.model.whole_numbers import whole_number
from mainstem.protocols.nats.jetstream import counters, errors, scheduling
from mainstem.protocols.nats.jetstream.batches import Batches
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.fast_batches import SUFFIX as FAST
from mainstem.protocols.nats.jetstream.fast_batches import FastBatches
from mainstem.protocols.nats.jetstream.messages import Message, stored_topic
from mainstem.protocols.nats.jetstream.pubacks import Gate
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.protocols.nats.jetstream.api import JetStream

HEADER_BYTES_MAX = 64 << 10
BEING_FETCHED = "the last message of this subject is being fetched from the object store, publish again"


def refusal(stream: str, error: JsError) -> bytes:
    return json.dumps({"error": error.to_document(), "stream": stream, "seq": 0}, separators=(",", ":")).encode()


class Publisher:
    """The checks and the append, for one namespace."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._gates: dict[str, Gate] = {}
        self.batches = Batches(jetstream, self)
        self.fast_batches = FastBatches(jetstream, self)

    def publish(
        self,
        stream: Stream,
        topic: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        stored: list[Any],
        key: bytes | None,
    ) -> None:
        """`stored`: the record's headers."""
        if stream.config.get("no_ack"):
            reply = b""
        message = Message(topic, headers, payload, stored, key)
        try:
            if reply.endswith(FAST):
                self.fast_batches.take(stream, reply, message)
                return
            if headers and b"\r\nNats-Batch-Id:" in headers:
                self.batches.take(stream, reply, message)
                return
            if stream.settings.copying:
                message.topic = stored_topic(stream, topic)
            duplicate, more = self.check(stream, message)
            if duplicate is not None:
                self.ack(stream, reply, *duplicate, b',"duplicate": true')
                return
            ticket, index = self.append(stream, message)
        except JsError as error:
            if reply:
                self._jetstream.send(reply, refusal(stream.name, error))
            return
        except InvalidRecord as error:
            if reply:
                self._jetstream.send(reply, refusal(stream.name, errors.invalid_record(error.message)))
            return
        except MainstemError as error:
            if reply:
                self._jetstream.send(reply, refusal(stream.name, errors.not_stored(error)))
            return
        self.ack(stream, reply, ticket, index, more)

    def append(self, stream: Stream, message: Message) -> tuple[Ticket, int]:
        headers, topic = message.headers, message.topic
        ticket, index = stream.namespace.publish_at(
            topic, message.payload, key=message.key, headers=message.stored, origin=Origin.NATS
        )
        if ticket.log is not stream.log:  # it is not in the stream: an ack would name another log's sequence
            raise errors.SET_ASIDE
        stream.gathered += 1
        stream.gathered_topics.add(topic)
        stream.last_id = b""
        if headers and b"\r\nNats-" in headers:
            message_id = message.value(b"Nats-Msg-Id")
            if message_id:
                stream.last_id = message_id
                stream.note_id(message_id, stream.service.now_ns(), ticket, index)
            rollup = message.value(b"Nats-Rollup")
            if rollup:
                ticket.wait(_Rollup(stream, topic, rollup, index))
        return ticket, index

    def ack(self, stream: Stream, reply: bytes, ticket: Ticket | None, index: int, more: bytes = b"") -> None:
        if not reply:
            return
        if ticket is None:
            self._jetstream.send(reply, b'{"stream":"%b","seq":%d%b}' % (stream.name.encode(), index, more))
            return
        self.gate(stream).await_durable(ticket, index, reply, more)

    def gate(self, stream: Stream) -> Gate:
        """Made anew where the stream's configuration is another one."""
        found = self._gates.get(stream.name)
        if found is None or found.stream is not stream or found.config is not stream.config:
            self._gates = {name: one for name, one in self._gates.items() if not one.stream.deleted}
            found = self._gates[stream.name] = Gate(self._jetstream, stream)
        return found

    def failed(self, stream: Stream, replies: list[bytes], error: Exception) -> None:
        """A batch could not be written."""
        stream.counters.clear()
        for reply in replies:
            self._jetstream.send(reply, refusal(stream.name, errors.not_stored(error)))

    # -- checks, in nats-server's order ------------------------------------------------------------------------------

    def check(self, stream: Stream, message: Message) -> tuple[tuple[Ticket | None, int] | None, bytes]:
        """Where it is a duplicate: of what; and what the ack adds. The message may change: counters are added up."""
        try:
            return self._check(stream, message)
        except NotLocal as missing:  # the last message of a counter or a schedule
            bring(missing, lambda: None)
            raise errors.not_stored(Overloaded(BEING_FETCHED)) from None

    def _check(self, stream: Stream, message: Message) -> tuple[tuple[Ticket | None, int] | None, bytes]:
        config, headers = stream.config, message.headers
        if config["sealed"]:
            raise errors.SEALED
        special = b"\r\nNats-" in headers
        if special:
            counters.check(stream, message)
            self._check_asked(stream, message)
            duplicate = self._check_ids(stream, message)
            if duplicate is not None:
                return duplicate, b""
            self._check_rollup(stream, message.value(b"Nats-Rollup"))
        more = counters.count(stream, message) if config.get("allow_msg_counter") else b""
        self._check_limits(stream, message)
        return None, more

    def _check_asked(self, stream: Stream, message: Message) -> None:
        headers = message.headers
        expected = message.value(b"Nats-Expected-Stream")
        if expected is not None and expected != stream.name.encode():
            raise errors.EXPECTED_STREAM
        ttl = message.value(b"Nats-TTL")
        if ttl is not None:
            if not stream.config.get("allow_msg_ttl"):
                raise errors.TTL_DISABLED
            if ttl_ns(ttl) is None:
                raise errors.TTL_INVALID
            if stream.expiring.full:
                raise errors.insufficient(f"{EXPIRING_MAX} messages of the stream wait for the end of their TTL")
        self._check_expected(stream, message)
        if b"\r\nNats-Schedule" in headers:
            scheduling.check(stream, message)
        if message.value(b"Nats-Stream-Source"):
            raise errors.SOURCE_HEADER

    def _check_ids(self, stream: Stream, message: Message) -> tuple[Ticket | None, int] | None:
        message_id = message.value(b"Nats-Msg-Id")
        if message_id:
            duplicate = stream.duplicate_of(message_id, stream.service.now_ns())
            if duplicate is not None:
                return duplicate
        last_id = message.value(b"Nats-Expected-Last-Msg-Id")
        if last_id and last_id != stream.last_id:
            raise JsError(400, 10070, f"wrong last msg ID: {stream.last_id.decode(errors='replace')}")
        return None

    def _check_rollup(self, stream: Stream, rollup: bytes | None) -> None:
        if rollup is None:
            return
        if not stream.config["allow_rollup_hdrs"] or stream.config["deny_purge"]:
            raise errors.ROLLUP_DENIED
        if rollup not in (b"sub", b"all"):
            raise JsError(500, 10111, f"rollup value invalid: {json.dumps(rollup.decode(errors='replace'))}")

    def _check_expected(self, stream: Stream, message: Message) -> None:
        last_subject = message.value(b"Nats-Expected-Last-Subject-Sequence")
        last = message.value(b"Nats-Expected-Last-Sequence")
        other = message.value(b"Nats-Expected-Last-Subject-Sequence-Subject")
        if last_subject is not None:
            of = stream.place(topic_of_nats(other)) if other else message.topic
            if of in stream.gathered_topics:  # what was published before this has no sequence yet
                stream.service.broker.ticker.write_now()
            found = stream.last_of(of)
            if whole_number(last_subject) != found:
                raise errors.wrong_last_sequence(found)
        elif other:
            raise errors.EXPECTED_SUBJECT
        if last is not None:
            if stream.gathered:
                stream.service.broker.ticker.write_now()
            if whole_number(last) != stream.last_seq:
                raise errors.wrong_last_sequence(stream.last_seq)

    def _check_limits(self, stream: Stream, message: Message) -> None:
        config, topic = stream.config, message.topic
        size = len(message.headers) + len(message.payload)
        if 0 <= config["max_msg_size"] < size:
            raise errors.TOO_LARGE
        if len(message.headers) > HEADER_BYTES_MAX:
            raise errors.HEADER_TOO_LARGE
        if config["discard"] != "new":
            return
        per_subject = config["max_msgs_per_subject"]
        if config.get("discard_new_per_subject") and per_subject > 0:
            if topic in stream.gathered_topics:
                stream.service.broker.ticker.write_now()
            if len(stream.last_offsets(topic, per_subject)) >= per_subject:
                raise errors.MAX_PER_SUBJECT
        # A subject at its own limit makes room for what replaces its oldest message.
        replaces = per_subject > 0 and not config.get("discard_new_per_subject") and stream.last_of(topic)
        if 0 < config["max_msgs"] <= stream.messages + stream.gathered and not replaces:
            raise errors.MAX_MSGS
        stored = OVERHEAD_BYTES + len(stream.subject(topic)) + size + (4 if message.headers else 0)
        if 0 < config["max_bytes"] < stream.stored_bytes + stored:
            raise errors.MAX_BYTES


class _Rollup:
    """Once it is durable, a message that stands for all before it removes them."""

    __slots__ = ("_index", "_stream", "_topic", "_what")

    def __init__(self, stream: Stream, topic: bytes, what: bytes, index: int) -> None:
        self._stream, self._topic, self._what, self._index = stream, topic, what, index

    def released(self, ticket: Ticket, /) -> None:
        if ticket.error is not None or self._stream.deleted:
            return
        offset = ticket.base_offset + self._index
        if self._what == b"all":
            self._stream.remove_front(offset)
        else:
            self._stream.roll_up(self._topic, offset)
