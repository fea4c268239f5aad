"""Fetch requests that can be answered at once, without a compiler: the ordinary handler answers them, as all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import KafkaConnection


class PlainFetches:
    def __init__(self, connection: KafkaConnection) -> None:
        """`connection` has logged in."""

    def take(self, data: memoryview) -> bool:
        """Whether the request was one, and is answered."""
        return False
