"""What Kafka's tools ask of a cluster, answered by its one node: log directories, the quorum, elections, reassignments."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.handlers.permission import is_admin, may_see
from mainstem.protocols.kafka.messages import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

QUORUM_TOPIC = "__cluster_metadata"  # Kafka's metadata log, which its tools ask for; ours is not a log of records
QUORUM_EPOCH = 1


def describe_log_dirs(request: Request) -> Any:
    """The broker's directory and the room of its disk are the operator's business."""
    if not is_admin(request):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: dict[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.body.topics}
    directory = request.service.broker.options.data
    usage = shutil.disk_usage(directory)
    result = DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=str(directory), total_bytes=usage.total, usable_bytes=usage.free
    )
    for topic in request.topics.listed():
        if topic.topic is None or (wanted is not None and topic.name not in wanted):
            continue
        line = DescribeLogDirsResponse.DescribeLogDirsTopic(name=topic.name)
        for partition in topic.topic.partitions:
            if wanted is None or partition.index in wanted[topic.name]:
                size = sum(span.log.engine.stat().size_bytes for span in partition.spans if not span.shared)
                line.partitions.append(
                    DescribeLogDirsResponse.DescribeLogDirsPartition(
                        partition_index=partition.index, partition_size=size
                    )
                )
        result.topics.append(line)
    return DescribeLogDirsResponse(results=[result])


def alter_replica_log_dirs(request: Request) -> Any:
    """There is one directory: whoever asks for it has it already, and there is no other."""
    kinds, directory = AlterReplicaLogDirsResponse, str(request.service.broker.options.data)
    lines: dict[str, Any] = {}
    for asked in request.body.dirs:
        for topic in asked.topics:
            line = lines.setdefault(topic.name, kinds.AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                code = _log_dir_code(request, topic.name, index, is_ours=asked.path == directory)
                line.partitions.append(kinds.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return kinds(results=list(lines.values()))


def _log_dir_code(request: Request, name: str, index: int, *, is_ours: bool) -> ErrorCode:
    if not is_admin(request):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not is_ours:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        topic = request.topics.find(name)
    except MainstemError:
        topic = None
    known = topic is not None and topic.partition(index) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe_quorum(request: Request) -> Any:
    """A quorum of one: this node leads, votes, and is never behind."""
    kinds, now_ms = DescribeQuorumResponse, request.service.now_ms()
    host, port = request.connection.dialled()
    answer = kinds(
        nodes=[
            kinds.Node(
                node_id=request.service.node_id, listeners=[kinds.Listener(name="PLAINTEXT", host=host, port=port)]
            )
        ]
    )
    for topic in request.body.topics:
        line = kinds.TopicData(topic_name=topic.topic_name)
        answer.topics.append(line)
        for asked in topic.partitions:
            index = asked.partition_index
            if (topic.topic_name, index) == (QUORUM_TOPIC, 0):
                voter = kinds.ReplicaState(
                    replica_id=request.service.node_id, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
                )
                line.partitions.append(
                    kinds.PartitionData(
                        leader_id=request.service.node_id, leader_epoch=QUORUM_EPOCH, current_voters=[voter]
                    )
                )
                continue
            code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the quorum keeps partition 0 of {QUORUM_TOPIC} only"
            line.partitions.append(
                kinds.PartitionData(partition_index=index, error_code=code, error_message=why, leader_id=-1)
            )
    return answer


def _has(request: Request, name: str, index: int) -> bool:
    try:
        topic = request.topics.find(name)
    except MainstemError:
        return False
    return topic is not None and 0 <= index < topic.count and may_see(request, topic.canonical)


def elect_leaders(request: Request) -> Any:
    """The one node leads everything already."""

    def result(name: str, index: int) -> Any:
        if not _has(request, name, index):
            code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name}"
        else:
            code, why = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        return ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code, error_message=why)

    answer = ElectLeadersResponse()
    for topic in request.body.topic_partitions or ():
        answer.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic, partition_result=[result(topic.topic, index) for index in topic.partitions]
            )
        )
    return answer


def alter_reassignments(request: Request) -> Any:
    answer = AlterPartitionReassignmentsResponse(error_message=None)
    for topic in request.body.topics:
        line = AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name)
        answer.responses.append(line)
        for one in topic.partitions:
            code, why = ErrorCode.NONE, None
            if not _has(request, topic.name, one.partition_index):
                code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {one.partition_index}"
            elif one.replicas is None:
                code, why = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "nothing is being moved"
            elif one.replicas != [request.service.node_id]:
                code, why = ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is one node, {request.service.node_id}"
            line.partitions.append(
                AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                    partition_index=one.partition_index, error_code=code, error_message=why
                )
            )
    return answer


def list_reassignments(request: Request) -> Any:
    return ListPartitionReassignmentsResponse(error_message=None)


HANDLERS = {
    34: alter_replica_log_dirs,
    35: describe_log_dirs,
    43: elect_leaders,
    45: alter_reassignments,
    46: list_reassignments,
    55: describe_quorum,
}
