"""Requests about single messages: get and delete."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from mainstem.broker.broker import Broker
from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.streams.stream import Stream
from mainstem.model.errors import InvalidName
from mainstem.model.record import Record
from mainstem.model.topic import filter_of_nats, topic_of_nats
from mainstem.model.topic_filter import is_pattern
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.delivery import message_of
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.words import (
    document,
    number,
    string,
    time_text,
)

if TYPE_CHECKING:
    from mainstem.broker.streams.streams import Streams
    from mainstem.protocols.nats.jetstream.api import Call

_GET = frozenset(
    [
        "seq",
        "last_by_subj",
        "next_by_subj",
        "batch",
        "max_bytes",
        "start_time",
        "multi_last",
        "up_to_seq",
        "up_to_time",
        "no_hdr",
    ]
)


class MessageCalls:
    broker: Broker
    streams: Streams

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def stream(self, call: Call, at: int = 2) -> Stream: ...
        def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None: ...
        def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> None: ...

    def on_stream_msg_get(self, call: Call) -> dict[str, Any]:
        stream = self.stream(call, 3)
        self.require(call.principal, Action.CONSUME, stream.rights)
        record = self._found(stream, document(call.payload, _GET))
        if record is None:
            raise errors.no_message()
        headers, payload = message_of(record, self.now_ns())
        message: dict[str, Any] = {
            "subject": spelled(stream, record, string(document(call.payload), "last_by_subj")),
            "seq": record.offset + 1,
        }
        if headers:
            message["hdrs"] = b64encode(headers).decode()
        if payload:
            message["data"] = b64encode(payload).decode()
        return {"message": {**message, "time": time_text(record.stamp)}}

    def _found(self, stream: Stream, given: dict[str, Any]) -> Record | None:
        seq, last, following = number(given, "seq"), string(given, "last_by_subj"), string(given, "next_by_subj")
        if (not seq and not last and not following) or (seq and last) or (last and following):
            raise errors.bad_request()
        try:
            wanted = filter_of_nats((last or following).encode()) if last or following else b""
        except InvalidName:
            return None
        if last:
            return last_of_filter(stream, wanted)
        if following:
            found = stream.next_of((wanted,), max(0, seq - 1))
            return found if found is not None and found.offset < stream.end else None
        return stream.read_one(seq - 1) if seq - 1 < stream.end else None

    async def change_stream_msg_delete(self, call: Call) -> dict[str, Any]:
        stream = self.stream(call, 3)
        self.require(call.principal, Action.DELETE, stream.rights)
        seq = number(document(call.payload, frozenset(("seq", "no_erase"))), "seq")
        if stream.config["sealed"]:
            raise errors.SEALED
        if stream.config["deny_delete"]:
            raise errors.DELETE_DENIED
        if not stream.remove([seq - 1] if seq - 1 < stream.end and stream.read_one(seq - 1) is not None else []):
            raise JsError(500, 10057, "stream store EOF" if seq > stream.last_seq else "no message found")
        stream.flush_removed()
        await self.broker.ticker.settle([self.broker.journal.stem])
        return {"success": True}


def last_of_filter(stream: Stream, topic_filter: bytes) -> Record | None:
    """The newest message that a filter means."""
    topics = stream.topics_of([topic_filter]) if is_pattern(topic_filter) else [stream.place(topic_filter)]
    offsets = [offset for topic in topics for offset in stream.last_offsets(topic, 1, stream.end)]
    return stream.read_one(max(offsets)) if offsets else None


def spelled(stream: Stream, record: Record, asked: str) -> str:
    """The message's subject: as it was asked for, where that is it, for a literal `>` has more than one spelling."""
    try:
        if asked and topic_of_nats(asked.encode()) == stream.plain(record.topic):
            return asked
    except InvalidName:
        pass
    return stream.subject(record.topic).decode(errors="replace")


def offset_since(stream: Stream, since_ns: int) -> int:
    """Of the first message written at or after that time."""
    at = max(stream.first, stream.log.offset_of_stamp(since_ns)) if stream.messages else stream.last_seq
    found = (record.offset for record in stream.walk((), at, stream.end) if record.stamp >= since_ns)
    return next(found, stream.end)
