"""What a queue was declared with, in the broker's own words, and as the document that metadata keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

LOCK_MS = 30_000


class Kind(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"  # read without taking: every consumer has its own position


class Overflow(StrEnum):
    DROP_HEAD = "drop-head"
    REJECT = "reject-publish"
    REJECT_DEAD_LETTER = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """None means: no limit."""

    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    kind: Kind = Kind.CLASSIC
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    priority_max: int = 0
    single_active: bool = False
    order_by_key: bool = False  # records of one key go to one consumer at a time
    deliveries_max: int = 0  # 0: a record may come back for ever
    lock_ms: int = LOCK_MS  # how long a consumer that pulls may hold a record
    undecided_from: int = 0  # records of transactions that are written from this stamp on
    undecided_to: int = 0  # up to this one enter as they are written; others when their transaction is committed
    view: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)  # as declared, to be shown and compared

    @property
    def limited(self) -> bool:
        return self.length_max is not None or self.bytes_max is not None

    @property
    def refuses(self) -> bool:
        """Whether publishers are refused when it is full, instead of the oldest being dropped."""
        return self.limited and self.overflow is not Overflow.DROP_HEAD

    @property
    def timeless(self) -> bool:
        """One level, no clock but that of its leases, no order but that of the log."""
        return not (
            self.priority_max or self.order_by_key or self.message_ttl_ms is not None or self.expires_ms is not None
        )

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> QueueSettings:
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in document.items() if name in known}
        values["kind"] = Kind(values.get("kind", Kind.CLASSIC))
        values["overflow"] = Overflow(values.get("overflow", Overflow.DROP_HEAD))
        return cls(**values)
