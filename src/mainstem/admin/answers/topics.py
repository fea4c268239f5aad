"""What the API answers of topics, views, streams, messages and schemas."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from mainstem.admin.answers import Page, says


class TopicRow(TypedDict):
    name: str
    layout: Annotated[str, says("shared or dedicated.")]
    engine: Annotated[str, says("Where its bytes rest.")]
    partitions: int
    records: Annotated[int, says("That are stored.")]
    start_offset: Annotated[int, says("The lowest of its partitions.")]
    end_offset: Annotated[int, says("The highest of its partitions.")]
    declared: Annotated[bool, says("Whether it has settings of its own.")]


class TopicSetting(TypedDict):
    value: Any
    source: Annotated[str, says("default, policy FILTER, or topic.")]


class SpanFacts(TypedDict):
    log: int
    engine: str
    shared: bool
    first_offset: int
    end_offset: Annotated[int | None, says("null: records are still appended to it.")]
    size_bytes: Annotated[int | None, says("null where it shares the log with other topics; so are the two below.")]
    local_bytes: int | None
    remote_bytes: Annotated[int | None, says("In the object store.")]
    overflowed: Annotated[int, says("Records that a log in memory dropped for want of room.")]


class PartitionFacts(TypedDict):
    partition: int
    start_offset: int
    end_offset: int
    records: int
    epoch: int
    spans: Annotated[list[SpanFacts], says("Where its records lie, the oldest first.")]


class TopicFacts(TopicRow):
    namespace: str
    spellings: Annotated[dict[str, str], says("Its name by protocol.")]
    id: Annotated[int, says("Of its declaration; 0 where it has none.")]
    settings: Annotated[dict[str, TopicSetting], says("By name, as in [topics].")]
    kafka_config: Annotated[dict[str, Any], says("What Kafka clients set that Mainstem has no setting for.")]
    listeners: Annotated[int, says("Clients that are handed its records as they are written.")]
    views: list[str]
    placement: list[PartitionFacts]
    bytes_by_engine: Annotated[dict[str, int], says("Of logs that are the topic's alone.")]


class Level(TypedDict):
    level: str
    path: Annotated[str, says("With the levels above.")]
    topics: Annotated[int, says("How many there are below.")]
    is_topic: Annotated[bool, says("Whether it is one itself.")]


class Tree(Page[Level]):
    complete: Annotated[bool, says("Whether all topics were looked at.")]


class Erased(TypedDict):
    erased: str
    records: int


class ViewRow(TypedDict):
    name: str
    filter: Annotated[str, says("Which topics it shows.")]
    where: Annotated[str, says("A condition on key and headers.")]
    grants: Annotated[bool, says("Whether a right on it suffices to read it.")]
    slots: Annotated[int, says("Logs that it reads.")]


class SlotFacts(TypedDict):
    slot: int
    log: Annotated[int | None, says("null where the log is gone; then nothing else is known.")]
    start_offset: NotRequired[int]
    end_offset: NotRequired[int]
    records: NotRequired[Annotated[int | None, says("null with a condition: counting would mean reading.")]]


class ViewFacts(ViewRow):
    spellings: Annotated[dict[str, str], says("Its name by protocol.")]
    created: Annotated[int, says("Nanoseconds since 1970.")]
    partitions: list[SlotFacts]


class StreamRow(TypedDict):
    name: str
    subjects: Annotated[list[str], says("What it captures, as NATS spells it.")]
    storage: Annotated[str, says("file or memory.")]
    retention: Annotated[str, says("limits, interest or workqueue.")]
    durability: Annotated[str, says("When a publish is acked: sync, interval:<ms>, os or none.")]
    messages: int
    bytes: Annotated[int, says("That it holds, as JetStream counts them.")]
    consumers: int


class StreamFacts(StreamRow):
    namespace: str
    mirror_of: str | None
    created: Annotated[int, says("Nanoseconds since 1970.")]
    first_seq: int
    last_seq: int
    log: int
    engine: str
    config: Annotated[dict[str, Any], says("As NATS clients see it.")]


class SchemaFacts(TypedDict):
    id: int
    type: Annotated[str, says("AVRO, JSON or PROTOBUF.")]
    subject: str
    version: int


class MessageFacts(TypedDict):
    topic: str
    partition: int
    offset: int
    stamp: Annotated[int, says("When it was appended, in nanoseconds; one of its own in the broker.")]
    time_ms: Annotated[int, says("Its publisher's time, or the append's.")]
    origin: Annotated[str, says("The protocol it was published by.")]
    key: Annotated[str | None, says("As text; 0x and hex where it is none.")]
    headers: Annotated[list[tuple[str, str | None]], says("Name and value, in order.")]
    size: Annotated[int, says("Bytes of the value.")]
    format: Annotated[str, says("json, text, hex or null.")]
    value: str | None
    truncated: NotRequired[Annotated[bool, says("It is longer than is shown.")]]
    value_base64: NotRequired[Annotated[str, says("Where the value is no text, or was decoded by its schema.")]]
    schema: NotRequired[SchemaFacts]


class Messages(Page[MessageFacts]):
    end: Annotated[str, says("Where this page ends, also when nothing follows yet: a `from`.")]


class Published(TypedDict):
    topic: str
    durable: bool


class Arrival(TypedDict):
    protocol: str
    name: Annotated[str, says("The topic as the protocol spells it.")]
    value: str
    microseconds: Annotated[int, says("Since the append.")]
    error: Annotated[str | None, says("Why it did not arrive.")]
    arrived_ns: int


class Tried(TypedDict):
    topic: str
    arrivals: list[Arrival]


class Decoded(SchemaFacts):
    json: str


class DecodedValues(Page[Decoded | None]):
    """In the order they were sent; null where there is no schema, or it is not for the caller."""


class SubjectRow(TypedDict):
    name: str
    type: Annotated[str, says("AVRO, JSON or PROTOBUF.")]
    version: Annotated[int, says("The latest.")]
    id: int
    level: Annotated[str, says("Which versions may follow.")]
    topics: Annotated[list[str], says("Topics and filters whose policy names it.")]


class DifferenceLine(TypedDict):
    mark: Annotated[str, says("+, - or a blank.")]
    text: str


class Differences(TypedDict):
    name: str
    old: int
    new: int
    lines: list[DifferenceLine]
