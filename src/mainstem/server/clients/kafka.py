"""A Kafka client: produce with acks=all, fetch all partitions of a topic. No groups: it assigns itself everything."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from mainstem.codec.batch import BATCH_HEAD_SIZE, decode_batch, read_batch_head, rebuild_batches
from mainstem.model.errors import NotFound
from mainstem.model.partitioner import partition_of_key
from mainstem.model.record import Record
from mainstem.protocols.kafka.wire import decode, encode_request, message, shape_of
from mainstem.server.cli.failures import Refused, WrongPeer
from mainstem.server.clients.client import ANSWER_S, Address, Message, Start, Stream

VERSIONS = {
    "ApiVersions": 0,
    "Metadata": 9,
    "Produce": 9,
    "Fetch": 11,
    "ListOffsets": 6,
    "CreateTopics": 4,
    "DeleteTopics": 3,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
}
BATCH_BYTES = 256 << 10
BATCH_RECORDS = 10_000
FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 500
ANSWER_BYTES_MAX = 256 << 20
INFLATED_BYTES_MAX = 64 << 20
EARLIEST, LATEST = -2, -1
UNKNOWN_TOPIC, INVALID_TOPIC = 3, 17
NOT_ALLOWED = 29  # topic authorization failed
CONTROL = 0x20


class KafkaClient:
    def __init__(self, address: Address) -> None:
        self.stream = Stream(address)
        self._correlation = itertools.count(1)
        self._client_id = address.options.get("client_id") or f"mainstem-cli-{os.getpid()}"
        self._partitions: dict[str, int] = {}
        self._pending: dict[tuple[str, int], list[Record]] = {}
        self._pending_bytes = 0
        self._pending_count = 0
        self._next = itertools.count()
        self._topic = ""
        self._offsets: dict[int, int] = {}
        if address.user:
            self._log_in(address)
        elif self.call("ApiVersions").error_code not in (0, 35):
            raise WrongPeer(f"{self.stream.where} does not answer like Kafka")

    # -- producing

    def publish(self, message: Message) -> None:
        count = self._partition_count(message.topic, create=True)
        partition = partition_of_key(message.key, count) if message.key else next(self._next) % count
        headers = [(name.encode(), value) for name, value in message.headers]
        record = Record(message.value, message.key, headers, time.time_ns() // 1_000_000)
        self._pending.setdefault((message.topic, partition), []).append(record)
        self._pending_bytes += len(message.value or b"")
        self._pending_count += 1
        if self._pending_bytes >= BATCH_BYTES or self._pending_count >= BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        kind = message("ProduceRequest")
        topics: dict[str, Any] = {}
        for (topic, partition), records in self._pending.items():
            for offset, record in enumerate(records):
                record.offset = offset
            data = topics.setdefault(topic, kind.TopicProduceData(name=topic))
            batch = rebuild_batches(records, leader_epoch=-1)
            data.partition_data.append(kind.PartitionProduceData(index=partition, records=batch))
        self._pending, self._pending_bytes, self._pending_count = {}, 0, 0
        answer = self.call("Produce", acks=-1, timeout_ms=int(ANSWER_S * 1000), topic_data=list(topics.values()))
        for topic in answer.responses:
            for partition in topic.partition_responses:
                check(partition.error_code, f"{topic.name}-{partition.index}", partition.error_message)

    # -- consuming

    def subscribe(self, target: str, start: Start) -> None:
        self._topic = target
        count = self._partition_count(target, create=False)
        if start.kind == "offset":
            self._offsets = dict.fromkeys(range(count), start.value)
        elif start.kind == "last":
            self._offsets = self._count_back(count, start.value)
        else:
            asked = {"earliest": EARLIEST, "latest": LATEST}.get(start.kind, start.value)
            self._offsets = self._list_offsets(count, asked)
            if asked >= 0 and -1 in self._offsets.values():  # nothing at or after that time: begin at the end
                ends = self._list_offsets(count, LATEST)
                self._offsets = {p: ends[p] if at < 0 else at for p, at in self._offsets.items()}

    def messages(self, idle_s: float | None = None) -> Iterator[Message]:
        heard = time.monotonic()
        while True:
            for found in self._fetch(FETCH_WAIT_MS):
                heard = time.monotonic()
                yield found
            if idle_s is not None and time.monotonic() - heard >= idle_s:
                return

    def close(self) -> None:
        self.stream.close()

    def _fetch(self, wait_ms: int) -> list[Message]:
        kind = message("FetchRequest")
        wanted = [
            kind.FetchPartition(partition=p, fetch_offset=at, partition_max_bytes=FETCH_BYTES)
            for p, at in self._offsets.items()
        ]
        topics = [kind.FetchTopic(topic=self._topic, partitions=wanted)]
        answer = self.call("Fetch", max_wait_ms=wait_ms, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        check(answer.error_code, "fetch")
        found: list[Message] = []
        for topic in answer.responses:
            for partition in topic.partitions:
                check(partition.error_code, f"{self._topic}-{partition.partition_index}")
                found += self._records_of(partition.partition_index, partition.records)
        return found

    def _records_of(self, partition: int, data: Any) -> Iterator[Message]:
        for start, head in _whole_batches(data):
            after = head.base_offset + head.last_offset_delta + 1
            if not head.attributes & CONTROL:
                for record in decode_batch(data, start, inflated_bytes_max=INFLATED_BYTES_MAX):
                    if record.offset >= self._offsets[partition]:
                        headers = [(name.decode(errors="replace"), value) for name, value in record.headers]
                        facts = {"partition": partition, "offset": record.offset, "time_ms": record.time_ms}
                        yield Message(record.value, self._topic, record.key, headers, facts)
            self._offsets[partition] = max(self._offsets[partition], after)

    def _count_back(self, count: int, wanted: int) -> dict[int, int]:
        """Where the last records of each partition begin. Offsets may be sparse: look back until there are enough."""
        starts, ends = self._list_offsets(count, EARLIEST), self._list_offsets(count, LATEST)
        found: dict[int, int] = {}
        for partition in range(count):
            back = wanted
            while True:
                begin = max(starts[partition], ends[partition] - back)
                last: deque[int] = deque(maxlen=wanted)
                self._offsets = {partition: begin}
                while self._offsets[partition] < ends[partition]:
                    before = self._offsets[partition]
                    last.extend(one.facts["offset"] for one in self._fetch(0) if one.facts["offset"] < ends[partition])
                    if self._offsets[partition] == before:
                        break
                if len(last) >= wanted or begin == starts[partition]:
                    found[partition] = last[0] if last else begin
                    break
                back *= 8
        return found

    # -- asking

    def _partition_count(self, topic: str, *, create: bool) -> int:
        known = self._partitions.get(topic)
        if known is not None:
            return known
        kind = message("MetadataRequest")
        deadline = time.monotonic() + ANSWER_S
        while True:
            topics = [kind.MetadataRequestTopic(name=topic)]
            answer = self.call("Metadata", topics=topics, allow_auto_topic_creation=create)
            found = answer.topics[0]
            if not found.error_code and found.partitions:
                self._partitions[topic] = len(found.partitions)
                return len(found.partitions)
            if create and time.monotonic() < deadline and found.error_code in (UNKNOWN_TOPIC, 5):
                time.sleep(0.1)  # it is being made
                continue
            if found.error_code == UNKNOWN_TOPIC:
                raise NotFound(
                    f"there is no topic {topic}", fix=f"mainstem topic create {topic}, or publish to it first"
                )
            check(found.error_code, topic)

    def _list_offsets(self, count: int, timestamp: int) -> dict[int, int]:
        kind = message("ListOffsetsRequest")
        wanted = [kind.ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in range(count)]
        topics = [kind.ListOffsetsTopic(name=self._topic, partitions=wanted)]
        answer = self.call("ListOffsets", replica_id=-1, topics=topics)
        found = {}
        for partition in answer.topics[0].partitions:
            check(partition.error_code, f"{self._topic}-{partition.partition_index}")
            found[partition.partition_index] = partition.offset
        return found

    def _log_in(self, address: Address) -> None:
        shaken = self.call("SaslHandshake", mechanism="PLAIN")
        check(shaken.error_code, f"login (mechanisms: {', '.join(shaken.mechanisms)})")
        token = f"\0{address.user}\0{address.password}".encode()
        answer = self.call("SaslAuthenticate", auth_bytes=token)
        check(answer.error_code, "login", answer.error_message)

    def call(self, name: str, **fields: Any) -> Any:
        """Ask, and wait for the answer."""
        version, correlation = VERSIONS[name], next(self._correlation)
        request = message(f"{name}Request")(**fields)
        parts = encode_request(f"{name}Request", version, request, correlation=correlation, client_id=self._client_id)
        self.stream.send(*parts)
        (size,) = struct.unpack(">i", self.stream.read(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise WrongPeer(f"{self.stream.where} does not answer like Kafka")
        body = self.stream.read(size)
        api, _ = shape_of(f"{name}Response")
        return decode(f"{name}Response", version, body, 5 if api.is_flexible(version) and api.key != 18 else 4)


def _whole_batches(data: Any) -> Iterator[tuple[int, Any]]:
    """The last batch of an answer may be cut; it comes again."""
    at = 0
    while data and len(data) - at >= BATCH_HEAD_SIZE:
        head = read_batch_head(data, at)
        if at + head.size > len(data):
            return
        yield at, head
        at += head.size


def check(code: int, what: str, said: str | None = None) -> None:
    if code:
        fix = f"Kafka spells it {what.replace('/', '.')}" if code == INVALID_TOPIC and "/" in what else ""
        if code == NOT_ALLOWED:
            fix = "mainstem user may NAME publish TOPIC --why, then: mainstem user allow NAME publish TOPIC"
        raise Refused(f"{what}: {said or f'Kafka error {code}{_name_of(code)}'}", fix=fix)


def _name_of(code: int) -> str:
    from mainstem.protocols.kafka.errors import ErrorCode

    return f" ({ErrorCode(code).name.lower().replace('_', ' ')})" if code in ErrorCode.__members__.values() else ""
