"""Produce: check the batch, recognise repeats, append it as it is, answer when it is durable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.broker.schemas.enforcement import REASON, dead_letter_topic
from mainstem.broker.topics.topic import Partition, Topic
from mainstem.broker.transactions.producers import PartitionProducers, Verdict
from mainstem.broker.transactions.transactions import TransactionFault
from mainstem.codec.batch import BATCH_HEAD_SIZE, FRAME_HEAD_SIZE
from mainstem.codec.large_record import LARGE_BYTES
from mainstem.log.inflating import keep_inflated
from mainstem.log.large import large_pool, takes_large
from mainstem.log.live_log import not_stored
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import may_transact, must, tell_refused
from mainstem.protocols.kafka.kafka_topics import KafkaTopic
from mainstem.protocols.kafka.messages import ProduceResponse
from mainstem.protocols.kafka.rules import Refused, TopicRules

if TYPE_CHECKING:
    from mainstem.codec.batch import BatchHead
    from mainstem.codec.compression import Buffer
    from mainstem.log.gather import Ticket
    from mainstem.log.log import Log
    from mainstem.model.record import Record
    from mainstem.protocols.kafka.adapter import Request

VERSION_MIN = 3  # below it is message format 0 and 1; advertised because old clients look for it before compressing
IMPLICIT_VERSION_MIN = 12  # from here on a partition joins its transaction by being written to
PartitionAnswer = ProduceResponse.PartitionProduceResponse
RecordError = ProduceResponse.BatchIndexAndErrorMessage
OPEN_BYTES_MAX = 16 * 1024  # of a batch whose records the loop itself looks at
ATTRIBUTES_AT, CODEC_MASK = 22, 7  # in a batch
FRAME_HEAD_ROOM = bytes(FRAME_HEAD_SIZE)
HOLD_OPENING = 16  # a reason to read no more: a batch of its is being looked at
Admitted = tuple["Buffer", "BatchHead"]


def produce(request: Request) -> Any:
    body = request.body
    if request.version < VERSION_MIN:
        return _refuse_all(request, ErrorCode.UNSUPPORTED_VERSION)
    if body.acks not in (-1, 0, 1):
        return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    to_open = _to_open(request)
    if to_open:
        _keep_batches(body)
        return _produce_opened(request, to_open)
    production = Production(request)
    for topic_data in body.topic_data:
        production.add_topic(topic_data)
    return production.finish()


@dataclass(slots=True)
class Opened:
    """A batch that a thread looks at before it is appended."""

    part: Any
    rules: TopicRules | None  # None: it is inflated only
    listened: bool  # other protocols' readers get its records as soon as it is written
    log: Log | None = None  # of a large one: a thread writes it, too
    prepared: Path | None = None


def _to_open(request: Request) -> list[Opened]:
    """Batches with many or compressed records that must be looked at, by the topic's rules or for its live readers; and
    what comes behind such on a connection."""
    waits = request.connection.opening.locked()
    if not waits and not any(
        _is_large(part.records) for data in request.body.topic_data for part in data.partition_data
    ):
        return []  # whatever its topics ask for, the loop can do it
    found: list[Opened] = []
    large = waits
    for data in request.body.topic_data:
        try:
            topic = request.topics.shown(data.topic_id) if request.version >= 13 else request.topics.find(data.name)
            name = topic_of_kafka(data.name) if topic is None else topic.canonical
            listened = request.namespace.has_live(name)
        except MainstemError:
            continue
        rules = request.service.rules_of(topic.topic) if topic is not None and topic.topic is not None else None
        opens = rules is not None and rules.opens
        parts = [part for part in data.partition_data if part.records]
        huge = any(len(part.records) >= LARGE_BYTES for part in parts)
        if waits or opens or listened or huge:
            found += [Opened(part, rules, listened, _log_of(topic, part)) for part in parts]
            looked_at = any(_is_large(part.records) if opens else is_compressed(part.records) for part in parts)
            large = large or huge or ((opens or listened) and looked_at)
    return found if large else []


def _log_of(topic: KafkaTopic | None, part: Any) -> Log | None:
    """Where a large batch is written before it has a place (`log/large.py`)."""
    if topic is None or len(part.records) < LARGE_BYTES:
        return None
    partition = topic.partition(part.index)
    return partition.log if partition is not None and takes_large(partition.log) else None


def _is_large(batch: Any) -> bool:
    return bool(batch) and (len(batch) > OPEN_BYTES_MAX or is_compressed(batch))


def _is_owned(batch: Any) -> bool:
    """It came in pieces, into a buffer of its own."""
    return isinstance(batch, memoryview) and not batch.readonly


def is_compressed(batch: Any) -> bool:
    return len(batch) > BATCH_HEAD_SIZE and bool(batch[ATTRIBUTES_AT] & CODEC_MASK)


def _keep_batches(body: Any) -> None:
    """At once: what they lie in is used again for the next read, of any connection, in this very turn of the loop."""
    for data in body.topic_data:
        for part in data.partition_data:
            if part.records and not _is_owned(part.records):
                part.records = bytes(part.records)


async def _produce_opened(request: Request, to_open: list[Opened]) -> Any:
    """Other threads look into the batches, one request of a connection after the other: its order is the producer's."""
    connection, service = request.connection, request.service
    threads = large_pool() if any(one.log for one in to_open) else service.opener
    async with connection.opening:
        connection.hold(HOLD_OPENING)
        try:
            admitted = await asyncio.get_running_loop().run_in_executor(threads, _admit_all, to_open, service.now_ms())
            production = Production(request, admitted, {id(one.part): one for one in to_open if one.prepared})
            for data in request.body.topic_data:
                production.add_topic(data)
            return production.finish()
        finally:
            connection.release(HOLD_OPENING)
            for one in to_open:
                if one.prepared is not None:  # it was refused, or its topic moved meanwhile
                    one.prepared.unlink(missing_ok=True)


def _admit_all(to_open: list[Opened], now_ms: int) -> dict[int, Admitted | Exception]:
    found: dict[int, Admitted | Exception] = {}
    for one in to_open:
        batch = one.part.records
        try:
            if one.rules is not None:
                found[id(one.part)] = admitted = one.rules.admit(batch, now_ms)
                batch = admitted[0]
        except (Refused, MainstemError) as refusal:
            found[id(one.part)] = refusal
            continue
        if one.listened and is_compressed(batch):
            keep_inflated(bytes(batch))
        if one.log is not None and one.log.preparing_engine is not None and batch is one.part.records:
            try:
                one.prepared = one.log.preparing_engine.prepare([FRAME_HEAD_ROOM, batch])
            except MainstemError as refusal:
                found[id(one.part)] = refusal
    return found


def _refuse_all(request: Request, code: ErrorCode) -> Any:
    answer = ProduceResponse()
    for topic_data in request.body.topic_data:
        one = ProduceResponse.TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id)
        one.partition_responses = [
            PartitionAnswer(index=p.index, error_code=code, base_offset=-1) for p in topic_data.partition_data
        ]
        answer.responses.append(one)
    return answer if request.body.acks != 0 else _close(request, "it produced with a version that is not supported")


def _close(request: Request, why: str) -> None:
    """Without acks there is no answer that could carry an error: the connection is the only word."""
    request.connection.close(why)


class Production:
    """One request: its answer grows as batches are appended, and leaves when the last of them is durable."""

    __slots__ = ("_admitted", "_answer", "_failed", "_now_ms", "_prepared", "_request", "_undo", "_waiting", "service")

    def __init__(
        self,
        request: Request,
        admitted: dict[int, Admitted | Exception] | None = None,
        prepared: dict[int, Opened] | None = None,
    ) -> None:
        """`admitted`: what was looked at before, by the identity of its part of the request; `prepared`: and written."""
        self._admitted, self._prepared = admitted or {}, prepared or {}
        self.service = request.service
        self._request = request
        self._answer = ProduceResponse()
        self._now_ms = request.service.now_ms()
        self._waiting = 1  # ourselves, until all partitions are handled
        self._undo: dict[Ticket, tuple[Any, PartitionProducers, BatchHead]] = {}
        self._failed = False

    def add_topic(self, data: Any) -> None:
        answer = ProduceResponse.TopicProduceResponse(name=data.name, topic_id=data.topic_id)
        self._answer.responses.append(answer)
        code, topic, why = self._find(data)
        for part in data.partition_data:
            one = PartitionAnswer(index=part.index, base_offset=-1)
            answer.partition_responses.append(one)
            if topic is None:
                one.error_code, one.error_message = code, why or None
                self._failed = True
                continue
            try:
                self._append(topic, part, one)
            except Refused as refusal:
                one.error_code, one.error_message, self._failed = refusal.code, refusal.message, True
                one.record_errors = [
                    RecordError(batch_index=n, batch_index_error_message=w) for n, w in refusal.records
                ]
            except MainstemError as fault:
                one.error_code, one.error_message, self._failed = code_of(fault), fault.message, True

    def _find(self, data: Any) -> tuple[ErrorCode, KafkaTopic | None, str]:
        """The topic; or none, the code and, where the code does not say it all, why."""
        request = self._request
        try:
            if request.version >= 13:
                shown = request.topics.shown(data.topic_id)
                if shown is None:
                    return ErrorCode.UNKNOWN_TOPIC_ID, None, ""
                name = shown.name
            else:
                name = data.name
            if not must(request, Action.PUBLISH, topic_of_kafka(name)):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, ""
            topic = request.topics.find(name)
            if why := self._of_stream(name, topic):
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None, why
            if topic is None:
                topic = request.topics.make(name)
                self.service.refresh_groups()
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, ""
            if topic.view is not None:
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None, "a view is read-only"
            declared = request.topics.declare(topic)
            if declared.topic is not None and not declared.topic.policy.store:
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None, not_stored(declared.topic.name).message
            return ErrorCode.NONE, declared, ""
        except MainstemError as fault:
            return code_of(fault), None, fault.message

    def _of_stream(self, name: str, topic: KafkaTopic | None) -> str:
        """Why a stream's subject takes no batch: they are stored unopened, and its log numbers messages one by one."""
        streams = self._request.namespace.streams
        if streams is None or (topic is not None and (topic.topic is None or topic.topic.declared)):
            return ""
        stream = streams.capture(topic_of_kafka(name))
        return f"a subject of JetStream's {stream.name}: publish to it by NATS, MQTT, AMQP or HTTP" if stream else ""

    def _append(self, topic: KafkaTopic, part: Any, answer: Any) -> None:
        declared = topic.topic
        partition = topic.partition(part.index)
        if partition is None or declared is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has {topic.count} partitions")
        if not part.records:
            raise Refused(ErrorCode.INVALID_RECORD, "a partition without a batch")
        known = self._admitted.get(id(part))
        if isinstance(known, Exception):
            raise known
        batch, head = known or self.service.rules_of(declared).admit(part.records, self._now_ms)
        if head.transactional:
            self._join_transaction(topic, declared, part.index, head)
        log, topic_id = partition.log, declared.id
        state = self.service.producers.of(log, topic_id)
        answer.log_start_offset = partition.start_offset
        if head.producer_id >= 0 and self._is_repeat(state, head, partition, answer):
            return
        rules = self.service.rules_of(declared)
        if rules.dead_letters:
            left, aside = rules.set_aside(batch, head)
            self._set_aside(declared.name, aside)
            if left is None:  # nothing is stored here; the producer's next batch is in order all the same
                base = answer.base_offset = log.next_offset
                state.add(head, base, base, self._now_ms)
                return
            batch = left
        owned = _is_owned(batch)
        appended = log.append_batch(
            batch,
            head,
            partition.route,
            origin=Origin.KAFKA,
            topic_id=topic_id,
            owned=owned,
            prepared=self._take_prepared(part, batch, log),
        )
        ticket = appended.ticket
        base = appended.ref.base_offset
        answer.base_offset = base
        if declared.policy.timestamp_type == "append":
            answer.log_append_time_ms = self._now_ms
        self.service.counters.messages_in += head.count
        self._request.connection.messages += head.count
        state.add(head, base, base + head.count, self._now_ms)
        self.service.producers.count_bytes(log, topic_id, state, head.size)
        self._undo[ticket] = answer, state, head
        self.wait(ticket)
        if log.unsynced_bytes > log.unsynced_bytes_max:
            self._request.connection.hold_for(log)

    def _take_prepared(self, part: Any, batch: Buffer, log: Log) -> Path | None:
        """The file that has the batch already, if it is still the one, of the same log."""
        opened = self._prepared.get(id(part))
        if opened is None or opened.log is not log or batch is not part.records or not takes_large(log):
            return None
        prepared, opened.prepared = opened.prepared, None
        return prepared

    def _set_aside(self, topic: bytes, records: list[tuple[Record, str]]) -> None:
        """What does not match the topic's schema; the answer waits for it, too."""
        for record, why in records:
            headers = [*record.headers, (REASON, why.encode())]
            self.wait(
                self._request.namespace.publish(dead_letter_topic(topic), record.value, key=record.key, headers=headers)
            )

    def _is_repeat(self, state: PartitionProducers, head: BatchHead, partition: Partition, answer: Any) -> bool:
        verdict, sent = state.check(head)
        if verdict is Verdict.FENCED:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {head.producer_id} was replaced")
        if verdict is Verdict.OUT_OF_ORDER:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {head.base_sequence} is not the next")
        if sent is None:
            return False
        answer.base_offset = sent.base_offset
        self._waiting += 1  # the first one may still be on its way to the disk
        log = partition.log_at(sent.base_offset)
        self.service.watches.of(log).when_stable(log, sent.end_offset, self._one_less)
        return True

    def _join_transaction(self, topic: KafkaTopic, declared: Topic, index: int, head: BatchHead) -> None:
        request, transactions = self._request, self.service.transactions
        if request.body.transactional_id is None:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "a transactional batch without a transactional id")
        if not may_transact(request, Action.PUBLISH, request.body.transactional_id):
            tell_refused(request, "publish", f"transactional id {request.body.transactional_id}")
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the transactional id is another user's")
        transaction_id = request.group_key(request.body.transactional_id)
        at = self.service.transactional_topic(request.namespace, topic.name), index
        fault = transactions.check(transaction_id, head.producer_id, head.producer_epoch)
        if fault in (TransactionFault.PRODUCER_FENCED, TransactionFault.INVALID_PRODUCER_ID_MAPPING):
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {head.producer_id} was replaced")
        if transactions.takes(transaction_id, at):
            return
        if fault is not TransactionFault.NONE:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction has not ended yet")
        if request.version < IMPLICIT_VERSION_MIN:
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"{topic.name}-{index} is not part of the transaction")
        if not self.service.coordinator.may_begin(transaction_id, declared):
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"{topic.name} is being moved to another log")
        self.service.make_dedicated(request.namespace, declared)
        _, ticket = transactions.add(
            transaction_id, head.producer_id, head.producer_epoch, self._now_ms, partitions=[at]
        )
        if ticket is not None:
            self.wait(ticket)

    # -- waiting for the disk --------------------------------------------------------------------------------------

    def wait(self, ticket: Ticket) -> None:
        self._waiting += 1
        ticket.wait(self)

    def released(self, ticket: Ticket) -> None:
        if ticket.error is not None and (undo := self._undo.get(ticket)) is not None:
            answer, state, head = undo
            state.undo(head, answer.base_offset)
            answer.error_code, answer.base_offset = code_of(ticket.error), -1
        self._one_less()

    def _one_less(self) -> None:
        self._waiting -= 1
        if not self._waiting and self._request.body.acks != 0:
            self._request.reply(self._answer)

    def finish(self) -> None:
        if self._failed and self._request.body.acks == 0:
            _close(self._request, "it produced without acks what could not be taken")
        self._one_less()


HANDLERS = {0: produce}
