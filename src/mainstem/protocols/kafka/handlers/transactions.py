"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, and describing transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.registry import MARKS, Groups
from mainstem.broker.rights.access import Action
from mainstem.broker.transactions.transactions import TransactionFault, TransactionState
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.model.pattern import Pattern
from mainstem.model.topic import topic_of_kafka
from mainstem.protocols.kafka.errors import ErrorCode, code_of, code_of_fault
from mainstem.protocols.kafka.handlers.groups import collect_commits
from mainstem.protocols.kafka.handlers.permission import (
    absent,
    may_group,
    may_see,
    may_transact,
    must,
    of_transaction,
)
from mainstem.protocols.kafka.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsResponse,
    TxnOffsetCommitResponse,
)
from mainstem.protocols.kafka.tickets import when_durable

if TYPE_CHECKING:
    from mainstem.log.gather import Ticket
    from mainstem.protocols.kafka.adapter import Request

FENCED_CODE_SINCE = {22: 4, 24: 2, 25: 2, 26: 2}  # from this version on a replaced producer is told so, not "epoch"
IMPLICIT_VERSION_MIN = 5  # TxnOffsetCommit: the group joins the transaction by being written to
BUMP_VERSION_MIN = 5  # EndTxn: a new epoch with each transaction (KIP-890)


def _code(request: Request, fault: TransactionFault) -> ErrorCode:
    if fault is TransactionFault.PRODUCER_FENCED:
        since = FENCED_CODE_SINCE.get(request.key)
        if since is None or request.version < since:
            return ErrorCode.INVALID_PRODUCER_EPOCH
    return code_of_fault(fault)


def init_producer_id(request: Request) -> Any:
    body, service = request.body, request.service
    if body.transactional_id is None:
        return InitProducerIdResponse(producer_id=service.markers.next_producer_id(), producer_epoch=0)
    if not body.transactional_id or MARKS & set(body.transactional_id):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)

    def reply(fault: TransactionFault, producer_id: int, epoch: int, ticket: Ticket | None) -> None:
        answer = InitProducerIdResponse(error_code=_code(request, fault), producer_id=producer_id, producer_epoch=epoch)
        ready = when_durable(request, answer, ticket)
        if ready is not None:
            request.reply(ready)

    service.transactions.initialise(
        request.group_key(body.transactional_id),
        min(body.transaction_timeout_ms, service.config.kafka.transaction_timeout_max_ms + 1),
        body.producer_id,
        body.producer_epoch,
        service.now_ms(),
        reply,
    )
    return None


def add_partitions(request: Request) -> Any:
    body = request.body
    if request.version < 4:
        lines, ticket = _add_one(
            request,
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
            body.v3_and_below_topics,
        )
        return when_durable(request, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=lines), ticket)
    answer = AddPartitionsToTxnResponse()
    last = None
    for one in body.transactions:
        lines, ticket = _add_one(
            request, one.transactional_id, one.producer_id, one.producer_epoch, one.topics, verify_only=one.verify_only
        )
        last = ticket or last
        answer.results_by_transaction.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=lines
            )
        )
    return when_durable(request, answer, last)


def _add_one(
    request: Request,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    topics: list[Any],
    *,
    verify_only: bool = False,
) -> tuple[list[Any], Ticket | None]:
    service, key = request.service, request.group_key(transactional_id)
    refused = not may_transact(request, Action.PUBLISH, transactional_id)
    codes: dict[tuple[str, int], ErrorCode] = {}
    ats: list[tuple[str, int]] = []
    for topic in topics:
        for index in topic.partitions:
            code = (
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                if refused
                else _writable(request, key, topic.name, index)
            )
            codes[topic.name, index] = code
            ats.append((service.transactional_topic(request.namespace, topic.name), index))
    ticket = None
    if all(code is ErrorCode.NONE for code in codes.values()):
        if verify_only:
            code = _code(request, service.transactions.check(key, producer_id, epoch))
            if code is ErrorCode.NONE and not all(service.transactions.takes(key, at) for at in ats):
                code = ErrorCode.TRANSACTION_ABORTABLE
        else:
            fault, ticket = service.transactions.add(key, producer_id, epoch, service.now_ms(), partitions=ats)
            code = _code(request, fault)
        codes = dict.fromkeys(codes, code)
    else:  # all or none: the others were not even tried
        codes = {at: code or ErrorCode.OPERATION_NOT_ATTEMPTED for at, code in codes.items()}
    result, partition = (
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult,
        AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult,
    )
    lines = [
        result(
            name=topic.name,
            results_by_partition=[
                partition(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
    return lines, ticket


def _writable(request: Request, transaction_id: str, name: str, index: int) -> ErrorCode:
    """A partition that a transaction may write to; a topic of the shared log gets one of its own first."""
    try:
        if not must(request, Action.PUBLISH, topic_of_kafka(name)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = request.topics.find(name) or request.topics.make(name)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.view is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        topic = request.topics.declare(topic)
        if topic.topic is None or not 0 <= index < topic.count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not request.service.coordinator.may_begin(transaction_id, topic.topic):
            return ErrorCode.CONCURRENT_TRANSACTIONS  # clients try again
        request.service.make_dedicated(request.namespace, topic.topic)
    except MainstemError as fault:
        return code_of(fault)
    return ErrorCode.NONE


def add_offsets(request: Request) -> Any:
    body = request.body
    if Groups.check_id(body.group_id) is not GroupFault.NONE:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if not may_group(request, Action.CONSUME, body.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    fault, ticket = request.service.transactions.add(
        request.group_key(body.transactional_id),
        body.producer_id,
        body.producer_epoch,
        request.service.now_ms(),
        group=request.group_key(body.group_id),
    )
    return when_durable(request, AddOffsetsToTxnResponse(error_code=_code(request, fault)), ticket)


def txn_offset_commit(request: Request) -> Any:
    body, service = request.body, request.service
    key, group = request.group_key(body.transactional_id), request.group_key(body.group_id)
    answer = TxnOffsetCommitResponse()
    code = code_of_fault(Groups.check_id(body.group_id))
    if code is ErrorCode.NONE and not may_transact(request, Action.PUBLISH, body.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if code is ErrorCode.NONE and not may_group(request, Action.CONSUME, body.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code is ErrorCode.NONE and (body.member_id or body.generation_id >= 0):
        code = code_of_fault(
            service.groups.may_commit(
                group, body.member_id, body.group_instance_id, body.generation_id, service.monotonic_ms()
            )
        )
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            code = ErrorCode.ILLEGAL_GENERATION
    if code is ErrorCode.NONE:
        code = _code(request, service.transactions.check(key, body.producer_id, body.producer_epoch))
    known = service.transactions.by_id.get(key)
    if code is ErrorCode.NONE and known is not None and group not in known.groups:
        if request.version < IMPLICIT_VERSION_MIN:
            code = ErrorCode.INVALID_TXN_STATE
        else:
            service.transactions.add(key, body.producer_id, body.producer_epoch, service.now_ms(), group=group)
    commits = collect_commits(request, answer, TxnOffsetCommitResponse, code)
    ticket = service.groups.commit_pending(body.producer_id, group, commits) if commits else None
    return when_durable(request, answer, ticket, _fail_commit)


def _fail_commit(answer: Any, code: ErrorCode) -> None:
    for topic in answer.topics:
        for one in topic.partitions:
            one.error_code = one.error_code or code


def end_txn(request: Request) -> Any:
    body = request.body

    def reply(fault: TransactionFault, producer_id: int, epoch: int) -> None:
        request.reply(EndTxnResponse(error_code=_code(request, fault), producer_id=producer_id, producer_epoch=epoch))

    request.service.transactions.end(
        request.group_key(body.transactional_id),
        body.producer_id,
        body.producer_epoch,
        request.service.now_ms(),
        commit=body.committed,
        bump=request.version >= BUMP_VERSION_MIN,
        reply=reply,
    )
    return None


# -- describing --------------------------------------------------------------------------------------------------------


def list_transactions(request: Request) -> Any:
    body = request.body
    known_states = {state.value.lower() for state in TransactionState}
    answer = ListTransactionsResponse(
        unknown_state_filters=[state for state in body.state_filters if state.lower() not in known_states]
    )
    try:
        pattern = Pattern(body.transactional_id_pattern) if body.transactional_id_pattern else None
    except InvalidArgument:
        answer.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return answer
    states = {state.lower() for state in body.state_filters}
    now_ms = request.service.now_ms()
    for key, one in request.service.transactions.by_id.items():
        name = request.service.group_name(request.namespace, key)
        if (
            name is None
            or not may_transact(request, Action.DESCRIBE, name)
            or (states and one.state.lower() not in states)
        ):
            continue
        if body.producer_id_filters and one.producer_id not in body.producer_id_filters:
            continue
        if body.duration_filter >= 0 and (one.start_ms < 0 or now_ms - one.start_ms <= body.duration_filter):
            continue
        if pattern is not None and not pattern.matches(name):
            continue
        answer.transaction_states.append(
            ListTransactionsResponse.TransactionState(
                transactional_id=name, producer_id=one.producer_id, transaction_state=one.state
            )
        )
    return answer


def describe_transactions(request: Request) -> Any:
    answer = DescribeTransactionsResponse()
    for name in request.body.transactional_ids:
        known = request.service.transactions.by_id.get(request.group_key(name))
        kind = DescribeTransactionsResponse.TransactionState
        if not may_transact(request, Action.DESCRIBE, name):
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            answer.transaction_states.append(kind(transactional_id=name, error_code=refused))
            continue
        if known is None:
            answer.transaction_states.append(
                kind(transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            )
            continue
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(known.partitions):
            topics.setdefault(topic.rpartition("\x01")[2], []).append(index)
        answer.transaction_states.append(
            kind(
                transactional_id=name,
                transaction_state=known.state,
                transaction_timeout_ms=known.timeout_ms,
                transaction_start_time_ms=known.start_ms,
                producer_id=known.producer_id,
                producer_epoch=known.epoch,
                topics=[
                    DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        )
    return answer


def describe_producers(request: Request) -> Any:
    answer = DescribeProducersResponse()
    for asked in request.body.topics:
        line = DescribeProducersResponse.TopicResponse(name=asked.name)
        answer.topics.append(line)
        try:
            topic, missing = request.topics.find(asked.name), absent(request, asked.name)
        except MainstemError as fault:
            topic, missing = None, code_of(fault)
        if topic is not None and not may_see(request, topic.canonical):
            topic = None
        for index in asked.partition_indexes:
            one = DescribeProducersResponse.PartitionResponse(partition_index=index)
            line.partitions.append(one)
            partition = topic.partition(index) if topic is not None else None
            if partition is None:
                one.error_code = missing
                continue
            state = request.service.producers.of(partition.log, partition.topic.id)
            one.active_producers = [
                DescribeProducersResponse.ProducerState(
                    producer_id=producer_id,
                    producer_epoch=known.epoch,
                    last_sequence=known.sent[-1].last_sequence if known.sent else -1,
                    last_timestamp=known.last_ms,
                    current_txn_start_offset=state.open.get(producer_id, -1),
                )
                for producer_id, known in state.producers.items()
            ]
    return answer


HANDLERS = {
    22: of_transaction(init_producer_id, InitProducerIdResponse),
    24: add_partitions,
    25: of_transaction(add_offsets, AddOffsetsToTxnResponse),
    28: txn_offset_commit,
    26: of_transaction(end_txn, EndTxnResponse),
    61: describe_producers,
    65: describe_transactions,
    66: list_transactions,
}
