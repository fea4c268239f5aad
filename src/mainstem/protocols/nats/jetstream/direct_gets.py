"""Direct gets: messages of a stream, with where they stand in headers: one, a batch, or the last of many subjects.

A batch is sent in slices, so that nobody waits for it. It ends with `204 EOB`, which says how many are left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mainstem.broker.rights.access import Action, Principal
from mainstem.broker.streams.stream import Stream
from mainstem.log.away import AGAIN_S, brought
from mainstem.model.errors import InvalidName, MainstemError
from mainstem.model.record import Record
from mainstem.model.topic import filter_of_nats
from mainstem.protocols.nats.jetstream.delivery import message_of
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.infos import record_lines
from mainstem.protocols.nats.jetstream.message_calls import last_of_filter, offset_since, spelled
from mainstem.protocols.nats.jetstream.words import (
    document,
    flag,
    number,
    status,
    string,
    texts,
    time_ns,
    unsigned,
    with_lines,
)
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.broker.streams.streams import Streams
    from mainstem.protocols.nats.jetstream.api import Call

logger = logging.getLogger("mainstem.nats")

MULTI_LAST_MAX = 1024
BYTES_MAX = 64 << 20  # of one answer: what a client may leave unread
SLICE_MESSAGES, SLICE_BYTES = 64, 1 << 20
BATCHES_MAX = 256  # of a namespace that are longer than a slice, at a time
EMPTY, BAD, MALFORMED = "Empty Request", "Bad Request", "Malformed Request"


@dataclass(frozen=True, slots=True)
class Asked:
    seq: int
    last: str
    following: str
    lasts: list[str]
    batch: int
    bytes_max: int
    since_ns: int | None
    to_seq: int
    to_ns: int | None
    bare: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """ValueError or JsError where it is none."""
        since, to = string(given, "start_time"), string(given, "up_to_time")
        return cls(
            unsigned(given, "seq"),
            string(given, "last_by_subj"),
            string(given, "next_by_subj"),
            texts(given, "multi_last"),
            number(given, "batch"),
            number(given, "max_bytes") or BYTES_MAX,
            time_ns(since) if "start_time" in given and given["start_time"] is not None else None,
            unsigned(given, "up_to_seq"),
            time_ns(to) if "up_to_time" in given and given["up_to_time"] is not None else None,
            flag(given, "no_hdr"),
        )

    def fault(self) -> str:
        timed = self.since_ns is not None
        if not (self.seq or self.last or self.following or self.lasts or timed):
            return EMPTY
        conflicts = (
            self.last and (self.seq or timed or self.following or self.batch > 0 or self.lasts),
            self.seq and timed,
            self.following and self.lasts,
            self.to_seq and self.to_ns is not None,
        )
        return BAD if any(conflicts) else ""


class DirectGets:
    streams: Streams

    if TYPE_CHECKING:

        def now_ns(self) -> int: ...
        def require(self, principal: Principal, action: Action, filters: tuple[bytes, ...]) -> None: ...
        def send(self, reply: bytes, payload: bytes, headers: bytes = b"") -> None: ...

    _batches: set[asyncio.Task[None]]

    def on_direct_get(self, call: Call) -> bool:
        """False: no stream that allows it is there to answer."""
        stream = self.streams.by_name.get(call.tokens[2])
        if stream is None or not stream.config["allow_direct"]:
            return False
        self.require(call.principal, Action.CONSUME, stream.rights)
        subject = ".".join(call.tokens[3:])
        if subject:
            self._send_last_of(call, stream, subject)
            return True
        if not call.payload.strip():
            self._fail(call, 408, EMPTY)
            return True
        try:
            asked = Asked.of({} if call.payload.strip() == b"null" else document(call.payload))
        except (JsError, ValueError):
            self._fail(call, 408, MALFORMED)
            return True
        if fault := asked.fault():
            self._fail(call, 408, fault)
        elif asked.lasts:
            self._send_lasts(call, stream, asked)
        elif asked.last:
            self._send_last_of(call, stream, asked.last, bare=asked.bare)
        elif not asked.batch:
            self._send_one(call, stream, asked)
        else:
            self._run(self._batch(call, stream, asked))
        return True

    def _fail(self, call: Call, code: int, text: str) -> None:
        self.send(call.reply, b"", status(code, text))

    def _send(
        self,
        call: Call,
        stream: Stream,
        record: Record,
        more: Sequence[tuple[str, object]] = (),
        *,
        asked: str = "",
        bare: bool = False,
    ) -> int:
        """Returns how many bytes of the message count."""
        headers, payload = message_of(record, self.now_ns())
        subject = spelled(stream, record, asked)
        lines = [*record_lines(stream, record, subject), *more]
        self.send(call.reply, payload, b"" if bare else with_lines(headers, lines))
        return len(subject) + len(headers) + len(payload)

    def _send_last_of(self, call: Call, stream: Stream, subject: str, *, bare: bool = False) -> None:
        filters = _filters(subject)
        record = last_of_filter(stream, filters[0]) if filters else None
        if record is None:
            self._fail(call, 404, "Message Not Found")
        else:
            self._send(call, stream, record, asked=subject, bare=bare)

    def _send_one(self, call: Call, stream: Stream, asked: Asked) -> None:
        start = _start(stream, asked)
        record: Record | None = None
        if not asked.following:
            record = stream.read_one(start) if start < stream.end else None
        elif filters := _filters(asked.following):
            record = next(stream.walk(filters, max(start, stream.first), stream.end), None)
        if record is None:
            self._fail(call, 404, "Message Not Found")
        else:
            self._send(call, stream, record, bare=asked.bare)

    # -- batches -------------------------------------------------------------------------------------------------------

    def _run(self, slices: Iterator[NotLocal | None]) -> None:
        """The first slice at once; the rest, if there is more, in turns with everybody else."""
        for first in slices:
            task = asyncio.get_running_loop().create_task(_in_turns(first, slices))
            break
        else:
            return
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    def _batch(self, call: Call, stream: Stream, asked: Asked) -> Iterator[NotLocal | None]:
        """Slices; between them it is the turn of others, and what it missed is brought."""
        start, end = _start(stream, asked), stream.end
        filters = _filters(asked.following) if asked.following else ()
        left = stream.count(filters, start, end) if filters is not None else 0
        last, sent, size, slice_size = 0, 0, 0, 0
        if asked.batch > 0:
            for record in _walk(stream, filters, max(start, stream.first), end) if filters is not None else ():
                if isinstance(record, NotLocal):
                    if call.connection.closing:
                        return
                    yield record
                    continue
                left -= 1
                more = (("Nats-Num-Pending", left), ("Nats-Last-Sequence", last))
                counted = self._send(call, stream, record, more, bare=asked.bare)
                last, sent, size, slice_size = record.offset + 1, sent + 1, size + counted, slice_size + counted
                if sent >= asked.batch or size >= min(asked.bytes_max, BYTES_MAX):
                    break
                if sent % SLICE_MESSAGES == 0 or slice_size >= SLICE_BYTES:
                    if call.connection.closing or len(self._batches) >= BATCHES_MAX:
                        break
                    slice_size = 0
                    yield None
            if not sent:
                self._fail(call, 404, "Message Not Found")
                return
        lines = (("Nats-Num-Pending", left), ("Nats-Last-Sequence", last))
        self.send(call.reply, b"", status(204, "EOB", lines))

    # -- the last of many subjects -------------------------------------------------------------------------------------

    def _send_lasts(self, call: Call, stream: Stream, asked: Asked) -> None:
        """As of a sequence or a time. Past the end, as in nats-server, only a stream in memory has results."""
        end = asked.to_seq or stream.last_seq
        if end > stream.last_seq and stream.config["storage"] == "file":
            self._fail(call, 404, "No Results")
            return
        if asked.to_ns is not None:
            end = offset_since(stream, asked.to_ns)
        filters = [one for subject in asked.lasts for one in _filters(subject) or ()]
        topics = stream.topics_of(filters) if filters else ()
        found = sorted(o for topic in topics for o in stream.last_offsets(topic, 1, end))
        if len(found) > MULTI_LAST_MAX:
            self._fail(call, 413, "Too Many Results")
            return
        if not found:
            self._fail(call, 404, "No Results")
            return
        offsets = [offset for offset in found if offset >= asked.seq - 1]
        last, size, left = 0, 0, len(offsets)
        records = _all_here(stream, offsets, asked)
        for sent, (offset, record) in enumerate(zip(offsets, records, strict=False), 1):
            left -= 1
            if record is not None:
                more = (("Nats-Num-Pending", left), ("Nats-Last-Sequence", last))
                size += self._send(call, stream, record, more)
                last = offset + 1
            if sent == asked.batch or size >= min(asked.bytes_max, BYTES_MAX):
                break
        lines = (("Nats-Num-Pending", left), ("Nats-Last-Sequence", last), ("Nats-UpTo-Sequence", end))
        self.send(call.reply, b"", status(204, "EOB", lines))


def _all_here(stream: Stream, offsets: list[int], asked: Asked) -> list[Record | None]:
    """The records of one answer: all are read before the first is sent, for some may have to be brought."""
    records, size = list[Record | None](), 0
    for offset in offsets:
        record = stream.read_one(offset)
        records.append(record)
        size += len(record.value or b"") if record is not None else 0
        if len(records) == asked.batch or size >= min(asked.bytes_max, BYTES_MAX):
            break
    return records


def _walk(stream: Stream, filters: Sequence[bytes], start: int, end: int) -> Iterator[Record | NotLocal]:
    """As `Stream.walk`; where something lies elsewhere it says so, and reads it again when it is asked to go on."""
    while start < end:
        try:
            records, after = stream.read(filters, start, end, count_max=SLICE_MESSAGES)
        except NotLocal as missing:
            yield missing
            continue
        yield from records
        if after <= start:
            return
        start = after


async def _in_turns(first: NotLocal | None, slices: Iterator[NotLocal | None]) -> None:
    for one in itertools.chain((first,), slices):
        if one is None:
            await asyncio.sleep(0)
            continue
        try:
            await brought(one)
        except MainstemError as error:
            logger.error("what lies elsewhere could not be read, tried again in %d s: %s", AGAIN_S, error)
            await asyncio.sleep(AGAIN_S)


def _start(stream: Stream, asked: Asked) -> int:
    """The offset to begin at."""
    return offset_since(stream, asked.since_ns) if asked.since_ns is not None else max(0, asked.seq - 1)


def _filters(subject: str) -> tuple[bytes] | None:
    """None: no message can have it."""
    try:
        return (filter_of_nats(subject.encode()),)
    except InvalidName:
        return None
