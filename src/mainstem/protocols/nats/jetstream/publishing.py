"""A publish that a stream captures: checked in nats-server's order, appended, and acked once it is durable.

PubAcks of one batch leave together when its ticket is released; no task or future per message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mainstem.broker.streams.expiry import EXPIRING_MAX, ttl_ns
from mainstem.broker.streams.stream import OVERHEAD_BYTES, Stream
from mainstem.log.gather import Ticket
from mainstem.model.errors import InvalidRecord, MainstemError
from mainstem.model.origin import Origin
from mainstem.model.topic import nats_subject, topic_of_nats
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.words import header_value

if TYPE_CHECKING:
    from mainstem.protocols.nats.jetstream.api import JetStream

HEADER_BYTES_MAX = 64 << 10


class Acks:
    """Who waits for one batch: (index, reply, stream) in the order of publishing."""

    __slots__ = ("_jetstream", "_waiting")

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._waiting: list[tuple[int, bytes, Stream, bytes]] = []

    def add(self, index: int, reply: bytes, stream: Stream, more: bytes = b"") -> None:
        self._waiting.append((index, reply, stream, more))

    def released(self, ticket: Ticket, /) -> None:
        self._jetstream.acked(ticket)
        if ticket.error is not None:
            error = errors.insufficient(str(ticket.error))
            for _, reply, stream, _ in self._waiting:
                self._jetstream.send(reply, refusal(stream.name, error))
            return
        first = ticket.base_offset + 1
        for index, reply, stream, more in self._waiting:
            self._jetstream.send(reply, b'{"stream":"%b","seq":%d%b}' % (stream.name.encode(), first + index, more))


def refusal(stream: str, error: JsError) -> bytes:
    return json.dumps({"error": error.to_document(), "stream": stream, "seq": 0}, separators=(",", ":")).encode()


class Publisher:
    """The checks and the append, for one namespace."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._acks: dict[Ticket, Acks] = {}

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
        try:
            duplicate = self._check(stream, topic, headers, payload) if headers or stream.config["sealed"] else None
            self._check_limits(stream, topic, headers, payload)
            if duplicate is not None:
                self._ack(stream, reply, *duplicate, b',"duplicate": true')
                return
            ticket, index = stream.namespace.publish_at(topic, payload, key=key, headers=stored, origin=Origin.NATS)
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
                self._jetstream.send(reply, refusal(stream.name, errors.insufficient(str(error))))
            return
        stream.gathered += 1
        stream.last_id = b""
        if headers:
            message_id = header_value(headers, b"Nats-Msg-Id")
            if message_id:
                stream.last_id = message_id
                stream.note_id(message_id, stream.service.now_ns(), ticket, index)
            rollup = header_value(headers, b"Nats-Rollup")
            if rollup:
                ticket.wait(_Rollup(stream, topic, rollup, index))
        self._ack(stream, reply, ticket, index)

    def _ack(self, stream: Stream, reply: bytes, ticket: Ticket | None, index: int, more: bytes = b"") -> None:
        if not reply:
            return
        if ticket is None:
            self._jetstream.send(reply, b'{"stream":"%b","seq":%d%b}' % (stream.name.encode(), index, more))
            return
        acks = self._acks.get(ticket)
        if acks is None:
            acks = Acks(self._jetstream)
            acks.add(index, reply, stream, more)
            if not ticket.stable and ticket.error is None:
                self._acks[ticket] = acks
            ticket.wait(acks)
        else:
            acks.add(index, reply, stream, more)

    def forget(self, ticket: Ticket) -> None:
        self._acks.pop(ticket, None)

    # -- checks, in nats-server's order ------------------------------------------------------------------------------

    def _check(self, stream: Stream, topic: bytes, headers: bytes, payload: bytes) -> tuple[Ticket | None, int] | None:
        """Where it is a duplicate: of what."""
        config = stream.config
        if config["sealed"]:
            raise errors.SEALED
        if b"\r\nNats-" not in headers:
            return None
        expected = header_value(headers, b"Nats-Expected-Stream")
        if expected is not None and expected != stream.name.encode():
            raise errors.EXPECTED_STREAM
        ttl = header_value(headers, b"Nats-TTL")
        if ttl is not None:
            if not config.get("allow_msg_ttl"):
                raise errors.TTL_DISABLED
            if ttl_ns(ttl) is None:
                raise errors.TTL_INVALID
            if stream.expiring.full:
                raise errors.insufficient(f"{EXPIRING_MAX} messages of the stream wait for the end of their TTL")
        self._check_expected(stream, topic, headers)
        message_id = header_value(headers, b"Nats-Msg-Id")
        if message_id:
            duplicate = stream.duplicate_of(message_id, stream.service.now_ns())
            if duplicate is not None:
                return duplicate
        last_id = header_value(headers, b"Nats-Expected-Last-Msg-Id")
        if last_id is not None:
            known = stream.last_id
            if last_id != known:
                raise JsError(400, 10070, f"wrong last msg ID: {known.decode(errors='replace')}")
        rollup = header_value(headers, b"Nats-Rollup")
        if rollup is not None:
            if not config["allow_rollup_hdrs"] or config["deny_purge"]:
                raise errors.ROLLUP_DENIED
            if rollup not in (b"sub", b"all"):
                raise JsError(500, 10111, f"rollup value invalid: {rollup.decode(errors='replace')!r}")
        return None

    def _check_expected(self, stream: Stream, topic: bytes, headers: bytes) -> None:
        last_subject = header_value(headers, b"Nats-Expected-Last-Subject-Sequence")
        last = header_value(headers, b"Nats-Expected-Last-Sequence")
        if last_subject is None and last is None:
            return
        if stream.gathered:  # what was published before this has no sequence yet
            stream.service.broker.ticker.write_now()
        if last_subject is not None:
            other = header_value(headers, b"Nats-Expected-Last-Subject-Sequence-Subject")
            of = topic_of_nats(other) if other else topic
            found = stream.last_of(of)
            if not last_subject.isdigit() or int(last_subject) != found:
                raise errors.wrong_last_sequence(found)
        if last is not None and (not last.isdigit() or int(last) != stream.last_seq):
            raise errors.wrong_last_sequence(stream.last_seq)

    def _check_limits(self, stream: Stream, topic: bytes, headers: bytes, payload: bytes) -> None:
        config = stream.config
        size = len(headers) + len(payload)
        if 0 <= config["max_msg_size"] < size:
            raise errors.TOO_LARGE
        if len(headers) > HEADER_BYTES_MAX:
            raise errors.HEADER_TOO_LARGE
        if config["discard"] != "new":
            return
        per_subject = config["max_msgs_per_subject"]
        if config.get("discard_new_per_subject") and per_subject > 0:
            if stream.gathered:
                stream.service.broker.ticker.write_now()
            if len(stream.last_offsets(topic, per_subject)) >= per_subject:
                raise errors.MAX_PER_SUBJECT
        # A subject at its own limit makes room for what replaces its oldest message.
        replaces = per_subject > 0 and not config.get("discard_new_per_subject") and stream.last_of(topic)
        if 0 < config["max_msgs"] <= stream.messages + stream.gathered and not replaces:
            raise errors.MAX_MSGS
        stored = OVERHEAD_BYTES + len(nats_subject(topic)) + size + (4 if headers else 0)
        if 0 < config["max_bytes"] < stream.bytes + stored:
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
            stream = self._stream  # a wildcard in the subject means what it does in a filter, as with nats-server
            found, _ = stream.index.find_many(stream.bitmap((self._topic,)), stream.first, offset)
            stream.remove(stream.removed.visible(found))
            self._stream.flush_removed()
