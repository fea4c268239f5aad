"""How records enter a queue: filters over topics, each valid from stamp to stamp.

A binding starts at the stamp at which it was made (or earlier, where history was asked for) and ends at the one at which
it was taken away; what matched in between stays in the queue. An ended binding is forgotten once the queue has read
beyond its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstem.broker.queues.queue_sink import Entry
from mainstem.model.topic_filter import matches

FILTERS_MAX = 10_000  # per queue

ANYTHING = "anything"  # every record on the topics, however published
DEFAULT = "default"  # published to the default exchange
PLAIN = "plain"  # published to amq.topic, or by another protocol
EXCHANGE = "exchange"  # published to the exchange `exchange`
NAMED = "named"  # only records that name the queue
READING = (ANYTHING, PLAIN, EXCHANGE)  # whatever is published there, so it has to be stored
NOW = -1  # as a start: from when the queue is made


@dataclass(slots=True)
class Reach:
    """One way into the queue: a kind, a filter, a stretch of stamps."""

    kind: str
    filter: bytes
    exchange: str = ""
    start: int = 0
    end: int | None = None  # None: still open

    def entry(self) -> Entry:
        return Entry(
            anything=self.kind == ANYTHING,
            default=self.kind == DEFAULT,
            plain=self.kind == PLAIN,
            exchanges=frozenset((self.exchange.encode(),)) if self.kind == EXCHANGE else frozenset(),
        )

    def covers(self, stamp: int) -> bool:
        return self.start <= stamp and (self.end is None or stamp < self.end)

    def same_as(self, other: Reach) -> bool:
        return (self.kind, self.filter, self.exchange) == (other.kind, other.filter, other.exchange)


@dataclass(slots=True)
class Reaches:
    """All ways into one queue. `constant_from`: from that stamp on nothing has changed."""

    all: list[Reach] = field(default_factory=list)
    constant_from: int = 0

    def open_ones(self) -> Iterator[Reach]:
        return (reach for reach in self.all if reach.end is None)

    def find_open(self, wanted: Reach) -> Reach | None:
        return next((reach for reach in self.open_ones() if reach.same_as(wanted)), None)

    def add(self, reach: Reach) -> None:
        self.all.append(reach)
        self.constant_from = max(self.constant_from, reach.start)

    def close(self, reach: Reach, stamp: int) -> None:
        reach.end = stamp
        self.constant_from = max(self.constant_from, stamp)

    def forget_before(self, position: int) -> bool:
        """Drop what ended before the queue's position; True if anything went."""
        kept = [reach for reach in self.all if reach.end is None or reach.end > position]
        changed = len(kept) != len(self.all)
        self.all = kept
        return changed

    def filters(self) -> list[bytes]:
        return list(dict.fromkeys(reach.filter for reach in self.all))

    def entry_of(self, topic: bytes, stamp: int) -> Entry | None:
        """Why a record of that topic and stamp would enter; None if it would not."""
        found = [r.entry() for r in self.all if r.covers(stamp) and matches(r.filter, topic)]
        return merge(found) if found else None


def merge(entries: list[Entry]) -> Entry:
    """One topic matched in several ways."""
    if len(entries) == 1:
        return entries[0]
    return Entry(
        anything=any(entry.anything for entry in entries),
        default=any(entry.default for entry in entries),
        plain=any(entry.plain for entry in entries),
        exchanges=frozenset().union(*(entry.exchanges for entry in entries)),
    )
