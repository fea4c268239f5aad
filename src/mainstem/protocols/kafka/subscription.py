"""What members of a classic group say of themselves, as far as a broker must understand it.

subscription  i16 version, [string] topics, bytes user data, from version 1 on [string, [i32]] owned partitions, ...
assignment    i16 version, [string, [i32]] partitions, bytes user data
"""

from __future__ import annotations

import struct

from mainstem.broker.groups.classic import ClassicGroup
from mainstem.broker.groups.classic_members import Subscription
from mainstem.broker.groups.registry import Group

ITEMS_MAX = 100_000


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics that members of the group subscribe to; None where that cannot be told (so: all)."""
    if not isinstance(group, ClassicGroup):
        return {name for member in group.members.values() for name in member.topics}
    if not group.members:
        return set()
    if group.protocol_type != "consumer":
        return None
    topics: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.protocols:
            found = parse_subscription(metadata)
            if found is None:
                return None
            topics |= found
    return topics


def parse_subscription(metadata: bytes) -> set[str] | None:
    found = read_subscription(metadata)
    return found.topics if found is not None else None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def count(self) -> int:
        found = self.number(">i")
        if not 0 <= found <= min(ITEMS_MAX, len(self._data)):
            raise ValueError(f"{found} items")
        return found

    def string(self) -> str:
        size = self.number(">h")
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"a string of {size} bytes")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def skip_bytes(self) -> None:
        size = self.number(">i")
        self._at += max(size, 0)

    def partitions(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for _ in range(self.count()):
            name = self.string()
            found |= {(name, self.number(">i")) for _ in range(self.count())}
        return found


def read_subscription(metadata: bytes) -> Subscription | None:
    """None where it is not one."""
    try:
        reader = _Reader(metadata)
        version = reader.number(">h")
        topics = {reader.string() for _ in range(reader.count())}
        reader.skip_bytes()
        return Subscription(topics, reader.partitions() if version >= 1 else set())
    except (struct.error, ValueError):
        return None


def read_assignment(data: bytes) -> set[tuple[str, int]]:
    try:
        reader = _Reader(data)
        reader.number(">h")
        return reader.partitions()
    except (struct.error, ValueError):
        return set()


def write_assignment(partitions: set[tuple[str, int]]) -> bytes:
    names = sorted({name for name, _ in partitions})
    parts = [struct.pack(">hi", 0, len(names))]
    for name in names:
        indexes = sorted(index for other, index in partitions if other == name)
        encoded = name.encode()
        parts.append(
            struct.pack(">h", len(encoded)) + encoded + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        )
    return b"".join(parts) + struct.pack(">i", -1)
