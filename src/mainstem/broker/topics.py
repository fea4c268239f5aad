"""Topics and their partitions: the spans of logs a topic's records lie in.

A topic-partition is a list of spans (log, first offset, end). A change of engine, layout or policy seals the last span
at N and opens the new log at N: offsets go on, readers never notice. Most topics are not declared at all: they share
the namespace's main stem, which alone knows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstem.broker.live import Route
from mainstem.broker.policy import Policy
from mainstem.log.log import Log


@dataclass(slots=True, eq=False)
class Span:
    log: Log
    first: int
    end: int | None = None  # None: still written

    @property
    def shared(self) -> bool:
        return self.log.index is not None

    @property
    def end_offset(self) -> int:
        return self.log.stable if self.end is None else self.end


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

    @property
    def start_offset(self) -> int:
        first = self.spans[0]
        return max(self.low_mark, first.first, min(first.log.start_offset, first.end_offset))

    @property
    def stable_offset(self) -> int:
        """The end for whoever carries offsets away: Kafka's high watermark."""
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
    created: int = 0

    @property
    def declared(self) -> bool:
        return self.id != 0
