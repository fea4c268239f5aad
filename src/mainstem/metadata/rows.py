"""The facts as they are kept: one dataclass per table, and the Facts that holds them all at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Document = dict[str, Any]  # stored as JSON text, keys sorted


class Sequence(StrEnum):
    """The kinds of id. An id is never handed out twice, also not after its owner is gone."""

    TOPIC = "topic"
    LOG = "log"
    VIEW = "view"
    QUEUE = "queue"
    PRODUCER = "producer"


class ItemKind(StrEnum):
    """Declarations whose document only their owner understands."""

    POLICY = "policy"
    USER = "user"
    ROLE = "role"
    OWNER = "owner"
    ACL = "acl"
    EXCHANGE = "exchange"
    QUEUE = "queue"
    QUEUE_POLICY = "queue-policy"
    BINDING = "binding"
    GROUP = "group"
    STREAM = "stream"
    CONSUMER = "consumer"


@dataclass(slots=True)
class NamespaceRow:
    name: str
    created: int
    options: Document = field(default_factory=dict)


@dataclass(slots=True)
class TopicRow:
    id: int
    namespace: str
    name: bytes  # canonical
    kafka_alias: str | None  # the exact Kafka spelling, where it is not the codec's own
    layout: str  # shared | dedicated
    partitions: int
    config: Document
    created: int  # stamp


@dataclass(slots=True)
class LogRow:
    id: int
    namespace: str
    kind: str  # stem | partition | stream
    engine: str
    policy: Document


@dataclass(slots=True)
class SpanRow:
    topic_id: int
    partition: int
    seq: int
    log_id: int
    first_offset: int
    end_offset: int | None  # None: open


@dataclass(slots=True)
class ViewRow:
    id: int
    namespace: str
    name: bytes
    filter: bytes
    condition: str
    options: Document
    created: int  # stamp


@dataclass(slots=True)
class SlotRow:
    view_id: int
    slot: int
    log_id: int | None  # None: its log is gone


@dataclass(slots=True)
class Item:
    kind: str
    namespace: str
    name: str
    body: Document


@dataclass(slots=True)
class Value:
    key: str
    value: bytes


Row = NamespaceRow | TopicRow | LogRow | SpanRow | ViewRow | SlotRow | Item | Value


@dataclass(slots=True)
class Facts:
    """Everything, as it was when the store was opened. Lists are in key order."""

    namespaces: list[NamespaceRow] = field(default_factory=list)
    topics: list[TopicRow] = field(default_factory=list)
    logs: list[LogRow] = field(default_factory=list)
    spans: list[SpanRow] = field(default_factory=list)
    views: list[ViewRow] = field(default_factory=list)
    view_slots: list[SlotRow] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    kv: dict[str, bytes] = field(default_factory=dict)

    def items_of(self, kind: str) -> list[Item]:
        return [item for item in self.items if item.kind == kind]
