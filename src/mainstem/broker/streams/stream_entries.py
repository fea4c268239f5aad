"""What the journal says of a stream, so that a start need not look at its messages.

    key = u32 log id;  value = u8 what, then
    1  offsets removed: i64 …          as versions wrote it that did not count with each removal
    2  the first record: i64 offset    likewise
    3  its state: i64 first, i64 last sequence, i64 bytes, i64 counted up to, i64 … removed
    4  where its sources stand (sourcing.py)
    5  what its messages wait for: i64 told of are all below, then of each i64 offset, i64 when it ends;
       −1: the message itself says (schedules)
    6  removed: u32 low bits of `counted up to`, u32 bytes of those below it, i64 …

Bytes are those of messages below `counted up to`, which is never beyond what is durable: records from there on are looked
at. Each removal says how they change. A start that counted what was removed would enforce the limits once more, on what is
left. A change that is of another count (of a snapshot that was never stored) tells nothing: the start looks at all.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.streams.waits import Wait

if TYPE_CHECKING:
    from mainstem.broker.streams.stream import Stream

REMOVED, FIRST, STATE, SOURCES, WAITS, GONE = b"\1", b"\2", b"\3", b"\4", b"\5", b"\6"
COUNT_EVERY = 10_000  # messages: so many more are looked at after kill -9, and those of a second
WAITS_AT_ONCE = 500  # in one entry
_OFFSET = struct.Struct(">q")
_STATE = struct.Struct(">qqqq")
_GONE = struct.Struct(">II")
U32_MAX = (1 << 32) - 1


class Counted(NamedTuple):
    """What is known of a stream's messages without looking at them."""

    bytes: int = 0
    end: int = 0  # of those counted


def state_entry(stream: Stream, removed: Iterable[int]) -> bytes:
    """Its state, with what was removed and is not journaled."""
    counted = min(stream.end, stream.last_seq)
    last_seq = stream.last_seq if stream.written <= counted else counted
    size = max(0, stream.stored_bytes - stream.sizes.sum_from(counted))
    stream.counted = Counted(size, counted)
    return STATE + _STATE.pack(stream.first, last_seq, size, counted) + _packed(array("q", removed))


def gone_entry(stream: Stream, removed: Iterable[int], size: int) -> bytes:
    """There is one with each ack of a workqueue, so it is short."""
    if size > U32_MAX:
        return state_entry(stream, removed)
    return GONE + _GONE.pack(stream.counted.end & U32_MAX, size) + _packed(array("q", removed))


def waits_entries(waits: list[Wait], end: int) -> Iterator[bytes]:
    """With what was told before, these are all below `end`."""
    for at in range(0, len(waits) or 1, WAITS_AT_ONCE):
        some = waits[at : at + WAITS_AT_ONCE]
        told_end = end if at + WAITS_AT_ONCE >= len(waits) else some[-1][0]
        yield WAITS + _packed(array("q", (told_end, *chain.from_iterable(some))))


def apply_entry(stream: Stream, value: bytes) -> None:
    what, body = value[:1], value[1:]
    if what == STATE:
        first, last_seq, size, counted = _STATE.unpack_from(body)
        stream.first, stream.last_seq = max(stream.first, first), max(stream.last_seq, last_seq)
        stream.counted = Counted(size, counted)
        stream.removed.add(_unpacked(body[_STATE.size :]))
    elif what == GONE:
        stream.removed.add(_unpacked(body[_GONE.size :]))
        (low_bits, gone), (size, end) = _GONE.unpack_from(body), stream.counted
        stream.counted = Counted(max(0, size - gone), end) if low_bits == end & U32_MAX else Counted()
    elif what == REMOVED:
        stream.removed.add(_unpacked(body))
        stream.counted = Counted()
    elif what == FIRST:
        stream.first = max(stream.first, _OFFSET.unpack(body)[0])
        stream.counted = Counted()
    elif what == SOURCES:
        stream.sourcing.apply(body)
    elif what == WAITS:
        told_end, *numbers = _unpacked(body)
        stream.waits.recovered(told_end, zip(numbers[::2], numbers[1::2], strict=True))


def _packed(offsets: array[int]) -> bytes:
    offsets.byteswap()
    return offsets.tobytes()


def _unpacked(data: bytes) -> array[int]:
    offsets = array("q")
    offsets.frombytes(data)
    offsets.byteswap()
    return offsets
