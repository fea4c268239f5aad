"""What the broker itself must know of a stream's or consumer's configuration, read from its JetStream document.

The document is the source: a listener's words, normalised by it, kept as they are. Zero or negative limits mean: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainstem.model.topic import filter_of_nats

NS_PER_MS = 1_000_000
DUPLICATE_WINDOW_NS = 120_000_000_000


@dataclass(frozen=True, slots=True)
class StreamSettings:
    filters: tuple[bytes, ...]
    retention: str
    max_msgs: int
    max_bytes: int
    max_age_ns: int
    max_msgs_per_subject: int
    duplicate_window_ns: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StreamSettings:
        return cls(
            tuple(filter_of_nats(subject.encode()) for subject in config.get("subjects") or ()),
            config.get("retention", "limits"),
            config.get("max_msgs", -1),
            config.get("max_bytes", -1),
            config.get("max_age", 0),
            config.get("max_msgs_per_subject", -1),
            config.get("duplicate_window", 0),
        )


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
            tuple(filter_of_nats(subject.encode()) for subject in subjects),
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
