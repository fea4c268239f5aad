"""Topics and their partitions: the spans of logs a topic's records lie in.

A topic-partition is a list of spans (log, first offset, end). A change of engine, layout or policy seals the last span
at N and opens the new log at N: offsets go on, readers never notice. Most topics are not declared at all: they share
the namespace's main stem, which alone knows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.delivery.live import Route
from mainstem.broker.topics.policy import Policy
from mainstem.log.log import Log

NO_END = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class Span:
    log: Log
    first: int
    end: int | None = None  # None: still written
    seq: int = 0  # its place among all the partition ever had

    @property
    def shared(self) -> bool:
        return self.log.index is not None

    @property
    def end_offset(self) -> int:
        """Up to where it can be read by offset."""
        return self.log.stable if self.end is None else min(self.end, self.log.stable)

    @property
    def limit(self) -> int:
        """Offsets from here on belong to the next span."""
        return NO_END if self.end is None else self.end

    @property
    def start_offset(self) -> int:
        return max(self.first, self.log.start_offset)


@dataclass(slots=True, eq=False)
class Partition:
    topic: Topic
    index: int
    spans: list[Span]
    route: Route
    low_mark: int = 0  # records below were deleted on request

    @property
    def log(self) -> Log:
        return self.spans[-1].log

    def log_at(self, offset: int) -> Log:
        return next(span.log for span in self.spans if offset < span.limit)

    @property
    def start_offset(self) -> int:
        start = 0
        for span in self.spans:
            start = span.start_offset
            if span.log.low_marks is not None:
                start = max(start, span.log.low_marks.of(self.topic.name))
            if start < span.limit:
                break
        return max(self.low_mark, start)

    @property
    def stable_offset(self) -> int:
        """The end for whoever carries offsets away: Kafka's high watermark."""
        for span in self.spans[:-1]:
            if span.end_offset < span.limit:
                return span.end_offset
        return max(self.log.stable, self.spans[-1].first)

    @property
    def epoch(self) -> int:
        return self.log.epoch


@dataclass(slots=True, eq=False)
class Topic:
    id: int  # 0: not declared, lives in a stem under its name only
    name: bytes
    policy: Policy
    partitions: list[Partition] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)  # what was set explicitly, by Kafka's names
    kafka_alias: str | None = None
    created: int = 0  # a stamp; of an undeclared topic the offset of its last deletion

    @property
    def declared(self) -> bool:
        return self.id != 0
