"""What the broker itself must know of a stream's or consumer's configuration, read from its JetStream document.

The document is the source: a listener's words, normalised by it, kept as they are. Zero or negative limits mean: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.model.subject_transform import SubjectTransform
from mainstem.model.topic import filter_of_nats, topic_of_nats

NS_PER_MS = 1_000_000
DUPLICATE_WINDOW_NS = 120_000_000_000
COPIES = b"$copies."  # before the stream's name: where messages lie whose subject is not one of the stream's own


@dataclass(frozen=True, slots=True)
class StreamSettings:
    filters: tuple[bytes, ...]
    retention: str
    max_msgs: int
    max_bytes: int
    max_age_ns: int
    max_msgs_per_subject: int
    duplicate_window_ns: int
    copies: bytes  # the beginning of topics of messages whose subject is not one of `filters`
    copying: bool  # whether there may be new ones of them
    transform: SubjectTransform | None
    marker_ttl_ns: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StreamSettings:
        transform = config.get("subject_transform")
        return cls(
            tuple(filter_of_nats(subject.encode()) for subject in config.get("subjects") or ()),
            config.get("retention", "limits"),
            config.get("max_msgs", -1),
            config.get("max_bytes", -1),
            config.get("max_age", 0),
            config.get("max_msgs_per_subject", -1),
            config.get("duplicate_window", 0),
            topic_of_nats(COPIES + config["name"].encode()) + b"/",
            bool(config.get("sources") or transform),
            SubjectTransform(transform.get("src", ""), transform.get("dest", "")) if transform else None,
            config.get("subject_delete_marker_ttl", 0),
        )

    @property
    def captured(self) -> tuple[bytes, ...]:
        """What is written to the stream's log."""
        return (*self.filters, self.copies + b">") if self.copying else self.filters


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    filters: tuple[bytes, ...]  # empty: all of the stream
    ack_policy: str
    ack_wait_ms: int
    backoff_ms: tuple[int, ...]
    max_deliver: int
    max_ack_pending: int
    durable: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ConsumerSettings:
        subjects = config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])
        return cls(
            () if ">" in subjects else tuple(filter_of_nats(subject.encode()) for subject in subjects),
            config.get("ack_policy", "none"),
            max(1, config.get("ack_wait", 0) // NS_PER_MS),
            tuple(max(1, wait // NS_PER_MS) for wait in config.get("backoff") or ()),
            config.get("max_deliver", -1),
            config.get("max_ack_pending", 0),
            bool(config.get("durable_name")),
        )

    def wait_ms(self, attempts: int) -> int:
        """How long a delivery that had so many failed ones before it may take."""
        if self.backoff_ms:
            return self.backoff_ms[min(attempts, len(self.backoff_ms) - 1)]
        return self.ack_wait_ms
