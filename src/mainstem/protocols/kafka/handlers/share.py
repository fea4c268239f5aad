"""ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge and the offsets of share groups (KIP-932)."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.consumer import Beat
from mainstem.broker.groups.fault import GroupFault
from mainstem.broker.groups.registry import Groups
from mainstem.broker.groups.share import ShareGroup
from mainstem.broker.queues.opening import may_queue
from mainstem.broker.rights.access import Action
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of_fault
from mainstem.protocols.kafka.handlers.groups import beat_response
from mainstem.protocols.kafka.handlers.permission import (
    GROUP_BITS,
    NOT_ASKED,
    may,
    may_group,
    may_see_each,
    of_group,
    tell_refused,
)
from mainstem.protocols.kafka.kafka_topics import GroupTopics, KafkaTopic
from mainstem.protocols.kafka.messages import (
    ShareAcknowledgeResponse,
    ShareFetchResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
)
from mainstem.protocols.kafka.shares import ShareSession, ShareWatch
from mainstem.protocols.kafka.tickets import when_durable

if TYPE_CHECKING:
    from mainstem.log.gather import Ticket
    from mainstem.metadata.store import Written
    from mainstem.protocols.kafka.adapter import Request

CLOSE_EPOCH, OPEN_EPOCH = -1, 0
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1  # KIP-1206; whoever cannot say takes whole batches, as in Kafka
RECORDS_MAX = 500  # of one fetch that says no number
WAIT_MS_MAX = 600_000
BYTES_MAX = 16 << 20


class ShareTopics(GroupTopics):
    """As other groups see topics; and a queue's name is a topic for the group that joins it."""

    def __init__(self, request: Request, group_id: str) -> None:
        super().__init__(request.topics)
        self._request = request
        self._group_id = group_id

    def find(self, name: str) -> tuple[bytes, int] | None:
        topic = find_topic(self._request, self._group_id, name)
        return (topic.id, topic.count) if topic is not None else None


def find_topic(request: Request, group_id: str, name: str) -> KafkaTopic | None:
    queues = request.service.broker.queues.of(request.namespace)
    if name == group_id and queues.find(name) is not None:
        return request.topics.joined_queue(name)
    try:
        return request.topics.find(name)
    except MainstemError:
        return None


def heartbeat(request: Request) -> Any:
    body, service = request.body, request.service
    fault = Groups.check_id(body.group_id)
    if fault is not GroupFault.NONE:
        return ShareGroupHeartbeatResponse(error_code=code_of_fault(fault))
    group = service.groups.share(request.group_key(body.group_id))
    if group is None:
        return ShareGroupHeartbeatResponse(
            error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, error_message=f"{body.group_id} is not a share group"
        )
    if not may_see_each(request, _named(request)):
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    beat = Beat(
        body.member_id,
        body.member_epoch,
        rack_id=body.rack_id,
        topics=body.subscribed_topic_names,
        client_id=request.client_id,
        client_host=request.host,
    )
    answer = group.heartbeat(beat, ShareTopics(request, body.group_id), service.monotonic_ms())
    service.groups.keep(group)
    if answer.fault is GroupFault.NONE:
        _make_queues(request, group)
    ready, making = beat_response(ShareGroupHeartbeatResponse, answer), service.shares.making
    return ready if making is None else _after(making, lambda: ready)


async def _after(making: Written, answer: Callable[[], Any]) -> Any:
    await making
    return answer()


def _named(request: Request) -> list[str]:
    """The topics that a member subscribes to; a queue of the group's name is none."""
    body, queues = request.body, request.service.broker.queues.of(request.namespace)
    joins = queues.find(body.group_id) is not None
    return [name for name in body.subscribed_topic_names or () if not (joins and name == body.group_id)]


def _make_queues(request: Request, group: ShareGroup) -> None:
    """A group takes records from when it first subscribed, not from when it first fetched."""
    for name in group.topics:
        topic = find_topic(request, request.body.group_id, name)
        if topic is not None and may_take(request, topic):
            request.service.shares.source(request.namespace, request.body.group_id, topic)


def may_take(request: Request, topic: KafkaTopic) -> bool:
    """Asked for every fetch: rules change while sessions last. A queue's rights are those of its name, as AMQP reads it."""
    joins = topic.name == request.body.group_id and request.service.broker.queues.of(request.namespace).find(topic.name)
    access, principal = request.service.access, request.principal
    if joins:
        allowed = may_queue(access, principal, Action.CONSUME, topic.name)
    else:
        allowed = may(request, Action.CONSUME, topic.canonical)
    if not allowed:
        tell_refused(request, "consume", topic.canonical)
    taken = joins.filters if joins else [topic.view.filter] if topic.view is not None else []
    return allowed and not any(access.denies_some(principal, Action.CONSUME, one) for one in taken)


def describe(request: Request) -> Any:
    answer = ShareGroupDescribeResponse()
    for group_id in request.body.group_ids:
        group = request.service.groups.find(request.group_key(group_id))
        kind = ShareGroupDescribeResponse.DescribedGroup
        if not may_group(request, Action.DESCRIBE, group_id):
            answer.groups.append(kind(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        if not isinstance(group, ShareGroup):
            why = f"there is no share group {group_id}"
            answer.groups.append(kind(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=why))
            continue
        answer.groups.append(
            kind(
                group_id=group_id,
                group_state=group.state,
                group_epoch=group.epoch,
                assignment_epoch=group.target_epoch,
                assignor_name="simple",
                members=[_described_member(group, member) for member in group.members.values()],
                authorized_operations=GROUP_BITS if request.body.include_authorized_operations else NOT_ASKED,
            )
        )
    return answer


def _described_member(group: ShareGroup, member: Any) -> Any:
    names = {topic_id: name for name, (topic_id, _) in group.topics.items()}
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(member.assigned):
        by_topic.setdefault(topic_id, []).append(index)
    kind = ShareGroupDescribeResponse.TopicPartitions
    return ShareGroupDescribeResponse.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=ShareGroupDescribeResponse.Assignment(
            topic_partitions=[
                kind(topic_id=topic_id, topic_name=names.get(topic_id, ""), partitions=parts)
                for topic_id, parts in by_topic.items()
            ]
        ),
    )


# -- sessions ----------------------------------------------------------------------------------------------------------


def _session(request: Request) -> tuple[ErrorCode, ShareSession | None]:
    """The member's session, opened or advanced as the epoch says."""
    body, shares = request.body, request.service.shares
    key = request.group_key(body.group_id or "")
    member_id = body.member_id or ""
    if not body.group_id or not member_id:
        return ErrorCode.INVALID_REQUEST, None
    if body.share_session_epoch == OPEN_EPOCH:
        session = shares.open_session(key, member_id, request.client_id or "")
        if session is None:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED, None
        request.connection.share_sessions.add((key, member_id))
        return ErrorCode.NONE, session
    session = shares.sessions.get((key, member_id))
    if session is None:
        return ErrorCode.SHARE_SESSION_NOT_FOUND, None
    if body.share_session_epoch != CLOSE_EPOCH:
        if body.share_session_epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH, None
        session.epoch += 1
    return ErrorCode.NONE, session


def _acknowledge(request: Request, session: ShareSession) -> tuple[dict[tuple[bytes, int], ErrorCode], Ticket | None]:
    """The acknowledgements of a request; a code for each partition that had some."""
    lock_ms = request.service.shares.lock_ms(session.group_key)
    codes: dict[tuple[bytes, int], ErrorCode] = {}
    last: Ticket | None = None
    for topic in request.body.topics:
        for part in topic.partitions:
            for batch in part.acknowledgement_batches:
                right, ticket = session.settle(
                    topic.topic_id,
                    part.partition_index,
                    batch.first_offset,
                    batch.last_offset,
                    batch.acknowledge_types,
                    lock_ms=lock_ms,
                )
                last = ticket or last
                key = (topic.topic_id, part.partition_index)
                before = codes.get(key, ErrorCode.NONE)
                codes[key] = before if right else ErrorCode.INVALID_RECORD_STATE
    return codes, last


def acknowledge(request: Request) -> Any:
    if request.body.share_session_epoch == OPEN_EPOCH:
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    code, session = _session(request)
    if session is None:
        return ShareAcknowledgeResponse(error_code=code)
    codes, ticket = _acknowledge(request, session)
    answer = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=request.service.shares.lock_ms(session.group_key))
    by_topic: dict[bytes, Any] = {}
    for (topic_id, index), one in codes.items():
        line = by_topic.get(topic_id)
        if line is None:
            line = by_topic[topic_id] = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse(topic_id=topic_id)
            answer.responses.append(line)
        line.partitions.append(ShareAcknowledgeResponse.PartitionData(partition_index=index, error_code=one))
    if request.body.share_session_epoch == CLOSE_EPOCH:
        request.service.shares.close_session(session.group_key, session.member_id)
    return when_durable(request, answer, ticket)


def fetch(request: Request) -> Any:
    if request.body.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        why = (
            f"share acquire mode {request.body.share_acquire_mode} is none: 0 (whole batches) or 1 (a limit of records)"
        )
        return ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why)
    code, session = _session(request)
    if session is None:
        return ShareFetchResponse(error_code=code)
    codes, ticket = _acknowledge(request, session)
    _remember_topics(request, session)
    polling, making = SharePolling(request, session, codes, ticket), request.service.shares.making
    return polling.begin() if making is None else _after(making, polling.begin_late)


def _remember_topics(request: Request, session: ShareSession) -> None:
    body = request.body
    for forgotten in body.forgotten_topics_data:
        session.topics.pop(forgotten.topic_id, None)
    for asked in body.topics:
        if asked.topic_id in session.topics:
            continue
        name = request.topics.name_of(asked.topic_id)
        topic = find_topic(request, body.group_id, name) if name is not None else None
        if topic is not None and topic.id == asked.topic_id and may_take(request, topic):
            session.topics[asked.topic_id] = request.service.shares.source(request.namespace, body.group_id, topic)


class SharePolling:
    """One share fetch, until it is answered: acks first, then records, or waiting for some."""

    def __init__(
        self,
        request: Request,
        session: ShareSession,
        codes: dict[tuple[bytes, int], ErrorCode],
        ticket: Ticket | None,
    ) -> None:
        self._request = request
        self._session = session
        self._codes = codes
        self._ticket = ticket
        self._watch: ShareWatch | None = None
        self._timer: TimerHandle | None = None

    def begin(self) -> Any:
        body = self._request.body
        closing = body.share_session_epoch == CLOSE_EPOCH
        answer = None if closing else self._collect()
        if closing:
            self._request.service.shares.close_session(self._session.group_key, self._session.member_id)
        waits = not closing and body.max_wait_ms > 0 and body.max_bytes > 0 and self._session.topics
        if answer is not None or self._codes or not waits:
            return self._finish(answer)
        queues = [source.queue for source in self._session.topics.values() if not source.queue.deleted]
        self._timer = self._request.service.later(min(body.max_wait_ms, WAIT_MS_MAX), self._time_out)
        self._watch = ShareWatch(queues, lambda: self._request.service.later(0, self._look))
        return None

    def begin_late(self) -> Any:
        """Who left meanwhile is given nothing."""
        key = self._session.group_key, self._session.member_id
        if self._request.connection.transport is None:
            return None
        if self._request.service.shares.sessions.get(key) is not self._session:
            return ShareFetchResponse(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
        return self.begin()

    def _look(self) -> None:
        if self._request.connection.transport is None or self._timer is None:
            return
        answer = self._collect()
        if answer is None:  # someone else was faster: wait on
            queues = [source.queue for source in self._session.topics.values() if not source.queue.deleted]
            self._watch = ShareWatch(queues, lambda: self._request.service.later(0, self._look))
            return
        self._timer.cancel()
        self._timer = None
        self._reply(answer)

    def _time_out(self) -> None:
        self._timer = None
        if self._watch is not None:
            self._watch.end()
        if self._request.connection.transport is not None:
            self._reply(None)

    def _reply(self, answer: Any) -> None:
        ready = self._finish(answer)
        if ready is not None:
            self._request.reply(ready)

    def _collect(self) -> Any:
        """An answer with records, or None where there are none."""
        body, session = self._request.body, self._session
        room = body.max_records if body.max_records > 0 else RECORDS_MAX
        bytes_max = min(body.max_bytes, BYTES_MAX)
        shares = self._request.service.shares
        lock_ms, locks_max = shares.lock_ms(session.group_key), shares.locks_max(session.group_key)
        answer = ShareFetchResponse()
        for topic_id, source in list(session.topics.items()):
            if room <= 0 or source.queue.deleted or not may_take(self._request, source.topic):
                continue
            given = session.take(
                source,
                room,
                lock_ms=lock_ms,
                bytes_max=bytes_max,
                locks_max=locks_max,
                whole=body.share_acquire_mode == BATCH_OPTIMIZED,
            )
            if not given:
                continue
            line = ShareFetchResponse.ShareFetchableTopicResponse(topic_id=topic_id)
            answer.responses.append(line)
            for index, one in sorted(given.items()):
                room -= len(one.taken)
                line.partitions.append(
                    ShareFetchResponse.PartitionData(
                        partition_index=index,
                        records=one.batches(through_view=source.by_stamp or source.topic.view is not None),
                        acquired_records=[
                            ShareFetchResponse.AcquiredRecords(first_offset=f, last_offset=last, delivery_count=n)
                            for f, last, n in one.ranges()
                        ],
                    )
                )
            session.topics[topic_id] = session.topics.pop(topic_id)  # the others first, next time
        return answer if answer.responses else None

    def _finish(self, answer: Any) -> Any:
        answer = answer or ShareFetchResponse()
        answer.acquisition_lock_timeout_ms = self._request.service.shares.lock_ms(self._session.group_key)
        lines = {(line.topic_id, p.partition_index): p for line in answer.responses for p in line.partitions}
        topics = {line.topic_id: line for line in answer.responses}
        for (topic_id, index), code in self._codes.items():
            one = lines.get((topic_id, index))
            if one is None:
                line = topics.get(topic_id)
                if line is None:
                    line = topics[topic_id] = ShareFetchResponse.ShareFetchableTopicResponse(topic_id=topic_id)
                    answer.responses.append(line)
                one = ShareFetchResponse.PartitionData(partition_index=index)
                line.partitions.append(one)
            one.acknowledge_error_code = code
        return when_durable(self._request, answer, self._ticket)


HANDLERS = {
    76: of_group(Action.CONSUME, heartbeat, ShareGroupHeartbeatResponse),
    77: describe,
    78: of_group(Action.CONSUME, fetch, ShareFetchResponse),
    79: of_group(Action.CONSUME, acknowledge, ShareAcknowledgeResponse),
}
