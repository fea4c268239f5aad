"""Fetch: stored batches as they are, long polling, sessions, isolation.

Rules of this file:

- A fetch is answered when it has `min_bytes`, when a partition has an error, or when `max_wait_ms` is over. In between it
  waits on the logs it reads (`watch`): no task, no polling.
- The first batch is sent whole however large it is (KIP-74); after it, limits hold.
- Looking for matches and translating end after a slice of a millisecond; a fetch that has found nothing yet goes on in its
  turn (`broker/delivery/turns.py`), one that has is answered.
- A stretch of a shared log without a match is looked through once: the place reached is kept while the fetch waits, and
  its end is told with a marker that clients step over, at most once per fetch.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.codec.batch import record_count
from mainstem.codec.control import kafka_marker_batch
from mainstem.log.away import bring, large_by_thread
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import absent, denied, must
from mainstem.protocols.kafka.kafka_topics import KafkaTopic
from mainstem.protocols.kafka.messages import FetchResponse
from mainstem.protocols.kafka.sessions import CLOSE_EPOCH, FULL_EPOCH, FetchSession, Watched
from mainstem.storage.engine import NotLocal

if TYPE_CHECKING:
    from mainstem.log.log import Log
    from mainstem.protocols.kafka.adapter import Request
    from mainstem.storage.engine import Buffer

READ_COMMITTED = 1
IDS_VERSION_MIN = 13
WAIT_MS_MAX = 600_000
PartitionAnswer = FetchResponse.PartitionData
TopicName = str | bytes  # a name, or from version 13 on a topic id


class Asked:
    """One partition of a fetch."""

    __slots__ = (
        "index",
        "key",
        "leader_epoch",
        "log",
        "max_bytes",
        "more",
        "offset",
        "records",
        "scanned",
        "topic",
        "watched",
    )

    def __init__(self, key: tuple[TopicName, int], part: Any, topic: KafkaTopic | None) -> None:
        self.key = key
        self.topic = topic
        self.index: int = part.partition
        self.offset: int = part.fetch_offset
        self.max_bytes: int = part.partition_max_bytes
        self.leader_epoch: int = part.current_leader_epoch
        self.scanned = self.offset  # looked through without a match
        self.more = False  # it was not looked through to its end
        self.records = 0  # in its answer
        self.log: Log | None = None
        self.watched: Watched | None = None


def fetch(request: Request) -> Any:
    body = request.body
    session: FetchSession | None = None
    if request.version >= 7 and body.session_epoch != CLOSE_EPOCH and (body.session_id or body.session_epoch):
        code, session = _continue_session(request)
        if code is not ErrorCode.NONE:
            return FetchResponse(error_code=code)
    elif body.session_id:
        _forget_session(request, body.session_id)
    asked = _asked_partitions(request, session)
    if session is None and request.version >= 7 and body.session_epoch == FULL_EPOCH:
        session = _new_session(request, asked)
    polling = Polling(request, session, asked)
    if request.connection.when_room(polling.begin_later):
        return None
    return polling.begin()


# -- sessions ----------------------------------------------------------------------------------------------------------


def _continue_session(request: Request) -> tuple[ErrorCode, FetchSession | None]:
    body = request.body
    if body.session_epoch == FULL_EPOCH:
        _forget_session(request, body.session_id)
        return ErrorCode.NONE, None
    session = request.service.fetch_sessions.find(body.session_id)
    if session is None or body.session_id not in request.connection.fetch_sessions:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None
    if session.epoch != body.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH, None
    if session.by_id != (request.version >= IDS_VERSION_MIN):
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None
    for topic in body.forgotten_topics_data:
        for index in topic.partitions:
            session.partitions.pop((_name_of(request, topic), index), None)
    for topic in body.topics:
        name = _name_of(request, topic)
        for part in topic.partitions:
            known = session.partitions.get((name, part.partition))
            if known is None:
                session.partitions[name, part.partition] = Watched(part)
            else:
                known.asked = part
    session.advance()
    return ErrorCode.NONE, session


def _new_session(request: Request, asked: list[Asked]) -> FetchSession | None:
    session = request.service.fetch_sessions.make(len(asked))
    if session is None:
        return None
    request.connection.fetch_sessions.add(session.id)
    session.by_id = request.version >= IDS_VERSION_MIN
    for topic in request.body.topics:
        for part in topic.partitions:
            session.partitions[_name_of(request, topic), part.partition] = Watched(part)
    for one in asked:
        one.watched = session.partitions[one.key]
    return session


def _forget_session(request: Request, session_id: int) -> None:
    if session_id in request.connection.fetch_sessions:
        request.connection.fetch_sessions.discard(session_id)
        request.service.fetch_sessions.close(session_id)


def _name_of(request: Request, topic: Any) -> TopicName:
    name: TopicName = topic.topic_id if request.version >= IDS_VERSION_MIN else topic.topic
    return name


def _asked_partitions(request: Request, session: FetchSession | None) -> list[Asked]:
    topics: dict[TopicName, KafkaTopic | None] = {}
    asked: list[Asked] = []
    if session is not None:
        for key, watched in session.partitions.items():
            assert isinstance(key, tuple)
            one = Asked(key, watched.asked, _find(request, key[0], topics))
            one.watched = watched
            asked.append(one)
        return asked
    for topic in request.body.topics:
        name = _name_of(request, topic)
        found = _find(request, name, topics)
        asked += [Asked((name, part.partition), part, found) for part in topic.partitions]
    return asked


def _find(request: Request, name: TopicName, known: dict[TopicName, KafkaTopic | None]) -> KafkaTopic | None:
    if name not in known:
        try:
            known[name] = request.topics.shown(name)
        except MainstemError:
            known[name] = None
    return known[name]


# -- reading and waiting -----------------------------------------------------------------------------------------------


class Polling:
    """One fetch, until it is answered. It is the waiter of every log it reads."""

    __slots__ = ("_answered", "_asked", "_committed", "_logs", "_request", "_session", "_timer", "_until_ns", "_woken")

    def __init__(self, request: Request, session: FetchSession | None, asked: list[Asked]) -> None:
        self._request = request
        self._session = session
        self._asked = asked
        self._committed = request.body.isolation_level == READ_COMMITTED
        self._logs: set[Log] = set()
        self._timer: TimerHandle | None = None
        self._answered = self._woken = False
        self._until_ns = 0

    def begin_later(self) -> None:
        answer = self.begin()
        if answer is not None:
            self._request.reply(answer)

    def begin(self) -> Any:
        try:
            return self._begin()
        except NotLocal as missing:
            bring(missing, self._brought)
            return None

    def _brought(self) -> None:
        """What was asked for lay elsewhere and is here: its time to wait begins now."""
        if self._request.connection.transport is not None:
            self.begin_later()

    def _begin(self) -> Any:
        body = self._request.body
        answers, size, urgent = self._collect()
        if urgent or size >= body.min_bytes or body.max_wait_ms <= 0 or not self._asked:
            return self._response(answers)
        service = self._request.service
        self._logs = {one.log for one in self._asked if one.log is not None}
        for log in self._logs:
            service.watches.of(log).waiters.add(self)
        self._timer = service.later(min(body.max_wait_ms, WAIT_MS_MAX), self._time_out)
        self._look_on()
        return None

    def _look_on(self) -> None:
        """A slice is over and nothing was found yet: the rest in its turn."""
        if not self._woken and any(one.more for one in self._asked):
            self._woken = True
            self._request.service.broker.turns.soon(self._look, self._request.namespace.name)

    def wake(self) -> None:
        """A log moved. Looked at once per turn of the loop, however many logs moved in it."""
        if not self._woken:
            self._woken = True
            self._request.service.later(0, self._look)

    def _look(self) -> None:
        self._woken = False
        if self._answered:
            return
        if self._request.connection.transport is None:
            self._end()
            return
        try:
            answers, size, urgent = self._collect()
        except NotLocal as missing:
            bring(missing, self.wake)
            return
        if urgent or size >= self._request.body.min_bytes:
            self._reply(answers)
        else:
            self._look_on()

    def _time_out(self) -> None:
        if self._answered:
            return
        try:
            self._reply(self._collect(final=True)[0])
        except NotLocal as missing:
            bring(missing, self._time_out)

    def _reply(self, answers: list[tuple[Asked, Any]]) -> None:
        self._end()
        if self._request.connection.transport is not None:
            self._request.reply(self._response(answers))

    def _end(self) -> None:
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        for log in self._logs:
            self._request.service.watches.leave(log, self)

    def _collect(self, *, final: bool = False) -> tuple[list[tuple[Asked, Any]], int, bool]:
        """Read each partition within the limits; (answers, bytes found, whether to answer at once)."""
        body = self._request.body
        room = min(
            body.max_bytes if body.max_bytes > 0 else 1 << 31, self._request.service.config.kafka.fetch_bytes_max
        )
        answers: list[tuple[Asked, Any]] = []
        size = 0
        urgent = False
        away: NotLocal | None = None
        self._until_ns = 0
        for one in self._asked:
            answer = PartitionAnswer(partition_index=one.index)
            answers.append((one, answer))
            try:
                with large_by_thread():
                    found = self._read(
                        one, answer, max(room - size, 0), first=size == 0, final=final or body.max_wait_ms <= 0
                    )
            except MainstemError as fault:
                answer.error_code = code_of(fault)
                found = 0
            except NotLocal as missing:
                away = away or missing
                found = 0
            size += found
            urgent = urgent or answer.error_code != ErrorCode.NONE
        if away is not None:
            if not size and not urgent:
                try:
                    raise away
                finally:
                    away = None  # it knows this frame: the answer's memory would wait for the collector of cycles
            bring(away, _nothing)  # what others asked for here does not wait; the next fetch finds it
            urgent = True
        return answers, size, urgent

    def _read(self, one: Asked, answer: Any, room: int, *, first: bool, final: bool) -> int:
        """Fill one partition's answer; returns the bytes of records in it."""
        answer.records = b""
        answer.high_watermark = -1
        topic = one.topic
        code = self._refusal(one)
        if code is not ErrorCode.NONE or topic is None:
            answer.error_code = code
            return 0
        answer.aborted_transactions = [] if self._committed else None
        source, log = topic.source(one.index, denied(self._request, topic)), topic.log(one.index)
        if source is None or log is None:  # not made yet, or a slot whose log is gone: nothing, for now or for ever
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = 0
            return 0
        one.log = log
        start, stable = source.start_offset, source.stable_offset
        end, aborted_in = self._isolation(topic, one.index, log, stable)
        answer.high_watermark, answer.last_stable_offset, answer.log_start_offset = stable, end, start
        if not topic.low_mark(one.index) <= one.offset <= max(stable, start):
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return 0
        if room <= 0 and not first:
            return 0
        wanted = min(one.max_bytes, room) if room > 0 else 1
        return self._fill(one, answer, source, max(wanted, 1), end, aborted_in, first=first, final=final)

    def _fill(
        self, one: Asked, answer: Any, source: Any, wanted: int, end: int, aborted_in: Any, *, first: bool, final: bool
    ) -> int:
        limit = end if self._committed else None
        end = end if self._committed else answer.high_watermark
        one.records, one.more = 0, False
        if one.scanned < end and not self._has_time():
            one.more = True
            return 0
        fetched = source.read(one.scanned, wanted, limit, until_ns=self._until_ns) if one.scanned < end else None
        if fetched is None or not fetched.parts:
            if fetched is not None:
                one.scanned = max(one.scanned, min(fetched.next_offset, end))
                one.more = one.scanned < end
            if final and one.scanned > one.offset:
                answer.records = kafka_marker_batch(one.scanned - 1)
            return 0
        parts: list[Buffer] = fetched.parts
        size: int = fetched.size
        one.records = fetched.records
        if size > wanted:
            parts, size = _within(parts, wanted, first=first)
            one.records = sum(map(record_count, parts))
            if not parts:
                return 0
        answer.records = parts
        if aborted_in is not None:
            kind = FetchResponse.AbortedTransaction
            answer.aborted_transactions = [
                kind(producer_id=a.producer_id, first_offset=a.first_offset)
                for a in aborted_in(one.offset, fetched.next_offset)
            ]
        return size

    def _has_time(self) -> bool:
        """A slice begins with its first read: the one record behind a thousand empty partitions is always reached."""
        now = time.monotonic_ns()
        if not self._until_ns:
            self._until_ns = now + self._request.service.broker.turns.slice_ns
        return now <= self._until_ns

    def _refusal(self, one: Asked) -> ErrorCode:
        topic = one.topic
        if topic is None:
            name = one.key[0]
            return ErrorCode.UNKNOWN_TOPIC_ID if isinstance(name, bytes) else self._absent(name)
        if not must(self._request, Action.CONSUME, topic.canonical):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not 0 <= one.index < topic.count or topic.gone:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if one.leader_epoch >= 0:
            epoch = topic.epoch(one.index)
            if one.leader_epoch < epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if one.leader_epoch > epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE

    def _absent(self, name: str) -> ErrorCode:
        try:
            return absent(self._request, name, Action.CONSUME)
        except MainstemError as fault:
            return code_of(fault)

    def _isolation(self, topic: KafkaTopic, index: int, log: Log, stable: int) -> tuple[int, Any]:
        """Where readers of committed records stop, and who tells the aborted transactions (None: none to tell)."""
        partition = topic.partition(index)
        if partition is None or (log.index is not None and len(partition.spans) == 1):
            return stable, None
        of, topic_id = self._request.service.producers.of, partition.topic.id
        states = [of(one, topic_id) for one in dict.fromkeys(s.log for s in partition.spans if not s.shared)]
        end = min((state.stable_end(stable) for state in states), default=stable)
        if not self._committed or not states:
            return min(end, stable), None
        return min(end, stable), lambda start, to: [one for state in states for one in state.aborted_in(start, to)]

    # -- answering -------------------------------------------------------------------------------------------------

    def _response(self, answers: list[tuple[Asked, Any]]) -> Any:
        session = self._session
        response = FetchResponse(session_id=session.id if session is not None else 0)
        by_topic: dict[Hashable, Any] = {}
        incremental = session is not None and self._request.body.session_epoch > FULL_EPOCH
        for one, answer in answers:
            if session is not None and not _news(one, answer) and incremental:
                continue
            if answer.records:
                self._request.service.counters.messages_out += one.records
                if session is not None:
                    session.served(one.key)
            name = one.key[0]
            topic = by_topic.get(name)
            if topic is None:
                topic = by_topic[name] = FetchResponse.FetchableTopicResponse(
                    topic=name if isinstance(name, str) else "", topic_id=name if isinstance(name, bytes) else bytes(16)
                )
                response.responses.append(topic)
            topic.partitions.append(answer)
        return response


def _within(parts: list[Buffer], wanted: int, *, first: bool) -> tuple[list[Buffer], int]:
    """As many whole batches as fit, and the first of all in any case; and their bytes."""
    kept: list[Buffer] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > wanted and (kept or not first):
            return kept, size - len(part)
        kept.append(part)
    return kept, size


def _news(one: Asked, answer: Any) -> bool:
    """Whether an incremental answer must name the partition; and remembers what it was told."""
    watched = one.watched
    if watched is None:
        return True
    told = (answer.error_code, answer.high_watermark, answer.log_start_offset, answer.last_stable_offset)
    before = (watched.error, watched.high_watermark, watched.log_start, watched.stable_end)
    watched.error, watched.high_watermark, watched.log_start, watched.stable_end = told
    return bool(answer.records) or told != before or answer.error_code != ErrorCode.NONE  # until it is cured


HANDLERS = {1: fetch}


def _nothing() -> None:
    """Nobody waits for it."""
