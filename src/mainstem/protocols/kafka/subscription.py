"""What members of a classic group say of themselves, as far as a broker must understand it.

ConsumerProtocolSubscription: i16 version, [string] topics, bytes user data, ...
"""

from __future__ import annotations

import struct

from mainstem.broker.groups.classic import ClassicGroup
from mainstem.broker.groups.registry import Group

_TOPICS_MAX = 100_000


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
    try:
        _, count = struct.unpack_from(">hi", metadata)
        at, topics = 6, set()
        if not 0 <= count <= min(_TOPICS_MAX, len(metadata)):
            return None
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, at)
            topics.add(metadata[at + 2 : at + 2 + size].decode())
            at += 2 + size
    except (struct.error, ValueError):
        return None
    return topics
