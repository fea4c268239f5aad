"""Sources of a stream: what other streams store is copied into it, as new messages with sequences of its own.

    Nats-Stream-Source: origin  sequence  filter  transform's destination  original subject  which stream of that name

Where a copying stands is in the copies themselves, so one is never made twice or left out; once a second the place is
journaled as well, so that a start reads only what came after it, and limits may remove copies.

    journal kind "stream":  4  where its sources stand: i64 offset up to which copies are counted, then a JSON object
                               {source's key: the origin's offset that is copied next}
"""

from __future__ import annotations

import json
import logging
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from mainstem.log.away import bring
from mainstem.model.errors import MainstemError
from mainstem.model.nats_headers import header_value, with_lines, without
from mainstem.model.origin import Origin
from mainstem.model.record import Header, Record
from mainstem.model.subject_transform import SubjectTransform
from mainstem.model.times import time_ns
from mainstem.model.topic import filter_of_nats, topic_of_nats
from mainstem.model.topic_filter import matches
from mainstem.model.whole_numbers import whole_number
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.broker.streams.streams import Streams

logger = logging.getLogger("mainstem.broker")

# Origins by name → what whoever declared the sources was allowed to read of each then; one not named has no limit. An
# origin that gets other subjects, or is deleted and recreated, is copied no further than that.
Granted = dict[str, list[str]]

TURN_RECORDS_MAX = 500  # copied of one source in one turn of the loop
RETRY_S = 0.5
_AT = struct.Struct(">q")


class Source:
    """One origin of one stream."""

    def __init__(self, stream: Stream, streams: Streams, given: dict[str, Any]) -> None:
        self._stream, self._streams = stream, streams
        self.given = given
        self.name: str = given["name"]
        transforms = given.get("subject_transforms") or []
        self._transforms = [SubjectTransform(one.get("src", ""), one.get("dest", "")) for one in transforms]
        subjects = [one.source for one in self._transforms] or [given.get("filter_subject") or ">"]
        self._filters = () if ">" in subjects else tuple(filter_of_nats(one.encode()) for one in subjects)
        self._told = ",".join(subjects), ",".join(one.destination for one in self._transforms) or ">"
        self.next: int | None = None  # the origin's offset that is copied next; None: it was never looked at
        self.copied = 0  # the sequence of the last message that was copied
        self._origin: Stream | None = None
        self._waiting = self._stopped = False

    @property
    def key(self) -> str:
        return f"{self.name} {self._told[0]} {self._told[1]}"

    @property
    def lag(self) -> int:
        """Messages of the origin that are not copied yet."""
        origin = self._streams.by_name.get(self.name)
        return origin.count(self._filters, self.next or 0, origin.end) if origin is not None else 0

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Copy some, and look again when there is more."""
        try:
            self._run()
        except NotLocal as missing:  # nothing was copied yet in this turn
            bring(missing, self.run)

    def _run(self) -> None:
        self._waiting = False
        stream, origin = self._stream, self._streams.by_name.get(self.name)
        if self._stopped or stream.deleted or origin is None:
            return  # it goes on when a stream of that name is made
        if origin is not self._origin:
            if self._origin is not None or self.next is None:
                self.next = self._start(origin) if self._origin is None else origin.first
            self._origin = origin
        assert self.next is not None
        try:
            records, after = origin.read(self._filters, self.next, origin.end, count_max=TURN_RECORDS_MAX)
            granted = self._stream.granted.get(self.name)
            for record in records:
                if granted is None or any(matches(one.encode(), record.topic) for one in granted):
                    self._copy(origin, record)
                self.copied = self.next = record.offset + 1
            self.next = max(self.next, after) if after >= self.next else self.next
        except MainstemError as error:
            logger.warning("stream %r: copying from %r waits: %s", stream.name, self.name, error)
            self._again(RETRY_S)
            return
        if self.next < origin.end:
            self._again(0)
        elif not self._waiting:
            self._waiting = True
            origin.watchers.append(self.run)

    def _again(self, delay_s: float) -> None:
        self._stream.service.broker.ticker.loop.call_later(delay_s, self.run)

    def _start(self, origin: Stream) -> int:
        if self.given.get("opt_start_seq"):
            return max(origin.first, int(self.given["opt_start_seq"]) - 1)
        if self.given.get("opt_start_time"):
            since = time_ns(self.given["opt_start_time"])
            at = max(origin.first, origin.log.offset_of_stamp(since)) if origin.messages else origin.last_seq
            found = (record.offset for record in origin.walk((), at, origin.end) if record.stamp >= since)
            return next(found, origin.end)
        return origin.first

    def _copy(self, origin: Stream, record: Record) -> None:
        subject = origin.subject(record.topic).decode(errors="replace")
        to = subject
        if self._transforms:
            found = (one.match(subject) for one in self._transforms)
            to = next((one for one in found if one is not None), subject)
        filters, destination = self._told
        where = f"{origin.name} {record.offset + 1} {filters} {destination} {subject} {_identity(origin)}"
        block = without(record.header(b"ms-nats") or b"", (), (b"Nats-Stream-Source",))
        headers = [(name, value) for name, value in record.headers if name != b"ms-nats"]
        stored: list[Header] = [(b"ms-nats", with_lines(block, [("Nats-Stream-Source", where)])), *headers]
        topic = self._stream.place(topic_of_nats(to.encode()))
        self._stream.namespace.publish_at(topic, record.value, headers=stored, origin=Origin.NATS)

    def note_copy(self, record: Record) -> None:
        """A copy that is in the stream: what comes next is behind it."""
        told = header_value(record.header(b"ms-nats") or b"", b"Nats-Stream-Source")
        parts = told.decode(errors="replace").split(" ") if told else []
        if len(parts) >= 4 and f"{parts[0]} {parts[2]} {parts[3]}" == self.key:
            self.copied = self.next = max(self.next or 0, whole_number(parts[1]) or 0)


def _identity(stream: Stream) -> str:
    """Another one for a stream that was deleted and recreated."""
    return blake2b(b"%d" % stream.created_ns, digest_size=4).hexdigest()


class Sourcing:
    """All sources of one stream."""

    def __init__(self, stream: Stream, streams: Streams) -> None:
        self._stream, self._streams = stream, streams
        self.sources = [Source(stream, streams, one) for one in stream.config.get("sources") or ()]
        self._counted = 0  # copies below this offset are in what was journaled
        self.journaled = b""
        self._next_state: tuple[int, bytes] | None = None  # the stream's end then, and where the sources stood

    def change(self) -> None:
        """The configuration changed; sources that stayed go on where they were."""
        known = {one.key: one for one in self.sources}
        for one in self.sources:
            one.stop()
        self.sources = [
            Source(self._stream, self._streams, given) for given in self._stream.config.get("sources") or ()
        ]
        for one in self.sources:
            if one.key in known:
                one.next = known[one.key].next
        self.start()

    def start(self) -> None:
        for one in self.sources:
            one.run()

    def stop(self) -> None:
        for one in self.sources:
            one.stop()

    def recover(self) -> None:
        stream = self._stream
        if self.sources:
            unknown = "and what they copied of sources may be copied again"
            for record in stream.walk_readable(max(self._counted, stream.first), stream.written, unknown):
                for one in self.sources:
                    one.note_copy(record)

    def state(self) -> bytes | None:
        """To be journaled; None where nothing changed, or the copies it speaks of are not durable yet."""
        stream = self._stream
        if not self.sources:
            return None
        if self._next_state is None:
            places = {one.key: one.next for one in self.sources if one.next is not None}
            text = json.dumps(places, sort_keys=True).encode()
            if text == self.journaled[_AT.size :]:
                return None
            stream.service.broker.ticker.write_now()
            self._next_state = stream.log.written, text
        end, text = self._next_state
        if stream.log.stable < end:
            return None
        self._next_state, self.journaled = None, _AT.pack(end) + text
        return self.journaled

    def apply(self, state: bytes) -> None:
        self.journaled, self._counted = state, _AT.unpack_from(state)[0]
        places = json.loads(state[_AT.size :])
        for one in self.sources:
            if one.key in places:
                one.next = places[one.key]
