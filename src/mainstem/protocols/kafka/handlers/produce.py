"""Produce: check the batch, recognise repeats, append it as it is, answer when it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.access import Action
from mainstem.broker.producers import PartitionProducers, Verdict
from mainstem.broker.topics import Topic
from mainstem.broker.transactions import TransactionFault
from mainstem.model.errors import MainstemError
from mainstem.model.origin import Origin
from mainstem.protocols.kafka.catalog import KafkaTopic
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import may
from mainstem.protocols.kafka.messages import ProduceResponse
from mainstem.protocols.kafka.rules import Refused

if TYPE_CHECKING:
    from mainstem.codec.batch import BatchHead
    from mainstem.log.gather import Ticket
    from mainstem.log.log import Log
    from mainstem.protocols.kafka.adapter import Request

VERSION_MIN = 3  # below it is message format 0 and 1; advertised because old clients look for it before compressing
IMPLICIT_VERSION_MIN = 12  # from here on a partition joins its transaction by being written to
PartitionAnswer = ProduceResponse.PartitionProduceResponse


def produce(request: Request) -> Any:
    body = request.body
    if request.version < VERSION_MIN:
        return _refuse_all(request, ErrorCode.UNSUPPORTED_VERSION)
    if body.acks not in (-1, 0, 1):
        return _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    production = Production(request)
    for topic_data in body.topic_data:
        production.add_topic(topic_data)
    return production.finish()


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

    __slots__ = ("_answer", "_failed", "_now_ms", "_request", "_undo", "_waiting", "service")

    def __init__(self, request: Request) -> None:
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
        code, topic = self._find(data)
        for part in data.partition_data:
            one = PartitionAnswer(index=part.index, base_offset=-1)
            answer.partition_responses.append(one)
            if topic is None:
                one.error_code = code
                self._failed = True
                continue
            try:
                self._append(topic, part, one)
            except Refused as refusal:
                one.error_code, one.error_message, self._failed = refusal.code, refusal.message, True
            except MainstemError as fault:
                one.error_code, one.error_message, self._failed = code_of(fault), fault.message, True

    def _find(self, data: Any) -> tuple[ErrorCode, KafkaTopic | None]:
        request = self._request
        try:
            if request.version >= 13:
                topic = request.catalog.by_id(data.topic_id)
                if topic is None:
                    return ErrorCode.UNKNOWN_TOPIC_ID, None
            else:
                topic = request.catalog.find(data.name, may_create=True)
                if topic is None:
                    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
            if topic.view is not None:
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None  # a view is read-only
            if not may(request, Action.PUBLISH, topic.canonical):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
            if not topic.exists:
                topic = request.catalog.create(topic.name)
                self.service.refresh_groups()
            return ErrorCode.NONE, request.catalog.declare(topic)
        except MainstemError as fault:
            return code_of(fault), None

    def _append(self, topic: KafkaTopic, part: Any, answer: Any) -> None:
        declared = topic.topic
        partition = topic.partition(part.index)
        if partition is None or declared is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has {topic.count} partitions")
        if not part.records:
            raise Refused(ErrorCode.INVALID_RECORD, "a partition without a batch")
        batch, head = self.service.rules_of(declared).admit(part.records, self._now_ms)
        if head.transactional:
            self._join_transaction(topic, declared, part.index, head)
        log, topic_id = partition.log, declared.id
        state = self.service.producers.of(log, topic_id)
        answer.log_start_offset = partition.start_offset
        if head.producer_id >= 0 and self._is_repeat(state, head, log, answer):
            return
        owned = isinstance(batch, memoryview) and not batch.readonly  # it came in pieces, into a buffer of its own
        appended = log.append_batch(batch, head, partition.route, origin=Origin.KAFKA, topic_id=topic_id, owned=owned)
        ticket = appended.ticket
        base = appended.ref.base_offset
        answer.base_offset = base
        if declared.policy.timestamp_type == "append":
            answer.log_append_time_ms = self._now_ms
        self.service.counters.messages_in += head.count
        state.add(head, base, base + head.count, self._now_ms)
        self.service.producers.count_bytes(log, topic_id, state, head.size)
        self._undo[ticket] = answer, state, head
        self.wait(ticket)
        if log.unsynced_bytes > log.unsynced_bytes_max:
            self._request.connection.hold_for(log)

    def _is_repeat(self, state: PartitionProducers, head: BatchHead, log: Log, answer: Any) -> bool:
        verdict, sent = state.check(head)
        if verdict is Verdict.FENCED:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {head.producer_id} was replaced")
        if verdict is Verdict.OUT_OF_ORDER:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {head.base_sequence} is not the next")
        if sent is None:
            return False
        answer.base_offset = sent.base_offset
        self._waiting += 1  # the first one may still be on its way to the disk
        self.service.watches.of(log).when_stable(log, sent.end_offset, self._one_less)
        return True

    def _join_transaction(self, topic: KafkaTopic, declared: Topic, index: int, head: BatchHead) -> None:
        request, transactions = self._request, self.service.transactions
        if request.body.transactional_id is None:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "a transactional batch without a transactional id")
        transaction_id = request.group_key(request.body.transactional_id)
        at = self.service.transactional_topic(request.namespace, topic.name), index
        fault = transactions.check(transaction_id, head.producer_id, head.producer_epoch)
        if fault in (TransactionFault.PRODUCER_FENCED, TransactionFault.INVALID_PRODUCER_ID_MAPPING):
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {head.producer_id} was replaced")
        if transactions.takes(transaction_id, at):
            return
        if fault is not TransactionFault.NONE:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction before is not yet ended")
        if request.version < IMPLICIT_VERSION_MIN:
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"{topic.name}-{index} is not part of the transaction")
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
