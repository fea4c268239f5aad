"""What a topic's settings ask of a batch that is produced to it, and doing it: sizes, times, keys, compression."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mainstem.broker.schemas.enforcement import DEAD_LETTER, OFF
from mainstem.broker.topics.topic import Topic
from mainstem.codec.batch import (
    BATCH_HEAD_SIZE,
    BatchBuilder,
    BatchHead,
    Codec,
    check_batch,
    crc32c,
    decode_batch,
    decode_values,
    keyless_records,
)
from mainstem.log.inflating import bring_inflated
from mainstem.model.errors import CorruptFrame, InvalidArgument, MessageTooLarge
from mainstem.model.record import Record
from mainstem.protocols.kafka.config_table import TOPIC_SETTINGS
from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.storage.engine import Buffer

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
LOG_APPEND_TIME = 8
CODEC_MASK = 7
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")
_MAX_TIME = struct.Struct(">q")
NO_TIME = -1
RECORD_ERRORS_MAX = 100  # told of one batch
Misfits = Callable[[list[bytes | None]], list[tuple[int, str]]]
BEFORE, AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
AFTER_MS_MAX = 1 << 62  # so that a sum with the time of day fits into 64 bits


class Refused(Exception):
    """A batch that the topic does not take."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.records: list[tuple[int, str]] = []  # which of the batch, and why each

    @classmethod
    def of_records(cls, code: ErrorCode, found: list[tuple[int, str]], what: str, count: int = 0) -> Refused:
        """A client fails these alone; what came with them it sends again, or fails for their sake."""
        refusal = cls(code, f"{count or len(found)} {what}: {found[0][1]}")
        refusal.records = found[:RECORD_ERRORS_MAX]
        return refusal


@dataclass(frozen=True, slots=True)
class TopicRules:
    bytes_max: int
    keys_needed: bool
    append_time: bool
    codec: Codec | None  # None: as the producer sent it
    before_ms_max: int | None
    after_ms_max: int
    inflated_bytes_max: int
    misfits: Misfits | None = None  # the places of values that do not fit the topic's schema, and why
    dead_letters: bool = False  # and whether it is set aside instead of refused

    @staticmethod
    def of(topic: Topic, inflated_bytes_max: int) -> TopicRules:
        policy, config = topic.policy, topic.config
        before, after = config.get(BEFORE), config.get(AFTER, TOPIC_SETTINGS[AFTER].default)
        return TopicRules(
            bytes_max=policy.message_bytes_max,
            keys_needed="compact" in policy.cleanup,
            append_time=policy.timestamp_type == "append",
            codec=CODECS.get(config.get("compression.type", "producer")),
            before_ms_max=int(before) if before is not None else None,
            after_ms_max=min(int(after), AFTER_MS_MAX),
            inflated_bytes_max=inflated_bytes_max,
            misfits=_misfits(topic) if policy.schema and policy.schema_mode != OFF else None,
            dead_letters=policy.schema_mode == DEAD_LETTER,
        )

    @property
    def plain(self) -> bool:
        """Every sound batch that is not of the future is taken as it is."""
        return not (self.keys_needed or self.append_time or self.misfits) and self.codec is self.before_ms_max is None

    @property
    def opens(self) -> bool:
        """Records must be looked at, which takes as long as there are records, and inflating."""
        return bool(self.keys_needed or self.misfits) or self.codec is not None or self.before_ms_max is not None

    def admit(self, batch: Buffer, now_ms: int) -> tuple[Buffer, BatchHead]:
        """The batch as it is to be stored. Almost always that is the batch as it came, unopened."""
        try:
            head = check_batch(batch, bytes_max=self.bytes_max)
        except MessageTooLarge as fault:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, fault.message) from fault
        except CorruptFrame as fault:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, fault.message) from fault
        except InvalidArgument as fault:
            raise Refused(ErrorCode.INVALID_RECORD, fault.message) from fault
        if self.keys_needed:
            self._check_keys(batch, head)
        if self.misfits is not None and not self.dead_letters:
            self._check_values(batch, self.misfits)
        if not self.append_time and head.max_time_ms != NO_TIME:
            self._check_times(batch, head, now_ms)
        if self.codec is not None and self.codec != head.codec:
            batch = self._recompress(batch, head)
        if self.append_time:
            batch = _stamp(batch, now_ms)
        return batch, head

    def _check_times(self, batch: Buffer, head: BatchHead, now_ms: int) -> None:
        if self.before_ms_max is not None:
            records = decode_batch(batch, inflated_bytes_max=self.inflated_bytes_max, verify=False)
            first_ms, last_ms = now_ms - self.before_ms_max, now_ms + self.after_ms_max
            found = [
                (place, f"timestamp {record.time_ms} is too old or lies too far ahead")
                for place, record in enumerate(records)
                if record.time_ms != NO_TIME and not first_ms <= record.time_ms <= last_ms
            ]
            if found:
                raise Refused.of_records(
                    ErrorCode.INVALID_TIMESTAMP, found, "the records' timestamps are outside what the topic accepts"
                )
        if head.max_time_ms > now_ms + self.after_ms_max:
            raise Refused(ErrorCode.INVALID_TIMESTAMP, f"timestamp {head.max_time_ms} lies too far ahead")

    def _check_keys(self, batch: Buffer, head: BatchHead) -> None:
        """Half a million fit into a small batch: to make them objects would keep the interpreter from the loop."""
        records: Buffer = memoryview(batch)[BATCH_HEAD_SIZE : head.size]
        if head.codec:
            inflated = bring_inflated(head.codec, bytes(records), self.inflated_bytes_max)
            if inflated.fault is not None:
                raise inflated.fault
            records = inflated.data
        count, places = keyless_records(records, head.count, head.last_offset_delta, RECORD_ERRORS_MAX)
        if count:
            found = [(place, "a compacted topic needs a key in each record") for place in places]
            raise Refused.of_records(ErrorCode.INVALID_RECORD, found, "records have no key", count)

    def _check_values(self, batch: Buffer, misfits: Misfits) -> None:
        found = misfits(decode_values(batch, inflated_bytes_max=self.inflated_bytes_max))
        if found:
            raise Refused.of_records(ErrorCode.INVALID_RECORD, found, "values do not match the schema")

    def set_aside(self, batch: Buffer, head: BatchHead) -> tuple[Buffer | None, list[tuple[Record, str]]]:
        """The batch without what does not match the schema (None: nothing is left), and that, each with the reason.

        Its offsets, and the producer's sequence, are those of the whole batch: a repetition is known again.
        """
        if self.misfits is None or not self.dead_letters:
            return batch, []
        found = dict(self.misfits(decode_values(batch, inflated_bytes_max=self.inflated_bytes_max)))
        if not found:
            return batch, []
        builder, aside, kept = BatchBuilder(), list[tuple[Record, str]](), 0
        records = decode_batch(batch, inflated_bytes_max=self.inflated_bytes_max, verify=False)
        for place, record in enumerate(records):
            if place in found:
                aside.append((record, found[place]))
            else:
                builder.add(record.key, record.value, record.headers, record.time_ms, 0)
                kept += 1
        if not kept:
            return None, aside
        sequence = head.producer_id, head.producer_epoch, head.base_sequence
        return builder.seal_batch(0, -1, head.attributes, *sequence, last_offset=head.count - 1), aside

    def _recompress(self, batch: Buffer, head: BatchHead) -> bytes:
        builder = BatchBuilder()
        for record in decode_batch(batch, inflated_bytes_max=self.inflated_bytes_max, verify=False):
            builder.add(record.key, record.value, record.headers, record.time_ms, 0)
        attributes = head.attributes & ~CODEC_MASK | (self.codec or 0)
        return builder.seal_batch(
            0, -1, attributes, head.producer_id, head.producer_epoch, head.base_sequence, last_offset=None
        )


def _misfits(topic: Topic) -> Misfits:
    namespace = topic.partitions[0].route.namespace
    return partial(namespace.broker.schemas.of(namespace).enforcement.refusals, topic.policy.schema)


def _stamp(batch: Buffer, now_ms: int) -> bytes:
    """LogAppendTime: the broker's time in the head stands for that of all records."""
    copy = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(copy, 21)
    _ATTRIBUTES.pack_into(copy, 21, attributes | LOG_APPEND_TIME)
    _MAX_TIME.pack_into(copy, 35, now_ms)
    _CRC.pack_into(copy, 17, crc32c(memoryview(copy)[21:]))
    return bytes(copy)
