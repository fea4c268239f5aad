"""What the API answers of whoever reads: cursors, queues, connections; and of the way of a message."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from mainstem.admin.answers import Page, says
from mainstem.admin.answers.topics import MessageFacts
from mainstem.broker.tracing.stations import Station


class CursorRow(TypedDict):
    name: str
    protocol: Annotated[str, says("Of whose clients.")]
    kind: Annotated[str, says("A group, a queue or a session.")]
    reads: Annotated[str, says("Topics or filters.")]
    lag: Annotated[int, says("Records it has not read yet.")]
    unacked: Annotated[int, says("Delivered, and not acknowledged.")]
    state: Annotated[str, says("Whether somebody consumes.")]
    held_bytes: NotRequired[Annotated[int, says("Kept past its time only for it.")]]
    members: NotRequired[Annotated[int, says("Of a group: how many consume now.")]]
    user: NotRequired[Annotated[str | None, says("Of a session: whose it is; null where nobody logs in.")]]


class GroupOffset(TypedDict):
    topic: Annotated[str, says("As Kafka spells it.")]
    partition: int
    offset: Annotated[int | None, says("null where none was committed.")]
    end_offset: int | None
    lag: int


class MemberFacts(TypedDict):
    member: str
    client: str
    host: str
    assigned: Annotated[list[str], says("Partitions, as `topic-0`.")]


class GroupFacts(CursorRow):
    offsets: list[GroupOffset]
    clients: list[MemberFacts]


# `from` is a word of the language
OffsetChange = TypedDict("OffsetChange", {"topic": str, "partition": int, "from": int | None, "to": int})


class Reset(TypedDict):
    group: str
    dry_run: Annotated[bool, says("Whether nothing was changed.")]
    changes: list[OffsetChange]


class SubscriptionFacts(TypedDict):
    filter: str
    qos: int


class InFlight(TypedDict):
    packet_id: int
    stamp: int


class SessionFacts(CursorRow):
    expiry_seconds: Annotated[int | None, says("null: never.")]
    left: Annotated[int | None, says("Nanoseconds since 1970; null while it is connected.")]
    expires: Annotated[int | None, says("Nanoseconds since 1970.")]
    hold_ended: Annotated[bool, says("Whether what it is owed is no longer kept for it.")]
    here: Annotated[bool, says("Whether it is connected.")]
    position: Annotated[int, says("The stamp up to which it was sent everything.")]
    subscriptions: list[SubscriptionFacts]
    in_flight: list[InFlight]


class QueueRow(TypedDict):
    name: str
    kind: Annotated[str, says("classic, quorum, stream or jetstream.")]
    durable: Annotated[bool, says("Whether it outlives the broker.")]
    ready: Annotated[int, says("Messages that wait.")]
    unacked: Annotated[int, says("Delivered, and not acknowledged.")]
    dead: Annotated[int, says("Dead letters that it keeps.")]
    consumers: Annotated[int, says("Of all protocols.")]
    filters: Annotated[list[str], says("Which topics enter it.")]


class QueueClient(TypedDict):
    client: str
    protocol: str
    unacked: int
    acks: Annotated[bool, says("Whether it acknowledges.")]
    priority: int
    waits: Annotated[bool, says("Whether another one is the active consumer.")]
    group: Annotated[str | None, says("Of a share group's member.")]
    connection: Annotated[str | None, says("Its id, where it has one of its own.")]


class QueueFacts(QueueRow):
    clients: list[QueueClient]
    unacked_by_others: Annotated[int, says("By clients that do not consume.")]
    settings: dict[str, Any]


class DeadLetter(MessageFacts):
    position: int
    reason: str
    attempts: int
    dead_ms: Annotated[int, says("When it died.")]


class Purged(TypedDict):
    purged: int


class Redriven(TypedDict):
    redriven: int


class Discarded(TypedDict):
    discarded: int


class ConnectionRow(TypedDict):
    id: Annotated[str, says("Its listener and a number.")]
    protocol: str
    client: Annotated[str, says("What the client calls itself.")]
    user: Annotated[str, says("Empty where nobody logs in.")]
    namespace: str
    address: str
    connected_s: int
    unsent_bytes: Annotated[int, says("That the client left unread.")]
    state: Annotated[str, says("open, held or closing.")]


class Ended(TypedDict):
    ended: str


class TraceStep(TypedDict):
    at_ns: int
    after_us: Annotated[int, says("Since the append.")]
    within_us: Annotated[int, says("How exactly that is known.")]
    what: str
    who: str
    kind: str
    protocol: str
    attempts: int


class TraceFacts(TypedDict):
    stamp: int
    trace_id: str
    namespace: str
    topic: str
    log: int
    offset: int
    protocol: str
    client: str
    key: str
    size: int
    open: Annotated[bool, says("Whether it is still followed.")]
    steps: list[TraceStep]


class Traces(Page[TraceFacts]):
    skipped: Annotated[int, says("Sampled, and not followed for want of room.")]


class Publisher(TypedDict):
    protocol: str
    client: Annotated[str, says("Empty where its name was not kept.")]
    stamp: int
    time_ms: int


class PlaceFacts(TypedDict):
    log: int
    engine: str
    shared: bool
    offset: int
    durable: bool
    durability: str
    remote: Annotated[bool, says("Whether it lies in the object store only.")]


class WayFacts(TypedDict):
    message: MessageFacts
    published: Publisher
    place: PlaceFacts
    stations: list[Station]
    trace: Annotated[TraceFacts | None, says("When each of it happened, where it was followed.")]
    traced: Annotated[str, says("The topic's setting `trace`.")]
