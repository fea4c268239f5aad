"""A Kafka client of a hundred lines, for what no library would ever send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

from mainstem.codec.batch import BatchBuilder
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.messages import FetchRequest, ProduceRequest
from mainstem.protocols.kafka.schema import BY_NAME
from mainstem.testing.broker import Endpoints


def batch_of(values: list[bytes], **head: int) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, (), 1_700_000_000_000)
    return bytes(builder.seal_batch(0, **head))


class RawClient:
    def __init__(self, broker: Endpoints) -> None:
        self.socket = socket.create_connection((broker.host, broker.kafka_port), timeout=10)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, name: str, version: int, value: Any) -> int:
        self._correlation += 1
        parts = wire.encode_request(f"{name}Request", version, value, correlation=self._correlation, client_id="raw")
        self.send_bytes(b"".join(parts))
        return self._correlation

    def receive(self, name: str, version: int) -> Any:
        data = self.receive_bytes()
        api = BY_NAME[name]
        at = 5 if api.is_flexible(version) and api.key != 18 else 4
        assert struct.unpack_from(">i", data)[0] == self._correlation or self._correlation == 0
        return wire.decode(f"{name}Response", version, data[at:])

    def receive_bytes(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed by the broker")
            data += chunk
        return data

    def closed(self) -> bool:
        """Whether the broker hangs up."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def ask(self, name: str, version: int, value: Any) -> Any:
        self.send(name, version, value)
        return self.receive(name, version)

    def produce(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1, version: int = 9) -> Any:
        part = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        answer = self.ask("Produce", version, ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data]))
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 11, **settings: Any) -> Any:
        part = FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=settings.pop("partition_max_bytes", 1 << 20)
        )
        request = FetchRequest(
            max_wait_ms=settings.pop("max_wait_ms", 0),
            min_bytes=settings.pop("min_bytes", 1),
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
            **settings,
        )
        return self.ask("Fetch", version, request)
