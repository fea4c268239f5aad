"""One Kafka connection without its socket: bytes in, requests out; answers in the order of the requests.

Rules of this file:

- A request's size is checked before a byte of it is buffered; before the login it may be 64 KiB.
- Requests may be answered in any order, and are sent in theirs. A request that asks for no answer (acks=0) leaves no gap.
- Whoever leaves PENDING_MAX requests unanswered is not read from until some are.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mainstem.model.errors import PeerViolation
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.schema import Api

PENDING_MAX = 500
SIZE_BYTES = 4


class Slot:
    """The place of one answer."""

    __slots__ = ("api", "correlation", "done", "parts", "version")

    def __init__(self, api: Api, version: int, correlation: int) -> None:
        self.api = api
        self.version = version
        self.correlation = correlation
        self.parts: list[wire.Buffer] | None = None
        self.done = False


class KafkaSession:
    def __init__(self, *, request_bytes_max: int) -> None:
        self.request_bytes_max = request_bytes_max
        self._tail = bytearray()
        self._need = SIZE_BYTES  # bytes until the unfinished request (or its size) is whole
        self._slots: deque[Slot] = deque()

    @property
    def pending(self) -> int:
        return len(self._slots)

    @property
    def crowded(self) -> bool:
        return len(self._slots) >= PENDING_MAX

    def feed(self, data: bytes) -> list[memoryview]:
        """Whole requests, without their sizes. They are slices of what came: nothing is copied that came whole."""
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                return []
            view, self._tail = memoryview(self._tail), bytearray()
        else:
            view = memoryview(data)
        requests: list[memoryview] = []
        at, end = 0, len(view)
        while end - at >= SIZE_BYTES:
            size = int.from_bytes(view[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self.request_bytes_max:  # before buffering: a peer must not fill our memory
                raise PeerViolation(f"a request of {size} bytes; the limit is {self.request_bytes_max}")
            if end - at - SIZE_BYTES < size:
                self._need = SIZE_BYTES + size
                break
            requests.append(view[at + SIZE_BYTES : at + SIZE_BYTES + size])
            at += SIZE_BYTES + size
        else:
            self._need = SIZE_BYTES
        if at < end:
            self._tail += view[at:]
        return requests

    def expect(self, slot: Slot) -> None:
        """This answer follows all those expected before it."""
        self._slots.append(slot)

    def answer(self, slot: Slot, response: Any) -> list[wire.Buffer]:
        """The answer to `slot`; returns everything that may be sent now (nothing, while an earlier one is missing)."""
        slot.parts = wire.encode_response(slot.api, slot.version, response, slot.correlation)
        slot.done = True
        slots = self._slots
        if not slots or not slots[0].done:
            return []
        if slots[0] is slot and (len(slots) == 1 or not slots[1].done):
            slots.popleft()
            return slot.parts
        ready: list[wire.Buffer] = []
        while slots and slots[0].done:
            ready += slots.popleft().parts or ()
        return ready
