"""A group member that joins and is never heard of again."""

from __future__ import annotations

import struct

from mainstem.protocols.kafka.messages import JoinGroupRequest
from mainstem.testing.broker import Endpoints
from tests.protocol.kafka.raw import RawClient


def subscription(topic: str) -> bytes:
    return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + struct.pack(">i", -1)


def join_and_vanish(broker: Endpoints, topic: str, group: str, session_ms: int) -> None:
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(topic))]
    ask = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms,
        protocol_type="consumer",
        protocols=protocols,
    )
    with RawClient(broker) as raw:
        first = raw.ask("JoinGroup", 5, ask)
        assert first.error_code == 79  # it is told its id, and to join again
        ask.member_id = first.member_id
        assert raw.ask("JoinGroup", 5, ask).error_code == 0
