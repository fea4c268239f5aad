"""How far archives have got: what retention must wait for where a topic is to be kept until it is archived.

An archive reports, per lane, the offset up to which its table holds everything. A log whose policy says
`keep_until_archived` loses a segment only below the lowest position that any archive of it has reported, and none at all
before one has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.broker.scan_lanes import STEM, canonical_topic
from mainstem.log.gather import Ticket
from mainstem.log.log import Log
from mainstem.log.retention import Holds
from mainstem.model.errors import InvalidArgument, NotFound, Overloaded

if TYPE_CHECKING:
    from mainstem.broker.broker import Broker
    from mainstem.broker.namespace import Namespace

KIND = "archive"
ARCHIVES_MAX = 10_000


class Archives:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions: dict[str, dict[int, int]] = {}  # archive → log id → offset
        broker.journal.register(KIND, self._apply, self._dump)
        broker.maintenance.holders.append(self.holds)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._positions.pop(key.decode(), None)
        else:
            self._positions[key.decode()] = msgspec.msgpack.decode(value, type=dict[int, int])

    def _dump(self) -> Iterator[tuple[bytes, bytes]]:
        for name, positions in self._positions.items():
            yield name.encode(), msgspec.msgpack.encode(positions)

    def report(self, namespace: Namespace, name: str, ends: Mapping[str, Mapping[str, int]]) -> Ticket:
        """An archive holds everything below these offsets ({topic: {partition: offset}}, `#` for a stem)."""
        if not name or len(name) > 256:
            raise InvalidArgument("an archive needs a name of at most 256 characters")
        if name not in self._positions and len(self._positions) >= ARCHIVES_MAX:
            raise Overloaded(f"{ARCHIVES_MAX} archives report already", fix="forget old ones: DELETE /v1/archives/NAME")
        positions: dict[int, int] = {}
        for topic, parts in ends.items():
            for partition, offset in parts.items():
                for log_id, position in self._logs(namespace, topic, int(partition), int(offset)):
                    positions[log_id] = min(position, positions.get(log_id, position))
        self._positions[name] = positions
        return self._broker.journal.put(KIND, name.encode(), msgspec.msgpack.encode(positions))

    def _logs(self, namespace: Namespace, topic: str, partition: int, offset: int) -> Iterator[tuple[int, int]]:
        if topic == STEM:
            yield partition, offset
            return
        known = namespace.find_topic(canonical_topic(namespace, topic))
        if known is None or partition >= len(known.partitions):
            return  # deleted meanwhile: there is nothing left to keep
        for span in known.partitions[partition].spans:
            yield span.log.id, offset if span.end is None else min(offset, span.end)

    def forget(self, name: str) -> Ticket:
        if self._positions.pop(name, None) is None:
            raise NotFound(f"no archive {name!r} has reported")
        return self._broker.journal.put(KIND, name.encode(), None)

    def listed(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "positions": {str(log): offset for log, offset in positions.items()}}
            for name, positions in sorted(self._positions.items())
        ]

    def holds(self, log: Log) -> Holds:
        if not self._waits(log):
            return Holds()
        reported = [positions[log.id] for positions in self._positions.values() if log.id in positions]
        return Holds(from_offset=min(reported, default=0))

    def _waits(self, log: Log) -> bool:
        for namespace in self._broker.namespaces.values():
            policy = namespace.stem_policies.get(log)
            if policy is not None:
                return policy.keep_until_archived
            for topic in namespace.topics.values():
                if any(
                    span.log is log for partition in topic.partitions for span in partition.spans if not span.shared
                ):
                    return topic.policy.keep_until_archived
        return False
