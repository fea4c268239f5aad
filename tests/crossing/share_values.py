"""A member of a share group that knows the values of what it holds: a count would not say whose messages they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from mainstem.codec.batch import decode_batch, split_batches
from tests.protocol.kafka.share_member import Member

INFLATED_BYTES_MAX = 1 << 20


class Held(NamedTuple):
    partition: int
    offset: int
    count: int  # of its deliveries
    value: bytes


class ValueMember(Member):
    """`hold` is `take`, with the values."""

    _fetched: Any = None

    def ask(self, name: str, version: int, value: Any) -> Any:
        answer = super().ask(name, version, value)
        if name == "ShareFetch":
            self._fetched = answer
        return answer

    def hold(self, count: int = 500, wait_ms: int = 3_000) -> list[Held]:
        taken = self.take(count, wait_ms)
        values = {
            (part.partition_index, record.offset): record.value or b""
            for topic in self._fetched.responses
            for part in topic.partitions
            for batch in split_batches(bytes(part.records or b""))
            for record in decode_batch(batch, inflated_bytes_max=INFLATED_BYTES_MAX)
        }
        return [Held(*one, values[one[:2]]) for one in taken]

    def settle_one(self, held: Held, kind: int) -> int:
        return self.settle(held.partition, held.offset, held.offset, kind)
