"""One Kafka connection without its socket: bytes in, requests out; answers in the order of the requests.

Rules of this file:

- A request's size is checked before a byte of it is buffered; before the login it may be 64 KiB.
- Bytes are read where they are parsed: into a buffer that all connections share, or, once a request's size is known and
  more of it is to come, into a buffer of its own. What lies in the shared one is read-only and gone with the next read.
- That buffer grows with what has come, twice as large each time: a size that is only announced costs nothing. From a
  megabyte on it is as large as announced, in pages that the system gives when something is put there, or that another
  large message left (`codec/large_memory.py`): no copies.
- Whoever sent a large request will send another: the next read goes into a buffer of its own from its first byte on.
- Requests may be answered in any order, and are sent in theirs. A request that asks for no answer (acks=0) leaves no gap.
- Whoever leaves PENDING_MAX requests unanswered is not read from until some are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from sys import getrefcount
from typing import Any, Protocol

from mainstem.codec.large_memory import Block
from mainstem.model.errors import PeerViolation
from mainstem.protocols.kafka import wire
from mainstem.protocols.kafka.schema import Api

PENDING_MAX = 500
SIZE_BYTES = 4
READ_BYTES = 256 * 1024  # of the shared buffer
KEPT_MAX, KEPT_BYTES_MAX, KEPT_STEP_BYTES = 16, 2 * 1024 * 1024, 256 * 1024  # buffers kept, of what size
PAGED_BYTES_MIN = 1024 * 1024
ROOM_BYTES_MAX = 1024 * 1024  # of a large request that are read at once: more of it is another turn's
REFERENCES_FREE = 3  # the list, the loop's variable, the argument
TAIL_BYTES_MAX = (
    16 * 1024
)  # an unfinished request up to this size waits in a copy: that is cheaper than a read of its own


class Buffers:
    """Buffers for large requests, used again: fresh memory costs more than what is read into it.

    One is free when nobody but this pool knows it: the batch in it was written to the log, the answer sent.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self.lent: memoryview | None = None

    def take(self, size: int) -> memoryview:
        return memoryview(self._free(size))[:size]

    def lend(self, size: int) -> memoryview:
        """Until the next call: `lent` is all of it, and whoever keeps a part of that has it."""
        self.lent = None
        self.lent = memoryview(self._free(size))
        return self.lent[:size]

    def _free(self, size: int) -> bytearray:
        for known in self._kept:
            if len(known) >= size and getrefcount(known) == REFERENCES_FREE:
                return known
        made = bytearray(-size % KEPT_STEP_BYTES + size)
        if len(made) <= KEPT_BYTES_MAX:
            self._kept.append(made)
            del self._kept[:-KEPT_MAX]
        return made


class Place(Protocol):
    """The place of one answer among those of its connection."""

    done: bool
    parts: list[wire.Buffer] | None


class Slot:
    """The place of an answer that is an object until it is sent."""

    __slots__ = ("api", "correlation", "done", "parts", "version")

    def __init__(self, api: Api, version: int, correlation: int) -> None:
        self.api = api
        self.version = version
        self.correlation = correlation
        self.parts: list[wire.Buffer] | None = None
        self.done = False


class RequestChannel:
    def __init__(
        self, *, request_bytes_max: int, shared: bytearray | None = None, buffers: Buffers | None = None
    ) -> None:
        """`shared` has READ_BYTES; whoever reads into it calls `filled` before anyone else does."""
        self._buffers = buffers if buffers is not None else Buffers()
        self.request_bytes_max = request_bytes_max
        self._shared = memoryview(shared if shared is not None else bytearray(READ_BYTES))
        self._shared_read = self._shared.toreadonly()
        self._tail = b""  # of the shared buffer: a request that is not yet whole, or less than a size
        self._open: memoryview | None = None  # the large request that is not yet whole
        self._open_bytes = 0  # its size
        self._pages: Block | None = None  # that it is put into, if it is very large
        self._filled = 0
        self._large_bytes = 0  # of the last request with its size, if it was large
        self._ahead = False  # the next bytes are put into a buffer that is lent
        self._slots: deque[Place] = deque()

    @property
    def pending(self) -> int:
        return len(self._slots)

    @property
    def crowded(self) -> bool:
        return len(self._slots) >= PENDING_MAX

    @property
    def filling(self) -> bool:
        """A large request is not yet whole."""
        return self._open is not None

    @property
    def expecting(self) -> bool:
        """What is read now is, or should be, a part of a large request."""
        return self._open is not None or self._ahead

    @property
    def kept_bytes(self) -> int:
        """Memory of requests that are not whole yet."""
        if self._pages is not None:
            return self._pages.kept(self._filled)
        return min(len(self._open), 2 * self._filled) if self._open is not None else len(self._tail)

    def forget(self) -> None:
        """The peer is gone: what it left unfinished is not waited for."""
        if self._pages is not None:
            self._pages.spoil()
        self._open, self._pages, self._tail = None, None, b""

    # -- reading ---------------------------------------------------------------------------------------------------

    def room(self) -> memoryview:
        """Where the next bytes are to be put."""
        if self._open is not None:
            return self._open[self._filled : self._filled + ROOM_BYTES_MAX]
        if self._tail:
            return self._shared[len(self._tail) :]
        self._ahead = self._large_bytes > 0
        return self._buffers.lend(self._large_bytes) if self._ahead else self._shared

    def filled(self, count: int) -> Iterator[memoryview]:
        """Whole requests, without their sizes, now that `count` bytes were put there; take them before the next read.

        One that is writable is the caller's own; the others are gone with the next read.
        """
        if self._open is not None:
            self._filled += count
            if self._filled == self._open_bytes:
                request, self._open, self._pages = self._open, None, None
                yield request
            elif self._filled == len(self._open):
                self._grow()
            return
        view, at, end = self._shared_read, 0, count
        lent = self._buffers.lent if self._ahead else None
        if lent is not None:
            view = lent
            self._ahead = False
        elif self._tail:
            end += len(self._tail)
            self._shared[: len(self._tail)] = self._tail
            self._tail = b""
        while end - at >= SIZE_BYTES:
            size = int.from_bytes(view[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self.request_bytes_max:  # before buffering: a peer must not fill our memory
                raise PeerViolation(f"a request of {size} bytes; the limit is {self.request_bytes_max}")
            after = at + SIZE_BYTES + size
            self._large_bytes = after - at if READ_BYTES < size < KEPT_BYTES_MAX - SIZE_BYTES else 0
            if after > end:
                if size > TAIL_BYTES_MAX:
                    if lent is not None and at == 0 and after <= len(lent):
                        self._open, self._filled = lent[SIZE_BYTES:after], end - SIZE_BYTES
                        self._open_bytes = size
                    else:
                        self._begin(size, view[at + SIZE_BYTES : end])
                    return
                break
            yield view[at + SIZE_BYTES : after]
            at = after
        self._tail = bytes(view[at:end])

    def _begin(self, size: int, first: memoryview) -> None:
        self._open_bytes, self._filled = size, len(first)
        self._open = self._buffer(max(2 * len(first), 2 * TAIL_BYTES_MAX))
        self._open[: self._filled] = first

    def _grow(self) -> None:
        assert self._open is not None
        if self._filled >= PAGED_BYTES_MIN:
            self._pages = Block(self._open_bytes)
            grown = self._pages.view()
        else:
            grown = self._buffer(2 * self._filled)
        grown[: self._filled] = self._open[: self._filled]
        self._open = grown

    def _buffer(self, size: int) -> memoryview:
        size = min(size, self._open_bytes)
        return self._buffers.take(size) if size >= KEPT_STEP_BYTES else memoryview(bytearray(size))

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The same for bytes that were read elsewhere."""
        rest = memoryview(data)
        while len(rest):
            room = self.room()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            yield from self.filled(count)

    # -- answering -------------------------------------------------------------------------------------------------

    def expect(self, slot: Place) -> None:
        """This answer follows all those expected before it."""
        self._slots.append(slot)

    def answer(self, slot: Slot, response: Any) -> int:
        """Returns its size."""
        slot.parts = wire.encode_response(slot.api, slot.version, response, slot.correlation)
        slot.done = True
        return int.from_bytes(slot.parts[0][:4])  # as it says itself

    def ready(self) -> list[wire.Buffer]:
        """Everything that may be sent now: the answers that no earlier one is missing before."""
        slots, ready = self._slots, list[wire.Buffer]()
        while slots and slots[0].done:
            ready += slots.popleft().parts or ()
        return ready
