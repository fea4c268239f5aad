"""How far archives have got: what retention must wait for where a topic is to be kept until it is archived.

An archive reports, per partition, the offset up to which its table holds everything. A log whose policy says
`keep_until_archived` loses a segment only below the lowest position that an archive of it has reported, and none at all
before one has. A stem holds many topics: it waits until each of them is covered by some archive's filter or name. An
archive that is given up must be forgotten, or the log waits for it for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.broker.scans.selection import STEM, canonical_topic
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.model.errors import InvalidArgument, InvalidName, NotFound, Overloaded
from mainstem.model.topic_filter import check_filter, literal_filter

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespaces.namespace import Namespace

KIND = "archive"
ARCHIVES_MAX = 10_000
PARTITIONS_MAX = 10_000  # of one archive
WAITING_NS = 1_000_000_000  # how long the answer which logs wait is good for


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """Everything of a log below an offset: of all topics, or of those a filter means."""

    log: int
    filter: bytes  # empty: all
    offset: int


class Report(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    reached: list[Reached]


class Archives:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reports: dict[str, Report] = {}
        self._waiting: frozenset[int] = frozenset()
        self._waiting_until_ns = 0
        broker.journal.register(KIND, self._apply, self._dump)
        broker.maintenance.holders["archives"] = self.holds

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._reports.pop(key.decode(), None)
        else:
            self._reports[key.decode()] = msgspec.msgpack.decode(value, type=Report)

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for name, report in list(self._reports.items()):
            yield name.encode(), msgspec.msgpack.encode(report)

    # -- reports

    def report(
        self, namespace: Namespace, name: str, ends: Mapping[str, Mapping[str, int]], topic_filter: str | None = None
    ) -> Ticket:
        """An archive holds everything below these offsets ({topic: {partition: offset}}).

        The entry of a stem (`#`) counts for the topics of `topic_filter`, and for nothing without one.
        """
        if not name or len(name) > 256 or "\0" in name:
            raise InvalidArgument("an archive needs a name of at most 256 characters, without U+0000")
        key = self._key(namespace.name, name)
        if key not in self._reports and len(self._reports) >= ARCHIVES_MAX:
            raise Overloaded(
                f"{ARCHIVES_MAX} archives report already", fix="forget old ones: mainstem lake forget NAME"
            )
        if sum(map(len, ends.values())) > PARTITIONS_MAX:
            raise InvalidArgument(f"an archive reports at most {PARTITIONS_MAX} partitions")
        wanted = topic_filter.encode() if topic_filter else None
        if wanted is not None:
            check_filter(wanted)
        reached = [
            one
            for topic, parts in ends.items()
            for partition, offset in parts.items()
            for one in self._reached(namespace, topic, int(partition), int(offset), wanted)
        ]
        report = self._reports[key] = Report(namespace.name, reached)
        return self._broker.journal.put(KIND, key.encode(), msgspec.msgpack.encode(report))

    def _key(self, namespace: str, name: str) -> str:
        """Its name, unless that is another namespace's: then with its own before it."""
        own, plain = f"{namespace}\0{name}", self._reports.get(name)
        return name if own not in self._reports and (plain is None or plain.namespace == namespace) else own

    @staticmethod
    def _reached(
        namespace: Namespace, topic: str, partition: int, offset: int, wanted: bytes | None
    ) -> Iterator[Reached]:
        if topic == STEM:
            if wanted is not None and any(stem.id == partition for stem in namespace.stems.values()):
                yield Reached(partition, wanted, offset)
            return
        try:
            known = namespace.find_topic(canonical_topic(namespace, topic))
        except InvalidName:
            known = None
        if known is None or partition >= len(known.partitions):
            return  # deleted meanwhile: there is nothing left to keep
        for span in known.partitions[partition].spans:
            meant = literal_filter(known.name) if span.shared else b""
            yield Reached(span.log.id, meant, offset if span.end is None else min(offset, span.end))

    def forget_namespace(self, name: str) -> Iterator[None]:
        for key in [key for key, report in self._reports.items() if report.namespace == name]:
            del self._reports[key]
            self._broker.journal.put(KIND, key.encode(), None)
            yield

    def forget(self, name: str, namespace: str = "/") -> Ticket:
        key = self._key(namespace, name)
        if self._reports.pop(key, None) is None:
            raise NotFound(f"no archive {name!r} has reported", fix="mainstem lake archives")
        return self._broker.journal.put(KIND, key.encode(), None)

    def reached_of(self, namespace: str, log: int) -> Iterator[tuple[str, Reached]]:
        """How far each archive of the namespace has got in a log."""
        for key, report in self._reports.items():
            if report.namespace == namespace:
                yield from ((key.rpartition("\0")[2], one) for one in report.reached if one.log == log)

    def listed(self, namespace: str = "/") -> list[dict[str, Any]]:
        return [
            {
                "name": key.rpartition("\0")[2],
                "namespace": report.namespace,
                "positions": [
                    {"log": one.log, "filter": one.filter.decode() or None, "offset": one.offset}
                    for one in report.reached
                ],
            }
            for key, report in sorted(self._reports.items())
            if report.namespace == namespace
        ]

    # -- what retention may drop

    def holds(self, log: Log) -> Holds:
        if log.id not in self._waiting_logs():
            return Holds()
        return Holds(start_max=self.position(log))

    def position(self, log: Log) -> int:
        """Up to where archives hold everything of the log."""
        reached = [one for report in self._reports.values() for one in report.reached if one.log == log.id]
        if not reached or not self._is_covered(log, [one.filter for one in reached]):
            return 0
        return min(one.offset for one in reached)

    @staticmethod
    def _is_covered(log: Log, filters: list[bytes]) -> bool:
        """Whether each topic of the log is meant by some filter."""
        if log.index is None or log.bitmaps is None:
            return True
        covered = int.from_bytes(log.bitmaps.of_any(sorted(set(filters))), "little").bit_count()
        return covered >= len(log.index.topics)

    def _waiting_logs(self) -> frozenset[int]:
        """Logs whose policy says to wait. Asked for every log in turn, so the answer is kept for a moment."""
        now_ns = self._broker.clock.monotonic_ns()
        if now_ns >= self._waiting_until_ns:
            self._waiting = frozenset(self._find_waiting())
            self._waiting_until_ns = now_ns + WAITING_NS
        return self._waiting

    def _find_waiting(self) -> Iterator[int]:
        for namespace in self._broker.namespaces.values():
            for stem, policy in namespace.stem_policies.items():
                if policy.keep_until_archived:
                    yield stem.id
            for topic in namespace.topics.values():
                if topic.policy.keep_until_archived:
                    yield from (span.log.id for one in topic.partitions for span in one.spans if not span.shared)
