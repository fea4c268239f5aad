"""Fast batches: messages of one stream that are acked together, at a pace that the broker sets (nats-server 2.14).

    reply subject     PREFIX.ID.FLOW.GAP.SEQUENCE.OPERATION.$FI
    FLOW              the client wants an ack after so many messages at the latest
    GAP               fail: the batch ends where a message is missing; ok: it goes on
    OPERATION         0 start, 1 append, 2 append and commit, 3 commit, 4 ping

    {"type":"ack","seq":n,"msgs":m}        everything up to n of the batch is durable; the next ack comes m later
    {"type":"gap","last_seq":a,"seq":b}    a up to b, b not included, did not come
    {"type":"err","seq":n,"error":{...}}   message n was refused
    a PubAck with "batch" and "count"      the end

It is no unit, unlike an atomic batch: each message is appended when it comes, and stays.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import InvalidRecord, MainstemError
from mainstem.protocols.nats.jetstream import errors
from mainstem.protocols.nats.jetstream.errors import JsError
from mainstem.protocols.nats.jetstream.messages import Message, stored_topic

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream
    from mainstem.log.gather import Ticket
    from mainstem.protocols.nats.jetstream.api import JetStream
    from mainstem.protocols.nats.jetstream.publishing import Publisher

SUFFIX = b".$FI"
ID_MAX = 64
OPEN_MAX = 1000  # batches of one stream; nats-server's
SHARED_FLOW = 500  # messages between two acks, of all batches of a stream together
FLOW_DEFAULT, FLOW_MAX = 10, (1 << 16) - 1
SEQUENCE_DIGITS_MAX = 18
IDLE_S = 10.0
START, APPEND, COMMIT, COMMIT_ONLY, PING = range(5)


@dataclass(slots=True)
class Asked:
    """What the reply subject says."""

    name: str
    flow: int
    gap_ok: bool
    sequence: int
    operation: int

    @classmethod
    def parse(cls, reply: bytes) -> Asked | None:
        tokens = reply[: -len(SUFFIX)].split(b".")[-5:]
        if len(tokens) != 5:
            return None
        name, flow, gap, sequence, operation = tokens
        if operation not in (b"0", b"1", b"2", b"3", b"4") or gap not in (b"ok", b"fail"):
            return None
        if not sequence.isdigit() or len(sequence) > SEQUENCE_DIGITS_MAX:
            return None
        number, what = int(sequence), int(operation)
        first = number == 1
        if number == 0 or (first and what in (APPEND, COMMIT_ONLY)) or (what == START and not first):
            return None
        wanted = int(flow) if flow.isdigit() and len(flow) <= SEQUENCE_DIGITS_MAX else 0
        return cls(name.decode(errors="replace"), min(wanted or FLOW_DEFAULT, FLOW_MAX), gap == b"ok", number, what)


@dataclass(slots=True, eq=False)
class FastBatch:
    stream: Stream
    name: str
    most: int  # messages between two acks that the client allows
    every: int  # and that it is told
    touched_s: float
    last: int = 0  # of the batch's sequences: the newest that came,
    stored: int = 0  # the newest that is durable, and
    told: int = 0  # the newest that was acked
    stream_seq: int = 0
    pending: int = 0  # appended, and not durable yet
    ending: bool = False
    waiter: _Stored | None = None


class _Stored:
    """What of one batch of the log belongs to a fast batch."""

    __slots__ = ("batch", "batches", "count", "index", "reply", "sequence", "ticket")

    def __init__(self, batches: FastBatches, batch: FastBatch, ticket: Ticket) -> None:
        self.batches, self.batch, self.ticket = batches, batch, ticket
        self.count = self.index = self.sequence = 0
        self.reply = b""

    def released(self, ticket: Ticket, /) -> None:
        self.batches.stored(self)


class FastBatches:
    """Those that are open, of all streams of a namespace."""

    def __init__(self, jetstream: JetStream, publisher: Publisher) -> None:
        self._jetstream, self._publisher = jetstream, publisher
        self._open: dict[Stream, dict[str, FastBatch]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, stream: Stream, reply: bytes, message: Message) -> None:
        """One message of a batch, or a word about it. JsError where it is no part of one."""
        batch, asked = self._find(stream, reply, message)
        batch.touched_s = asyncio.get_running_loop().time()
        if asked.operation == PING:
            self._answer_ping(batch, asked, reply)
        elif not batch.ending:  # else the client waits for its PubAck
            self._add(batch, asked, reply, message)

    def _find(self, stream: Stream, reply: bytes, message: Message) -> tuple[FastBatch, Asked]:
        if stream.config["sealed"]:
            raise errors.SEALED
        if 0 <= stream.config["max_msg_size"] < len(message.headers) + len(message.payload):
            raise errors.TOO_LARGE
        if not stream.config.get("allow_batched"):
            raise errors.FAST_DISABLED
        asked = Asked.parse(reply)
        if asked is None:
            raise errors.FAST_PATTERN
        if len(asked.name) > ID_MAX:
            raise errors.FAST_ID
        found = self._open.get(stream, {}).get(asked.name)
        return found or self._begin(stream, asked), asked

    def _begin(self, stream: Stream, asked: Asked) -> FastBatch:
        if asked.sequence != 1:
            raise errors.FAST_UNKNOWN
        beside = self._open.setdefault(stream, {})
        if len(beside) >= OPEN_MAX:
            raise errors.FAST_OPEN
        loop = asyncio.get_running_loop()
        every = 1 if beside else min(SHARED_FLOW, asked.flow)
        batch = beside[asked.name] = FastBatch(stream, asked.name, asked.flow, every, loop.time())
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_S, self._forget_idle)
        return batch

    def _forget_idle(self) -> None:
        """What was stored stays; a client that goes on is told that the batch is unknown."""
        loop = asyncio.get_running_loop()
        for beside in list(self._open.values()):
            for batch in list(beside.values()):
                if loop.time() - batch.touched_s >= IDLE_S or batch.stream.deleted:
                    self._forget(batch)
        self._sweep = loop.call_later(IDLE_S, self._forget_idle) if self._open else None

    def _forget(self, batch: FastBatch) -> None:
        beside = self._open.get(batch.stream, {})
        if beside.get(batch.name) is batch:
            del beside[batch.name]
        if not beside:
            self._open.pop(batch.stream, None)

    # -- one message -----------------------------------------------------------------------------------------------

    def _add(self, batch: FastBatch, asked: Asked, reply: bytes, message: Message) -> None:
        expected = batch.last + 1
        if asked.sequence > expected:
            self._tell(reply, type="gap", last_seq=expected, seq=asked.sequence)
        if asked.sequence < expected or (asked.sequence > expected and not asked.gap_ok):
            self._end(batch, reply)
            return
        batch.last = asked.sequence
        if asked.operation == COMMIT_ONLY:
            self._take_back(batch)
            self._end(batch, reply)
            return
        batch.ending = asked.operation == COMMIT
        if asked.sequence == 1 and not batch.ending:
            self._tell(reply, type="ack", seq=0, msgs=batch.every)
        try:
            self._append(batch, asked, reply, message)
        except InvalidRecord as error:
            self._refuse(batch, asked, reply, errors.invalid_record(error.message))
        except JsError as error:
            self._refuse(batch, asked, reply, error)
        except MainstemError as error:
            self._refuse(batch, asked, reply, errors.not_stored(error))

    def _append(self, batch: FastBatch, asked: Asked, reply: bytes, message: Message) -> None:
        stream = batch.stream
        if stream.settings.copying:
            message.topic = stored_topic(stream, message.topic)
        duplicate, _ = self._publisher.check(stream, message)
        if duplicate is not None:
            self._skip_duplicate(batch, asked, reply, duplicate)
            return
        ticket, index = self._publisher.append(stream, message)
        batch.pending += 1
        waiter = batch.waiter
        if waiter is None or waiter.ticket is not ticket:
            waiter = batch.waiter = _Stored(self, batch, ticket)
            ticket.wait(waiter)
        waiter.count, waiter.index = waiter.count + 1, index
        waiter.sequence, waiter.reply = asked.sequence, reply

    def _skip_duplicate(
        self, batch: FastBatch, asked: Asked, reply: bytes, duplicate: tuple[Ticket | None, int]
    ) -> None:
        if batch.ending and batch.last == 1 and not asked.gap_ok:  # as a publish by itself
            self._forget(batch)
            more = b',"duplicate": true,"batch":"%b","count":1' % batch.name.encode()
            self._publisher.ack(batch.stream, reply, *duplicate, more)
            return
        if not batch.pending:
            batch.stored = asked.sequence
            self._pace(batch, reply)
        if batch.ending:
            self._end(batch, reply)

    def _refuse(self, batch: FastBatch, asked: Asked, reply: bytes, error: JsError) -> None:
        if batch.last == 1 and not asked.gap_ok:  # as a publish by itself
            self._forget(batch)
            raise error
        self._tell(reply, type="err", seq=asked.sequence, error=error.to_document())
        if asked.gap_ok and not batch.ending:
            return
        self._take_back(batch)
        self._end(batch, reply)

    def _take_back(self, batch: FastBatch) -> None:
        """The newest sequence brought nothing that is stored."""
        batch.last -= 1
        if not batch.pending:
            batch.stored = batch.last

    # -- answers ---------------------------------------------------------------------------------------------------

    def stored(self, waiter: _Stored) -> None:
        """A batch of the log is durable, or could not be written."""
        batch, ticket = waiter.batch, waiter.ticket
        batch.pending -= waiter.count
        if batch.waiter is waiter:
            batch.waiter = None
        if ticket.error is not None:
            self._forget(batch)
            self._publisher.failed(batch.stream, [waiter.reply], ticket.error)
            return
        batch.stream_seq = ticket.base_offset + waiter.index + 1
        batch.stored = waiter.sequence if batch.pending else batch.last
        if batch.ending and batch.stored == batch.last:
            self._end(batch, waiter.reply)
        else:
            self._pace(batch, waiter.reply)

    def _end(self, batch: FastBatch, reply: bytes) -> None:
        """With a PubAck, once all that came is durable."""
        batch.ending = True
        if batch.last != batch.stored:
            return
        self._forget(batch)
        more = b',"batch":"%b","count":%d' % (batch.name.encode(), batch.last)
        self._publisher.ack(batch.stream, reply, None, batch.stream_seq, more)

    def _pace(self, batch: FastBatch, reply: bytes) -> bool:
        """An ack where one is due; the batches of a stream share what may lie between two acks."""
        steps = (batch.stored - batch.told) // batch.every
        if steps <= 0:
            return False
        batch.told += steps * batch.every
        most = min(max(1, SHARED_FLOW // len(self._open.get(batch.stream, {1: 1}))), batch.most)
        batch.every = min(batch.every * 2, most) if batch.every < most else max(batch.every // 2, most)
        self._tell(reply, type="ack", seq=batch.told, msgs=batch.every)
        return True

    def _answer_ping(self, batch: FastBatch, asked: Asked, reply: bytes) -> None:
        told = False
        if asked.sequence > batch.last:
            self._tell(reply, type="gap", last_seq=batch.last + 1, seq=asked.sequence + 1)
            if not asked.gap_ok:
                self._end(batch, reply)
                told = not self._open.get(batch.stream, {}).get(batch.name)
            else:
                batch.last = asked.sequence
                if not batch.pending:
                    batch.stored = batch.last
                told = self._pace(batch, reply)
        if not told:
            self._tell(reply, type="ack", seq=batch.told, msgs=batch.every)

    def _tell(self, reply: bytes, **said: Any) -> None:
        self._jetstream.send(reply, json.dumps(said, separators=(",", ":")).encode())
