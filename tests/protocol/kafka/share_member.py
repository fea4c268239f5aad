"""A member of a share group on the wire, and the settings of its group."""

from __future__ import annotations

from typing import Any

from mainstem.protocols.kafka.messages import (
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from mainstem.testing.broker import Endpoints
from tests.protocol.kafka.raw import RawClient

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP_RESOURCE = 32


def configure(broker: Endpoints, group: str, **settings: str) -> None:
    entries = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=entries
    )
    with RawClient(broker) as raw:
        answer = raw.ask("IncrementalAlterConfigs", 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0, answer


class Member(RawClient):
    """One share member on the wire."""

    def __init__(self, broker: Endpoints, group: str, topic: str, name: str = "m") -> None:
        super().__init__(broker)
        self.group, self.topic, self.name = group, topic, name
        self.session_epoch = 0
        line = MetadataRequest.MetadataRequestTopic(name=topic)
        self.topic_id = self.ask("Metadata", 12, MetadataRequest(topics=[line])).topics[0].topic_id
        joined = self.beat(0)
        assert joined.error_code == 0
        assigned = joined.assignment.topic_partitions
        self.topic_id = assigned[0].topic_id
        self.partitions = assigned[0].partitions
        self.epoch = joined.member_epoch

    def beat(self, epoch: int) -> Any:
        return self.ask(
            "ShareGroupHeartbeat",
            1,
            ShareGroupHeartbeatRequest(
                group_id=self.group, member_id=self.name, member_epoch=epoch, subscribed_topic_names=[self.topic]
            ),
        )

    def take(self, count: int = 500, wait_ms: int = 3_000, mode: int | None = None) -> list[tuple[int, int, int]]:
        """(partition, offset, delivery count) of what is acquired; a mode is told in version 2 only."""
        answer = self.ask_for(count, wait_ms, mode)
        assert answer.error_code == 0, answer
        return [
            (part.partition_index, offset, found.delivery_count)
            for topic in answer.responses
            for part in topic.partitions
            for found in part.acquired_records
            for offset in range(found.first_offset, found.last_offset + 1)
        ]

    def ask_for(self, count: int, wait_ms: int, mode: int | None = None) -> Any:
        parts = [ShareFetchRequest.FetchPartition(partition_index=p) for p in self.partitions]
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.session_epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=count,
            batch_size=count,
            share_acquire_mode=mode or 0,
            topics=[ShareFetchRequest.FetchTopic(topic_id=self.topic_id, partitions=parts)],
        )
        self.session_epoch += 1
        return self.ask("ShareFetch", 1 if mode is None else 2, request)

    def settle(self, partition: int, first: int, last: int, kind: int) -> int:
        batch = ShareAcknowledgeRequest.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=[kind]
        )
        part = ShareAcknowledgeRequest.AcknowledgePartition(partition_index=partition, acknowledgement_batches=[batch])
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.session_epoch,
            topics=[ShareAcknowledgeRequest.AcknowledgeTopic(topic_id=self.topic_id, partitions=[part])],
        )
        self.session_epoch += 1
        answer = self.ask("ShareAcknowledge", 2 if kind == RENEW else 1, request)
        assert answer.error_code == 0
        return int(answer.responses[0].partitions[0].error_code)
