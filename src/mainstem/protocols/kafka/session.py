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
        self._tail = b""  # less than a size
        self._open: bytearray | None = None  # the request that is not yet whole, with room for all of it
        self._filled = 0
        self._slots: deque[Slot] = deque()

    @property
    def pending(self) -> int:
        return len(self._slots)

    @property
    def crowded(self) -> bool:
        return len(self._slots) >= PENDING_MAX

    def feed(self, data: bytes) -> list[memoryview]:
        """Whole requests, without their sizes. What came whole is a slice of what came; what did not is copied once."""
        requests: list[memoryview] = []
        view = memoryview(data)
        if self._open is not None:
            view = self._fill(self._open, view, requests)
        elif self._tail:
            view = memoryview(self._tail + data)
            self._tail = b""
        at, end = 0, len(view)
        while end - at >= SIZE_BYTES:
            size = int.from_bytes(view[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self.request_bytes_max:  # before buffering: a peer must not fill our memory
                raise PeerViolation(f"a request of {size} bytes; the limit is {self.request_bytes_max}")
            at += SIZE_BYTES
            if end - at < size:
                self._open = bytearray(size)  # pages that nothing was written to cost nothing
                self._filled = end - at
                self._open[: self._filled] = view[at:]
                return requests
            requests.append(view[at : at + size])
            at += size
        self._tail = bytes(view[at:])
        return requests

    def _fill(self, request: bytearray, view: memoryview, requests: list[memoryview]) -> memoryview:
        """Complete the open request as far as `view` goes; returns what is left of it."""
        take = min(len(request) - self._filled, len(view))
        request[self._filled : self._filled + take] = view[:take]
        self._filled += take
        if self._filled == len(request):
            requests.append(memoryview(request))
            self._open = None
        return view[take:]

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
